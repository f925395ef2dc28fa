"""`blindsight sketch` and `blindsight train`: negative-database sketches of images,
attacks on them, and networks trained on them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blindsight.app.defaults import (
    ATTACKED_SKETCHES,
    ATTACKER_STEPS,
    SKETCH_EPOCHS,
    SKETCH_P,
    SKETCH_Q,
    SKETCH_R,
)
from blindsight.cli.options import ActorOption, LedgerOption, MakeByDefault, PurposeOption
from blindsight.cli.terminal import (
    console,
    emit_json,
    notes,
    print_result,
    show_card,
    show_files,
    show_shared,
    show_tables,
    stage_bar,
)
from blindsight.core.errors import InvalidParameter

__all__ = ["register"]

_P = ",".join(f"{value:g}" for value in SKETCH_P)


def register(app: typer.Typer) -> None:
    """Add the verbs of `sketch`, and `train`, to the command line."""
    verbs = typer.Typer(
        cls=MakeByDefault,
        no_args_is_help=True,
        help="Turn images into sketches for a server to train on (sketch FOLDER OUT); attack them "
        "(sketch recover).",
    )
    verbs.command("make")(make)
    verbs.command("recover")(recover)
    app.add_typer(verbs, name="sketch")
    app.command("train")(train)


def make(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            help="Images: a folder (a subfolder per class gives labels), or a known set such as "
            "mnist.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file of sketches to write.")],
    q: Annotated[
        str, typer.Option(help="Q1 to Q12, or q_1,...,q_L for an L-bit image.")
    ] = SKETCH_Q,
    p: Annotated[str, typer.Option(help="Types of records, p_1,...,p_K.")] = _P,
    r: Annotated[float, typer.Option(help="Records per bit.")] = SKETCH_R,
    max_psnr: Annotated[
        float | None, typer.Option(help="Choose q so that no attacker's PSNR exceeds this.")
    ] = None,
    epsilon_per_pixel: Annotated[
        float | None,
        typer.Option(help="Choose q so that the implied epsilon per pixel does not exceed this."),
    ] = None,
    attacker: Annotated[
        str,
        typer.Option(
            help="For --max-psnr: all attackers, or only mean (the paper's) or informed (pixel by "
            "pixel)."
        ),
    ] = "all",
    reference: Annotated[
        str | None,
        typer.Option(help="For --max-psnr: public images of the same size and kind."),
    ] = None,
    flip_epsilon: Annotated[
        float | None, typer.Option(help="Flip bits instead: a proven epsilon per pixel.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="train or test, for known sets.")] = None,
    size: Annotated[int | None, typer.Option(help="Resize to size x size pixels.")] = None,
    grey: Annotated[bool, typer.Option("--grey", help="Turn colour into grey.")] = False,
    seed: Annotated[
        int | None, typer.Option(help="Fixed noise, for trials: marked as a simulation.")
    ] = None,
    vault: Annotated[
        Path | None,
        typer.Option(
            help="Folder for a key that gives each image one sketch, however often it is sent."
        ),
    ] = None,
    ledger: LedgerOption = None,
    dataset: Annotated[str, typer.Option(help="The data set's name in the ledger.")] = "images",
    actor: ActorOption = None,
    purpose: PurposeOption = "",
    unsafe_records: Annotated[
        bool,
        typer.Option(
            "--unsafe-records", help="Also write the first image's records beside OUT, for study."
        ),
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(help="Workers that share the work: local, or a Ray cluster's address."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Delete a finished OUT first: the images are released a second time."
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Write sketches of images into a file, block by block.

    The same command resumes a stopped job; a finished file is not overwritten.
    """
    from blindsight.app.sketch import sketch

    with notes(), stage_bar() as progress:
        sketched = sketch(
            source,
            out,
            q=q if q.startswith("Q") else _numbers("q", q),
            p=_numbers("p", p),
            r=r,
            max_psnr=max_psnr,
            epsilon_per_pixel=epsilon_per_pixel,
            attacker=attacker,  # type: ignore[arg-type]
            reference=reference,
            flip_epsilon=flip_epsilon,
            split=split,
            size=size,
            grey=grey,
            random_state=seed,
            vault=vault,
            ledger=ledger,
            dataset=dataset,
            actor=actor,
            purpose=purpose,
            unsafe_records=unsafe_records,
            ray=ray,
            force=force,
            progress=progress,
        )
    if json:
        emit_json(sketched.to_dict())
        return
    console.print(sketched.title, markup=False)
    show_card(sketched.card)
    if sketched.guarantee is not None:
        console.print("ledger charged." if sketched.charged else "not charged: no --ledger.")
    show_shared(sketched.file)
    if vault is not None:
        console.print(f"Keep private: {vault} (the key of the noise).", markup=False)
    for path in sketched.records:
        console.print(
            f"Keep private: {path} (records of the first image, which reveal it).",
            markup=False,
            soft_wrap=True,
        )
    show_files(sketched.files)


