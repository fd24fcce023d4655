"""The command ``gqc``."""

from gqc.cli.main import main

__all__ = ["main"]
