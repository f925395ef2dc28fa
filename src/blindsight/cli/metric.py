"""`blindsight metric check`, `learn` and `distance`: a distance from private labelled pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from blindsight.app.compare import DEFAULT_DELTA, DEFAULT_EPSILON, NEIGHBOURS
from blindsight.cli.options import ActorOption, LedgerOption, PurposeOption
from blindsight.cli.terminal import console, emit_json, notes, stage_bar, table

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
        "hub:owner/model@commit, or a file of vectors by image.",
    ),
]
Intransitive = Annotated[
    bool, typer.Option(help="Being similar does not carry over (friends, not illnesses).")
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    verbs = typer.Typer(help="Learn a distance from private labelled pairs.", no_args_is_help=True)
    verbs.command("check")(check)
    verbs.command("learn")(learn)
    verbs.command("distance")(distance)
    app.add_typer(verbs, name="metric")


def check(
    pairs: Annotated[Path, typer.Argument(help="CSV: two ids and a label (1/0, same/different).")],
    intransitive: Intransitive = False,
    classes: Annotated[
        int | None, typer.Option(help="2 checks that labels fit two classes.")
    ] = None,
    json: Json = False,
) -> None:
    """Look for contradictory labels before learning.

    For the owner only: exact, and not to be published. Ends with exit code 2 if labels contradict
    each other.
    """
    from blindsight.app.compare import check_labelled_pairs

    found = check_labelled_pairs(pairs, transitive=not intransitive, n_classes=classes)
    if json:
        emit_json(found.to_dict())
    else:
        console.print(str(found), markup=False, soft_wrap=True)
    if found.problems:
        raise typer.Exit(2)


def learn(
    pairs: Annotated[Path, typer.Argument(help="CSV: two ids and a label (1/0, same/different).")],
    features: Features = None,
    images: Images = None,
    image_features: Annotated[
        str, typer.Option("--image-features", help="pixels or efficientnet.")
    ] = "pixels",
    encoder: EncoderPath = None,
    out: Annotated[Path, typer.Option("--out", help="The model; its card goes beside it.")] = Path(
        "metric.safetensors"
    ),
    epsilon: Annotated[float, typer.Option(help="Budget per unit.")] = DEFAULT_EPSILON,
    delta: Annotated[
        float, typer.Option(help="Well below one over the number of pairs.")
    ] = DEFAULT_DELTA,
    unit: Annotated[str, typer.Option(help="pair, 'kappa pairs' or record.")] = "pair",
    loss: Annotated[
        str, typer.Option(help="auto, moments (many pairs) or contrastive (few).")
    ] = "auto",
    scale: Annotated[
        str,
        typer.Option(
            help="none; private, within the budget; or a CSV of public bounds (column,low,high)."
        ),
    ] = "none",
    kappa: Annotated[
        str, typer.Option(help="second, exact, bound, node, edge, or a number.")
    ] = "second",
    select: Annotated[
        str, typer.Option(help="all, forest, matching, or how many pairs of each record.")
    ] = "all",
    components: Annotated[int | None, typer.Option(help="Dimensions of the learned space.")] = None,
    intransitive: Intransitive = False,
    class_column: Annotated[
        str | None, typer.Option(help="Column of the classes, for the kNN test.")
    ] = None,
    neighbours: Annotated[int, typer.Option(help="k of the kNN test.")] = NEIGHBOURS,
    draw: Annotated[
        Path | None, typer.Option(help="Write the pair graph as an SVG (private).")
    ] = None,
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
    seed: Annotated[
        int | None, typer.Option(help="Fixed noise, for trials: marked as a simulation.")
    ] = None,
    json: Json = False,
) -> None:
    """Learn a metric; print kappa, guarantee and kNN accuracy on held-out records; save model and
    card.
    """
    from blindsight.app.compare import learn_metric

    with notes(), stage_bar() as progress:
        learned = learn_metric(
            pairs,
            features=features,
            images=images,
            image_features=image_features,  # type: ignore[arg-type]
            encoder=encoder,
            out=out,
            epsilon=epsilon,
            delta=delta,
            unit=unit,
            loss=loss,
            scale=scale,
            kappa=int(kappa) if kappa.isdigit() else kappa,
            select=int(select) if select.isdigit() else select,
            n_components=components,
            transitive=not intransitive,
            class_column=class_column,
            neighbours=neighbours,
            drawing=draw,
            ledger=ledger,
            dataset=dataset,
            vault=vault,
            actor=actor,
            purpose=purpose,
            random_state=seed,
            progress=progress,
        )
    if json:
        emit_json(learned.to_dict())
        return
    table("Privacy card", ("field", "value"), learned.guarantee.rows())
    console.print(str(learned), markup=False, soft_wrap=True)


def distance(
    model: Annotated[Path, typer.Argument(help="A model that `metric learn` wrote.")],
    ids: Annotated[list[str], typer.Argument(help="Two ids, or one to list its nearest records.")],
    features: Features = None,
    images: Images = None,
    encoder: EncoderPath = None,
    nearest: Annotated[
        int, typer.Option(help="How many records to list for a single id.")
    ] = NEIGHBOURS,
    json: Json = False,
) -> None:
    """The learned distance of two records, or the records nearest to one."""
    from blindsight.app.compare import compare

    with stage_bar() as progress:
        found = compare(
            model,
            ids,
            features=features,
            images=images,
            encoder=encoder,
            nearest=nearest,
            progress=progress,
        )
    if json:
        emit_json(found.to_dict())
        return
    for shown in found.tables():
        table(shown.title, shown.columns, shown.rows)
