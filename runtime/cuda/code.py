"""The machine code of csrc/cuda: from the fatbin that the installation built or, without one, by NVRTC on first use.

NVRTC comes with every CUDA build of torch. What it makes is kept on disk by cuda.core, for the GPU and the sources that
it was made of.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from cuda.bindings import driver
from cuda.core import Device, Kernel, ObjectCode, Program, ProgramOptions
from cuda.core.utils import FileStreamProgramCache, make_program_cache_key

from gqc.errors import KernelError, LibraryError
from gqc.runtime.cuda.fatbin import split
from gqc.runtime.cuda.origin import FATBIN, fatbin, routes, sources


def load(device: Device) -> dict[str, Kernel]:
    """All kernels by name, each loaded into the context of a device, so that none needs loading in a CUDA graph.

    Args:
        device: the current one.

    Raises:
        LibraryError: there is no code for this device, with what was tried.
    """
    problems = []
    for route in routes():
        try:
            codes = _from_fatbin() if route == FATBIN else _from_sources(device.arch)
            return {name: kernel for code in codes for name, kernel in _kernels(code)}
        except Exception as error:  # cuda.core's own is derived from nothing else
            problems.append(f"{route}: {error}")
    raise LibraryError(f"gqc has no CUDA kernels for {device.name} (sm_{device.arch}). {'; '.join(problems)}")


def _from_fatbin() -> list[ObjectCode]:
    return [ObjectCode.from_fatbin(part) for part in split(fatbin().read_bytes())]


def _from_sources(arch: str) -> list[ObjectCode]:
    folder = sources()
    headers = hashlib.sha256()
    for header in sorted((folder / "cuda").glob("*.cuh")):
        headers.update(header.read_bytes())
    with FileStreamProgramCache() as cache:  # several at a time are no faster: NVRTC holds a lock
        return [_compile(file, arch, headers.digest(), cache) for file in sorted((folder / "cuda").glob("*.cu"))]


def _compile(file: Path, arch: str, headers: bytes, cache: FileStreamProgramCache) -> ObjectCode:
    """The machine code of one source, from the cache where it holds that.

    Args:
        file: csrc/cuda/<family>.cu.
        arch: compute capability, as in "90".
        headers: digest of the files that it includes.
        cache: is asked first.

    Raises:
        KernelError: NVRTC refuses the source, with its messages.
    """
    code = file.read_text()
    include = str(file.parent.parent)
    options = ProgramOptions(name=file.name, arch=f"sm_{arch}", std="c++17", fma=False, include_path=[include])
    key = make_program_cache_key(code=code, code_type="c++", options=options, target_type="cubin", extra_digest=headers)
    cubin = cache.get(key)
    if cubin is None:
        try:
            made = Program(code, "c++", options).compile("cubin")
        except Exception as error:
            raise KernelError(f"{file.name}: {error}") from error
        cubin = cache[key] = bytes(made.code)
    return ObjectCode.from_cubin(cubin, name=file.name)


def _kernels(code: ObjectCode) -> Iterator[tuple[str, Kernel]]:
    library = driver.CUlibrary(int(code.handle))
    (number,) = _checked(driver.cuLibraryGetKernelCount(library))
    (handles,) = _checked(driver.cuLibraryEnumerateKernels(number, library))
    for handle in handles:
        (function,) = _checked(driver.cuKernelGetFunction(handle))
        _checked(driver.cuFuncLoad(function))
        (name,) = _checked(driver.cuKernelGetName(handle))
        yield name.decode(), code.get_kernel(name.decode())


def _checked(answer: tuple[object, ...]) -> Sequence[object]:
    status, *results = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(re.sub(r"<CUresult\.(\w+).*", r"\1", repr(status)))
    return results
