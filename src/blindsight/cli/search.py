"""`blindsight search RELEASE QUERY.jpg`: the most similar photos, as a table, JSON or a page."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from blindsight.cli.terminal import console, emit_json, show_files, table

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("search")(search_index)


def search_index(
    index: Annotated[Path, typer.Argument(help="An index made by blindsight protect.")],
    queries: Annotated[
        list[Path] | None,
        typer.Argument(help="Photos to look for, or a folder of them.", metavar="[QUERY]..."),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Option("--words", help='Look for what words say: "dog on a beach". May be repeated.'),
    ] = None,
    like: Annotated[
        list[str] | None, typer.Option(help="Look for what is like this stored photo (its id).")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="The encoder that the index was made with, where it is not built in."),
    ] = None,
    vector: Annotated[
        Path | None,
        typer.Option(help="Look for vectors of the index's model: a .npy, .npz or .parquet file."),
    ] = None,
    text_embeddings: Annotated[
        Path | None,
        typer.Option(
            help="With --words on an index of vectors: names and their vectors, from the model's "
            "text side."
        ),
    ] = None,
    dictionary: Annotated[
        Path | None,
        typer.Option(help="With --words in another language: a file of lines `word = English`."),
    ] = None,
    k: Annotated[int, typer.Option("-k", help="How many hits.")] = 12,
    rerank: Annotated[
        int | None,
        typer.Option(
            help="The owner's way: take this many candidates and order them by the photos "
            "themselves."
        ),
    ] = None,
    inside: Annotated[
        str | None,
        typer.Option(
            "--in", help="Only photos whose name begins so: a subfolder, say trips/2024/."
        ),
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"], help="Only photos taken on this day or later (YYYY-MM-DD)."
        ),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="Only photos taken on this day or before."),
    ] = None,
    radius: Annotated[
        int | None,
        typer.Option(help="All photos within this Hamming distance; for flipped codes only."),
    ] = None,
    ranking: Annotated[
        str,
        typer.Option(help="soft (finds what looks alike) or distance (finds the very same photo)."),
    ] = "soft",
    min_probability: Annotated[
        float | None,
        typer.Option(
            help="Only hits that are a match, or relevant, with at least this probability."
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a contact sheet: one page, thumbnails inside.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where the photos are, for the owner (default: where they were)."),
    ] = None,
    vault: Annotated[
        Path | None,
        typer.Option(
            help="The owner's vault, which knows the photos' names (default: INDEX.vault)."
        ),
    ] = None,
    milvus: Annotated[
        str | None,
        typer.Option(
            help="Search on Milvus at this URI; a collection that is not there yet is filled."
        ),
    ] = None,
    collection: Annotated[str, typer.Option(help="The Milvus collection.")] = "blindsight",
    token: Annotated[
        str,
        typer.Option(
            envvar="BLINDSIGHT_MILVUS_TOKEN",
            help="user:password or API key of Milvus.",
            show_default=False,
        ),
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Find the photos of an index that look like a query.

    The query stays on this machine and carries no noise.
    """
    from blindsight.app.search import search

    result = search(
        index,
        queries,
        text=words,
        encoder=encoder,
        vector=vector,
        text_embeddings=text_embeddings,
        dictionary=dictionary,
        like=like,
        k=k,
        rerank=rerank,
        inside=inside,
        since=since and since.date(),
        until=until and until.date(),
        radius=radius,
        ranking=ranking,
        min_probability=min_probability,
        html=html,
        photos=folder,
        vault=vault,
        milvus=milvus,
        collection=collection,
        token=token,
    )
    if json:
        emit_json(result.to_dict())
        return
    for query in result:
        if query.interpretation is not None:
            sentence = f"“{query.query}”: {query.interpretation.removesuffix('.')}."
            console.print(sentence, markup=False)
    for query in result:
        if (notice := query.notice()) is not None:
            console.print(notice, markup=False)
        if query.hits:
            shown = query.table(result.match_word)
            table(shown.title, shown.columns, shown.rows)
    for line in result.explanations():
        console.print(line, markup=False)
    if html is not None:
        console.print(f"contact sheet: {html}", markup=False)
    show_files(result.files)
