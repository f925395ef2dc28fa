"""`blindsight tag`: train a tagger on labelled photos or start one from words, and tag photos."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blindsight.app.defaults import DELTA, TAGGER_EPSILON
from blindsight.cli.options import ActorOption, LargeEpsilonOption, LedgerOption, PurposeOption
from blindsight.cli.terminal import (
    console,
    emit_json,
    errors,
    notes,
    show_files,
    show_shared,
    show_tables,
    stage_bar,
    table,
    visible,
)

if TYPE_CHECKING:
    from blindsight.app.tag import Tags
    from blindsight.app.train_tagger import TrainedTagger

__all__ = ["register"]

Out = Annotated[Path, typer.Option("--out", help="The file of the model.")]
Words = Annotated[
    str | None,
    typer.Option(
        "--vocabulary",
        help="The labels: a file with one per line, or words separated by commas; "
        "tv=television/screen adds other names.",
    ),
]
Public = Annotated[
    Path | None, typer.Option("--public", help="A folder of public photos of any subject.")
]
EncoderPath = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        help="An encoder: lite0, lite2, both, a folder of ONNX files, hub:owner/model@commit, or a "
        "file of vectors by photo.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Card = Annotated[bool, typer.Option("--card", help="Print the whole privacy card.")]
VaultPath = Annotated[
    Path | None,
    typer.Option(
        "--vault",
        help="The folder of the key of the noise, which you keep (default: MODEL.vault).",
        show_default=False,
    ),
]
_BARS = "▁▂▃▄▅▆▇█"


def register(app: typer.Typer) -> None:
    """Add the verbs of `tag` to the command line."""
    verbs = typer.Typer(
        help="Tags of photos: `tag start WORDS` or `tag train FOLDER`, then `tag apply MODEL "
        "IMAGES...`.",
        no_args_is_help=True,
    )
    for verb in (start, train, apply):
        verbs.command(verb.__name__)(verb)
    app.add_typer(verbs, name="tag")


def train(
    source: Annotated[str, typer.Argument(help="A folder of photos, or a data set's name.")],
    labels: Annotated[
        str | None,
        typer.Option(
            help="A table of photos and labels (a;b;c), FILE:COLUMN, folders or keywords."
        ),
    ] = None,
    vocabulary: Words = None,
    epsilon: Annotated[
        float, typer.Option(help="Total epsilon per training photo; 0 trains without privacy.")
    ] = TAGGER_EPSILON,
    large_epsilon: LargeEpsilonOption = False,
    delta: Annotated[float, typer.Option(help="Delta, below 1 / (number of photos).")] = DELTA,
    public: Public = None,
    publish: Annotated[
        float | None,
        typer.Option(
            help="Noise at this epsilon per photo in answers, to publish tags of private photos."
        ),
    ] = None,
    out: Out = Path("tagger.safetensors"),
    features: Annotated[str, typer.Option(help="network or pixels.")] = "network",
    size: Annotated[
        int | None, typer.Option(help="With pixels: photos are scaled to size x size (16).")
    ] = None,
    encoder: EncoderPath = None,
    ledger: LedgerOption = None,
    dataset: Annotated[
        str | None, typer.Option(help="The photos' name in the ledger (default: the folder's).")
    ] = None,
    vault: VaultPath = None,
    actor: ActorOption = None,
    purpose: PurposeOption = "",
    seed: Annotated[
        int | None, typer.Option(help="Fixed noise, for trials: marked as a simulation.")
    ] = None,
    card: Card = False,
    json: Json = False,
) -> None:
    """Train a tagger on labelled photos; epsilon is the total of all that is learned from them.

    About one photo in five is held out, and the quality of the tagger is measured on these photos.
    This measurement is for you only.

    With a ledger or a vault, repeating the same training, also after a crash, gives the same model
    and is charged once.
    """
    from blindsight.app.train_tagger import train_tagger

    with notes(), stage_bar() as progress:
        trained = train_tagger(
            source,
            labels=labels,
            vocabulary=vocabulary,
            epsilon=epsilon,
            delta=delta,
            public=public,
            publish=publish,
            out=out,
            features=features,  # type: ignore[arg-type]
            size=size,
            encoder=encoder,
            ledger=ledger,
            dataset=dataset,
            vault=vault,
            actor=actor,
            purpose=purpose,
            random_state=seed,
            announce=lambda sentence: errors.print(visible(sentence), markup=False),
            progress=progress,
        )
    _say_uncharged(trained.charged)
    _report(trained, card, json)


def start(
    words: Annotated[
        str,
        typer.Argument(
            help="The labels: words separated by commas, or a file with one per line; "
            "tv=television/screen."
        ),
    ],
    public: Public = None,
    encoder: EncoderPath = None,
    out: Out = Path("tagger.safetensors"),
    card: Card = False,
    json: Json = False,
) -> None:
    """Make a tagger from words alone: public knowledge, none of your photos, epsilon 0."""
    from blindsight.app.train_tagger import start_tagger

    with stage_bar() as progress:
        tagger = start_tagger(words, public=public, encoder=encoder, out=out, progress=progress)
    _report(tagger, card, json)


def apply(
    model: Annotated[Path, typer.Argument(help="A tagger that `train` or `start` wrote.")],
    images: Annotated[list[Path], typer.Argument(help="Photos, or folders of photos.")],
    as_csv: Annotated[
        bool,
        typer.Option(
            "--csv", help="Print the format of labels.csv, to correct it and train again."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the tags here: a file, or a folder for XMP sidecars."),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="csv, json, parquet, xmp or label-studio (default: by the ending of --out).",
        ),
    ] = None,
    ids: Annotated[
        bool, typer.Option("--ids", help="Random ids instead of file names, for sharing.")
    ] = False,
    encoder: EncoderPath = None,
    ledger: LedgerOption = None,
    dataset: Annotated[
        str | None, typer.Option(help="The photos' name in the ledger (default: the model's).")
    ] = None,
    vault: VaultPath = None,
    actor: ActorOption = None,
    purpose: PurposeOption = "",
    json: Json = False,
) -> None:
    """Tag photos. Exact answers cost nothing more.

    Answers with noise (`train --publish`) are released and charged once per photo and stored in the
    vault. A photo then always has the same tags, also if it was moved, renamed or copied.
    """
    from blindsight.app.result import counted
    from blindsight.app.tag import tag, tag_format

    if out is not None:
        tag_format(out, format)
    with notes(), stage_bar() as progress:
        tags = tag(
            model,
            images,
            encoder=encoder,
            random_ids=ids,
            ledger=ledger,
            dataset=dataset,
            vault=vault,
            actor=actor,
            purpose=purpose,
            progress=progress,
        )
    if tags.answer_guarantee is not None:
        _say_uncharged(tags.charged)
    for path, reason in tags.unreadable:
        errors.print(visible(f"left out {path}: {reason}"), markup=False)
    written = [] if out is None else tags.save(out, format=format)
    if json:
        emit_json(tags.to_dict())
    elif out is not None:
        tagged = counted(len(tags.images), "photo")
        console.print(f"Tags of {tagged} in {visible(str(out))}", markup=False)
        console.print(f"({counted(len(written), 'file')}). {tags.price}", markup=False)
    elif as_csv:
        _write_csv(tags)
    else:
        show_tables(tags.tables()[:1])
        console.print(tags.price, markup=False)
    if not json:
        show_files(tags.files, err=as_csv)


def _write_csv(tags: Tags) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("image", "labels"))
    writer.writerows((item.image, ";".join(item.tags)) for item in tags.images)


def _say_uncharged(charged: bool) -> None:
    if not charged:
        errors.print("No ledger was named (--ledger), so nothing was charged to any budget.")


def _report(tagger: TrainedTagger, card: bool, json: bool) -> None:
    for sentence in tagger.warnings():
        errors.print(visible(sentence), markup=False)
    if json:
        emit_json(tagger.to_dict())
        return
    if card:
        table("Privacy card: training", ("field", "value"), tagger.guarantee.rows())
        if tagger.answer_guarantee is not None:
            table("Privacy card: each answer", ("field", "value"), tagger.answer_guarantee.rows())
    console.print(str(tagger), markup=False, soft_wrap=True)
    show_shared(tagger.model)
    if tagger.quality is not None and tagger.quality.learning_curve:
        curve = tagger.quality.learning_curve
        console.print(f"  mAP step by step  {_sparkline(curve)}", markup=False)


def _sparkline(values: tuple[float, ...]) -> str:
    low, high = min(values), max(values)
    span = max(high - low, 1e-9)
    return "".join(_BARS[min(7, int(8 * (value - low) / span))] for value in values)
