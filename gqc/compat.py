"""DGL 2.1.0 on a current torch.

DGL's core needs nothing from a particular torch release, but ``dgl.graphbolt`` (its newer data loader) loads a
library compiled for one, and ``import dgl`` fails when there is none. :func:`install` puts a finder in front of
Python's import system that replaces ``dgl.graphbolt`` by a stand-in if, and only if, its library is missing. Neither
DGL nor torch is imported here, so ``import gqc`` stays fast and works without DGL.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from gqc.errors import GqcError

GRAPHBOLT = "dgl.graphbolt"

# What `import dgl` needs, by the name of the import; DGL's own metadata leaves out some of them.
REQUIREMENTS = {
    "networkx": "networkx",
    "packaging": "packaging",
    "pandas": "pandas",
    "psutil": "psutil",
    "requests": "requests",
    "scipy": "scipy",
    "tqdm": "tqdm",
}


class DGLMissing(GqcError, ModuleNotFoundError):
    """DGL, or a package that ``import dgl`` needs, is not installed."""


class GraphBoltUnavailable(GqcError, ImportError):
    """Something from ``dgl.graphbolt`` was used, but its library does not exist for this torch."""


def install() -> None:
    """Make ``import dgl`` work on the torch that is installed; does nothing if DGL is imported already."""
    if "dgl" not in sys.modules and not any(isinstance(finder, _DGLFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _DGLFinder())


def require_dgl() -> ModuleType:
    """Import and return DGL.

    Raises:
        DGLMissing: DGL or one of the packages it needs is not installed; the message says what to install.
    """
    if "dgl" not in sys.modules and importlib.util.find_spec("dgl") is None:
        raise DGLMissing(
            "DGL is not installed, and this part of gqc works on DGL graphs: "
            "install it with `pip install 'gqc[dgl]'` (PyG and plain torch models need no DGL)",
            name="dgl",
        )
    return importlib.import_module("dgl")


class _DGLFinder(importlib.abc.MetaPathFinder):
    """Wraps the loader of ``dgl`` and replaces ``dgl.graphbolt`` where its library is missing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "dgl":
            spec = importlib.machinery.PathFinder.find_spec(fullname, path)
            if spec is not None and spec.loader is not None:
                spec.loader = _DGLLoader(spec.loader)
            return spec
        parent = sys.modules.get(GRAPHBOLT)
        if fullname == GRAPHBOLT:
            reason = _why_no_graphbolt(path)
        elif fullname.startswith(GRAPHBOLT + ".") and isinstance(parent, _StandInModule):
            reason = parent._reason
        else:
            return None
        if reason:
            return importlib.machinery.ModuleSpec(fullname, _StandInLoader(reason), is_package=True)
        return None


class _DGLLoader(importlib.abc.Loader):
    """Loads DGL after checking what it needs, with PyTorch as its backend."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        missing = [package for name, package in REQUIREMENTS.items() if importlib.util.find_spec(name) is None]
        if missing:
            raise DGLMissing(
                f"DGL is installed, but `import dgl` needs {', '.join(missing)}: "
                f"run `pip install {' '.join(missing)}` (or `pip install 'gqc[dgl]'`, which brings all it needs)",
                name=missing[0],
            )
        # Without a choice in the environment DGL prints a notice and writes a file into the user's home.
        os.environ.setdefault("DGLBACKEND", "pytorch")
        self._loader.exec_module(module)


class _StandInLoader(importlib.abc.Loader):
    def __init__(self, reason: str) -> None:
        self._reason = reason

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandInModule(spec.name, self._reason)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _StandInModule(ModuleType):
    """``dgl.graphbolt`` without its library: any name can be read and tested against, none can be used."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self._reason = reason

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        message = f"{self.__name__}.{name} cannot be used: {self._reason}"
        standin = _StandInType(name, (), {"__module__": self.__name__, "__doc__": message, "_message": message})
        setattr(self, name, standin)
        return standin


class _StandInType(type):
    """A class without instances: ``isinstance`` is False; calling, subclassing or reading from it raises."""

    _message: str

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, object]) -> type:
        for base in bases:
            if isinstance(base, _StandInType):
                base._refuse()
        return super().__new__(mcls, name, bases, namespace)

    def _refuse(cls) -> NoReturn:
        raise GraphBoltUnavailable(cls._message, name=GRAPHBOLT)

    def __call__(cls, *args: object, **kwargs: object) -> NoReturn:
        cls._refuse()

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        cls._refuse()


def _why_no_graphbolt(dgl_path: Sequence[str] | None) -> str:
    """The reason why DGL's GraphBolt cannot be loaded here, "" if it can."""
    import torch

    version = torch.__version__.split("+", maxsplit=1)[0]
    libraries = [
        library for folder in dgl_path or () for library in Path(folder).glob("graphbolt/*graphbolt_pytorch_*")
    ]
    compiled_for = sorted(library.stem.rpartition("_")[2] for library in libraries)
    if version in compiled_for:
        return ""
    install_one = f"`pip install torch=={compiled_for[-1]}`" if compiled_for else "a DGL release that brings it"
    return (
        f"DGL's GraphBolt is compiled for torch {', '.join(compiled_for) or '(none)'}, and this is torch {version}. "
        f"To use GraphBolt install {install_one}; everything else of DGL, such as dgl.dataloading, works as it is"
    )
