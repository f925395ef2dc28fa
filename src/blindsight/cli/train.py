"""`blindsight train SKETCHES`: train a network on a file of sketches, as the server does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blindsight.app.train_on_sketches import DEFAULT_EPOCHS
from blindsight.cli.terminal import console, emit_json, stage_bar

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("train")(train)


def train(
    sketches: Annotated[
        Path,
        typer.Argument(
            help="A file of sketches with labels, as `blindsight sketch FOLDER OUT` writes it."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Write the model here (safetensors).")] = None,
    test: Annotated[
        Path | None, typer.Option(help="Sketches to test on; else a tenth is held out.")
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
            help="both, bits (posteriors of bits) or mean (the paper's); else the network's own."
        ),
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="adam, sgd or nesterov; else the network's own.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Else the network's own.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the set.", min=1)] = DEFAULT_EPOCHS,
    batch_size: Annotated[
        int | None, typer.Option(help="Sketches per step; else the network's own.", min=1)
    ] = None,
    augment: Annotated[
        bool | None,
        typer.Option(
            "--augment/--no-augment", help="Random crops and flips; else the network's own."
        ),
    ] = None,
    onnx: Annotated[Path | None, typer.Option(help="Also export as ONNX.")] = None,
    seed: Annotated[int | None, typer.Option(help="Fixed seed.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Train a network on sketches. No part of it sees a pixel."""
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
    if json:
        emit_json(trained.to_dict())
        return
    console.print(str(trained), markup=False, soft_wrap=True)
