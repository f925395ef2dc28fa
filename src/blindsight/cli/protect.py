"""`blindsight protect` and `blindsight watch`: turn photos into noisy codes."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from blindsight.cli.options import (
    ActorOption,
    LargeEpsilonOption,
    LedgerOption,
    PurposeOption,
    unit_name,
)
from blindsight.cli.terminal import (
    console,
    emit_json,
    errors,
    show_card,
    show_files,
    stage_bar,
    table,
    visible,
)

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add `protect`, its former name `hash`, and `watch` to the command line."""
    app.command("protect")(protect)
    app.command("hash", hidden=True)(protect)
    app.command("watch")(watch)


def protect(
    out: Annotated[
        Path, typer.Option("--out", help="The folder to share: a new one, or one to continue.")
    ],
    folder: Annotated[
        Path | None, typer.Argument(help="The photos; subfolders are searched too.")
    ] = None,
    embeddings: Annotated[
        Path | None,
        typer.Option(
            "--embeddings",
            help="Instead of photos: vectors computed from them (.npy, .npz, .parquet, with ids).",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="With --embeddings: the model's name (default: the file's)."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="codebook (default), phashing-itq, phashing-sh or phashing-lsh."),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Budget per unit (default 8).")] = None,
    large_epsilon: LargeEpsilonOption = False,
    unit: Annotated[
        str | None,
        typer.Option(callback=unit_name, help="photo (also called record, default) or bit."),
    ] = None,
    calibration: Annotated[str | None, typer.Option(help="proven (default) or paper.")] = None,
    cells: Annotated[
        int | None, typer.Option(help="With codebook: the number of cells (default: by budget).")
    ] = None,
    bits: Annotated[
        int | None, typer.Option(help="With phashing: bits of a code (default: by budget).")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            "--encoder",
            "--features",
            help="lite2 (default where installed), lite0, lite0-reduced (camera photos), both, "
            "pixels, a folder of ONNX files, or hub:owner/model@commit.",
        ),
    ] = None,
    fast: Annotated[
        bool,
        typer.Option("--fast", help="Use the small network: four times as fast, less accurate."),
    ] = False,
    own_names: Annotated[
        str | None,
        typer.Option(
            "--about",
            help="Public words for what the photos show: 'forest, glacier, sea', or a file.",
        ),
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(
            help="Public pictures like the photos: a folder (best: a subfolder per class), or a "
            "set's name."
        ),
    ] = None,
    public_embeddings: Annotated[
        Path | None,
        typer.Option(
            "--public-embeddings", help="Public vectors of the same model, instead of --public."
        ),
    ] = None,
    check_first: Annotated[
        bool,
        typer.Option(
            "--check-first",
            help="Estimate the quality of search on some of the photos, not on public pictures.",
        ),
    ] = False,
    accept_chance: Annotated[
        bool,
        typer.Option(
            "--accept-chance",
            help="Release even if search is expected to be no better than chance.",
        ),
    ] = False,
    first_page: Annotated[
        bool | None,
        typer.Option(
            "--first-page", help="More cells: better first ten hits, worse order of the rest."
        ),
    ] = None,
    prior: Annotated[
        float | None, typer.Option(help="Prior probability that a photo matches a query (0.01).")
    ] = None,
    ledger: LedgerOption = None,
    dataset: Annotated[
        str | None, typer.Option(help="The photos' name in the ledger (default: the folder's).")
    ] = None,
    actor: ActorOption = None,
    purpose: PurposeOption = "",
    vault: Annotated[
        Path | None,
        typer.Option(
            help="The folder that you keep private: key, names, history (default: OUT.vault)."
        ),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove the codes of deleted photos, for good.")
    ] = False,
    names: Annotated[
        str | None, typer.Option(help="random ids (default), or keep: the photos' own names.")
    ] = None,
    people: Annotated[
        str | None,
        typer.Option(
            "--people",
            "--person",
            help="The person of each photo: folder (first subfolder), dicom (PatientID), "
            "FILE.csv:COLUMN, or none.",
        ),
    ] = None,
    max_per_person: Annotated[
        int | None,
        typer.Option("--most", help="With --people: most images of one person (default 1)."),
    ] = None,
    thumbnails: Annotated[
        bool,
        typer.Option("--thumbnails", help="Keep small pictures in the vault, for contact sheets."),
    ] = False,
    new_release: Annotated[
        bool,
        typer.Option(
            "--new-release",
            help="Start again after the vault was lost: all photos are released again.",
        ),
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Fixed noise, for trials: marked as a simulation.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(help="Workers that share the work: local, or a Ray cluster's address."),
    ] = None,
    page: Annotated[
        bool,
        typer.Option(help="Write search.html, which searches the release in any browser."),
    ] = True,
    link: Annotated[
        bool,
        typer.Option("--link", help="Let receivers see that your releases come from one owner."),
    ] = False,
    card: Annotated[
        bool, typer.Option("--card", help="Print the whole privacy card, not four lines of it.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Turn a folder of photos into noisy codes that can be searched without the photos.

    Run it again after the folder has changed, or after it was stopped: a photo keeps its code when
    it is moved, renamed, copied or restored, and is charged once. The result is two folders: OUT to
    share, and a vault to keep private.
    """
    from blindsight.app.protect import protect as protect_photos

    with stage_bar() as progress:
        result = protect_photos(
            folder,
            out,
            embeddings=embeddings,
            model=model,
            epsilon=epsilon,
            ledger=ledger,
            dataset=dataset,
            actor=actor,
            purpose=purpose,
            vault=vault,
            encoder=encoder,
            fast=fast,
            public=public,
            public_embeddings=public_embeddings,
            own_names=own_names,
            check_first=check_first,
            accept_chance=accept_chance,
            people=people,
            max_per_person=max_per_person,
            names=names,  # type: ignore[arg-type]  # checked there
            method=method,
            unit=unit,
            calibration=calibration,
            cells=cells,
            bits=bits,
            first_page=first_page,
            prior=prior,
            prune=prune,
            thumbnails=thumbnails,
            new_release=new_release,
            seed=seed,
            workers=ray,
            page=page,
            link=link,
            progress=progress,
        )
    if json:
        emit_json(result.to_dict())
        return
    if card:
        table("Privacy card: each code", ("field", "value"), result.guarantee.rows())
    elif result.created:  # a continued release has its card in card.json
        show_card(result.short_card())
    for name, reason in result.counts.refused:
        words = reason if reason.startswith(name) else f"{name}: {reason}"
        errors.print(visible(f"Left out: {words}"), markup=False, soft_wrap=True)
    console.print("\n".join(result.sentences()), markup=False)
    if not result.recipe.of_vectors:
        show_files(result.files)


def watch(
    folder: Annotated[Path, typer.Argument(help="The photos; subfolders are watched too.")],
    out: Annotated[
        Path, typer.Option("--out", help="The folder to share: a new one, or one to continue.")
    ],
    epsilon: Annotated[float | None, typer.Option(help="Budget per photo (default 8).")] = None,
    large_epsilon: LargeEpsilonOption = False,
    encoder: Annotated[str | None, typer.Option(help="As in protect.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="The small network.")] = False,
    ledger: LedgerOption = None,
    dataset: Annotated[
        str | None, typer.Option(help="The photos' name in the ledger (default: the folder's).")
    ] = None,
    actor: ActorOption = None,
    purpose: PurposeOption = "",
    vault: Annotated[
        Path | None, typer.Option(help="The folder that you keep private (default: OUT.vault).")
    ] = None,
    people: Annotated[
        str | None,
        typer.Option(
            "--people", help="The person of each photo: folder, dicom, FILE:COLUMN, none."
        ),
    ] = None,
    max_per_person: Annotated[
        int | None, typer.Option("--most", help="With --people: most images of one person.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Machine-readable output when it ends.")
    ] = False,
) -> None:
    """Protect the photos of a folder, and new ones as they arrive, until you press Ctrl-C.

    Every run is charged like `protect`, before anything is released. The log holds counts and no
    names.
    """
    from blindsight.app.watch import watch as watch_folder

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    result = watch_folder(
        folder,
        out,
        epsilon=epsilon,
        ledger=ledger,
        dataset=dataset,
        actor=actor,
        purpose=purpose,
        vault=vault,
        encoder=encoder,
        fast=fast,
        people=people,
        max_per_person=max_per_person,
        stop=stop,
        report=lambda run: errors.print(str(run), markup=False, soft_wrap=True),
    )
    if json:
        emit_json(result.to_dict())
        return
    console.print(result.title, markup=False)
    for label, text in result.facts():
        console.print(f"{label}: {text}", markup=False)
    show_files(None if result.last is None else result.last.files)
