"""`blindsight compare`: learn a distance or a threshold from labelled pairs, and use it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blindsight.app.defaults import (
    DELTA,
    METRIC_EPSILON,
    METRIC_NEIGHBOURS,
    METRIC_UNIT,
    PLAIN_DISTANCE,
)
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
    notes,
    print_result,
    show_shared,
    show_tables,
    stage_bar,
    table,
)

__all__ = ["register"]

Features = Annotated[
    Path | None,
    typer.Option("--features", help="CSV: a column 'id', numbers, and 'class' if known."),
]
Images = Annotated[
    Path | None, typer.Option("--images", help="Folder of images; ids are paths within it.")
]
EncoderPath = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        help="With --images, an encoder: lite0, lite2, both, a folder of ONNX files, "
        "hub:owner/model@commit, or a file of vectors by image (default: that of the product, or "
        "of the model).",
        show_default=False,
    ),
]
Intransitive = Annotated[
    bool, typer.Option(help="Similarity is not transitive (as between friends).")
]
Model = Annotated[
    str,
    typer.Argument(
        help=f"A model that `compare learn` wrote, or {PLAIN_DISTANCE}: the plain distance of "
        "whole features, free and without a threshold."
    ),
]
Epsilon = Annotated[float, typer.Option(help="Budget per unit.")]
Delta = Annotated[float, typer.Option(help="Delta, well below 1 / (number of pairs).")]
UnitName = Annotated[
    str,
    typer.Option(
        callback=unit_name,
        help="What is protected: label (replaced by the other one), pair (added or removed), "
        "person (with --person), photo (also record), or 'kappa pairs'.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def register(app: typer.Typer) -> None:
    """Add the verbs of `compare`, and their former name `metric`, to the command line."""
    verbs = typer.Typer(
        help="Same or different: distances, thresholds and error rates from private pairs.",
        no_args_is_help=True,
    )
    for verb in (check, predict, learn, distance, clusters):
        verbs.command(verb.__name__)(verb)
    app.add_typer(verbs, name="compare")
    app.add_typer(verbs, name="metric", hidden=True)


def check(
    pairs: Annotated[Path, typer.Argument(help="CSV: two ids and a label (1/0, same/different).")],
    intransitive: Intransitive = False,
    classes: Annotated[
        int | None, typer.Option(help="With 2, check that the labels fit two classes.")
    ] = None,
    json: Json = False,
) -> None:
    """Look for contradictory labels before learning.

    The result is exact, so it is for the owner only. The exit code is 2 if labels contradict each
    other.
    """
    from blindsight.app.learn_metric import check_labelled_pairs

    report = check_labelled_pairs(pairs, transitive=not intransitive, n_classes=classes)
    print_result(report, as_json=json)
    if report.problems:
        raise typer.Exit(2)


def predict(
    pairs: Annotated[int, typer.Argument(help="Number of labelled pairs.", min=1)],
    columns: Annotated[int, typer.Argument(help="Number of columns of the features.", min=1)],
    epsilon: Epsilon = METRIC_EPSILON,
    delta: Delta = DELTA,
    unit: UnitName = METRIC_UNIT,
    most: Annotated[int, typer.Option(help="Most pairs that one unit is in.", min=1)] = 1,
    json: Json = False,
) -> None:
    """Predict whether learning beats the plain distance; no data are read, nothing is charged."""
    from blindsight.app.learn_metric import predict_metric

    expected = predict_metric(
        pairs, columns, epsilon=epsilon, delta=delta, unit=unit, pairs_of_unit=most
    )
    if json:
        emit_json({"learns": expected.learns, "loss": expected.loss, "needed": expected.needed})
        return
    console.print(str(expected), markup=False, soft_wrap=True)


def learn(
    pairs: Annotated[
        Path | None,
        typer.Argument(help="CSV: two ids and a label (1/0, same/different)."),
    ] = None,
    triplets: Annotated[
        Path | None,
        typer.Option("--triplets", help="CSV instead of pairs: anchor, same, different."),
    ] = None,
    features: Features = None,
    images: Images = None,
    encoder: EncoderPath = None,
    out: Annotated[Path, typer.Option("--out", help="The model; its card goes beside it.")] = Path(
        "metric.safetensors"
    ),
    epsilon: Epsilon = METRIC_EPSILON,
    large_epsilon: LargeEpsilonOption = False,
    delta: Delta = DELTA,
    unit: UnitName = METRIC_UNIT,
    person: Annotated[
        str | None,
        typer.Option(
            "--person",
            help="The person of each record: folder, dicom or FILE:COLUMN for images, or a table's "
            "column.",
        ),
    ] = None,
    loss: Annotated[
        str,
        typer.Option(
            help="auto, plain (threshold only), moments (many pairs) or contrastive (few)."
        ),
    ] = "auto",
    scale: Annotated[
        str,
        typer.Option(
            help="auto (tables: private; images: none), none, private (within the budget), or a "
            "CSV of public bounds (column, low, high)."
        ),
    ] = "auto",
    kappa: Annotated[
        str, typer.Option(help="second, exact, bound, node, edge, or a number.")
    ] = "second",
    select: Annotated[
        str,
        typer.Option(
            help="all, forest, matching, or how many pairs of each record (of each person, with "
            "--person)."
        ),
    ] = "all",
    components: Annotated[int | None, typer.Option(help="Dimensions of the learned space.")] = None,
    intransitive: Intransitive = False,
    class_column: Annotated[
        str | None, typer.Option(help="Column of the classes, for the kNN test.")
    ] = None,
    neighbours: Annotated[int, typer.Option(help="k of the kNN test.")] = METRIC_NEIGHBOURS,
    ledger: LedgerOption = None,
    dataset: Annotated[
        str | None, typer.Option(help="The pairs' name in the ledger (default: the file's).")
    ] = None,
    vault: Annotated[
        Path | None,
        typer.Option(
            "--vault",
            help="The folder of the key of the noise, which you keep (default with a ledger: "
            "MODEL.vault).",
            show_default=False,
        ),
    ] = None,
    actor: ActorOption = None,
    purpose: PurposeOption = "",
    force: Annotated[bool, typer.Option("--force", help="Write over another model.")] = False,
    seed: Annotated[
        int | None, typer.Option(help="Fixed noise, for trials: marked as a simulation.")
    ] = None,
    json: Json = False,
) -> None:
    """Find a threshold with its error rates, and learn a distance if that is expected to be better.

    The forecast is printed first, from public numbers; then the ledger is charged.
    """
    from blindsight.app.learn_metric import learn_metric

    with notes(), stage_bar() as progress:
        learned = learn_metric(
            pairs,
            triplets=triplets,
            features=features,
            images=images,
            encoder=encoder,
            out=out,
            epsilon=epsilon,
            delta=delta,
            unit=unit,
            people=person,
            loss=loss,
            scale=scale,
            kappa=int(kappa) if kappa.isdigit() else kappa,
            select=int(select) if select.isdigit() else select,
            n_components=components,
            transitive=not intransitive,
            class_column=class_column,
            neighbours=neighbours,
            ledger=ledger,
            dataset=dataset,
            vault=vault,
            actor=actor,
            purpose=purpose,
            force=force,
            random_state=seed,
            announce=lambda forecast: errors.print(str(forecast), markup=False, soft_wrap=True),
            progress=progress,
        )
    if json:
        emit_json(learned.to_dict())
        return
    table("Privacy card", ("field", "value"), learned.guarantee.rows())
    console.print(str(learned), markup=False, soft_wrap=True)
    show_shared(learned.model)


def distance(
    model: Model,
    ids: Annotated[list[str], typer.Argument(help="Two ids, or one to list its nearest records.")],
    features: Features = None,
    images: Images = None,
    encoder: EncoderPath = None,
    nearest: Annotated[
        int, typer.Option(help="How many records to list for a single id.")
    ] = METRIC_NEIGHBOURS,
    false_accept: Annotated[
        float | None,
        typer.Option(help="Call at most this share of different pairs the same (0.05)."),
    ] = None,
    false_reject: Annotated[
        float | None,
        typer.Option(help="Call at most this share of same pairs different (0.05)."),
    ] = None,
    share_same: Annotated[
        float, typer.Option(help="Share of same pairs among those you ask about.")
    ] = 0.5,
    json: Json = False,
) -> None:
    """Print the distance of two records, whether they are the same, and how often that is wrong."""
    from blindsight.app.compare import compare

    with stage_bar() as progress:
        comparison = compare(
            model,
            ids,
            features=features,
            images=images,
            encoder=encoder,
            nearest=nearest,
            false_accept=false_accept,
            false_reject=false_reject,
            share_same=share_same,
            progress=progress,
        )
    if json:
        emit_json(comparison.to_dict())
        return
    show_tables(comparison.tables())
    for _, text in comparison.facts():
        console.print(text, markup=False, soft_wrap=True)


def clusters(
    model: Model,
    features: Features = None,
    images: Images = None,
    encoder: EncoderPath = None,
    number: Annotated[
        int | None, typer.Option("--number", help="Number of groups (default: by the threshold).")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Mean distance up to which groups are joined.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="CSV with the columns id and cluster.")
    ] = None,
    json: Json = False,
) -> None:
    """Group the records that are the same, for the owner: groups are as private as the records."""
    from blindsight.app.compare import cluster

    with stage_bar() as progress:
        groups = cluster(
            model,
            features=features,
            images=images,
            encoder=encoder,
            n_clusters=number,
            threshold=threshold,
            out=out,
            progress=progress,
        )
    print_result(groups, as_json=json)
