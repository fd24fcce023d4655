"""Tools of this repository, run from its root: ``python -m tools.gpu_check``."""
