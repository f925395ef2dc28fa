"""`blindsight open FOLDER` checks what was received; `blindsight answer` is the owner's side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blindsight.cli.terminal import console, emit_json

__all__ = ["register"]

Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def register(app: typer.Typer) -> None:
    """Add both commands."""
    app.command("open")(open_folder)
    app.command("answer")(answer)


def open_folder(
    folder: Annotated[Path, typer.Argument(help="The folder that the owner shared.")],
    fingerprint: Annotated[
        str | None, typer.Option(help="What the owner told you; another key is refused.")
    ] = None,
    json: Json = False,
) -> None:
    """Check the signature and every file of a release, and say what it holds.

    Nothing in the folder is used before it was checked. Then search it with blindsight search, or
    open its search.html in a browser.
    """
    from blindsight.app.release import open_release

    result = open_release(folder, fingerprint=fingerprint)
    if json:
        emit_json(result.to_dict())
    else:
        console.print(str(result), highlight=False, markup=False)


def answer(
    request: Annotated[Path, typer.Argument(help="The file that the receiver saved.")],
    release: Annotated[Path, typer.Argument(help="The release that it is about.")],
    vault: Annotated[
        Path | None, typer.Option(help="Your vault (default: beside the release).")
    ] = None,
    json: Json = False,
) -> None:
    """Show which photos a request asks for. Nothing is sent; you decide what to hand over."""
    from blindsight.app.release import answer_request

    result = answer_request(request, release, vault=vault)
    if json:
        emit_json(result.to_dict())
    else:
        console.print(str(result), highlight=False, markup=False)
