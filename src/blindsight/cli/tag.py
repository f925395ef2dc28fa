"""`blindsight tag`: train a tagger on labelled photos, start one from words alone, and tag photos
with it.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blindsight.cli.terminal import console, emit_json, errors, notes, progress_bar, table, visible

if TYPE_CHECKING:
    from blindsight.data import MultiLabelSet
    from blindsight.privacy import Guarantee, Ledger
    from blindsight.privacy.vault import Vault
    from blindsight.tagging import PrivateTagger
    from blindsight.tagging.answers import Answers
    from blindsight.tagging.photos import Extractor, Quality

__all__ = ["register"]

Out = Annotated[Path, typer.Option("--out", help="The model's file.")]
Words = Annotated[
    str | None,
    typer.Option(
        "--vocabulary",
        help="The labels: a file with one per line, or words parted by commas; "
        "tv=television/screen adds other names.",
    ),
]
Public = Annotated[
    Path | None, typer.Option("--public", help="A folder of public photos of any subject.")
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Card = Annotated[bool, typer.Option("--card", help="Print the whole privacy card.")]
LedgerPlace = Annotated[
    str | None, typer.Option("--ledger", envvar="BLINDSIGHT_LEDGER", help="A ledger to charge.")
]
VaultPlace = Annotated[
    Path | None,
    typer.Option(
        "--vault", help="What you keep of a release (default: MODEL.vault).", show_default=False
    ),
]
_FEW_RECORDS = 500
_FEWEST_HELD = 10  # photos on which quality can be measured at all
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
        Path | None, typer.Option(help="CSV with columns image and labels (a;b;c).")
    ] = None,
    vocabulary: Words = None,
    epsilon: Annotated[
        float, typer.Option(help="In all, per training photo; 0 trains without privacy.")
    ] = 2.0,
    delta: Annotated[float, typer.Option(help="Below one over the number of photos.")] = 1e-5,
    public: Public = None,
    publish: Annotated[
        float | None,
        typer.Option(
            help="For publishing tags of private photos: noise at this epsilon per photo."
        ),
    ] = None,
    out: Out = Path("tagger.safetensors"),
    features: Annotated[str, typer.Option(help="efficientnet or pixels.")] = "efficientnet",
    size: Annotated[
        int | None, typer.Option(help="Photos are scaled to size x size (224; pixels 16).")
    ] = None,
    ledger: LedgerPlace = None,
    dataset: Annotated[
        str | None, typer.Option(help="The photos' name in the ledger (default: the folder's).")
    ] = None,
    vault: VaultPlace = None,
    seed: Annotated[
        int | None, typer.Option(help="Fixed noise, for trials: marked as a simulation.")
    ] = None,
    card: Card = False,
    json: Json = False,
) -> None:
    """Train a tagger on labelled photos; epsilon is the total of all that is learned from them.

    About a tenth of the photos is held out, and what the tagger is worth is measured on them, for
    you alone.

    With a ledger or a vault the same training run again, after a crash too, is the same model,
    charged once.
    """
    from blindsight.core.errors import InvalidData
    from blindsight.privacy import Cost
    from blindsight.privacy.ledger.units import ungranted
    from blindsight.tagging import (
        CodebookAnswers,
        DPTraining,
        Exact,
        FromLabels,
        Ordinary,
        PrivateTagger,
    )
    from blindsight.tagging.labels import read_vocabulary
    from blindsight.tagging.photos import Extractor, public_knowledge, quality, split
    from blindsight.tagging.publishing import train_once

    words = None if vocabulary is None else read_vocabulary(vocabulary)
    chosen, left_out = _training_set(source, labels, words)
    safe = (
        _vault(vault, out)
        if ledger is not None or vault is not None or publish is not None
        else None
    )
    opened = _ledger(ledger, dataset or Path(source).resolve().name, safe)
    if (
        opened is not None and epsilon and not opened.balances()
    ):  # said before photos are read for minutes
        due = Cost(epsilon=epsilon, delta=delta, unit="record", neighbours="add or remove one")
        raise ungranted(due, opened.dataset, opened.where)
    extractor = Extractor(features, size or (16 if features == "pixels" else 224))  # type: ignore[arg-type]
    rows, extractor = _features(chosen, extractor)
    seen = None if public is None else _public(public, extractor)
    prior, reason = public_knowledge(chosen.classes, extractor, seen, words)
    tagger = PrivateTagger(
        DPTraining(epsilon=epsilon, delta=delta) if epsilon else Ordinary(),
        Exact() if publish is None else CodebookAnswers(publish),
        # A published set's classes are public; those of a user's own file are not, unless they are
        # stated apart.
        classes=FromLabels(chosen.classes)
        if labels is not None and words is None
        else chosen.classes,
        public=seen,
        prior=prior,
        random_state=seed,
    )
    used, held, expected = split(rows)
    enough = len(held) >= _FEWEST_HELD and chosen.labels[held].any()
    validation = (rows[held], chosen.labels[held]) if enough else None
    public_facts = {"extractor": {"kind": extractor.kind, "size": extractor.size}}
    with progress_bar("training") as progress, _uncharged(ledger):
        options: dict[str, Any] = {
            "notes": public_facts,
            "n_records": expected,
            "validation": validation,
        }
        options["progress"] = progress
        tagger = train_once(
            tagger, rows[used], chosen.labels[used], vault=safe, ledger=opened, **options
        )
    found = None if validation is None else quality(tagger, *validation)
    if publish is not None and (found is None or not found.worth_it):
        paid = "" if opened is None else " What training costs stays charged."
        raise InvalidData(_not_worth_it(publish, found) + paid)
    tagger.save(out)
    if left_out:
        some = ", ".join(left_out[:5]) + (", ..." if len(left_out) > 5 else "")
        errors.print(
            visible(f"Left out {len(left_out)} labels that the vocabulary does not name: {some}."),
            markup=False,
        )
    _report(tagger, out, safe, found, len(held), reason, card, json)


def start(
    words: Annotated[
        str,
        typer.Argument(
            help="The labels: words parted by commas, or a file with one per line; "
            "tv=television/screen."
        ),
    ],
    public: Public = None,
    out: Out = Path("tagger.safetensors"),
    card: Card = False,
    json: Json = False,
) -> None:
    """Start from words alone: public knowledge about these labels, no photo of yours, epsilon 0."""
    from blindsight.core.errors import MissingData
    from blindsight.tagging import PrivateTagger
    from blindsight.tagging.labels import read_vocabulary
    from blindsight.tagging.photos import Extractor, public_knowledge

    extractor, known = Extractor(), read_vocabulary(words)
    seen = None if public is None else _public(public, extractor)
    prior, reason = public_knowledge(list(known), extractor, seen, known)
    if prior is None:
        raise MissingData(f"there is nothing to start from. {reason}")
    tagger = PrivateTagger.from_public(list(known), prior)
    tagger.public_["extractor"] = {"kind": extractor.kind, "size": extractor.size}
    tagger.save(out)
    _report(tagger, out, None, None, 0, reason, card, json)


def apply(
    model: Annotated[Path, typer.Argument(help="A tagger that `train` or `start` wrote.")],
    images: Annotated[list[Path], typer.Argument(help="Photos, or folders of photos.")],
    as_csv: Annotated[
        bool, typer.Option("--csv", help="As labels.csv: correct it and train again.")
    ] = False,
    ids: Annotated[
        bool, typer.Option("--ids", help="Random ids instead of file names, for giving away.")
    ] = False,
    ledger: LedgerPlace = None,
    dataset: Annotated[
        str | None, typer.Option(help="The photos' name in the ledger (default: the model's).")
    ] = None,
    vault: VaultPlace = None,
    json: Json = False,
) -> None:
    """Tag photos. Exact answers cost nothing more.

    Answers with noise (`train --publish`) are released once per photo, kept in the vault, and
    charged once in all.

    A photo then has the same tags whenever it is asked about, however it was moved, renamed or
    copied.
    """
    from blindsight.core.errors import InvalidParameter, MissingData
    from blindsight.data import Files
    from blindsight.tagging import PrivateTagger
    from blindsight.tagging.photos import Extractor, image_files

    if not model.exists():
        raise MissingData(
            f"there is no tagger at {model}. Make one with `tag train` or `tag start`."
        )
    tagger = PrivateTagger.load(model)
    extractor = Extractor.of(tagger)
    noisy = tagger.answer_guarantee_ is not None
    if not noisy and (ids or vault is not None):
        raise InvalidParameter(
            "these answers are exact: --ids and --vault are for a model made with --publish."
        )
    files, left_out = image_files(images)
    listed = list(files)
    with progress_bar("features") as progress:

        def rows(places: list[int]) -> Any:
            return extractor(Files([listed[place] for place in places]), progress=progress)

        if noisy:
            safe = _kept_vault(vault, model)
            records = [safe.record_of(digest) for digest in files.values()]
            answers = _published(tagger, records, rows, safe, ledger, dataset or model.stem)
        else:
            answers = tagger.answer(rows(list(range(len(listed)))))
    names = records if ids else _names(listed, images)
    found = [_row(tagger, name, answers.tags[i], answers.scores[i]) for i, name in enumerate(names)]
    if ids:  # one row per distinct image, in an order that tells nothing of the files
        found = sorted(
            {row["image"]: row for row in found}.values(), key=lambda row: str(row["image"])
        )
    for path, why in left_out:
        errors.print(visible(f"left out {path}: {why}"), markup=False)
    if json:
        emit_json(
            {
                "answers": found,
                "per_photo": tagger.query_cost().epsilon,
                "record": tagger.guarantee_.epsilon,
            }
        )
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(("image", "labels"))
        writer.writerows((row["image"], ";".join(row["tags"])) for row in found)
    else:
        table(
            "", ("image", "tags"), [(row["image"], ", ".join(row["tags"]) or "-") for row in found]
        )
        console.print(_price(tagger), markup=False)


def _published(
    tagger: PrivateTagger,
    records: Sequence[str],
    rows: Any,
    vault: Vault,
    ledger: str | None,
    dataset: str,
) -> Answers:
    """Answers of a release: charged to the ledger that is named, or to the one that paid for it
    before.
    """
    from blindsight.tagging.publishing import publish

    noted = vault.fact("ledger")
    if ledger is None and isinstance(noted, str) and Path(noted).is_file():
        ledger, dataset = noted, vault.fact("dataset") or dataset
    with _uncharged(ledger):
        return publish(tagger, records, rows, vault=vault, ledger=_ledger(ledger, dataset, vault))


def _names(files: Sequence[Path], given: Sequence[Path]) -> list[str]:
    """Paths as the labels' file names them: relative to the one folder that was given, or as they
    were given.
    """
    root = given[0] if len(given) == 1 and given[0].is_dir() else None
    return [path.relative_to(root).as_posix() if root else str(path) for path in files]


def _training_set(
    source: str, labels: Path | None, words: dict[str, tuple[str, ...]] | None
) -> tuple[MultiLabelSet, tuple[str, ...]]:
    """The labelled photos, and the owner's labels that the vocabulary does not name."""
    from blindsight import data
    from blindsight.core.errors import InvalidData, InvalidParameter, MissingData
    from blindsight.tagging.labels import read_labels

    folder = Path(source)
    if labels is not None:
        read = read_labels(labels, folder, words)
        return read.photos, read.left_out
    if folder.is_dir():
        raise InvalidParameter(
            f"say which labels the photos in {folder} have: --labels labels.csv."
        )
    if folder.suffix:
        raise MissingData(f"{folder} is no folder. Use `tag train FOLDER --labels {folder.name}`.")
    chosen = data.load(source, split="train")
    if not isinstance(chosen, data.MultiLabelSet):
        raise InvalidData(
            f"{source} has no multi-label annotation. Try coco-subset, scene, corel5k or a folder."
        )
    if words is not None and not words.keys() <= set(chosen.classes):
        raise InvalidParameter(
            f"--vocabulary must name labels that {source} has: {', '.join(chosen.classes[:5])}, ..."
        )
    return chosen, ()


