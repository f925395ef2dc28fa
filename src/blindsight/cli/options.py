"""Options and ways of parsing that several verbs have, each defined once."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

__all__ = ["ActorOption", "LedgerOption", "MakeByDefault", "PurposeOption"]

#: Charge a ledger.
LedgerOption = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        envvar="BLINDSIGHT_LEDGER",
        help="Charge this ledger (a file or a postgresql:// address) before anything is released.",
    ),
]
#: Who asks for a release.
ActorOption = Annotated[
    str | None,
    typer.Option(
        "--actor",
        envvar="BLINDSIGHT_ACTOR",
        help="Who asks for the release; kept in the ledger (default: the system's user).",
        show_default=False,
    ),
]
#: What a release is for.
PurposeOption = Annotated[
    str,
    typer.Option(
        "--purpose",
        help="What the release is for; kept in the ledger.",
        show_default=False,
    ),
]


class MakeByDefault(TyperGroup):
    """A group of verbs in which `GROUP FOLDER OUT` means `GROUP make FOLDER OUT`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["make", *args]
        return super().parse_args(ctx, args)
