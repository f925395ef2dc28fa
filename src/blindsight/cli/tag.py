"""`blindsight tag`: train a tagger on labelled photos, start one from words, tag photos."""

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
    """Add the verbs."""
    verbs = typer.Typer(
        help="Tags of photos: `tag start WORDS` or `tag train FOLDER`, then `tag apply MODEL "
        "IMAGES...`.",
        no_args_is_help=True,
    )
    verbs.command("start")(start)
    verbs.command("train")(train)
    verbs.command("apply")(apply)
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
        float, typer.Option(help="In all, per training photo; 0 trains without privacy.")
    ] = TAGGER_EPSILON,
    large_epsilon: LargeEpsilonOption = False,
    delta: Annotated[float, typer.Option(help="Below one over the number of photos.")] = DELTA,
    public: Public = None,
    publish: Annotated[
        float | None,
        typer.Option(
            help="For publishing tags of private photos: noise at this epsilon per photo."
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

    About one photo in five is held out, and the quality of the tagger is measured on these photos,
    for you alone.

    With a ledger or a vault, the same training run again, also after a crash, gives the same model
    and is charged once.
    """
    from blindsight.app.train_tagger import train_tagger

    with notes(), stage_bar() as progress:
        made = train_tagger(
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
    _say_uncharged(made.charged)
    _report(made, card, json)


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
    """Start from words alone: public knowledge about these labels, no photo of yours, epsilon 0."""
    from blindsight.app.train_tagger import start_tagger

    with stage_bar() as progress:
        made = start_tagger(words, public=public, encoder=encoder, out=out, progress=progress)
    _report(made, card, json)


def apply(
    model: Annotated[Path, typer.Argument(help="A tagger that `train` or `start` wrote.")],
    images: Annotated[list[Path], typer.Argument(help="Photos, or folders of photos.")],
    as_csv: Annotated[
        bool, typer.Option("--csv", help="As labels.csv: correct it and train again.")
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

    Answers with noise (`train --publish`) are released once per photo, stored in the vault, and
    charged once in all.

    A photo then has the same tags whenever it is asked about, also if it was moved, renamed or
    copied.
    """
    from blindsight.app.result import counted
    from blindsight.app.tag import tag, tag_format

    if out is not None:
        tag_format(out, format)
    with notes(), stage_bar() as progress:
        found = tag(
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
    if found.answer_guarantee is not None:
        _say_uncharged(found.charged)
    for path, reason in found.unreadable:
        errors.print(visible(f"left out {path}: {reason}"), markup=False)
    written = [] if out is None else found.save(out, format=format)
    if json:
        emit_json(found.to_dict())
    elif out is not None:
        tagged = counted(len(found.images), "photo")
        console.print(f"Tags of {tagged} in {visible(str(out))}", markup=False)
        console.print(f"({counted(len(written), 'file')}). {found.price}", markup=False)
    elif as_csv:
        _write_csv(found)
    else:
        answers = found.tables()[0]
        table(answers.title, answers.columns, answers.rows)
        console.print(found.price, markup=False)
    if not json:
        show_files(found.files, err=as_csv)


def _write_csv(found: Tags) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("image", "labels"))
    writer.writerows((item.image, ";".join(item.tags)) for item in found.images)


def _say_uncharged(charged: bool) -> None:
    if not charged:
        errors.print("No ledger was named (--ledger), so nothing was charged to any budget.")


def _report(made: TrainedTagger, card: bool, json: bool) -> None:
    for sentence in made.warnings():
        errors.print(visible(sentence), markup=False)
    if json:
        emit_json(made.to_dict())
        return
    if card:
        table("Privacy card: training", ("field", "value"), made.guarantee.rows())
        if made.answer_guarantee is not None:
            table("Privacy card: each answer", ("field", "value"), made.answer_guarantee.rows())
    console.print(str(made), markup=False, soft_wrap=True)
    if made.quality is not None and made.quality.learning_curve:
        curve = made.quality.learning_curve
        console.print(f"  mAP step by step  {_sparkline(curve)}", markup=False)


def _sparkline(values: tuple[float, ...]) -> str:
    low, high = min(values), max(values)
    span = max(high - low, 1e-9)
    return "".join(_BARS[min(7, int(8 * (value - low) / span))] for value in values)
