"""The native CPU kernels: loads libgqc_cpu.so once, picks the instruction set, calls through ctypes.

The library is built by ``pip install -e .``, after that incrementally by ``python setup.py build_ext --inplace``.
csrc/common/kernel.h says how to add a kernel.
"""

from __future__ import annotations

import ctypes
import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from gqc.errors import IsaWarning, KernelError, LibraryError

_LIBRARY = Path(__file__).parent / "libgqc_cpu.so"
_BUILD = "build it with `python setup.py build_ext --inplace` in the checkout, or `pip install -e .`"
_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float}

# Arguments of each kernel after `threads`: p pointer, i int64, f float. Those of the CPU do without the number of edges
# or entries that some get: a GPU's grid is planned with it.
SIGNATURES = {
    # graph
    "spmm": "iiiipppppppiip",
    "qspmm": "iiiipppppppippiipp",
    "spmm_pointwise": "iiiippppppipppp",
    "qspmm_pointwise": "iiiippppppppipppp",
    "spmm_cmp": "iiiipppppipp",
    "spmm_cmp_bwd": "iiippppip",
    "spmm_cmp_bwd_src": "iiipppip",
    "sddmm": "iiipppppip",
    "qsddmm": "iiippppppipip",
    "edge_softmax": "iiipppip",
    "edge_softmax_bwd": "iiippppip",
    "gat": "iiipppppppiifpiifpppp",
    "gat_bwd": "iiiippppppppppppppiifpiifppppp",
    "attend": "iippppppfippiipiifpppp",
    "attend_bwd": "iiipppppppppfippppppiipiifpppppp",
    # quantize
    "absmax": "piip",
    "quantize": "piippiiipp",
    "quantize_by_guess": "piippiiipp",
    "quantize_int4": "piiippiiipp",
    "unpack_int4": "piip",
    "dequantize": "ppiip",
    # pack_bits
    "pack_bits": "piiip",
    "unpack_bits": "piiip",
    # compress_rows
    "compress_rows": "piiiiipiippp",
    "decompress_rows": "pppiiiiiip",
    # gemm
    "qgemm": "ppippiiiiiippiippp",
    "quantize_qgemm": "pippiiippppiiiippiippp",
    "qgemm_int8": "ppppiiiiippipiiiippp",
    "qgemm_pointwise": "ppppiiiiipppppiipppp",
    "quantize_qgemm_pointwise": "pipiiippppiiiiipppppiipppp",
    "relu_backward": "piiipp",
    # mm
    "mm": "ppiiiiipiiip",
    "mm_pointwise": "pipiiiipipiiipppp",
    # typed_spmm
    "typed_spmm": "iippppiiippiiipp",
    "typed_spmm_bwd_b": "iipppiipppp",
    "qtyped_spmm": "iippppiiippppipipp",
    "qtyped_spmm_bwd_b": "iipppiippppipp",
    # weighted_sum
    "weighted_sum": "ppipiiiip",
    "weighted_sum_bwd_weights": "pipiiiipp",
    "add_rows": "pipiiiipp",
    # dropout
    "dropout": "piipiifpp",
    "dropout_backward": "piipfp",
    # pointwise
    "pointwise": "ppppp",
    # cross_entropy
    "cross_entropy": "piiippiiipp",
    "cross_entropy_backward": "ppiiippiiiipp",
}

BASES = {"avxvnni": "avx2", "amx": "avx512"}
"""Instruction sets with few kernels of their own, and whose kernels take the place of the others."""

_OUT_OF_MEMORY = b"out of memory"  # csrc/common/kernel.h
_INTERFACE = zlib.crc32(repr(SIGNATURES).encode())
_functions: dict[str, Callable[..., bytes | None]] = {}
_forced_isa: str | None = None


def run(name: str, *arguments: int | float) -> None:
    """Call a kernel on the current thread count of torch.

    Args:
        name: a key of :data:`SIGNATURES`.
        arguments: its arguments after ``threads``; tensors as addresses.

    Raises:
        KernelError: if the kernel refuses its arguments.
        LibraryError: if it has no memory, or the library cannot be loaded.
    """
    function = _functions.get(name) or _bind(name)
    refusal = function(torch.get_num_threads(), *arguments)
    if refusal:
        kind = LibraryError if refusal.startswith(_OUT_OF_MEMORY) else KernelError
        raise kind(f"gqc kernel {name}: {refusal.decode()}")


