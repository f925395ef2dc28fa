"""`blindsight tag train` and `blindsight tag IMAGE...`: a tagger with private answers, and its answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperGroup

from blindsight.cli.terminal import console, emit_json, errors, progress_bar, table

if TYPE_CHECKING:
    from blindsight.data import MultiLabelSet
    from blindsight.privacy import Ledger
    from blindsight.tagging import PrivateTagger

__all__ = ["register"]

Model = Annotated[Path, typer.Option("--model", help="The trained tagger.")]
Where = Annotated[
    str | None,
    typer.Option("--ledger", envvar="BLINDSIGHT_LEDGER", help="The ledger (default: beside the model)."),
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
_ANSWER = "answer"


_FEW_RECORDS = 500


class _ImagesOrVerb(TyperGroup):
    """`tag photo.jpg` means `tag answer photo.jpg`: images are the usual thing to give."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [_ANSWER, *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    verbs = typer.Typer(
        cls=_ImagesOrVerb,
        help="Tags of images, with private answers: `tag train ...`, then `tag IMAGE...`.",
        no_args_is_help=True,
    )
    verbs.command("train")(train)
    verbs.command(_ANSWER, help="Answer for images (`tag IMAGE...` is short for this).")(answer)
    app.add_typer(verbs, name="tag")


def train(
    source: Annotated[str, typer.Argument(help="A data set's name, or a CSV file with columns image and labels.")],
    images: Annotated[Path | None, typer.Option(help="Folder of the CSV's images (default: where it lies).")] = None,
    out: Annotated[Path, typer.Option("--out", help="The model.")] = Path("tagger.safetensors"),
    epsilon: Annotated[float, typer.Option(help="Budget of one answer.")] = 10.0,
    budget: Annotated[float, typer.Option(help="All answers together: the ledger's grant per query unit.")] = 1000.0,
    training_epsilon: Annotated[float, typer.Option(help="DP-SGD per training record; 0 trains without.")] = 2.0,
    calibration: Annotated[str, typer.Option(help="proven or paper.")] = "proven",
    release: Annotated[str, typer.Option(help="codebook, laplace, gaussian or top-k.")] = "codebook",
    top: Annotated[int, typer.Option(help="How many tags top-k names.", min=1)] = 3,
    robust: Annotated[float, typer.Option(help="λ of RP2-ML-GCN (paper calibration).", min=0.0)] = 0.0,
    sensitivity: Annotated[str, typer.Option(help="The paper's S: C (text) or 1 (code).")] = "C",
    bound_factor: Annotated[float, typer.Option(help="The paper's S_b.")] = 1.0,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.", min=1)] = None,
    features: Annotated[str, typer.Option(help="efficientnet or pixels.")] = "efficientnet",
    size: Annotated[int | None, typer.Option(help="Images are scaled to size x size (224; pixels 16).")] = None,
    ledger: Where = None,
    seed: Annotated[int | None, typer.Option(help="Fixed noise, for trials: marked as a simulation.")] = None,
    json: Json = False,
) -> None:
    """Train a tagger on labelled images, and open the ledger that its answers are charged to."""
    from blindsight.tagging import PrivateTagger

    chosen = _training_set(source, images)
    extractor = {"kind": features, "size": size or (16 if features == "pixels" else 224)}
    with progress_bar("features") as progress:
        x = chosen.features if chosen.features is not None else _features(chosen.images, extractor, progress)
    if chosen.features is not None:
        extractor = {"kind": "none", "size": 0}
    tagger = PrivateTagger(
        epsilon,
        calibration=calibration,  # type: ignore[arg-type]
        release=release,
        k=top,
        training_epsilon=training_epsilon or None,
        robust=robust,
        sensitivity=sensitivity,  # type: ignore[arg-type]
        bound_factor=bound_factor,
        epochs=epochs,
        classes=list(chosen.classes),
        random_state=seed,
    )
    book = _open_ledger(ledger, out) if calibration == "proven" else None
    # A ledger that guards the training records is charged for training too.
    guards = book is not None and any(balance.unit == "record" for balance in book.balances())
    with progress_bar("training") as progress:
        tagger.fit(x, chosen.labels, ledger=book if guards else None, progress=progress)
    tagger.extractor_ = extractor
    tagger.save(out)
    if book is not None:
        _grant(book, tagger, budget)
    _report(tagger, out, book, json)


