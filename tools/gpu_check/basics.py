"""Whether the kernels are built and the fragments of matrix instructions lie as they should; what the machine is."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from itertools import product

import torch
from torch import Tensor

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
    """Products whose result tells apart every value of b: a fragment that lies elsewhere puts one in another place.

    In each way in which kernels hold operands and results: int8 and packed, quantized as they are read or written.
    """
    found = Found()
    size = 64 if place.dry else 192
    for trans_a, trans_b in _FORMS:
        form = f"{'T' if trans_a else 'N'}{'T' if trans_b else 'N'}"
        probe = _Probe(place, size, trans_a, trans_b)
        for what, check in (("qgemm", probe.int8), ("qgemm_int8", probe.int8_written), ("qgemm_int4", probe.int4)):
            attempt(found, f"{what} {form}", check)
        if not trans_a:
            attempt(found, f"quantize_qgemm {form}", probe.quantized)
    return found


class _Probe:
    """A matrix a with one value in each row and column, and matrices b.

    Args:
        place: where products are computed.
        size: rows and columns of all matrices.
        trans_a: hand over the transposed of a.
        trans_b: likewise.
    """

    def __init__(self, place: Place, size: int, trans_a: bool, trans_b: bool) -> None:
        self.place, self.trans_a, self.trans_b = place, trans_a, trans_b
        row = torch.arange(size)
        self.number = row[:, None] * size + row  # of an element
        self.picked = (5 * row + 3) % size
        self.factors = row % 7 + 1
        self.distinct = ((31 * row[:, None] + 19 * row) % 255 - 127).to(torch.int8)  # in a row and in a column

    def int8(self) -> None:
        a, b = self._given(self._a(self.factors), self.distinct)
        with self.place.running(poisoned=True):
            out = torch.ops.gqc.qgemm(a, self._one(), b, self._one(), self.trans_a, self.trans_b, None, torch.float32)
        self._compare(out[0], self.factors[:, None] * self.distinct[self.picked])

    def int8_written(self) -> None:
        """Values up to 127, whose scale is 1."""
        a, b = self._given(self._a(1), self.distinct)
        form, rest = (self.trans_a, self.trans_b), (None, None, False, None, 0, 8, False, torch.float32)
        with self.place.running(poisoned=True):
            q, scale, _ = torch.ops.gqc.qgemm_int8(a, self._one(), b, self._one(), *form, *rest)
        self._compare(q, self.distinct[self.picked], scale)

    def quantized(self) -> None:
        """A float a with a scale of 1."""
        a, b = self._given(self._a(self.factors), self.distinct)
        largest = self.place.to(torch.tensor(127.0))
        rest = (None, None, False, torch.float32)
        with self.place.running(poisoned=True):
            out, _, q, scale, _ = torch.ops.gqc.quantize_qgemm(
                a.float(), largest, None, 0, 8, False, b, self._one(), self.trans_b, *rest
            )
        self._compare(out, self.factors[:, None] * self.distinct[self.picked], scale)
        self._compare(q, self._a(self.factors))

    def int4(self) -> None:
        """As 4 bits hold 15 values, a matrix for each digit of an element's number; on the GPU's way and, dry, both."""
        capabilities = ((8, 0), (9, 0)) if self.place.dry else ((9, 0),)
        for capability, digit in product(capabilities, range(4)):
            values = (self.number // 15**digit % 15 - 7).to(torch.int8)
            a, b = (self._packed(x) for x in self._given(self._a(1), values))
            width = len(values)
            operands = (a, self._one(), width, b, self._one(), width)
            with self.place.running(poisoned=True, capability=capability):
                out, _ = torch.ops.gqc.qgemm_int4(*operands, self.trans_a, self.trans_b, None, torch.float32)
            self._compare(out, values[self.picked])

    def _a(self, factors: Tensor | int) -> Tensor:
        a = torch.zeros_like(self.distinct)
        a[torch.arange(len(a)), self.picked] = torch.as_tensor(factors, dtype=torch.int8)
        return a

    def _given(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        a, b = (x.t().contiguous() if transposed else x for x, transposed in ((a, self.trans_a), (b, self.trans_b)))
        return self.place.to((a, b))

    def _packed(self, x: Tensor) -> Tensor:
        low, high = (x[:, i::2].view(torch.uint8) & 15 for i in (0, 1))
        return low | high << 4

    def _one(self) -> Tensor:
        return self.place.to(torch.ones(()))

    def _compare(self, out: Tensor, expected: Tensor, scale: Tensor | None = None) -> None:
        wrong = out.cpu().float() != expected.float()
        if wrong.any():
            first = tuple(wrong.nonzero()[0].tolist())
            raise KernelError(f"{int(wrong.sum())} of {wrong.numel()} elements are wrong, the first is {first}")
        if scale is not None and scale.item() != 1:
            raise KernelError(f"the scale is {scale.item()} and should be 1")
