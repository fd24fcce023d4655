"""gqc: train unmodified GNN models with quantized primitives."""

from pathlib import Path

_root = Path(__file__).resolve().parent.parent
if not (_root / "gqc" / "passes").exists() and (_root / "passes" / "report.py").exists():
    # Started in a checkout: the folders passes/ and runtime/ stand beside gqc/, an installed gqc holds them inside.
    __path__.append(str(_root))

from gqc.compat import install as _install_dgl_finder  # noqa: E402

_install_dgl_finder()
