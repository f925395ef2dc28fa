"""`blindsight tag`: train a tagger on labelled photos, start one from words alone, and tag photos with it."""

from __future__ import annotations

import csv
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blindsight.cli.terminal import console, emit_json, errors, progress_bar, table

if TYPE_CHECKING:
    from blindsight.data import MultiLabelSet
    from blindsight.privacy import Ledger
    from blindsight.tagging import PrivateTagger
    from blindsight.tagging.photos import Extractor, Quality

__all__ = ["register"]

Out = Annotated[Path, typer.Option("--out", help="The model's file.")]
Words = Annotated[
    str | None,
    typer.Option("--vocabulary", help="The labels: a file with one per line, or words parted by commas."),
]
Public = Annotated[Path | None, typer.Option("--public", help="A folder of public photos of any subject.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
_FEW_RECORDS = 500


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    verbs = typer.Typer(
        help="Tags of photos: `tag start WORDS` or `tag train FOLDER`, then `tag apply MODEL IMAGES...`.",
        no_args_is_help=True,
    )
    verbs.command("train")(train)
    verbs.command("start")(start)
    verbs.command("apply")(apply)
    app.add_typer(verbs, name="tag")


def train(
    source: Annotated[str, typer.Argument(help="A folder of photos, or a data set's name.")],
    labels: Annotated[Path | None, typer.Option(help="CSV with columns image and labels (a;b;c).")] = None,
    vocabulary: Words = None,
    epsilon: Annotated[float, typer.Option(help="In all, per training photo; 0 trains without privacy.")] = 2.0,
    delta: Annotated[float, typer.Option(help="Below one over the number of photos.")] = 1e-5,
    public: Public = None,
    publish: Annotated[
        float | None, typer.Option(help="For publishing tags of private photos: noise at this epsilon per photo.")
    ] = None,
    out: Out = Path("tagger.safetensors"),
    features: Annotated[str, typer.Option(help="efficientnet or pixels.")] = "efficientnet",
    size: Annotated[int | None, typer.Option(help="Photos are scaled to size x size (224; pixels 16).")] = None,
    ledger: Annotated[str | None, typer.Option(envvar="BLINDSIGHT_LEDGER", help="A ledger that is charged.")] = None,
    seed: Annotated[int | None, typer.Option(help="Fixed noise, for trials: marked as a simulation.")] = None,
    json: Json = False,
) -> None:
    """Train a tagger on labelled photos; epsilon is the total of all that is learned from them."""
    from blindsight.core.errors import InvalidData
    from blindsight.tagging import CodebookAnswers, DPTraining, Exact, FromLabels, Ordinary, PrivateTagger
    from blindsight.tagging.labels_file import read_vocabulary
    from blindsight.tagging.photos import Extractor, public_knowledge, quality

    words = None if vocabulary is None else read_vocabulary(vocabulary)
    chosen, stated = _training_set(source, labels, words)
    extractor = Extractor(features, size or (16 if features == "pixels" else 224))  # type: ignore[arg-type]
    rows, extractor = _features(chosen, extractor)
    seen = None if public is None else _public(public, extractor)
    prior, reason = public_knowledge(chosen.classes, extractor, seen)
    tagger = PrivateTagger(
        DPTraining(epsilon=epsilon, delta=delta) if epsilon else Ordinary(),
        Exact() if publish is None else CodebookAnswers(publish),
        classes=chosen.classes if stated else FromLabels(tuple(chosen.classes)),
        public=seen,
        prior=prior,
        random_state=seed,
    )
    with progress_bar("training") as progress, _uncharged(ledger):
        tagger.fit(rows, chosen.labels, ledger=_ledger(ledger, out), progress=progress)
    found = quality(tagger, rows, chosen.labels)
    if publish is not None and not found.worth_it:
        raise InvalidData(
            f"answers at ε = {publish:g} per photo would say no more than how frequent each label is (mAP "
            f"{found.mAP:.3f} against {found.rates_mAP:.3f}; for your eyes only). Nothing was written: give a larger "
            "--publish, more photos, or --public photos."
        )
    tagger.public_["extractor"] = {"kind": extractor.kind, "size": extractor.size}
    tagger.save(out)
    _report(tagger, out, found, reason, json)


def start(
    words: Annotated[str, typer.Argument(help="The labels: words parted by commas, or a file with one per line.")],
    public: Public = None,
    out: Out = Path("tagger.safetensors"),
    json: Json = False,
) -> None:
    """Start from words alone: public knowledge about these labels, no photo of yours, epsilon 0."""
    from blindsight.core.errors import MissingData
    from blindsight.tagging import PrivateTagger
    from blindsight.tagging.labels_file import read_vocabulary
    from blindsight.tagging.photos import Extractor, public_knowledge

    extractor, names = Extractor(), read_vocabulary(words)
    seen = None if public is None else _public(public, extractor)
    prior, reason = public_knowledge(names, extractor, seen)
    if prior is None:
        raise MissingData(f"there is no public knowledge about these labels: {reason}")
    tagger = PrivateTagger.from_public(names, prior)
    tagger.public_["extractor"] = {"kind": extractor.kind, "size": extractor.size}
    tagger.save(out)
    _report(tagger, out, None, None, json)


def apply(
    model: Annotated[Path, typer.Argument(help="A tagger that `train` or `start` wrote.")],
    images: Annotated[list[Path], typer.Argument(help="Photos, or folders of photos.")],
    as_csv: Annotated[bool, typer.Option("--csv", help="As labels.csv: correct it and train again.")] = False,
    ledger: Annotated[str | None, typer.Option(envvar="BLINDSIGHT_LEDGER", help="A ledger that is charged.")] = None,
    json: Json = False,
) -> None:
    """Tag photos. Exact answers cost nothing more; noisy ones are charged per photo, before they are shown."""
    from blindsight.core.errors import MissingData
    from blindsight.data import Files, read_image
    from blindsight.tagging import PrivateTagger
    from blindsight.tagging.photos import Extractor, image_files

    if not model.exists():
        raise MissingData(f"there is no tagger at {model}. Make one with `tag train` or `tag start`.")
    tagger = PrivateTagger.load(model)
    extractor = Extractor(**tagger.public_.get("extractor", {"kind": "none", "size": 0}))
    files = image_files(images)
    for path in files:
        read_image(path)  # a broken image is refused before anything is spent
    with progress_bar("features") as progress:
        rows = extractor(Files(files), progress=progress)
    noisy = tagger.answer_guarantee_ is not None
    with _uncharged(ledger if noisy else ""):
        answers = tagger.answer(rows, ledger=_ledger(ledger, model) if noisy else None)
    found = [_row(tagger, path, answers.tags[i], answers.scores[i]) for i, path in enumerate(files)]
    if json:
        emit_json({"answers": found, "per_photo": tagger.query_cost().epsilon, "record": tagger.guarantee_.epsilon})
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(("image", "labels"))
        root = images[0] if len(images) == 1 and images[0].is_dir() else None
        for path, row in zip(files, found, strict=True):
            writer.writerow((path.relative_to(root) if root else path, ";".join(row["tags"])))
    else:
        table("tags", ("image", "tags"), [(row["image"], ", ".join(row["tags"]) or "none") for row in found])
        console.print(_price(tagger))


def _training_set(source: str, labels: Path | None, words: list[str] | None) -> tuple[MultiLabelSet, bool]:
    """The labelled photos, and whether the labels' names are stated apart from them."""
    from blindsight import data
    from blindsight.core.errors import InvalidData, InvalidParameter, MissingData
    from blindsight.tagging.labels_file import read_labels

    folder = Path(source)
    if labels is not None:
        return read_labels(labels, folder, words), words is not None
    if folder.is_dir():
        raise InvalidParameter(f"say which labels the photos in {folder} have: --labels labels.csv.")
    if folder.suffix:
        raise MissingData(f"{folder} is no folder. Use `tag train FOLDER --labels {folder.name}`.")
    chosen = data.load(source, split="train")
    if not isinstance(chosen, data.MultiLabelSet):
        raise InvalidData(f"{source} has no multi-label annotation. Try coco-subset, scene, corel5k or a folder.")
    return chosen, True  # a published set's classes are public


def _features(chosen: MultiLabelSet, extractor: Extractor) -> tuple[Any, Extractor]:
    from blindsight.tagging.photos import Extractor

    if chosen.features is not None:
        return chosen.features, Extractor("none", 0)
    with progress_bar("features") as progress:
        return extractor(chosen.images, progress=progress), extractor


def _public(folder: Path, extractor: Extractor) -> Any:
    with progress_bar("public photos") as progress:
        return extractor.of_folder(folder, progress=progress)


def _ledger(where: str | None, model: Path) -> Ledger | None:
    from blindsight.privacy import Ledger

    return None if where is None else Ledger(where, dataset=model.stem)


@contextmanager
def _uncharged(ledger: str | None) -> Iterator[None]:
    """Without a ledger a line says that nobody keeps count, instead of Python's warning."""
    from blindsight.core.errors import UnchargedRelease

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnchargedRelease)
        yield
    if ledger is None:
        errors.print("No ledger was named (--ledger), so nobody keeps count of what was spent.")


def _row(tagger: PrivateTagger, path: Path, tags: Any, scores: Any) -> dict[str, Any]:
    order = [int(i) for i in scores.argsort()[::-1] if tags[i]]
    chances = tagger.way_.probabilities(scores)
    return {
        "image": str(path),
        "tags": [str(tagger.classes_[i]) for i in order],
        "scores": {str(tagger.classes_[i]): round(float(chances[i]), 4) for i in order},
    }


def _price(tagger: PrivateTagger) -> str:
    if tagger.answer_guarantee_ is not None:
        return f"each photo's tags: {tagger.answer_guarantee_.cost}; asking again about a photo costs as much again."
    return f"these answers cost nothing more: the model itself is {tagger.guarantee_.cost}."


def _report(tagger: PrivateTagger, out: Path, found: Quality | None, reason: str | None, json: bool) -> None:
    answers = tagger.answer_guarantee_
    if json:
        emit_json(
            {
                "model": str(out),
                "labels": len(tagger.classes_),
                "training": dict(tagger.guarantee_.rows()),
                "answers": None if answers is None else dict(answers.rows()),
                "owner_only": None if found is None else {"mAP": found.mAP, "OF1": found.OF1},
            }
        )
        return
    table("training", ("field", "value"), tagger.guarantee_.rows())
    if answers is not None:
        table("answers", ("field", "value"), answers.rows())
    if found is not None:
        console.print(
            f"quality on the training photos (yours alone, not private): mAP {found.mAP:.3f}, OF1 {found.OF1:.3f}; "
            f"label rates alone give {found.rates_mAP:.3f} and {found.rates_OF1:.3f}."
        )
    if reason is not None:
        errors.print(f"Without public knowledge about the labels: {reason}")
    records = int(tagger.public_["n_records"])
    if 0 < records < _FEW_RECORDS:
        errors.print(f"Only {records} photos: little is learned from so few with privacy.")
    console.print(f"model: {out}. Tag photos with `blindsight tag apply {out} IMAGES...`.")
