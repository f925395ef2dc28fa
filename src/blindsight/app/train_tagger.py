"""Train a tagger on labelled photos, or make one from label names only.

About one labelled photo in `tagging.photos.HELD_OUT_ONE_IN` is held out to measure the quality of a
tagger. The quality is reported only if at least `tagging.photos.MIN_HELD_OUT` photos were held out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from blindsight.app.defaults import DELTA, TAGGER_EPSILON, no_progress, open_ledger, open_vault
from blindsight.app.hosting import records_of, share_file
from blindsight.app.result import JobResult, Progress, ResultTable, counted, files_table, to_plain
from blindsight.core.errors import InvalidData, InvalidParameter, MissingData
from blindsight.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from blindsight.data import MultiLabelSet
    from blindsight.data.listing import FilesRead
    from blindsight.encoders import Encoder
    from blindsight.privacy.ledger import Ledger
    from blindsight.privacy.vault import Vault
    from blindsight.tagging import PrivateTagger
    from blindsight.tagging.labels import LabelsFile
    from blindsight.tagging.photos import Extractor
    from blindsight.tagging.training import TaggingForecast

__all__ = [
    "PIXEL_SIZE",
    "FeatureKind",
    "TaggerQuality",
    "TrainedTagger",
    "fit_and_measure",
    "read_features",
    "start_tagger",
    "train_tagger",
]

#: The side in pixels to which photos are resized, if the features are pixels.
PIXEL_SIZE = 16
#: The features of photos: by the built-in networks, or their pixels.
FeatureKind = Literal["network", "pixels"]


def _say_nothing(sentence: str) -> None:
    """Ignore a sentence: the default `announce` of `train_tagger`."""


@dataclass(frozen=True)
class TaggerQuality:
    """The quality of a tagger on held-out photos. Private: for the owner of the photos only.

    Parameters:
        held_out: number of photos that were not trained on.
        mean_average_precision: mean average precision of the ranking of labels, from 0 to 1.
        overall_f1: F1 of all tags together.
        rates_mean_average_precision: mean average precision of answers by label rates only.
        rates_overall_f1: F1 of answers by label rates only.
        worthwhile: whether the answers are clearly better than label rates.
        learning_curve: mean average precision on the held-out photos after each training step.
    """

    held_out: int
    mean_average_precision: float
    overall_f1: float
    rates_mean_average_precision: float
    rates_overall_f1: float
    worthwhile: bool
    learning_curve: tuple[float, ...] = ()


@dataclass(frozen=True)
class TrainedTagger(JobResult):
    r"""A tagger that was written to a file.

    Parameters:
        model: the file of the tagger, which may be shared if its guarantee is sufficient.
        labels: the names of the labels.
        n_records: number of training photos in the guarantee; 0 without training.
        guarantee: the guarantee per training photo, for the model and all of its answers.
        answer_guarantee: the guarantee per tagged photo, if answers have noise.
        quality: the quality on held-out photos, for the owner only; None if not measured.
        vault: the folder with the key of the noise, which must be kept and not shared.
        charged: whether a ledger was charged.
        ignored_labels: labels in the owner's file that are not in the vocabulary.
        missing_photos: names in the file that match no photo of the folder, or several.
        notice: which labels public knowledge lacks, or why there is none.
        forecast: the prediction before training whether it improves the free start; None without
            training.
        learned: the share of the training result that exceeds the noise, from 0 (the free start was
            kept) to 1; None if it was not estimated.
        files: number of photos that were read, and the files that were not; for the owner only.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> Image.new("RGB", (8, 8), "red").save(folder / "red.png")
        >>> _ = (folder / "labels.csv").write_text("image,labels\nred.png,warm")
        >>> made = train_tagger(
        ...     folder, labels=folder / "labels.csv", vocabulary="warm,cold", features="pixels",
        ...     size=4, out=folder / "tagger.safetensors", random_state=0,
        ... )
        >>> made.title
        'A tagger for 2 labels, trained on 1 photo'
        >>> made.labels, made.n_records, round(made.guarantee.epsilon, 2)
        (('warm', 'cold'), 1, 2.0)
    """

    model: Path
    labels: tuple[str, ...]
    n_records: int
    guarantee: Guarantee
    answer_guarantee: Guarantee | None = None
    quality: TaggerQuality | None = None
    vault: Path | None = None
    charged: bool = False
    ignored_labels: tuple[str, ...] = ()
    missing_photos: tuple[str, ...] = ()
    notice: str | None = None
    forecast: str | None = None
    learned: float | None = None
    files: FilesRead | None = None

    def tables(self) -> list[ResultTable]:
        return [] if self.files is None else [files_table(self.files)]

    @property
    def title(self) -> str:
        source = (
            f"trained on {counted(self.n_records, 'photo')}"
            if self.n_records
            else "made from public knowledge, without any of your photos"
        )
        return f"A tagger for {counted(len(self.labels), 'label')}, {source}"

    def facts(self) -> list[tuple[str, str]]:
        facts = [("model", str(self.model)), ("guarantee", self._guarantee_text())]
        if self.answer_guarantee is not None:
            facts.append(
                (
                    "publishing",
                    f"ε = {self.answer_guarantee.epsilon:.4g} for each photo whose tags are "
                    "published, charged once.",
                )
            )
        if self.quality is not None:
            facts.append(("quality", self._quality_text(self.quality)))
        if self.learned is not None:
            facts.append(("learned", self._learned_text(self.learned)))
        if self.vault is not None:
            facts.append(("vault", f"{self.vault}: keep it, and share it with nobody."))
        facts.append(("next", f"blindsight tag apply {self.model} IMAGES..."))
        return facts

    def warnings(self) -> list[str]:
        """Return sentences on what limits this tagger."""
        sentences = []
        if self.ignored_labels:
            some = ", ".join(self.ignored_labels[:5])
            some += ", ..." if len(self.ignored_labels) > 5 else ""
            sentences.append(
                f"Ignored {len(self.ignored_labels)} labels that are not in the vocabulary: {some}."
            )
        if self.missing_photos:
            some = ", ".join(self.missing_photos[:5])
            some += ", ..." if len(self.missing_photos) > 5 else ""
            sentences.append(
                f"Ignored {len(self.missing_photos)} names that match no single photo: {some}."
            )
        if self.notice is not None:
            sentences.append(self.notice)
        return sentences

    def to_dict(self) -> dict[str, object]:
        """The fields of `blindsight tag train --json`; `owner_only` is private."""
        quality = self.quality
        return {
            "model": str(self.model),
            "vault": None if self.vault is None else str(self.vault),
            "labels": len(self.labels),
            "training": _card_fields(self.guarantee),
            "answers": None
            if self.answer_guarantee is None
            else _card_fields(self.answer_guarantee),
            "forecast": self.forecast,
            "learned": self.learned,
            "owner_only": None
            if quality is None
            else {
                "held_out": quality.held_out,
                "mAP": quality.mean_average_precision,
                "OF1": quality.overall_f1,
                "label_rates_mAP": quality.rates_mean_average_precision,
                "label_rates_OF1": quality.rates_overall_f1,
                "learning_curve": [round(value, 4) for value in quality.learning_curve],
            },
            "files": to_plain(self.files),
        }

    def _guarantee_text(self) -> str:
        if self.guarantee.unproven:
            reasons = "; ".join(item.says for item in self.guarantee.unproven)
            return f"none is proven: {reasons}."
        return f"{self.guarantee.cost}, for the model and all of its answers together."

    @staticmethod
    def _learned_text(share: float) -> str:
        if share == 0:
            return "nothing exceeds the noise, so the free start from label names was kept."
        if share < 1:
            return f"{share:.0%} of the changes by training are kept; the rest may be noise."
        return "the changes by training exceed the noise."

    @staticmethod
    def _quality_text(quality: TaggerQuality) -> str:
        text = (
            f"mAP {quality.mean_average_precision:.3f}, OF1 {quality.overall_f1:.3f} on "
            f"{quality.held_out} held-out photos; label rates alone give "
            f"{quality.rates_mean_average_precision:.3f} and {quality.rates_overall_f1:.3f}."
        )
        if not quality.worthwhile:
            text += " That is hardly better than label rates alone."
        if quality.learning_curve:
            first, last = quality.learning_curve[0], quality.learning_curve[-1]
            text += f" mAP changed from {first:.3f} to {last:.3f} during training."
        return text + " These figures are not private: keep them to yourself."


def train_tagger(
    source: str | Path,
    *,
    labels: str | Path | None = None,
    vocabulary: str | Mapping[str, Sequence[str]] | None = None,
    epsilon: float = TAGGER_EPSILON,
    delta: float = DELTA,
    public: str | Path | None = None,
    publish: float | None = None,
    out: str | Path = "tagger.safetensors",
    features: FeatureKind = "network",
    size: int | None = None,
    encoder: str | Path | Encoder | None = None,
    ledger: str | Path | None = None,
    dataset: str | None = None,
    vault: str | Path | None = None,
    actor: str | None = None,
    purpose: str = "",
    random_state: int | None = None,
    announce: Callable[[str], None] = _say_nothing,
    progress: Progress = no_progress,
) -> TrainedTagger:
    """Train a tagger on labelled photos.

    About one photo in five is held out, chosen by a digest of its features, and the quality of the
    tagger is measured on these photos for the owner. With a ledger or a vault, the same call again,
    also after a crash, gives the same model and is charged once.

    Parameters:
        source: a folder of photos, or the name of a known data set.
        labels: a table with a column of photos and a column of labels (a;b;c), `FILE:COLUMN`,
            "folders" or "keywords" (see `blindsight.data.label_tables`); required for a folder.
        vocabulary: the labels: words separated by commas, a file with one per line, or a mapping
            of each label to its other names. Without it the labels come from the photos, and no
            guarantee is proven.
        epsilon: total privacy budget of training, per training photo; 0 trains without privacy.
        delta: delta of the guarantee, below one over the number of photos.
        public: a folder of public photos of any subject, which improve the features.
        publish: epsilon per photo of the noise on answers, for publishing tags of private photos.
        out: the file of the tagger.
        features: "network" (both built-in networks, the best setting) or "pixels".
        size: with "pixels", the side in pixels to which photos are resized (default: 16).
        encoder: any image encoder in place of `features`: a built-in name (lite0, lite2, both), a
            folder of ONNX files, `hub:owner/model@commit`, a file of vectors whose ids are the
            photos' names, or an opened encoder. The model refuses any other encoder later.
        ledger: a ledger to charge before training.
        dataset: the account of the photos in the ledger; by default the name of the folder.
        vault: folder for the key of the noise; by default beside `out`, if one is needed.
        actor: the name of the person who asks for it (default: the operating system's user).
        purpose: the purpose, which the ledger stores.
        random_state: a seed for a simulation, which the guarantee states.
        announce: called with a sentence, before anything is charged, if training is not expected to
            improve the free start.
        progress: called with (stage, done, total).

    Returns:
        The files, the guarantees, and the quality on held-out photos.

    Raises:
        BudgetExceeded: if the remaining budget is too small; nothing is trained.
        InvalidData: if published tags would be no better than label rates.
        InvalidParameter: if `publish` and `random_state` are given together.
        MissingData: if the folder, the labels or a data set do not exist.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> lines = ["image,labels"]
        >>> for number in range(40):
        ...     colour = "red" if number % 2 else "blue"
        ...     Image.new("RGB", (8, 8), colour).save(folder / f"{number}.png")
        ...     lines.append(f"{number}.png,{colour}")
        >>> _ = (folder / "labels.csv").write_text("\\n".join(lines))
        >>> made = train_tagger(
        ...     folder, labels=folder / "labels.csv", vocabulary="red,blue", features="pixels",
        ...     size=4, out=folder / "tagger.safetensors", random_state=0,
        ... )
        >>> made.labels, made.guarantee.unit, made.charged
        (('red', 'blue'), 'record', False)
        >>> from blindsight import tag
        >>> tag(made.model, folder / "0.png").images[0].image == str(folder / "0.png")
        True
    """
    from blindsight.privacy import Cost
    from blindsight.privacy.ledger.units import ungranted
    from blindsight.tagging import CodebookAnswers, DPTraining, Exact, Ordinary, PrivateTagger
    from blindsight.tagging.labels import FromLabels, read_vocabulary
    from blindsight.tagging.photos import public_knowledge, split
    from blindsight.tagging.training import forecast

    if publish is not None and random_state is not None:
        raise InvalidParameter(
            "publish and random_state= (--seed) exclude each other: somebody who knows the seed "
            "can remove the noise, so tags of such a model are not published. Leave one of them "
            "out. Nothing was read or charged."
        )
    model_path = Path(out)
    words = read_vocabulary(vocabulary) if isinstance(vocabulary, str) else vocabulary
    photos, labelled = _training_set(str(source), labels, words)
    opened_vault = None
    if ledger is not None or vault is not None or publish is not None:
        opened_vault = open_vault(vault, model_path)
    account = open_ledger(
        ledger,
        dataset or Path(source).resolve().name,
        opened_vault,
        actor=actor,
        purpose=purpose,
    )
    if account is not None and epsilon and not account.balances():
        # Raised now rather than after photos were read for minutes.
        due = Cost(epsilon=epsilon, delta=delta, unit="record", neighbours="add or remove one")
        raise ungranted(due, account.dataset, account.where)
    extractor = _extractor(features, size, encoder)
    rows, extractor = read_features(photos, extractor, progress)
    public_rows = None if public is None else _public_rows(Path(public), extractor, progress)
    prior, notice = public_knowledge(photos.classes, extractor, public_rows, words)
    # The classes of a known data set are public; those in an owner's file are private, unless they
    # are stated as the vocabulary.
    own_names = labels is not None and words is None
    tagger = PrivateTagger(
        DPTraining(epsilon=epsilon, delta=delta) if epsilon else Ordinary(),
        Exact() if publish is None else CodebookAnswers(publish),
        classes=FromLabels(photos.classes) if own_names else photos.classes,
        public=public_rows,
        prior=prior,
        random_state=random_state,
    )
    predicted = None
    if isinstance(tagger.training, DPTraining) and prior is not None:
        predicted = forecast(tagger.training, split(rows)[2], len(photos.classes))
        if not predicted.pays:
            announce(predicted.line())
    fitted, quality = fit_and_measure(
        tagger,
        rows,
        photos.labels,
        extractor,
        opened_vault,
        account,
        progress,
        records=_records(opened_vault, photos),
        out=model_path,
    )
    if publish is not None and (quality is None or not quality.worthwhile):
        paid = "" if account is None else " The cost of training remains charged."
        raise InvalidData(_not_worth_publishing(publish, quality) + paid)
    share_file(model_path, "tagger", fitted.guarantee_, opened_vault, save=fitted.save)
    return _trained(
        fitted,
        model_path,
        quality=quality,
        vault=None if opened_vault is None else opened_vault.path,
        charged=account is not None,
        labelled=labelled,
        notice=notice,
        predicted=predicted,
    )


def start_tagger(
    words: str | Mapping[str, Sequence[str]],
    *,
    public: str | Path | None = None,
    encoder: str | Path | Encoder | None = None,
    out: str | Path = "tagger.safetensors",
    progress: Progress = no_progress,
) -> TrainedTagger:
    """Make a tagger from label names only, with public knowledge about them, at epsilon 0.

    Parameters:
        words: the labels, as in `train_tagger`.
        public: a folder of public photos of any subject.
        encoder: an image encoder with texts or classes, as in `train_tagger`.
        out: the file of the tagger.
        progress: called with (stage, done, total).

    Returns:
        The file and its guarantee.

    Raises:
        MissingData: if nothing is known in public about these labels.

    Examples:
        >>> import tempfile
        >>> made = start_tagger("dog, beach", encoder="lite0", out=f"{tempfile.mkdtemp()}/tagger")
        >>> made.labels, made.n_records, made.guarantee.epsilon
        (('dog', 'beach'), 0, 0.0)
    """
    from blindsight.tagging import PrivateTagger
    from blindsight.tagging.labels import read_vocabulary
    from blindsight.tagging.photos import public_knowledge

    extractor = _extractor("network", None, encoder)
    vocabulary = read_vocabulary(words) if isinstance(words, str) else words
    public_rows = None if public is None else _public_rows(Path(public), extractor, progress)
    prior, notice = public_knowledge(list(vocabulary), extractor, public_rows, vocabulary)
    if prior is None:
        raise MissingData(f"there is nothing to start from. {notice}")
    tagger = PrivateTagger.from_public(list(vocabulary), prior)
    tagger.public_["extractor"] = extractor.to_fields()
    share_file(Path(out), "tagger", tagger.guarantee_, save=tagger.save)
    return _trained(tagger, Path(out), notice=notice)


def fit_and_measure(
    tagger: PrivateTagger,
    rows: NDArray[np.float32],
    labels: NDArray[np.uint8],
    extractor: Extractor,
    vault: Vault | None,
    ledger: Ledger | None,
    progress: Progress = no_progress,
    *,
    records: Sequence[str] = (),
    out: Path | None = None,
) -> tuple[PrivateTagger, TaggerQuality | None]:
    """Train on the photos that are not held out, and measure the quality on those that are.

    Parameters:
        tagger: the tagger to fit.
        rows: features of all labelled photos.
        labels: their labels, 0 and 1.
        extractor: the extractor of the features, which the model states.
        vault: the vault that stores the model; None stores nothing.
        ledger: the account to charge; None charges nothing.
        progress: called with (stage, done, total).
        records: ids in the vault of the labelled photos, in the order of the rows.
        out: the file of the model, which the vault stores with the charge (`Vault.charge`).

    Returns:
        The fitted tagger, and its quality; None if too few photos were held out.
    """
    from blindsight.tagging import photos
    from blindsight.tagging.photos import MIN_HELD_OUT, quality, split

    used, held, expected = split(rows)
    measurable = len(held) >= MIN_HELD_OUT and bool(labels[held].any())
    validation = (rows[held], labels[held]) if measurable else None
    fitted = photos.train_once(
        tagger,
        rows[used],
        labels[used],
        vault=vault,
        ledger=ledger,
        records=[records[row] for row in used] if records else (),
        out=out,
        notes={"extractor": extractor.to_fields()},
        n_records=expected,
        validation=validation,
        progress=lambda done, total: progress("training", done, total),
    )
    if validation is None:
        return fitted, None
    measured = quality(fitted, *validation)
    curve = tuple(float(value) for value in fitted.owner_only_.get("learning curve", ()))
    return fitted, TaggerQuality(
        held_out=len(held),
        mean_average_precision=measured.mAP,
        overall_f1=measured.OF1,
        rates_mean_average_precision=measured.rates_mAP,
        rates_overall_f1=measured.rates_OF1,
        worthwhile=measured.worth_it,
        learning_curve=curve,
    )


def _records(vault: Vault | None, photos: MultiLabelSet) -> list[str]:
    """Return the record ids of labelled photos; none for a data set of features."""
    from blindsight.data import Files

    if vault is None or not isinstance(photos.images, Files):
        return []
    return records_of(vault, photos.images.paths, photos.images.decoded)


def read_features(
    photos: MultiLabelSet, extractor: Extractor, progress: Progress = no_progress
) -> tuple[NDArray[np.float32], Extractor]:
    """Return features of labelled photos, and their extractor.

    The features of a data set that has them are used unchanged; the extractor is then "none".
    """
    from blindsight.tagging.photos import Extractor

    if photos.features is not None:
        return photos.features, Extractor("none", 0)
    rows = extractor(
        photos.images,
        names=None if photos.names is None else photos.names.tolist(),
        progress=lambda done, total: progress("features", done, total),
    )
    return rows, extractor


def _training_set(
    source: str, labels: str | Path | None, words: Mapping[str, Sequence[str]] | None
) -> tuple[MultiLabelSet, LabelsFile | None]:
    """Return the labelled photos, and the labels file if they are the owner's."""
    from blindsight import data
    from blindsight.tagging.labels import read_labels

    folder = Path(source)
    if labels is not None:
        file = read_labels(labels, folder, words)
        return file.photos, file
    if folder.is_dir():
        raise InvalidParameter(f"give the labels of the photos in {folder}: --labels labels.csv.")
    if folder.suffix:
        raise MissingData(
            f"{folder} is not a folder. Use `tag train FOLDER --labels {folder.name}`."
        )
    photos = data.load(source, split="train")
    if not isinstance(photos, data.MultiLabelSet):
        raise InvalidData(
            f"{source} has no multi-label annotation. Try coco-subset, scene, corel5k or a folder."
        )
    if words is not None and not words.keys() <= set(photos.classes):
        raise InvalidParameter(
            f"--vocabulary must name labels that {source} has: {', '.join(photos.classes[:5])}, ..."
        )
    return photos, None


def _trained(
    tagger: PrivateTagger,
    model: Path,
    *,
    quality: TaggerQuality | None = None,
    vault: Path | None = None,
    charged: bool = False,
    labelled: LabelsFile | None = None,
    notice: str | None = None,
    predicted: TaggingForecast | None = None,
) -> TrainedTagger:
    return TrainedTagger(
        model=model,
        labels=tuple(str(name) for name in tagger.classes_),
        n_records=int(tagger.public_["n_records"]),
        guarantee=tagger.guarantee_,
        answer_guarantee=tagger.answer_guarantee_,
        quality=quality,
        vault=vault,
        charged=charged,
        ignored_labels=() if labelled is None else labelled.left_out,
        missing_photos=() if labelled is None else labelled.missing,
        notice=notice,
        forecast=None if predicted is None else predicted.line(),
        learned=tagger.released_.get("trusted"),
        files=None if labelled is None else labelled.files,
    )


def _extractor(
    features: FeatureKind, size: int | None, encoder: str | Path | Encoder | None
) -> Extractor:
    from blindsight.tagging.photos import Extractor

    if encoder is not None:
        return Extractor.with_encoder(encoder)
    if features == "pixels":
        return Extractor("pixels", size or PIXEL_SIZE)
    if features not in ("network", "efficientnet"):
        raise InvalidParameter(f"features must be network or pixels, got {features!r}.")
    if size is not None:
        raise InvalidParameter("size is for features='pixels': a network has its own size.")
    return Extractor.default()


def _public_rows(folder: Path, extractor: Extractor, progress: Progress) -> NDArray[np.float32]:
    return extractor.of_folder(
        folder, progress=lambda done, total: progress("public photos", done, total)
    )


def _card_fields(guarantee: Guarantee) -> dict[str, object]:
    """Return the rows of a card as fields, with a list of all releases."""
    rows = guarantee.rows()
    return {**dict(rows), "releases": [text for name, text in rows if name == "releases"]}


def _not_worth_publishing(epsilon: float, quality: TaggerQuality | None) -> str:
    from blindsight.tagging.photos import HELD_OUT_ONE_IN, MIN_HELD_OUT

    if quality is None:
        return (
            "the quality of answers with noise cannot be measured: about one in "
            f"{HELD_OUT_ONE_IN} labelled photos is held out for that, and at least {MIN_HELD_OUT} "
            "are needed. No model was written: label about "
            f"{2 * HELD_OUT_ONE_IN * MIN_HELD_OUT} photos."
        )
    return (
        f"answers at ε = {epsilon:g} per photo would be no better than label rates alone "
        f"(on held-out photos mAP {quality.mean_average_precision:.3f} against "
        f"{quality.rates_mean_average_precision:.3f}, OF1 {quality.overall_f1:.3f} against "
        f"{quality.rates_overall_f1:.3f}; for you only). No model was written: give a larger "
        "--publish, more photos, or --public photos."
    )
