"""``gqc doctor``: what gqc finds on this machine, and whether its kernels compute what they should."""

from __future__ import annotations

import importlib
import os
import platform
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click
import torch

from gqc.cli.command import Command
from gqc.cli.self_test import FAMILIES, run_family
from gqc.cost import machine, tune
from gqc.errors import KernelError, TuneWarning
from gqc.runtime import native
from gqc.runtime.cuda import origin
from gqc.runtime.cuda.fatbin import architectures


@click.command(cls=Command)
@click.option(
    "--tune", "measures", is_flag=True, help="Measure what primitives cost here; compiled models use it from then on."
)
def doctor(measures: bool) -> None:
    """Print versions, instruction sets, the native code, threads and GPUs, and test every kernel on each.

    The exit code is 1 if the library cannot be loaded or a kernel fails.
    """
    for title, value in (*_versions(), *_processor(), *_gpu_code()):
        click.echo(f"{title:12} {value}")
    failed = False
    for title, value, good in _library():
        failed |= not good
        click.echo(f"{title:12} {value}")
    if not failed:
        for line in _costs(measures):
            click.echo(f"{'costs':12} {line}")
    for device in ("cpu", *_usable_gpus()):
        click.echo(f"kernels against their references, on {device}:")
        for family in FAMILIES:
            problem = run_family(family, device)
            failed |= problem is not None
            click.echo(f"  {family:12} {'ok' if problem is None else f'FAILED: {problem}'}")
    if failed:
        click.echo("Something FAILED: see above.")
        raise click.exceptions.Exit(1)
    click.echo("All is well.")


def _versions() -> Iterator[tuple[str, str]]:
    yield "gqc", f"{metadata.version('gqc')} in {Path(native.__file__).parent.parent}"
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "torch", torch.__version__
    for title, module in (("DGL", "dgl"), ("PyG", "torch_geometric")):
        yield title, _library_version(module)


def _library_version(module: str) -> str:
    try:
        return str(importlib.import_module(module).__version__)
    except ImportError as error:
        return f"not usable: {str(error).splitlines()[0]}"


def _processor() -> Iterator[tuple[str, str]]:
    yield "processor", machine.processor()
    yield "threads", f"{torch.get_num_threads()} of {os.cpu_count()}; OMP_NUM_THREADS={_variable('OMP_NUM_THREADS')}"
    yield "OpenMP", ", ".join(_openmp_libraries()) or "no runtime library is loaded"


def _gpu_code() -> Iterator[tuple[str, str]]:
    """Where kernels for GPUs come from, and on which GPUs they can run here."""
    try:
        tried = origin.routes()
    except KernelError as error:
        yield "GPU code", str(error)
        return
    texts = {origin.FATBIN: _describe_fatbin, origin.NVRTC: lambda: f"by NVRTC from {origin.sources() / 'cuda'}"}
    yield "GPU code", "; else ".join(texts[route]() for route in tried)
    version = _core_version()
    yield "cuda-core", version or "not installed: pip install 'gqc[cuda]' for GPUs"
    if torch.cuda.is_available():
        names = [f"{torch.cuda.get_device_name(i)} ({_capability(i)})" for i in range(torch.cuda.device_count())]
        yield "CUDA", f"{torch.version.cuda}, {', '.join(names)}"
    else:
        why = "this torch is built without it" if torch.version.cuda is None else "torch finds no usable device"
        yield "CUDA", f"not used: {why}"


def _describe_fatbin() -> str:
    file = origin.fatbin()
    try:
        code = file.read_bytes()
        return f"{', '.join(architectures(code))} in {file} ({len(code) >> 10} KiB)"
    except (OSError, KernelError) as error:
        return f"not usable: {error}"


def _core_version() -> str | None:
    try:
        return metadata.version("cuda-core")
    except metadata.PackageNotFoundError:
        return None


def _capability(device: int) -> str:
    return "sm_{}{}".format(*torch.cuda.get_device_capability(device))


def _usable_gpus() -> list[str]:
    if _core_version() is None or not torch.cuda.is_available():
        return []
    return [f"cuda:{i}" for i in range(torch.cuda.device_count())]


def _variable(name: str) -> str:
    return os.environ.get(name, "(not set)")


def _costs(measures: bool) -> Iterator[str]:
    """The constants in use, measured before if that is asked for, and where they come from."""
    if measures:
        machine.save(tune.measure())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TuneWarning)
        costs, measured = machine.costs(), machine.file().exists()
    for warning in caught:
        yield f"ignored: {warning.message}"
    if measured and not caught:
        yield f"measured, in {machine.file()}"
    else:
        yield f"built in for {native.isa()}; `gqc doctor --tune` measures this machine"
    yield ", ".join(costs.lines())


def _openmp_libraries() -> list[str]:
    """OpenMP runtimes in this process; two of them share no threads."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {line.split()[-1] for line in lines if "/" in line}
    return sorted(p for p in paths if any(name in Path(p).name for name in ("libgomp", "libiomp", "libomp")))


def _library() -> Iterator[tuple[str, str, bool]]:
    try:
        sets = native.isas()
    except KernelError as error:
        yield "library", f"FAILED: {error}", False
        return
    yield "library", str(native.library_path()), True
    try:
        chosen = native.isa()
    except KernelError as error:
        yield "ISA", f"FAILED: {error}", False
        return
    forced = f"forced by GQC_ISA={os.environ['GQC_ISA']}" if os.environ.get("GQC_ISA") else "the best here"
    yield "ISA", f"{chosen} ({forced}); this processor and build have {', '.join(sets)}", True
    for name, kernel in native.wrong_isas().items():
        yield "", f"not {name}, which this processor runs wrongly, by a test of the kernel {kernel}", True
    missing = native.missing_kernels()
    held = len(native.SIGNATURES) - len(missing)
    found = f"FAILED: {', '.join(missing)} are missing: the library is older than gqc" if missing else f"{held} kernels"
    yield "holds", found, not missing