def answer(
    images: Annotated[list[Path], typer.Argument(help="The images to tag.")],
    model: Model = Path("tagger.safetensors"),
    ledger: Where = None,
    json: Json = False,
) -> None:
    """Tag images. Every answer is charged to the ledger before it is shown; when the budget is used up, none is."""
    from blindsight.core.errors import BudgetExceeded, InvalidParameter, MissingData
    from blindsight.data import read_image
    from blindsight.tagging import PrivateTagger

    if not model.exists():
        raise MissingData(f"there is no tagger at {model}. Train one with `blindsight tag train`, or give --model.")
    images = _files(images)
    tagger = PrivateTagger.load(model)
    extractor = tagger.extractor_
    if extractor is None or extractor["kind"] == "none":
        raise InvalidParameter("this tagger was trained on ready features, not on images; use it from Python.")
    for path in images:
        read_image(path)  # a broken image is refused before anything is spent
    from blindsight.data import Files

    with progress_bar("features") as progress:
        x = _features(Files(images), extractor, progress)
    book = _open_ledger(ledger, model) if tagger.guarantee_.calibration == "proven" else None
    try:
        answers = tagger.answer(x, ledger=book)
    except BudgetExceeded as refused:
        raise BudgetExceeded(f"{refused} {_left(book, tagger)}") from refused
    rows = [_row(tagger, path, answers.tags[i], answers.scores[i]) for i, path in enumerate(images)]
    if json:
        emit_json({"answers": rows, "spent": _spent(book, tagger, len(images))})
        return
    table("tags", ("image", "tags"), [(row["image"], ", ".join(row["tags"]) or "none") for row in rows])
    _say(_spent(book, tagger, len(images)))


def _files(images: list[Path]) -> list[Path]:
    """The images as given; a misspelt verb or a folder is told apart from a missing image."""
    from blindsight.core.errors import InvalidParameter

    first = images[0]
    if not first.suffix and not first.exists():
        raise InvalidParameter(f"{first} is neither an image nor a verb. Use `tag train ...` or `tag IMAGE...`.")
    folder = next((path for path in images if path.is_dir()), None)
    if folder is not None:
        raise InvalidParameter(f"{folder} is a folder. Name its images: `tag {folder}/*.jpg`; each answer is charged.")
    return images


def _training_set(source: str, images: Path | None) -> MultiLabelSet:
    from blindsight import data
    from blindsight.core.errors import InvalidData
    from blindsight.tagging.labels_file import read_labels

    if source.endswith(".csv"):
        path = Path(source)
        return read_labels(path, images or path.parent)
    chosen = data.load(source, split="train")
    if not isinstance(chosen, data.MultiLabelSet):
        raise InvalidData(f"{source} has no multi-label annotation. Try coco-subset, scene, corel5k or a CSV file.")
    return chosen


def _features(images: Any, extractor: dict[str, Any], progress: Any) -> Any:
    from blindsight.core import checks
    from blindsight.features import EfficientNet, pixels

    checks.one_of("features", extractor["kind"], ("efficientnet", "pixels"))
    if extractor["kind"] == "pixels":
        return pixels(images, size=int(extractor["size"]))
    return EfficientNet(int(extractor["size"])).transform(images, progress=progress)


def _open_ledger(where: str | None, model: Path) -> Ledger:
    from blindsight.privacy import Ledger

    return Ledger(where or str(model.with_name(f"{model.name}.ledger.db")), dataset=model.stem)


