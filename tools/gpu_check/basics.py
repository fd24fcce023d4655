"""Whether the kernels are built and the fragments of matrix instructions lie as they should; what the machine is."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata

import torch

import gqc.runtime.ops  # noqa: F401  registers torch.ops.gqc
from gqc.errors import KernelError
from gqc.runtime import native
from tools.gpu_check.place import Place
from tools.gpu_check.record import Found, attempt

_FORMS = ((False, False), (False, True), (True, False))


def build(place: Place, until: float) -> Found:
    """The machine, the versions and, through the first kernel, whether gqc's code loads."""
    found = Found({"python": platform.python_version(), "torch": torch.__version__, "instructions": native.isa()})
    for name in ("cuda-core", "torch-geometric"):
        found.facts[name] = _version(name)
    if not place.dry:
        properties = torch.cuda.get_device_properties(0)
        found.facts |= {
            "device": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
            "driver": _driver(),
        }
    x = torch.tensor([1.0, -3.0, 2.0])

    def first_kernel() -> None:
        with place.running():
            largest = torch.ops.gqc.absmax(place.to(x)).item()
        if largest != 3.0:
            found.problems.append(f"absmax of [1, -3, 2] is {largest}")

    attempt(found, "first kernel", first_kernel)
    return found


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def fragments(place: Place, until: float) -> Found:
    """Products in which each value of b appears once: a fragment that lies elsewhere puts it in another place."""
    found = Found()
    size = 64 if place.dry else 192
    for trans_a, trans_b in _FORMS:
        what = f"qgemm {'T' if trans_a else 'N'}{'T' if trans_b else 'N'}"
        attempt(found, what, lambda ta=trans_a, tb=trans_b: _probe(place, size, ta, tb))
    return found


def _probe(place: Place, size: int, trans_a: bool, trans_b: bool) -> None:
    row = torch.arange(size)
    a = torch.zeros(size, size, dtype=torch.int8)
    a[row, (5 * row + 3) % size] = (row % 7 + 1).to(torch.int8)
    b = ((31 * row[:, None] + 17 * row) % 251 - 125).to(torch.int8)
    one = torch.ones(())
    arguments = (a.t().contiguous() if trans_a else a, one, b.t().contiguous() if trans_b else b, one)
    with place.running(poisoned=True):
        out = torch.ops.gqc.qgemm(*place.to(arguments), trans_a, trans_b, None, torch.float32)[0].cpu()
    wrong = out != a.float() @ b.float()
    if wrong.any():
        first = tuple(wrong.nonzero()[0].tolist())
        raise KernelError(f"{int(wrong.sum())} of {size * size} elements are wrong, the first is {first}")
