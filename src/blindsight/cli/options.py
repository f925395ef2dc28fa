"""Options that several verbs have, each defined once."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["ActorOption", "LedgerOption", "PurposeOption"]

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
