"""Send statistics of image features, or a classifier, with a differential privacy guarantee.

A folder of labelled images becomes one small file, from which a receiver trains a classifier
without any of the images. The guarantee of the file is (epsilon, delta) per image and label, or per
person.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from blindsight.app.defaults import (
    DELTA,
    SEND_ENCODER,
    SEND_EPSILON,
    SEND_IMAGES_PER_PERSON,
    no_progress,
    open_ledger,
    open_vault,
)
from blindsight.app.hosting import share_file
from blindsight.app.labelled_images import (
    LabelledImages,
    class_names,
    encode_images,
    list_images,
    public_basis,
)
from blindsight.app.result import JobResult, Progress, ResultTable, files_table, to_plain
from blindsight.core import checks
from blindsight.core.errors import InvalidData, InvalidParameter, RolledBack
from blindsight.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from blindsight.data.listing import FilesRead
    from blindsight.encoders import Encoder
    from blindsight.privacy.ledger import Ledger
    from blindsight.privacy.vault import Vault
    from blindsight.sketching import FeatureStatistics, PrivateHead, Statistics
    from blindsight.sketching.statistics_rules import StatisticsForecast

__all__ = [
    "LearnedFromStatistics",
    "SentStatistics",
    "learn_from_statistics",
    "predict_sending",
    "send_statistics",
]

_FEW_TESTS = 100

Kind = Literal["statistics", "head"]


@dataclass(frozen=True)
class SentStatistics(JobResult):
    """A file that may be shared: feature statistics, or a classifier, with its guarantee.

    Parameters:
        file: the path of the file.
        n_bytes: its size in bytes.
        kind: "statistics" or "head".
        classes: the names of the classes.
        n_images: number of distinct images.
        width: number of values per image in the statistics.
        moments: share of the budget that is spent on the second moment.
        guarantee: the guarantee of the file.
        forecast: the accuracy that public rules predict for a receiver.
        vault: the folder with the key of the noise, which must be kept and not shared.
        charged: whether a ledger was charged now; False if it was charged by an earlier run.
        ledger: whether a ledger was given.
        unreadable: names of files that could not be read, with the reason.
        without_class: number of images whose label is none of the classes.
        files: number of images that were read, and the files that were not; None for a data set.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> sent = send_statistics("digits", folder / "sent", encoder="pixels", random_state=0)
        >>> sent.n_images, len(sent.classes), sent.guarantee.unit
        (1797, 10, 'record')
        >>> sent.forecast.level, f"{sent.forecast.accuracy:.0%}", f"{sent.forecast.chance:.0%}"
        ('good', '82%', '10%')
    """

    file: Path
    n_bytes: int
    kind: Kind
    classes: tuple[str, ...]
    n_images: int
    width: int
    moments: float
    guarantee: Guarantee
    forecast: StatisticsForecast
    vault: Path | None = None
    charged: bool = False
    ledger: bool = False
    unreadable: tuple[tuple[str, str], ...] = ()
    without_class: int = 0
    files: FilesRead | None = None

    @property
    def title(self) -> str:
        content = "Feature statistics" if self.kind == "statistics" else "A classifier"
        return (
            f"{content} of {self.n_images:,} images in {len(self.classes)} classes: {self.file} "
            f"({self.n_bytes / 1e6:.1f} MB)"
        )

    def facts(self) -> list[tuple[str, str]]:
        charged = "not charged: no ledger was given"
        if self.ledger:
            charged = "charged" if self.charged else "charged by an earlier run: nothing more"
        facts = [
            ("guarantee", str(self.guarantee.cost)),
            ("expected", self.forecast.line()),
            ("ledger", charged),
        ]
        if self.without_class:
            facts.append(("without a class", f"{self.without_class:,} images count nothing"))
        facts.append(("share", str(self.file)))
        if self.vault is not None:
            facts.append(("keep private", f"{self.vault} (the key of the noise)"))
        if self.kind == "statistics":
            facts.append(("the receiver runs", f"blindsight send fit {self.file.name}"))
        return facts

    def to_dict(self) -> dict[str, object]:
        """The fields of `blindsight send --json`."""
        return {
            "file": str(self.file),
            "bytes": self.n_bytes,
            "kind": self.kind,
            "classes": list(self.classes),
            "images": self.n_images,
            "width": self.width,
            "moments": self.moments,
            "guarantee": json.loads(self.guarantee.to_json()),
            "predicted_accuracy": self.forecast.accuracy,
            "level": self.forecast.level,
            "charged": self.charged,
            "vault": None if self.vault is None else str(self.vault),
            "unreadable": [list(item) for item in self.unreadable],
            "without_class": self.without_class,
            "files": to_plain(self.files),
        }

    def tables(self) -> list[ResultTable]:
        return [] if self.files is None else [files_table(self.files)]


@dataclass(frozen=True)
class LearnedFromStatistics(JobResult):
    """A classifier that a receiver fitted to statistics.

    Parameters:
        files: the files of the senders.
        method: "lda" or "ridge".
        classes: the names of the classes.
        n_senders: number of releases that were merged.
        accuracy: share of test images classified correctly; None without test images.
        chance: accuracy of naming the most frequent class of the test images.
        n_test: number of test images.
        out: the file of the classifier, if it was written.
        encoder: name of the encoder.
        test_files: number of test images that were read, and the files that were not.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> sent = send_statistics("digits", folder / "sent", encoder="pixels", random_state=0)
        >>> learned = learn_from_statistics(sent.file, test="digits", split=None)
        >>> learned.n_senders, learned.n_test, learned.accuracy > 5 * learned.chance
        (1, 1797, True)
    """

    files: tuple[Path, ...]
    method: str
    classes: tuple[str, ...]
    n_senders: int
    accuracy: float | None = None
    chance: float | None = None
    n_test: int = 0
    out: Path | None = None
    encoder: str = ""
    test_files: FilesRead | None = None

    @property
    def title(self) -> str:
        start = f"A classifier for {len(self.classes)} classes from {self.n_senders} "
        start += "sender" if self.n_senders == 1 else "senders"
        if self.accuracy is None or self.chance is None:
            return f"{start}, not tested"
        text = (
            f"{start}: accuracy {self.accuracy:.1%} on {self.n_test:,} images (chance: "
            f"{self.chance:.1%})"
        )
        return text + ("; with so few images this is uncertain" if self.n_test < _FEW_TESTS else "")

    def facts(self) -> list[tuple[str, str]]:
        facts = [("method", self.method), ("encoder", self.encoder)]
        return facts if self.out is None else [*facts, ("model", str(self.out))]

    def to_dict(self) -> dict[str, object]:
        """The fields of `blindsight send fit --json`."""
        return {
            "files": [str(file) for file in self.files],
            "method": self.method,
            "classes": list(self.classes),
            "senders": self.n_senders,
            "accuracy": self.accuracy,
            "chance": self.chance,
            "tested_on": self.n_test,
            "model": None if self.out is None else str(self.out),
            "test_files": to_plain(self.test_files),
        }

    def tables(self) -> list[ResultTable]:
        return [] if self.test_files is None else [files_table(self.test_files)]


def predict_sending(
    n_images: int,
    n_classes: int,
    *,
    epsilon: float = SEND_EPSILON,
    delta: float = DELTA,
    images_per_person: int = 1,
) -> StatisticsForecast:
    """Predict the accuracy that a receiver can reach with statistics; no image is read.

    Parameters:
        n_images: number of images.
        n_classes: number of classes.
        epsilon: privacy budget per image and label, or per person.
        delta: delta of the guarantee.
        images_per_person: number of images per person; 1 if images are protected.

    Examples:
        >>> predict_sending(50_000, 10).level, predict_sending(300, 10).level
        ('good', 'refused')
    """
    from blindsight.sketching.statistics_rules import forecast

    return forecast(n_images, n_classes, epsilon=epsilon, delta=delta, most=images_per_person)


def send_statistics(
    source: str | Path,
    out: str | Path,
    *,
    epsilon: float = SEND_EPSILON,
    delta: float = DELTA,
    classes: str | Sequence[str] | None = None,
    labels: str | Path | None = None,
    kind: Kind = "statistics",
    encoder: str | Path | Encoder = SEND_ENCODER,
    public: str | Path | None = None,
    picture_size: int | None = None,
    people: str | Mapping[str, str] | None = None,
    images_per_person: int | None = None,
    senders_images: int | None = None,
    split: str | None = None,
    ledger: str | Path | None = None,
    dataset: str | None = None,
    vault: str | Path | None = None,
    actor: str | None = None,
    purpose: str = "",
    random_state: int | None = None,
    force: bool = False,
    progress: Progress = no_progress,
) -> SentStatistics:
    """Release noisy statistics of labelled images, from which others can train a classifier.

    The accuracy of a receiver is predicted from public numbers before anything is charged, and a
    release from which nothing could be learned is refused. The noise is derived from the vault's
    key: the same images with the same options give the same file again, and cost nothing more.

    Parameters:
        source: a folder with one subfolder of images per class, a folder with `labels`, or the name
            of a known data set.
        out: the file to write, which may be shared.
        epsilon: privacy budget per image and label, or per person.
        delta: delta of the guarantee, below one over the number of images.
        classes: the names of the classes: words separated by commas, or a list. By default the
            names of the subfolders, empty ones included, which are assumed to be public.
        labels: a table that names the class of each image (see `blindsight.data.label_tables`); the
            names of the classes must then be stated.
        kind: "statistics", which can be merged with those of other senders, or "head", a classifier
            that is trained here and is about one percentage point better.
        encoder: the image encoder; all senders and the receiver need the same.
        public: a folder of public everyday pictures, or the name of a data set, which improve the
            result by about one percentage point. By default the basis consists of directions of
            the encoder's own classifier.
        picture_size: side in pixels of small images (32 for CIFAR-10); public pictures are resized
            to it first, so that both have the same sharpness. It is public.
        people: whose images they are, as in `protect`; protects all images of a person together.
        images_per_person: with `people`, about how many images a person has. The noise grows with
            its square root, and a larger contribution of a person is clipped.
        senders_images: number of images of all senders together, if statistics will be merged. It
            determines the width, which must be the same for all.
        split: "train" or "test", for known data sets.
        ledger: a ledger to charge before anything is released.
        dataset: the account of the images in the ledger; by default the name of the folder.
        vault: folder for the key of the noise; by default beside `out`.
        actor: the name of the person who asks for it (default: the operating system's user).
        purpose: the purpose, which the ledger stores.
        random_state: a seed for a simulation without a vault, which the guarantee states.
        force: overwrite another release in `out`.
        progress: called with (stage, done, total).

    Returns:
        The file, its guarantee, and the accuracy that a receiver can expect.

    Raises:
        InvalidParameter: if nothing could be learned from so few images at this epsilon; nothing is
            charged.
        BudgetExceeded: if the remaining budget is too small; nothing is released.
        InvalidData: if the images cannot be used.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> rng = np.random.default_rng(0)
        >>> for number in range(80):
        ...     name = "blue" if number % 2 else "red"
        ...     (folder / "photos" / name).mkdir(parents=True, exist_ok=True)
        ...     pixels = rng.integers(0, 99, (8, 8, 3))
        ...     pixels[..., 2 if number % 2 else 0] += 150
        ...     Image.fromarray(pixels.astype(np.uint8)).save(
        ...         folder / "photos" / name / f"{number}.png"
        ...     )
        >>> sent = send_statistics(
        ...     folder / "photos", folder / "sent.safetensors", epsilon=8, encoder="pixels",
        ...     random_state=0,
        ... )
        >>> sent.classes, sent.n_images, sent.guarantee.unit
        (('blue', 'red'), 80, 'record')
        >>> learned = learn_from_statistics(sent.file, test=folder / "photos")
        >>> bool(learned.accuracy > 0.9), learned.chance
        (True, 0.5)
    """
    from blindsight.encoders import open_encoder
    from blindsight.index.public_images import refuse_private
    from blindsight.sketching import FeatureStatistics, PrivateHead
    from blindsight.sketching.statistics_rules import width_for

    checks.one_of("kind", kind, ("statistics", "head"))
    most = _images_per_person(people, images_per_person)
    if kind == "head" and people is not None:
        raise InvalidParameter(
            "a classifier that is trained here protects images, not people: leave out people, or "
            'send kind="statistics".'
        )
    target = Path(out)
    names = class_names(source, classes, labels)
    opened = open_encoder(encoder)
    listed = list_images(str(source), split, labels, names, leave_out=target)
    if public is not None and listed.folder is not None and Path(public).is_dir():
        refuse_private(str(public), listed.folder, listed.names)
    expected = predict_sending(
        senders_images or len(listed),
        len(names),
        epsilon=epsilon,
        delta=delta,
        images_per_person=most,
    )
    if expected.refused:
        raise InvalidParameter(expected.line())
    key = None if random_state is not None else open_vault(vault, target)
    account_name = dataset or Path(source).resolve().name
    account = open_ledger(ledger, account_name, key, actor=actor, purpose=purpose)
    images = encode_images(listed, opened, key, people, account_name, progress)
    count = len(set(images.records))
    basis = public_basis(
        opened,
        public,
        width_for(senders_images or count, len(names), epsilon=epsilon, delta=delta, most=most),
        picture_size=picture_size if picture_size is not None else listed.picture_size,
        progress=progress,
    )
    settings = {
        "kind": kind,
        "epsilon": float(epsilon),
        "delta": float(delta),
        "classes": list(names),
        "encoder": opened.identity(),
        "basis": basis.digest,
        "most": most,
        "people": people is not None,
        "all": senders_images,
    }
    number = None if key is None else key.release_of(_inputs_text(settings, images))
    _refuse_other_release(target, number, key, account, force=force)
    noise = random_state if key is None or number is None else key.training_source(number)
    progress("releasing", 0, 0)
    paid_before = key is not None and any(
        item.release == number and item.state == "charged" for item in key.releases()
    )
    paid = None
    if key is not None and number is not None:
        paid = key.account(
            account,
            release=number,
            records=sorted(set(images.records)),
            actor=actor,
            purpose=purpose,
            out=target,
        )
    sender: FeatureStatistics | PrivateHead
    if kind == "statistics":
        sender = FeatureStatistics(
            epsilon,
            delta=delta,
            classes=names,
            basis=basis,
            unit="record" if people is None else "person",
            most=most,
            n_records=senders_images or count,
            encoder=opened.identity(),
            random_state=noise,
        ).fit(
            images.features,
            images.labels,
            units=images.records if people is None else images.people,
            ledger=paid,
        )
    else:
        first = np.unique(np.array(images.records), return_index=True)[1]
        sender = PrivateHead(
            epsilon,
            delta=delta,
            classes=names,
            basis=basis,
            n_records=count,
            encoder=opened.identity(),
            random_state=noise,
        ).fit(images.features[first], images.labels[first], ledger=paid)
    if number is not None:
        sender.public_["release"] = number
    share_file(target, "statistics", sender.guarantee_, key, save=sender.save)
    return SentStatistics(
        file=target,
        n_bytes=target.stat().st_size,
        kind=kind,
        classes=tuple(names),
        n_images=count,
        width=basis.width,
        moments=float(sender.public_.get("moments", 0.0)),
        guarantee=sender.guarantee_,
        forecast=expected,
        vault=None if key is None else key.path,
        charged=account is not None and not paid_before,
        ledger=account is not None,
        unreadable=images.unreadable,
        without_class=images.without_class,
        files=images.files,
    )


def learn_from_statistics(
    files: str | Path | Sequence[str | Path],
    *,
    method: Literal["lda", "ridge"] = "lda",
    test: str | Path | None = None,
    split: str | None = "test",
    encoder: str | Path | Encoder | None = None,
    out: str | Path | None = None,
    progress: Progress = no_progress,
) -> LearnedFromStatistics:
    """Fit a classifier to the statistics of one or several senders, as a receiver does.

    Parameters:
        files: files that `send_statistics` wrote; several are merged.
        method: "lda" (linear discriminant analysis) or "ridge" (least squares).
        test: the receiver's own labelled images to measure the accuracy on: a folder with a
            subfolder per class, or the name of a known data set.
        split: "train" or "test", if `test` is a known data set.
        encoder: the encoder, if it is not built in.
        out: the file of the classifier, if it is to be written.
        progress: called with (stage, done, total).

    Returns:
        The classifier's accuracy, the accuracy of guessing, and the file.

    Raises:
        HostileFile: if a file is damaged or was changed.
        InvalidData: if the statistics cannot be merged.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> sent = send_statistics("digits", folder / "sent", encoder="pixels", random_state=0)
        >>> print(learn_from_statistics(sent.file))
        A classifier for 10 classes from 1 sender, not tested
          method   lda
          encoder  pixels-16
    """
    from blindsight.encoders import open_same_encoder
    from blindsight.sketching import fit_from_statistics

    paths = [Path(files)] if isinstance(files, (str, Path)) else [Path(file) for file in files]
    merged = _merged(paths)
    model = fit_from_statistics(merged, method)
    name = str(merged.encoder.get("name", "unknown"))
    accuracy = chance = None
    n_test = 0
    files_read = None
    if test is not None:
        description = f"the file of statistics {', '.join(str(path) for path in paths)}"
        opened = open_same_encoder(merged.encoder, encoder, what=description)
        listed = list_images(str(test), split, None, merged.classes, leave_out=None)
        images = encode_images(listed, opened, None, None, "", progress)
        files_read = images.files
        classified = np.isin(images.labels, merged.classes)
        truth = images.labels[classified]
        n_test = len(truth)
        if not n_test:
            raise InvalidData(f"no image of {test} has a class of {', '.join(merged.classes)}.")
        accuracy = float((model.predict(images.features[classified]) == truth).mean())
        chance = float(max((truth == name_of_class).mean() for name_of_class in merged.classes))
    if out is not None:
        model.save(out)
    return LearnedFromStatistics(
        files=tuple(paths),
        method=method,
        classes=merged.classes,
        n_senders=merged.senders,
        accuracy=accuracy,
        chance=chance,
        n_test=n_test,
        out=None if out is None else Path(out),
        encoder=name,
        test_files=files_read,
    )


def _images_per_person(
    people: str | Mapping[str, str] | None, images_per_person: int | None
) -> int:
    if people is None:
        if images_per_person is not None:
            raise InvalidParameter(
                "images_per_person is a number of images of one person: say whose they are, with "
                "people (--person)."
            )
        return 1
    return checks.whole("images_per_person", images_per_person or SEND_IMAGES_PER_PERSON)


def _inputs_text(settings: Mapping[str, object], images: LabelledImages) -> str:
    """Return all inputs and settings of a release as text, which identifies the release."""
    people = images.people or ("",) * len(images.records)
    lines = sorted(
        "\x1f".join(row) for row in zip(images.records, images.labels, people, strict=True)
    )
    digest = hashlib.sha256("\x1e".join(lines).encode(errors="surrogateescape")).hexdigest()
    return f"feature statistics {json.dumps(settings, sort_keys=True)} {digest}"


def _refuse_other_release(
    target: Path,
    number: str | None,
    vault: Vault | None,
    ledger: Ledger | None,
    *,
    force: bool,
) -> None:
    """Refuse to overwrite another release, or a file that is not a release."""
    from blindsight.core import storage
    from blindsight.privacy.reconcile import ReleaseOnDisk, reconcile
    from blindsight.sketching import FeatureStatistics, PrivateHead

    if not target.exists():
        return
    kind, _, fields = storage.load_any(target)
    if kind not in (FeatureStatistics._kind, PrivateHead._kind):
        raise InvalidParameter(f"{target} is not a file of statistics. Choose another name.")
    public = fields.get("public")
    stored = public.get("release") if isinstance(public, dict) else None
    if vault is not None and stored == number is not None:
        if ledger is not None:
            report = reconcile(vault, ledger, [ReleaseOnDisk(str(target), vault.number, number)])
            if not report.agrees:
                raise RolledBack(f"{report} Nothing was charged or released.")
        if number not in {item.release for item in vault.releases()}:
            raise RolledBack(
                f"The vault {vault.path} and its ledger are older than the release {target}, which "
                "they do not know. Put the newest copy of the vault in its place. Nothing was "
                "charged or released."
            )
        return
    if not force:
        raise InvalidParameter(
            f"{target} holds another release. Choose another name, or --force to write over it: "
            "this one is charged as a release of its own."
        )


def _merged(paths: Sequence[Path]) -> Statistics:
    from blindsight.sketching import FeatureStatistics, merge_statistics

    return merge_statistics([FeatureStatistics.load(path).statistics_ for path in paths])