def _features(chosen: MultiLabelSet, extractor: Extractor) -> tuple[Any, Extractor]:
    from blindsight.tagging.photos import Extractor

    if chosen.features is not None:
        return chosen.features, Extractor("none", 0)
    with progress_bar("features") as progress:
        return extractor(chosen.images, progress=progress), extractor


def _public(folder: Path, extractor: Extractor) -> Any:
    with progress_bar("public photos") as progress:
        return extractor.of_folder(folder, progress=progress)


def _vault(given: Path | None, model: Path) -> Vault:
    from blindsight.index.release_folder import vault_beside
    from blindsight.privacy.vault import Vault

    return Vault.open_or_create(given or vault_beside(model))


def _kept_vault(given: Path | None, model: Path) -> Vault:
    """The vault of earlier answers. A new one is made only where it is named: under another key a
    photo that was published before would get a second answer, drawn anew.
    """
    from blindsight.core.errors import MissingData
    from blindsight.index.release_folder import vault_beside

    if given is None and not vault_beside(model).exists():
        raise MissingData(
            f"there is no vault at {vault_beside(model)}. Name the one that was kept with --vault, "
            "so that photos "
            "published before keep their tags; or a new folder, where this model never published "
            "your photos."
        )
    return _vault(given, model)


def _ledger(where: str | None, dataset: str, vault: Vault | None) -> Ledger | None:
    """The ledger, noted in the vault so that what follows is charged to it too."""
    from blindsight.privacy import Ledger

    if where is None:
        return None
    opened = Ledger(where, dataset=dataset)
    if vault is not None:
        vault.note(ledger=opened.where, dataset=dataset)
    return opened