def isa() -> str:
    """Instruction set in use: the best one of this processor, or the one that ``GQC_ISA`` names."""
    return _forced_isa or _chosen_isa()


def isas() -> tuple[str, ...]:
    """Instruction sets that are built and that this processor runs rightly, from the plainest to the best."""
    return tuple(_library().gqc_isas().decode().split())


def wrong_isas() -> dict[str, str]:
    """Instruction sets that this processor claims to run and runs wrongly, each with the kernel that showed it."""
    return dict(word.split(":") for word in _library().gqc_wrong_isas().decode().split())


def multiplies_bf16x3() -> bool:
    """Whether float products in three products of bfloat16 differ from those in float32: tiles multiply bfloat16."""
    return isa() == "amx" and bool(_library().gqc_multiplies_bf16x3())


@contextmanager
def use_isa(name: str) -> Iterator[None]:
    """Run kernels of another instruction set inside the context (for tests; not thread-safe)."""
    global _forced_isa
    before, _forced_isa = _forced_isa, _checked(name)
    _functions.clear()
    try:
        yield
    finally:
        _forced_isa = before
        _functions.clear()


def _bind(name: str) -> Callable[..., bytes | None]:
    symbol = _symbol(name)
    missing = missing_kernels() or ([] if symbol else [name])
    if missing:  # in an older library the arguments of other kernels may be others too
        raise LibraryError(f"{_LIBRARY} has no kernel {missing[0]!r}: it is older than the sources; {_BUILD}")
    function = getattr(_library(), symbol)
    function.argtypes = [ctypes.c_int64, *(_TYPES[letter] for letter in SIGNATURES[name])]
    function.restype = ctypes.c_char_p
    _functions[name] = function
    return function


def _symbol(name: str) -> str:
    """The function of a kernel for the instruction set in use, or for that below it if it has none of its own."""
    sets = (isa(), BASES.get(isa(), isa()))
    return next((s for s in (f"gqc_{name}_{each}" for each in sets) if hasattr(_library(), s)), "")


def missing_kernels() -> list[str]:
    """Kernels of :data:`SIGNATURES` that the library does not have for the instruction set in use."""
    return [name for name in SIGNATURES if not _symbol(name)]


def library_path() -> Path:
    """The library beside this file or, in a checkout where none was built, that of the installed gqc."""
    if _LIBRARY.exists():
        return _LIBRARY
    installed = [Path(str(d.locate_file(f"gqc/runtime/{_LIBRARY.name}"))) for d in metadata.distributions(name="gqc")]
    return next((path for path in installed if path.exists()), _LIBRARY)


@cache
def _library() -> ctypes.CDLL:
    # torch is imported above, so its OpenMP runtime is there first and the library shares its threads.
    try:
        library = ctypes.CDLL(str(library_path()))
    except OSError as error:
        raise LibraryError(f"gqc's native library cannot be loaded ({error}): {_BUILD}") from error
    # With other arguments than it was built for, a kernel would write where it should not.
    if not hasattr(library, "gqc_wrong_isas") or library.gqc_interface() & 0xFFFFFFFF != _INTERFACE:
        raise LibraryError(f"{library_path()} is older than the sources, or newer: {_BUILD}")
    library.gqc_isas.restype = library.gqc_wrong_isas.restype = ctypes.c_char_p
    return library


@cache
def _chosen_isa() -> str:
    name = os.environ.get("GQC_ISA")
    chosen = _checked(name) if name else isas()[-1]
    for wrong, kernel in wrong_isas().items():
        warnings.warn(
            f"this processor runs {wrong} wrongly, by a test of the kernel {kernel}; gqc runs {chosen}",
            IsaWarning,
            stacklevel=2,
        )
    return chosen


def _checked(name: str) -> str:
    if name not in isas():
        raise LibraryError(f"GQC_ISA={name!r}: this processor and build have {', '.join(isas())}; choose one of them")
    return name
