"""``gqc rewrite``: write a compiled model down as a Python file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gqc.cli.command import Command
from gqc.cli.load import PolicyOption, Reference, ReferenceType, load_example, load_model, policy_help, policy_of
from gqc.runtime.rewritten import MODES


@click.command(cls=Command)
@click.argument("model", type=ReferenceType())
@click.option("--example", type=ReferenceType(), help="Gives an example call; default: example_inputs of MODEL's file.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), default="-", help="The file to write; - is stdout.")
@click.option(
    "--mode",
    "modes",
    multiple=True,
    default=("train", "eval"),
    show_default=True,
    type=click.Choice(list(MODES.values())),
    help="A way of calling the model that is written down; may be repeated.",
)
@click.option("--set", "options", multiple=True, type=PolicyOption(), help=policy_help())
def rewrite(
    model: Reference,
    example: Reference | None,
    output: str,
    modes: tuple[str, ...],
    options: tuple[tuple[str, Any], ...],
) -> None:
    """Write the model that MODEL makes down as a module that trains without tracing.

    MODEL is path/to/file.py:function, where the function takes nothing and returns a torch.nn.Module. The example is a
    function that returns a tuple of arguments, a dict of keyword arguments, or both.
    """
    import gqc

    policy = policy_of(options)
    args, kwargs = load_example(example or Reference(model.path, "example_inputs"))
    source = gqc.rewrite(load_model(model), args, kwargs, policy, modes=modes, source=str(model))
    if output == "-":
        click.echo(source, nl=False)
        return
    Path(output).write_text(source)
    click.echo(f"wrote {output}: {len(source.splitlines())} lines, for {' and '.join(dict.fromkeys(modes))}", err=True)