@contextmanager
def _uncharged(ledger: str | None) -> Iterator[None]:
    """Without a ledger a line says that nobody keeps count, instead of Python's warning."""
    with notes():
        yield
    if ledger is None:
        errors.print("No ledger was named (--ledger), so nobody keeps count of what was spent.")


def _row(tagger: PrivateTagger, name: str, tags: Any, scores: Any) -> dict[str, Any]:
    order = [int(i) for i in scores.argsort()[::-1] if tags[i]]
    chances = tagger.answer_mechanism_.probabilities(scores)
    return {
        "image": name,
        "tags": [str(tagger.classes_[i]) for i in order],
        "scores": {str(tagger.classes_[i]): round(float(chances[i]), 4) for i in order},
    }


def _price(tagger: PrivateTagger) -> str:
    if tagger.answer_guarantee_ is not None:
        return (
            f"Each photo's tags: ε = {tagger.answer_guarantee_.epsilon:.4g} per photo, paid once; "
            "asked about again, a "
            "photo has the same tags."
        )
    return f"These answers cost nothing more: the model itself is {tagger.guarantee_.cost}."


def _not_worth_it(epsilon: float, found: Quality | None) -> str:
    if found is None:
        return (
            "whether answers with noise are worth publishing cannot be measured: about a tenth of "
            "the labelled photos "
            f"is held out for that, and must be {_FEWEST_HELD} at least. No model was written: "
            "label some 150 photos."
        )
    return (
        f"answers at ε = {epsilon:g} per photo would say no more than how frequent each label is "
        "(on held-out photos "
        f"mAP {found.mAP:.3f} against {found.rates_mAP:.3f}, OF1 {found.OF1:.3f} against "
        f"{found.rates_OF1:.3f}; for "
        "you alone). No model was written: give a larger --publish, more photos, or --public "
        "photos."
    )


