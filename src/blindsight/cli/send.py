"""`blindsight send`: release statistics with a proof, and train a classifier from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blindsight.app.defaults import DELTA, SEND_ENCODER, SEND_EPSILON, SEND_IMAGES_PER_PERSON
from blindsight.cli.options import (
    ActorOption,
    LargeEpsilonOption,
    LedgerOption,
    MakeByDefault,
    PurposeOption,
)
from blindsight.cli.terminal import (
    console,
    emit_json,
    notes,
    print_result,
    show_card,
    show_shared,
    stage_bar,
)

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verbs of `send` to the command line."""
    verbs = typer.Typer(
        cls=MakeByDefault,
        no_args_is_help=True,
        help="Share statistics of images with a privacy proof (send FOLDER OUT), from which others "
        "train a classifier (send fit).",
    )
    verbs.command("make")(make)
    verbs.command("predict")(predict)
    verbs.command("fit")(fit)
    app.add_typer(verbs, name="send")


def make(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            help="Images: a folder with a subfolder per class, or a known set such as mnist.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write and share.")],
    epsilon: Annotated[
        float, typer.Option(help="Privacy budget per image and label, or per person.")
    ] = SEND_EPSILON,
    large_epsilon: LargeEpsilonOption = False,
    delta: Annotated[float, typer.Option(help="Delta, below 1 / (number of images).")] = DELTA,
    classes: Annotated[
        str | None,
        typer.Option(help="The classes, a,b,c: public names. By default those of the subfolders."),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="A table that names each image's class; needs --classes.")
    ] = None,
    head: Annotated[
        bool,
        typer.Option(
            "--head",
            help="Train a classifier here and share it: about a point better, but it cannot be "
            "merged with those of others.",
        ),
    ] = False,
    encoder: Annotated[
        str,
        typer.Option(
            help="lite0-224, lite2, gradients (for handwriting), pixels, a folder of ONNX files."
        ),
    ] = SEND_ENCODER,
    public: Annotated[
        str | None,
        typer.Option(
            help="Public everyday pictures: a folder or a known set; about a point better."
        ),
    ] = None,
    picture_size: Annotated[
        int | None,
        typer.Option(help="Side of small images in pixels; public pictures are shrunk to it."),
    ] = None,
    person: Annotated[
        str | None,
        typer.Option(
            help="The person of each image: folder, dicom or FILE.csv:COLUMN. Protects people."
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            help="With --person: about how many images a person has (default "
            f"{SEND_IMAGES_PER_PERSON}).",
            min=1,
        ),
    ] = None,
    all_images: Annotated[
        int | None,
        typer.Option(
            help="Images of all senders together, where statistics will be merged.", min=1
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(help="train or test, for known sets.")] = None,
    ledger: LedgerOption = None,
    dataset: Annotated[
        str | None, typer.Option(help="The data set's name in the ledger (default: the folder's).")
    ] = None,
    vault: Annotated[
        Path | None, typer.Option(help="Folder of the key of the noise (default: beside OUT).")
    ] = None,
    actor: ActorOption = None,
    purpose: PurposeOption = "",
    seed: Annotated[
        int | None, typer.Option(help="Fixed noise, for trials: marked as a simulation.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write over another release in OUT.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Release noisy class sums, counts and second moments of image features.

    The accuracy that a receiver can expect is predicted first; if it is too low, nothing is
    charged. The same command again gives the same file and costs nothing.
    """
    from blindsight.app.send import send_statistics

    with notes(), stage_bar() as progress:
        sent = send_statistics(
            source,
            out,
            epsilon=epsilon,
            delta=delta,
            classes=classes,
            labels=labels,
            kind="head" if head else "statistics",
            encoder=encoder,
            public=public,
            picture_size=picture_size,
            people=person,
            images_per_person=most,
            senders_images=all_images,
            split=split,
            ledger=ledger,
            dataset=dataset,
            vault=vault,
            actor=actor,
            purpose=purpose,
            random_state=seed,
            force=force,
            progress=progress,
        )
    if json:
        emit_json(sent.to_dict())
        return
    show_card(sent.guarantee.card())
    console.print(str(sent), markup=False, soft_wrap=True)
    show_shared(sent.file)


def predict(
    images: Annotated[int, typer.Argument(help="Number of images.", min=1)],
    classes: Annotated[int, typer.Argument(help="Number of classes.", min=2)],
    epsilon: Annotated[
        float, typer.Option(help="Privacy budget per image and label, or per person.")
    ] = SEND_EPSILON,
    delta: Annotated[float, typer.Option(help="Delta.")] = DELTA,
    most: Annotated[
        int, typer.Option(help="Images of a person, where people are protected.", min=1)
    ] = 1,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Predict the accuracy of a classifier from statistics; nothing is read or charged."""
    from blindsight.app.send import predict_sending

    expected = predict_sending(
        images, classes, epsilon=epsilon, delta=delta, images_per_person=most
    )
    if json:
        emit_json(
            {
                "level": expected.level,
                "accuracy": expected.accuracy,
                "noiseless": expected.noiseless,
                "chance": expected.chance,
                "needed": expected.needed,
                "recommended": expected.recommended,
            }
        )
        return
    console.print(expected.line(), markup=False, soft_wrap=True)


def fit(
    files: Annotated[
        list[Path], typer.Argument(help="Files of `blindsight send`; they are merged.")
    ],
    method: Annotated[str, typer.Option(help="lda or ridge.")] = "lda",
    test: Annotated[
        str | None,
        typer.Option(help="Labelled images to test on: a folder per class, or a known set."),
    ] = None,
    split: Annotated[str | None, typer.Option(help="train or test, for known sets.")] = "test",
    encoder: Annotated[
        str | None, typer.Option(help="The encoder, where it is not a built-in one.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the classifier here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Fit a classifier to the statistics of one or several senders, as a receiver does."""
    from blindsight.app.send import learn_from_statistics

    with stage_bar() as progress:
        learned = learn_from_statistics(
            files,
            method=method,  # type: ignore[arg-type]
            test=test,
            split=split,
            encoder=encoder,
            out=out,
            progress=progress,
        )
    print_result(learned, as_json=json)
