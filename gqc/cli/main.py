"""The commands of ``gqc`` and their exit codes: 0 it worked, 1 it did not, 2 it was called wrongly."""

from __future__ import annotations

from importlib import metadata

import click

from gqc.cli.doctor import doctor
from gqc.cli.inspect import inspect
from gqc.cli.rewrite import rewrite


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(metadata.version("gqc"), prog_name="gqc")
def main() -> None:
    """Train unmodified GNN models with quantized primitives.

    Exit codes: 0 it worked, 1 it did not, 2 the command was called wrongly.
    """


main.add_command(rewrite)
main.add_command(inspect)
main.add_command(doctor)
