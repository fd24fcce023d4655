"""Reads gqc_cuda.fatbin, a concatenation of nvcc's fatbins, one a source, each with code for several architectures."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gqc.errors import KernelError

_MAGIC = 0xBA55ED50
_HEADER = struct.Struct("<IHHQ")  # magic number, version, size of this header, size of the entries
_ENTRY = struct.Struct("<HHIQ12xI")  # kind, version, size of this header, size of the code, architecture
_KINDS = {1: "compute", 2: "sm"}  # PTX, machine code


def split(fatbins: bytes) -> list[bytes]:
    """The fatbins of a file.

    Raises:
        KernelError: it holds something else.
    """
    parts, start = [], 0
    while start < len(fatbins):
        header = fatbins[start : start + _HEADER.size].ljust(_HEADER.size, b"\0")
        magic, _, header_size, size = _HEADER.unpack(header)
        end = start + header_size + size
        if magic != _MAGIC or end > len(fatbins):
            raise KernelError(f"the file is damaged at byte {start}: build it again")
        parts.append(fatbins[start:end])
        start = end
    return parts


def architectures(fatbins: bytes) -> list[str]:
    """What all fatbins of a file have code for, as in ``["sm_80", "sm_90", "compute_90"]``."""
    held = [dict.fromkeys(_entries(part)) for part in split(fatbins)]
    return [name for name in held[0] if all(name in other for other in held)] if held else []


def _entries(part: bytes) -> Iterator[str]:
    _, _, start, _ = _HEADER.unpack_from(part)
    while start < len(part):
        kind, _, header_size, size, architecture = _ENTRY.unpack_from(part, start)
        if kind in _KINDS:
            yield f"{_KINDS[kind]}_{architecture}"
        start += header_size + size
