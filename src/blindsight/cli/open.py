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
    """Check the signature and every file of what was shared, and say what it holds.

    That may be a release of photos, or the folder of a model, a metric, statistics or sketches.

    Nothing in the folder is used before it was checked. Then search it with blindsight search, or
    open its search.html in a browser.
    """
    from blindsight.app.release import open_shared

    result = open_shared(folder, fingerprint=fingerprint)
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
    copy: Annotated[
        list[str] | None, typer.Option(help="An id whose photo you decided to hand over.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New folder for copies of the photos given by --copy.")
    ] = None,
    json: Json = False,
) -> None:
    """Show which photos a request asks for. Nothing is sent; you decide what to hand over.

    With --copy and --out, copies of the photos that you chose are put into a new folder, which you
    send yourself.
    """
    from blindsight.app.release import answer_request, hand_over

    if (out is None) != (not copy):
        raise typer.BadParameter("--copy and --out go together: give both.")
    if out is not None:
        for path in hand_over(request, release, copy or [], out, vault=vault):
            console.print(str(path), highlight=False, markup=False, soft_wrap=True)
        return
    result = answer_request(request, release, vault=vault)
    if json:
        emit_json(result.to_dict())
    else:
        console.print(str(result), highlight=False, markup=False)
