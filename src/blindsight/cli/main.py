"""`blindsight`: the verbs, and what happens when one fails.

Exit codes: 0 done; 1 an audit refuted a claim; 2 bad usage or input; 3 the privacy budget would be exceeded;
4 data or an optional package is missing; 70 a mistake of ours.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Annotated, Any

from blindsight.core import threads

threads.limit()

import typer  # noqa: E402
from typer.core import TyperGroup  # noqa: E402

from blindsight.core.errors import (  # noqa: E402
    BlindsightError,
    BudgetExceeded,
    MissingData,
    MissingDependency,
)

__all__ = ["EXIT_CODES", "app", "run"]

EXIT_CODES = {BudgetExceeded: 3, MissingData: 4, MissingDependency: 4, BlindsightError: 2}

VERBS = (
    "demo",
    "data",
    "hash",
    "search",
    "index",
    "federate",
    "metric",
    "sketch",
    "train",
    "tag",
    "audit",
    "ledger",
    "serve",
)


class _InOrder(TyperGroup):
    """Lists the verbs as VERBS does, not commands first and groups after."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [verb for verb in VERBS if verb in self.commands]


app = typer.Typer(
    name="blindsight",
    cls=_InOrder,
    help="Learn from images, and search them, without anyone getting to see them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        from blindsight import __version__

        typer.echo(f"blindsight {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Learn from images, and search them, without anyone getting to see them."""


for _verb in VERBS:
    if importlib.util.find_spec(f"blindsight.cli.{_verb}") is not None:
        importlib.import_module(f"blindsight.cli.{_verb}").register(app)


def run() -> None:
    """The entry point: run a verb; an error of ours becomes one sentence and an exit code."""
    try:
        app()
    except BlindsightError as error:
        code = next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
        typer.echo(f"blindsight: {error}", err=True)
        sys.exit(code)
    except KeyboardInterrupt:
        typer.echo("blindsight: stopped.", err=True)
        sys.exit(130)
