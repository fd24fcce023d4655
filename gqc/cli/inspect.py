"""``gqc inspect``: write what the passes do with a model, to read."""

from __future__ import annotations

import warnings
from typing import Any

import click

from gqc.cli.command import Command
from gqc.cli.load import PolicyOption, Reference, ReferenceType, load_example, load_model, policy_help, policy_of


@click.command(cls=Command)
@click.argument("model", type=ReferenceType())
@click.option("--example", type=ReferenceType(), help="Gives an example call; default: example_inputs of MODEL's file.")
@click.option("-o", "--output", required=True, type=click.Path(file_okay=False), help="The folder to write.")
@click.option("--eval", "evaluate", is_flag=True, help="Call the model as model.eval() does, not as in training.")
@click.option("--set", "options", multiple=True, type=PolicyOption(), help=policy_help())
def inspect(
    model: Reference,
    example: Reference | None,
    output: str,
    evaluate: bool,
    options: tuple[tuple[str, Any], ...],
) -> None:
    """Write what each pass does with the model that MODEL makes: programs, diffs, reasons and a page that draws it.

    MODEL is path/to/file.py:function, where the function takes nothing and returns a torch.nn.Module. The example is a
    function that returns a tuple of arguments, a dict of keyword arguments, or both.
    """
    from gqc.dump.inspect import write_dump

    policy = policy_of(options)
    args, kwargs = load_example(example or Reference(model.path, "example_inputs"))
    module = load_model(model).train(not evaluate)
    with warnings.catch_warnings(record=True) as caught:
        page = write_dump(module, args, output, kwargs=kwargs, policy=policy)  # what it raises repeats its warnings
    for warning in caught:
        click.echo(f"{warning.category.__name__}: {warning.message}", err=True)
    click.echo(f"open {page}")
