"""A command that shows an error in one line, and its traceback only if asked."""

from __future__ import annotations

from typing import Any

import click


class Command(click.Command):
    """A command with the option ``--traceback``; any exception ends it with exit code 1."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        help_text = "Show the Python traceback of an error."
        self.params.append(click.Option(["--traceback"], is_flag=True, help=help_text))

    def invoke(self, ctx: click.Context) -> Any:
        show = ctx.params.pop("traceback")
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if show:
                raise
            what = str(error).strip() or type(error).__name__
            named = what if type(error).__module__.startswith("gqc.") else f"{type(error).__name__}: {what}"
            raise click.ClickException(f"{named} (--traceback shows more)") from error
