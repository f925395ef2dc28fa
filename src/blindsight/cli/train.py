"""`blindsight train SKETCHES`: the server's part, a network trained on a file of sketches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blindsight.cli.terminal import console, emit_json, progress_bar

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
    epochs: Annotated[int, typer.Option(help="Passes over the set.", min=1)] = 5,
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
    """Train a network on sketches. Nothing here can see a pixel."""
    import numpy as np

    from blindsight.core.checks import optional_module
    from blindsight.core.errors import InvalidData
    from blindsight.sketching import SketchSet

    optional_module("torch", extra="torch")
    from blindsight.sketching.trainer import NegDL

    held = SketchSet.open(sketches)
    if held.labels is None:
        raise InvalidData(
            f"{sketches} has no labels. Sketch a folder with a subfolder per class, or a labelled "
            "set."
        )
    if test is not None:
        training, testing = held, SketchSet.open(test)
    else:
        order = np.random.default_rng(0).permutation(len(held))
        cut = max(1, len(held) // 10)
        training, testing = held[np.sort(order[cut:])], held[np.sort(order[:cut])]
    model = NegDL(
        network, inputs=inputs, optimizer=optimizer, learning_rate=learning_rate, epochs=epochs,
        batch_size=batch_size, augment=augment, random_state=seed,
    )  # fmt: skip
    with progress_bar("training") as progress:
        model.fit(training, progress=progress)
    accuracy = model.score(testing)
    if out is not None:
        model.save(out)
    if onnx is not None:
        model.export_onnx(onnx)
    result = {
        "accuracy": accuracy,
        "trained_on": len(training),
        "tested_on": len(testing),
        "parameters": held.parameters.name,
        "network": model.network_,
        "loss": model.losses_,
        "model": None if out is None else str(out),
    }
    if json:
        emit_json(result)
        return
    console.print(
        f"accuracy {accuracy:.2%} on {len(testing):,} sketches ({held.parameters.name}), trained "
        f"on {len(training):,}",
        markup=False,
    )
    if out is not None:
        console.print(f"model: {out}")
