"""`blindsight encoder`: check an encoder of your own, write a built-in one as ONNX files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blindsight.cli.terminal import console, emit_json

__all__ = ["register"]

Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    verbs = typer.Typer(
        help="Encoders of images: check one of your own, export a built-in one.",
        no_args_is_help=True,
    )
    verbs.command("check")(check)
    verbs.command("export")(export)
    app.add_typer(verbs, name="encoder")


def check(
    encoder: Annotated[
        str,
        typer.Argument(
            help="A folder of ONNX files, a file of vectors, hub:owner/model@commit, or a name."
        ),
    ],
    offline: Annotated[bool, typer.Option("--offline", help="Never ask the network.")] = False,
    json: Json = False,
) -> None:
    """Check shapes, preparation on known pictures and speed, and say what an encoder offers.

    The exit code is 2 where something is wrong.
    """
    from blindsight.app.encoders import check_encoder

    result = check_encoder(encoder, offline=offline)
    if json:
        emit_json(result.to_dict())
    else:
        console.print(str(result), highlight=False, markup=False)
    if not result.good:
        raise typer.Exit(2)


def export(
    name: Annotated[str, typer.Argument(help="lite0 or lite2.")],
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    pair: Annotated[
        bool, typer.Option("--pair", help="An image-text pair, laid out as CLIP's exports are.")
    ] = False,
    json: Json = False,
) -> None:
    """Write a built-in network as ONNX files, with the vector of a known picture to check it by."""
    from blindsight.app.encoders import export_encoder

    result = export_encoder(name, folder, pair=pair)
    if json:
        emit_json(result.to_dict())
    else:
        console.print(str(result), highlight=False, markup=False)