def recover(
    sketches: Annotated[
        Path, typer.Argument(help="A file that `blindsight sketch FOLDER OUT` wrote.")
    ],
    originals: Annotated[
        str | None, typer.Option(help="The original images, to compare with.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="train or test, where originals are a known set.")
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(
            help="Public images of the same kind: adds an attacker that learns from them."
        ),
    ] = None,
    count: Annotated[
        int, typer.Option(help="How many sketches to attack, at most.", min=1)
    ] = ATTACKED_SKETCHES,
    size: Annotated[
        int | None, typer.Option(help="Size to which the originals were resized.")
    ] = None,
    grey: Annotated[
        bool, typer.Option("--grey", help="The originals were turned to grey.")
    ] = False,
    steps: Annotated[
        int,
        typer.Option(help="Training steps of the learning attacker, which bound its time.", min=1),
    ] = ATTACKER_STEPS,
    gallery: Annotated[
        Path | None, typer.Option(help="Draw original and recovered images here (.svg or .png).")
    ] = None,
    settings: Annotated[
        Path | None, typer.Option(help="Draw the originals as recovered with Q1 to Q12 here.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Attack a file of sketches with every attacker, and measure what they recover."""
    from blindsight.app.sketch import recover_sketches

    with stage_bar() as progress:
        recovery = recover_sketches(
            sketches,
            originals=originals,
            split=split,
            public=public,
            count=count,
            size=size,
            grey=grey,
            steps=steps,
            gallery=gallery,
            settings=settings,
            progress=progress,
        )
    if json:
        emit_json(recovery.to_dict())
        return
    console.print(recovery.title, markup=False)
    for label, text in recovery.facts():
        console.print(f"{label}: {text}", markup=False)
    show_tables(recovery.tables())


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidParameter(
            f"{name} must be numbers separated by commas, got {text!r}."
        ) from None


def train(
    sketches: Annotated[
        Path,
        typer.Argument(
            help="A file of sketches with labels, as `blindsight sketch FOLDER OUT` writes it."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Write the model here (safetensors).")] = None,
    test: Annotated[
        Path | None, typer.Option(help="Sketches to test on (default: a tenth is held out).")
    ] = None,
    network: Annotated[
        str,
        typer.Option(
            help="auto (by the images' shape), lenet5, whitened, whitened-wide, resnet or resnet50."
        ),
    ] = "auto",
    inputs: Annotated[
        str | None,
        typer.Option(
            help="both, bits (posteriors of bits) or mean (the paper's) (default: by network)."
        ),
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="adam, sgd or nesterov (default: by network).")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate (default: by network).")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the set.", min=1)] = SKETCH_EPOCHS,
    batch_size: Annotated[
        int | None, typer.Option(help="Sketches per step (default: by network).", min=1)
    ] = None,
    augment: Annotated[
        bool | None,
        typer.Option(
            "--augment/--no-augment", help="Random crops and flips (default: by network)."
        ),
    ] = None,
    onnx: Annotated[Path | None, typer.Option(help="Also export as ONNX.")] = None,
    seed: Annotated[int | None, typer.Option(help="Fixed seed.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Train a network on sketches, without the images."""
    from blindsight.app.train_on_sketches import train_on_sketches

    with stage_bar() as progress:
        trained = train_on_sketches(
            sketches,
            out=out,
            test=test,
            network=network,
            inputs=inputs,
            optimizer=optimizer,
            learning_rate=learning_rate,
            epochs=epochs,
            batch_size=batch_size,
            augment=augment,
            onnx=onnx,
            random_state=seed,
            progress=progress,
        )
    print_result(trained, as_json=json)
