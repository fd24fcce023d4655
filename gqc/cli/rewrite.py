"""``gqc rewrite``: write a compiled model down as a Python file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from gqc.cli.command import Command
from gqc.cli.load import PolicyOption, Reference, ReferenceType, load_example, load_model, policy_help, policy_of
from gqc.runtime.rewritten import MARK, MODES


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
@click.option("--force", is_flag=True, help="Replace an output file that gqc has not written.")
@click.option("--set", "options", multiple=True, type=PolicyOption(), help=policy_help())
def rewrite(
    model: Reference,
    example: Reference | None,
    output: str,
    modes: tuple[str, ...],
    force: bool,
    options: tuple[tuple[str, Any], ...],
) -> None:
    """Write the model that MODEL makes down as a module that trains without tracing.

    MODEL is path/to/file.py:function, where the function takes nothing and returns a torch.nn.Module. The example is a
    function that returns a tuple of arguments, a dict of keyword arguments, or both.
    """
    import gqc

    policy = policy_of(options)
    if output != "-":
        _check_output(Path(output), [model, *([example] if example else [])], force)
    args, kwargs = load_example(example or Reference(model.path, "example_inputs"))
    source = gqc.rewrite(load_model(model), args, kwargs, policy, modes=modes, source=str(model))
    if output == "-":
        click.echo(source, nl=False)
        return
    Path(output).write_text(source, encoding="utf-8")
    click.echo(f"wrote {output}: {len(source.splitlines())} lines, for {' and '.join(dict.fromkeys(modes))}", err=True)


def _check_output(output: Path, read: Sequence[Reference], force: bool) -> None:
    """Refuse to lose a file of the user's, before anything is compiled.

    Raises:
        click.UsageError: the output cannot be written, is a file that was read, or was not written by gqc.
    """
    if any(output.resolve() == Path(reference.path).resolve() for reference in read):
        raise click.UsageError(f"-o {output} is the file that makes the model: write to another one")
    if not output.parent.is_dir():
        raise click.UsageError(f"-o {output}: there is no folder {output.parent}")
    if output.exists() and not force and MARK not in output.read_text(errors="replace").partition("\n")[0]:
        raise click.UsageError(f"-o {output} exists and was not written by gqc: --force replaces it")
