"""How fast rows of a table are read in the order in which a graph's edges need them, if nothing is done with them."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from csrc.build import compiler

AHEAD = (8, 16, 32, 64)
"""How many entries before its use a row is asked for; which is best depends on the machine and on the row's length."""


def readers(table: Tensor, rows: Tensor) -> dict[int, Callable[[], object]]:
    """Calls that read ``table[rows]``, by how far they look ahead.

    Args:
        table: ``[N, ...]``, contiguous; the first 8 bytes of each 64 of a row are read, and one byte of shorter rows.
        rows: ``[E]`` int32.
    """
    nbytes, kernel = table[0].nbytes, _kernel()
    arguments = table.data_ptr(), nbytes, rows.data_ptr(), len(rows)
    return {ahead: lambda ahead=ahead: kernel(torch.get_num_threads(), *arguments, ahead) for ahead in AHEAD}


@cache
def _kernel() -> Callable[..., int]:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "random_rows.so")
        source = Path(__file__).with_suffix(".cpp")
        flags = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-shared")
        subprocess.run([*compiler(), *flags, str(source), "-o", str(library)], check=True)
        function = ctypes.CDLL(str(library)).random_rows
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes, function.restype = [number, pointer, number, pointer, number, number], ctypes.c_uint64
    return function
