"""`blindsight`: the verbs, and what happens when one fails.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | a claim was refuted, by an audit or a check; no other error has this code |
| 2 | bad usage or input |
| 3 | the privacy budget would be exceeded; nothing was released |
| 4 | data or an optional package is missing |
| 5 | the operating system refused: no such file, no permission, disk full, no memory |
| 70 | a mistake in Blindsight; the details are in a file that the message names |
| 130 | stopped by Ctrl-C |
| 141 | the reader of the output has gone |
"""

from __future__ import annotations

import errno
import importlib
import inspect
import os
import sqlite3
import sys
import tempfile
import traceback
import warnings
from typing import Annotated

from blindsight.app.hosting import limit_threads

limit_threads()

import click  # noqa: E402
import typer  # noqa: E402
from click.utils import PacifyFlushWrapper  # noqa: E402
from typer.models import DefaultPlaceholder  # noqa: E402

from blindsight.cli.options import (  # noqa: E402
    EXAMPLES,
    FIRST,
    OFFLINE_HELP,
    RENAMED,
    TeachingCommand,
    TeachingGroup,
    config_defaults,
    present_name,
)
from blindsight.cli.terminal import BROKEN_PIPE, errors, visible  # noqa: E402
from blindsight.core.errors import (  # noqa: E402
    BlindsightError,
    BudgetExceeded,
    MissingData,
    MissingDependency,
    UnchargedRelease,
)

__all__ = ["EXIT_CODES", "INTERNAL_ERROR", "SYSTEM_ERROR", "app", "run"]

EXIT_CODES = {BudgetExceeded: 3, MissingData: 4, MissingDependency: 4, BlindsightError: 2}
SYSTEM_ERROR = 5
INTERNAL_ERROR = 70

VERBS = (
    "demo",
    "data",
    "encoder",
    "protect",
    "watch",
    "search",
    "open",
    "answer",
    "index",
    "federate",
    "compare",
    "send",
    "sketch",
    "train",
    "tag",
    "audit",
    "budget",
    "serve",
    "workbench",
    "licences",
)
# The modules of this folder that define the verbs.
_MODULES = (
    "demo",
    "data",
    "protect",
    "search",
    "federate",
    "compare",
    "send",
    "sketch",
    "tag",
    "audit",
    "budget",
    "serve",
    "licences",
)
# The extras that a verb needs beyond the core; the message about a missing package names them all.
EXTRAS = {
    "protect": "encoders",
    "budget": "core",
    "index": "core",
    "encoder": "encoders",
    "watch": "watch",
    "demo": "samples,encoders,words,compiled,plots",
    "federate": "federated",
    "compare": "metric",
    "send": "encoders",
    "sketch": "sketching",
    "train": "torch",
    "tag": "torch",
    "audit": "compiled,plots",
    "serve": "workbench",
    "workbench": "workbench",
}
#: Libraries of the extra `core`, without which a receiver's installation can open and search.
CORE_LIBRARIES = frozenset({"faiss", "randomgen", "scipy", "sklearn", "sqlalchemy"})
_CODES = (
    "Exit codes: 0 done, 1 a claim was refuted, 2 bad usage or input, 3 no budget, 4 something is "
    "missing, 5 the operating system refused, 70 a mistake in Blindsight."
)


class _InOrder(TeachingGroup):
    """Lists the verbs in the order of VERBS, not commands first and groups after."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [verb for verb in VERBS if verb in self.commands]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read `help VERB` as `VERB --help`."""
        if args and args[0] == "help":
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; for a typo, suggest present names and no former ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            message = error.format_message()
            for former, present in RENAMED.items():
                message = message.replace(f"'{former}'", f"'{present}'")
            raise click.UsageError(message, ctx) from None


app = typer.Typer(
    name="blindsight",
    cls=_InOrder,
    help="Learn from images, and search them, without anyone seeing them.",
    epilog=_CODES,
    invoke_without_command=True,
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
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    offline: Annotated[
        bool,
        typer.Option("--offline", help=OFFLINE_HELP),
    ] = False,
) -> None:
    """Learn from images, and search them, without anyone seeing them."""
    if offline:
        os.environ["BLINDSIGHT_OFFLINE"] = "1"
    verb = context.invoked_subcommand
    if verb is None:
        typer.echo(FIRST)
        return
    if verb in RENAMED:
        _say(f"note: '{verb}' is now called '{RENAMED[verb]}'.")
    root = context.command
    stored = config_defaults(root) if isinstance(root, click.Group) else None
    if stored is not None:
        path, context.default_map = stored
        _say(f"note: defaults come from {visible(str(path))}.")