def _report(
    tagger: PrivateTagger,
    out: Path,
    vault: Vault | None,
    found: Quality | None,
    held: int,
    reason: str | None,
    card: bool,
    json: bool,
) -> None:
    answers = tagger.answer_guarantee_
    curve = [round(float(value), 4) for value in tagger.owner_only_.get("learning curve", ())]
    if json:
        owned = None
        if found is not None:
            owned = {"held_out": held, "mAP": found.mAP, "OF1": found.OF1, "learning_curve": curve}
            owned |= {"label_rates_mAP": found.rates_mAP, "label_rates_OF1": found.rates_OF1}
        emit_json(
            {
                "model": str(out),
                "vault": None if vault is None else str(vault.path),
                "labels": len(tagger.classes_),
                "training": _fields(tagger.guarantee_),
                "answers": None if answers is None else _fields(answers),
                "owner_only": owned,
            }
        )
        return
    if card:
        table("Privacy card: training", ("field", "value"), tagger.guarantee_.rows())
        if answers is not None:
            table("Privacy card: each answer", ("field", "value"), answers.rows())
    for title, text in _lines(tagger, out, vault, found, held, curve):
        indent = f"{title:<11}", " " * 11
        filled = fill(
            text, min(console.width, 100), initial_indent=indent[0], subsequent_indent=indent[1]
        )
        console.print(filled, markup=False, soft_wrap=True)
    if reason is not None:
        errors.print(reason, markup=False)
    records = int(tagger.public_["n_records"])
    if 0 < records < _FEW_RECORDS:
        errors.print(f"Only {records} photos: little is learned from so few with privacy.")