def _grant(book: Ledger, tagger: PrivateTagger, budget: float) -> None:
    """The answers' budget, once: training again does not refill it."""
    import math

    from blindsight.privacy import Cost

    granted = {(balance.unit, balance.neighbours) for balance in book.balances()}
    cost = tagger.guarantee_.cost
    if (cost.unit, cost.neighbours) not in granted:
        slack = min(0.5, cost.delta * math.ceil(budget / cost.epsilon))
        book.grant(Cost(epsilon=budget, delta=slack, unit=cost.unit, neighbours=cost.neighbours), what="answers")


def _spent(book: Ledger | None, tagger: PrivateTagger, count: int) -> dict[str, Any]:
    cost = tagger.guarantee_.cost
    if book is None:
        claimed = tagger.guarantee_.claimed
        return {"proven": "none", "claimed_per_answer": claimed, "answers": count, "charged": False}
    balance = book.balance("query")
    return {
        "per_answer": cost.epsilon,
        "answers": count,
        "unit": "query",
        "spent": float(balance.spent.epsilon),
        "budget": float(balance.budget.epsilon),
        "answers_left": int(float(balance.remaining.epsilon) / cost.epsilon + 1e-9),
    }


def _left(book: Ledger | None, tagger: PrivateTagger) -> str:
    left = _spent(book, tagger, 0).get("answers_left", 0)
    return f"{left} more answer{'' if left == 1 else 's'} would fit."


def _say(spent: dict[str, Any]) -> None:
    if "spent" not in spent:
        errors.print(f"Paper calibration: claimed ε = {spent['claimed_per_answer']:g} an answer, nothing is proven.")
        return
    console.print(
        f"spent ε = {spent['answers'] * spent['per_answer']:g} per query unit for {spent['answers']} answers; "
        f"{spent['spent']:g} of {spent['budget']:g} so far, {spent['answers_left']} answers left."
    )


def _row(tagger: PrivateTagger, path: Path, tags: Any, scores: Any) -> dict[str, Any]:
    names = [str(tagger.classes_[i]) for i in scores.argsort()[::-1] if tags[i]]
    return {
        "image": str(path),
        "tags": names,
        "scores": {str(tagger.classes_[i]): round(float(scores[i]), 4) for i in scores.argsort()[::-1] if tags[i]},
    }


def _report(tagger: PrivateTagger, out: Path, book: Ledger | None, json: bool) -> None:
    curve = tagger.curves_.loss if tagger.curves_ is not None else []
    if json:
        emit_json(
            {
                "model": str(out),
                "labels": len(tagger.classes_),
                "loss": curve,
                "answers": {"card": dict(tagger.guarantee_.rows())},
                "training": {"card": dict(tagger.training_guarantee_.rows())},
                "ledger": None if book is None else _spent(book, tagger, 0),
            }
        )
        return
    console.print(f"learning curve (yours alone, not private): {_spark(curve)} loss {curve[0]:.3g} to {curve[-1]:.3g}")
    table("answers", ("field", "value"), tagger.guarantee_.rows())
    table("training", ("field", "value"), tagger.training_guarantee_.rows())
    console.print(f"model: {out}")
    if book is not None:
        spent = _spent(book, tagger, 0)
        console.print(f"budget: ε = {spent['budget']:g} in the ledger, {spent['answers_left']} answers left.")
    if tagger.training_epsilon is not None and tagger.learned_.n_records < _FEW_RECORDS:
        errors.print(
            f"Only {tagger.learned_.n_records} records: at ε = {tagger.training_epsilon:g} a record little is learned. "
            "Give more images, or a larger --training-epsilon (0 trains without protection of the records)."
        )


def _spark(values: list[float]) -> str:
    """A learning curve in one line of text."""
    low, high = min(values), max(values)
    steps = "▁▂▃▄▅▆▇█"
    return "".join(steps[round((v - low) / (high - low or 1.0) * (len(steps) - 1))] for v in values)