def _teach(verbs: typer.Typer, path: str) -> list[str]:
    """Add examples to the help of every verb and group, and return the first of each."""
    verbs.suggest_commands = False  # click itself already writes "Did you mean"
    listed: list[str] = []
    for command in verbs.registered_commands:
        name = f"{path} {command.name or getattr(command.callback, '__name__', '')}".strip()
        command.cls = TeachingCommand
        examples = list(EXAMPLES.get(present_name(name), ()))
        command.help = _flowing(command.help or inspect.getdoc(command.callback) or "")
        command.epilog = _epilog(examples)
        listed += examples[:1]
    for group in verbs.registered_groups:
        name = f"{path} {group.name or ''}".strip()
        inner = [] if group.typer_instance is None else _teach(group.typer_instance, name)
        if group.typer_instance is not None and isinstance(
            group.typer_instance.info.cls, DefaultPlaceholder
        ):
            group.typer_instance.info.cls = TeachingGroup
        group.epilog = _epilog(list(EXAMPLES.get(present_name(name), inner)))
        listed += inner[:1]
    return listed


def _flowing(text: str) -> str:
    """Join the lines of each paragraph, so that it can be wrapped at the terminal's width."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _epilog(examples: list[str]) -> str | None:
    return (
        "\n\n".join(["[bold]Examples[/bold]", *(f"  {line}" for line in examples)])
        if examples
        else None
    )


for _module in _MODULES:
    importlib.import_module(f"blindsight.cli.{_module}").register(app)
_teach(app, "")


def run() -> None:
    """Run a verb; an error of Blindsight becomes one sentence and an exit code."""
    # Verbs state themselves whether a ledger was charged. Other warnings are printed as sentences,
    # without the line of the source.
    warnings.simplefilter("ignore", UnchargedRelease)
    warnings.showwarning = lambda message, *_, **__: _say(f"note: {message}")
    try:
        app()
    except SystemExit:
        if isinstance(sys.stdout, PacifyFlushWrapper):  # click's sign of a broken pipe
            sys.exit(BROKEN_PIPE)
        raise
    except BlindsightError as error:
        code = next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))
        _say(f"blindsight: {error}{_all_extras(error)}")
        sys.exit(code)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in CORE_LIBRARIES:
            _say(f"blindsight: {_unexpected(error)}")
            sys.exit(INTERNAL_ERROR)
        extras = EXTRAS.get(sys.argv[1] if len(sys.argv) > 1 else "", "core")
        _say(
            f"blindsight: {missing} is not installed. Install it with: "
            f"pip install 'blindsight[{extras}]'."
        )
        sys.exit(EXIT_CODES[MissingDependency])
    except KeyboardInterrupt:
        _say("blindsight: stopped.")
        sys.exit(130)
    except Exception as error:
        refusal = _refused_by_system(error)
        _say(f"blindsight: {refusal or _unexpected(error)}")
        sys.exit(SYSTEM_ERROR if refusal else INTERNAL_ERROR)


def _say(text: str) -> None:
    typer.echo(errors.fitted(text), err=True)


def _unexpected(error: Exception) -> str:
    """Write the details of an unexpected error to a file that only its owner can read.

    The message of the error is not printed, because the terminal may be recorded, and the message
    may contain names of files, labels or other private values.

    Returns:
        The sentence to print.
    """
    kind = type(error).__name__
    try:
        handle, path = tempfile.mkstemp(prefix="blindsight-error-", suffix=".txt")  # mode 600
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return f"a mistake in Blindsight ended this run ({kind}); the details could not be written."
    return (
        f"a mistake in Blindsight ended this run ({kind}). The details are in {path}, which only "
        "you can read. They may name your files: look through them before you report them."
    )


def _all_extras(error: BlindsightError) -> str:
    """Return a sentence that names all extras of the verb, so that they are installed at once."""
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    extras = EXTRAS.get(verb)
    if not isinstance(error, MissingDependency) or extras is None or f"[{extras}]" in str(error):
        return ""
    return f" All that {verb} needs: pip install 'blindsight[{extras}]'."


def _refused_by_system(error: Exception) -> str | None:
    """Return a sentence about what the operating system refused; None for every other error."""
    if isinstance(error, MemoryError):
        return "there is not enough memory for this. Close other programs, or use fewer photos."
    if isinstance(error, sqlite3.OperationalError):
        return _refused_by_sqlite(error)
    if not isinstance(error, OSError):
        return None
    named = "" if error.filename is None else visible(os.fsdecode(error.filename))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" while {named} was written" if named else ""
        return f"the disk is full{where}. Make room, and run the command again."
    if not named:
        return f"the operating system refused: {error.strerror or type(error).__name__}."
    if isinstance(error, IsADirectoryError):
        return f"{named} is a folder, and a file is needed here. Name the file in it."
    if isinstance(error, NotADirectoryError):
        return f"{named} is not a folder, and one is needed here. Check the path."
    if isinstance(error, FileNotFoundError):
        return f"{named} does not exist. Check the path."
    if isinstance(error, PermissionError):
        return f"{named} may not be read or written by this user. Check its permissions."
    return f"{named}: {error.strerror}."


def _refused_by_sqlite(error: sqlite3.OperationalError) -> str | None:
    """Return the sentence for a refusal by the operating system that SQLite reports."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return "the disk is full. Make room, and run the command again."
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN):
        return (
            "a database of the vault or the ledger may not be opened or written by this user. "
            "Check the permissions of its folder."
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "a database is used by another process. Wait for it, and run the command again."
    if code == sqlite3.SQLITE_IOERR:
        return "a database could not be read or written. Check the disk: it may be full or damaged."
    return None