def _fields(promised: Guarantee) -> dict[str, Any]:
    """The card as fields; there may be several releases."""
    rows = promised.rows()
    return {**dict(rows), "releases": [says for name, says in rows if name == "releases"]}


def _lines(
    tagger: PrivateTagger,
    out: Path,
    vault: Vault | None,
    found: Quality | None,
    held: int,
    curve: list[float],
) -> Iterator[tuple[str, str]]:
    """What was made, promised and measured, and what to do next: (title, text)."""
    records, promised = int(tagger.public_["n_records"]), tagger.guarantee_
    learned = (
        f"learned from {records:,} photos"
        if records
        else "from public knowledge, with no photo of yours"
    )
    yield "Made", f"a tagger for {len(tagger.classes_)} labels, {learned}."
    if promised.unproven:
        yield "Promised", "nothing: " + "; ".join(item.says for item in promised.unproven) + "."
    else:
        yield (
            "Promised",
            f"{promised.cost}, for the model and all of its answers together (--card says more).",
        )
    if tagger.answer_guarantee_ is not None:
        yield (
            "Published",
            f"ε = {tagger.answer_guarantee_.epsilon:.4g} for each photo whose tags are published, "
            "once.",
        )
    if found is not None:
        worth = (
            ""
            if found.worth_it
            else " That is hardly better than saying how frequent each label is."
        )
        yield (
            "Measured",
            (
                f"mAP {found.mAP:.3f}, OF1 {found.OF1:.3f} on {held} photos held out; label rates "
                "alone give "
                f"{found.rates_mAP:.3f} and {found.rates_OF1:.3f}.{worth} These numbers are yours "
                "alone: not private."
            ),
        )
    if curve:
        yield "", f"{_sparkline(curve)} mAP step by step, from {curve[0]:.3f} to {curve[-1]:.3f}."
    yield "Model", str(out)
    if vault is not None:
        yield "Keep", f"{vault.path}, and give it to nobody."
    yield "Next", f"blindsight tag apply {out} IMAGES..."


def _sparkline(values: list[float]) -> str:
    low, high = min(values), max(values)
    span = max(high - low, 1e-9)
    return "".join(_BARS[min(7, int(8 * (value - low) / span))] for value in values)
