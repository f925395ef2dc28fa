"""`blindsight search`, `index`, `open` and `answer`: use a release, as receiver or as owner."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from blindsight.cli.terminal import console, emit_json, print_result, show_files, show_tables

__all__ = ["register"]

Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def register(app: typer.Typer) -> None:
    """Add `search`, `index`, `open` and `answer` to the command line."""
    app.command("search")(search_index)
    verbs = typer.Typer(
        help="Show what is in an index, and find near-duplicate photos.", no_args_is_help=True
    )
    verbs.command("show")(show_index)
    verbs.command("duplicates")(duplicates)
    app.add_typer(verbs, name="index")
    app.command("open")(open_folder)
    app.command("answer")(answer)


def search_index(
    index: Annotated[Path, typer.Argument(help="An index made by blindsight protect.")],
    queries: Annotated[
        list[Path] | None,
        typer.Argument(help="Photos to look for, or a folder of them.", metavar="[QUERY]..."),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Option("--words", help='Search with words: "dog on a beach". May be repeated.'),
    ] = None,
    like: Annotated[
        list[str] | None,
        typer.Option(help="Search with a stored photo: its id or, for the owner, its file."),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="The encoder that the index was made with, where it is not built in."),
    ] = None,
    vector: Annotated[
        Path | None,
        typer.Option(
            help="Search with vectors of the index's model: a .npy, .npz or .parquet file."
        ),
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
            help="For the owner: take this many candidates and sort them by the photos themselves."
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
        typer.Option(help="Only hits that match, or are relevant, with at least this probability."),
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
    json: Json = False,
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
            show_tables([query.table(result.match_word, result.noun)])
    for line in result.explanations():
        console.print(line, markup=False)
    if html is not None:
        console.print(f"contact sheet: {html}", markup=False)
    show_files(result.files)


def show_index(
    index: Annotated[Path, typer.Argument(help="An index made by blindsight protect.")],
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            help="Ids or, for the owner, files to look up (default: the first 20).",
            metavar="[ID]...",
        ),
    ] = None,
    vault: Annotated[
        Path | None, typer.Option(help="The owner's vault (default: INDEX.vault).")
    ] = None,
    json: Json = False,
) -> None:
    """Show what is in an index and, for its owner, which photo an id stands for."""
    from blindsight.app.release import release_contents

    result = release_contents(index, ids or (), vault=vault)
    print_result(result, as_json=json)


def duplicates(
    index: Annotated[Path, typer.Argument(help="An index made by blindsight protect.")],
    alike: Annotated[
        float | None,
        typer.Option(
            help="How alike photos must look, 0 to 1 (default 0.8; 1 is the same picture)."
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the photos are (default: where they were).")
    ] = None,
    vault: Annotated[
        Path | None, typer.Option(help="The owner's vault (default: INDEX.vault).")
    ] = None,
    json: Json = False,
) -> None:
    """List photos that are nearly the same, for the owner, by comparing the photos themselves.

    Copies of one file share a code and cost nothing. Photos that are only nearly the same are
    separate records; a person on several of them is protected only with protect --people.
    """
    from blindsight.app.search import find_duplicates

    options = {} if alike is None else {"min_similarity": alike}
    result = find_duplicates(index, photos=folder, vault=vault, **options)
    if json:
        emit_json(result.to_dict())
        return
    for number, group in enumerate(result.groups, start=1):
        console.print(f"{number}. " + "  ".join(", ".join(files) for files in group), markup=False)
    console.print(result.title, markup=False)
    for files in result.copies:
        console.print("copies: " + ", ".join(files), markup=False)


def open_folder(
    folder: Annotated[Path, typer.Argument(help="The folder that the owner shared.")],
    fingerprint: Annotated[
        str | None,
        typer.Option(help="The fingerprint that the owner told you; another key is refused."),
    ] = None,
    json: Json = False,
) -> None:
    """Check the signature and every file of a folder that was shared, and show what it contains.

    The folder may hold a release of photos, a model, a metric, statistics or sketches.

    Nothing in it is used before it is checked. Then search it with blindsight search, or open its
    search.html in a browser.
    """
    from blindsight.app.release import open_shared

    result = open_shared(folder, fingerprint=fingerprint)
    print_result(result, as_json=json)


def answer(
    request: Annotated[Path, typer.Argument(help="The file that the receiver saved.")],
    release: Annotated[Path, typer.Argument(help="The release that the request is about.")],
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

    With --copy and --out, the photos that you chose are copied into a new folder, which you send
    yourself.
    """
    from blindsight.app.release import answer_request, hand_over

    if (out is None) != (not copy):
        raise typer.BadParameter("--copy and --out go together: give both.")
    if out is not None:
        for path in hand_over(request, release, copy or [], out, vault=vault):
            console.print(str(path), highlight=False, markup=False, soft_wrap=True)
        return
    result = answer_request(request, release, vault=vault)
    print_result(result, as_json=json)
