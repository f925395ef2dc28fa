"""Taggers for photos: features, public knowledge, quality, training and published answers.

`train_once` trains a tagger, and `publish` releases one answer per photo; both are stored in a
vault and charged once.

A photo has the same published answer after a crash, from another folder or in another process: its
noise is a function of the vault's key, the content of the photo and the model (permanent randomised
response), and released answers are stored in the vault. So one charge of epsilon, under the id of
the release, covers every photo that this model publishes. Another model, mechanism or
epsilon is another release.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from blindsight.core import checks, durable, storage
from blindsight.core.arrays import Array, Floats32, Ints
from blindsight.core.errors import (
    BlindsightError,
    HostileFile,
    InvalidData,
    InvalidParameter,
    MissingData,
)
from blindsight.data import DecodedPhotos, Files, load_folder
from blindsight.data.listing import FilesRead, list_photos, no_photos
from blindsight.data.sources import pixel_digest
from blindsight.encoders import Encoder, encode_images, open_encoder, open_same_encoder
from blindsight.encoders.base import Identity
from blindsight.encoders.network import DIMENSIONS, available
from blindsight.evaluation.scores import evaluate
from blindsight.privacy.accounting import plan_to_fields
from blindsight.privacy.door import Door
from blindsight.privacy.vault import Vault
from blindsight.tagging import guarantee as guarantees
from blindsight.tagging.estimator import TRAINING, PrivateTagger
from blindsight.tagging.guarantee import Answers, CodebookAnswers, Exact, NoCharge
from blindsight.tagging.labels import FromLabels, label_names, label_rows
from blindsight.tagging.prior import Prior, encoder_prior

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Ledger

__all__ = [
    "HELD_OUT_ONE_IN",
    "MIN_HELD_OUT",
    "Extractor",
    "ImageFiles",
    "Quality",
    "expected_training",
    "image_files",
    "public_knowledge",
    "publish",
    "quality",
    "release_of",
    "split",
    "train_once",
]

Progress = Callable[[int, int], None]
#: About one labelled photo in this many is held out, to measure the quality of a tagger. The number
#: is constant: if it depended on the number of photos, one more photo would move others.
HELD_OUT_ONE_IN = 5
#: Quality is not measured on fewer held-out photos than this.
MIN_HELD_OUT = 12
_LARGEST = 1024  # pixels per side of a network's input


@dataclass(frozen=True)
class Extractor:
    """The map from images to features that a model's file states.

    Parameters:
        kind: "efficientnet" (EfficientNet-Lite0), "pixels", "encoder" (any other encoder), or
            "none" for a model that was trained on ready features.
        size: the side in pixels of an image; 0 for "encoder" and "none".
        identity: the identity of the encoder, for "encoder".
        encoder: the opened encoder; None if it has not been given yet.
    """

    kind: Literal["efficientnet", "pixels", "none", "encoder"] = "efficientnet"
    size: int = 224
    identity: Identity | None = None
    encoder: Encoder | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        checks.one_of("features", self.kind, ("efficientnet", "pixels", "none", "encoder"))
        checks.whole("size", self.size, least=0)
        if (self.kind == "encoder") != isinstance(self.identity, dict):
            raise InvalidParameter("an identity belongs to features of the kind 'encoder'.")

    @classmethod
    def with_encoder(cls, source: str | Path | Encoder) -> Extractor:
        """Return the extractor for an encoder: a name, a path, or an opened encoder."""
        encoder = open_encoder(source)
        return cls("encoder", 0, encoder.identity(), encoder)

    @classmethod
    def default(cls) -> Extractor:
        """Return the best built-in features on this machine: both networks, else the small one.

        Raises:
            MissingDependency: there is no engine to run a network.
        """
        return cls.with_encoder("both-large" if available("lite2") else "lite0")

    @classmethod
    def of(
        cls,
        tagger: PrivateTagger,
        encoder: str | Path | Encoder | None = None,
        *,
        what: str = "this model",
    ) -> Extractor:
        """Return the extractor that a model's file names.

        Files may be hostile, so it is checked that it gives as many features as the model takes.

        Parameters:
            tagger: the model.
            encoder: the encoder that it was trained with, if that is not built in.
            what: the model and where it is, for messages.

        Raises:
            HostileFile: the file does not say how images become features.
            InvalidParameter: the encoder is another one, or is needed and was not given.
        """
        stated = tagger.public_.get("extractor", {"kind": "none", "size": 0})
        try:
            extractor = cls(**stated)
        except (TypeError, InvalidParameter) as error:
            raise HostileFile(
                f"this model's file does not say how images become features: {error}"
            ) from error
        if extractor.kind == "encoder" or encoder is not None:
            extractor = extractor._opened(encoder, what)
        widths = {
            "pixels": 3 * extractor.size**2,
            "efficientnet": DIMENSIONS if extractor.size <= _LARGEST else 0,
            "encoder": extractor.encoder.dimensions if extractor.encoder is not None else 0,
        }
        if widths.get(extractor.kind, tagger.n_features_in_) != tagger.n_features_in_:
            raise HostileFile(
                f"this model takes {tagger.n_features_in_} features, which are not those of "
                f"{extractor}."
            )
        return extractor

    def to_fields(self) -> dict[str, object]:
        """Return plain values for the model's file, without fields that are not used."""
        fields: dict[str, object] = {"kind": self.kind, "size": self.size}
        return fields if self.identity is None else {**fields, "identity": self.identity}

    def __call__(
        self,
        images: Any,
        *,
        names: Sequence[str] | None = None,
        public: bool = False,
        progress: Progress | None = None,
    ) -> Floats32:
        """Return features (n, D).

        Features of private images are not stored; those of public images may be cached. `names` are
        needed if the encoder is a file of vectors.
        """
        from blindsight.encoders import EfficientNet, pixels

        if self.kind == "none":
            raise InvalidParameter(
                "this tagger was trained on ready features, not on images; use it from Python."
            )
        if self.encoder is not None:
            return encode_images(self.encoder, images, names, progress=progress)
        if self.kind == "pixels":
            return pixels(images, size=self.size)
        return EfficientNet(self.size, cache=public).transform(images, progress=progress)

    def of_folder(self, folder: Path, *, progress: Progress | None = None) -> Floats32:
        """Return features of a folder of public images."""
        public = load_folder(folder)
        names = None if public.names is None else public.names.tolist()
        return self(public.images, names=names, public=True, progress=progress)

    def _opened(self, source: str | Path | Encoder | None, what: str) -> Extractor:
        if self.identity is None:
            raise InvalidParameter(
                f"{what} was made with the features {self.kind!r}, not with an encoder of your "
                "own: leave the encoder out."
            )
        encoder = open_same_encoder(self.identity, source, what=what)
        return replace(self, encoder=encoder)


@dataclass(frozen=True)
class ImageFiles:
    """Images that were named on a command line, alone or by their folders.

    Attributes:
        digests: the digest of each image's pixels, by its path.
        unreadable: images in folders that could not be read, and why.
        files: which of the named files, and of those in named folders, were read or not, and why.
        decoded: pixels of the images, for their features.
    """

    digests: dict[Path, bytes]
    unreadable: tuple[tuple[Path, str], ...]
    files: FilesRead
    decoded: DecodedPhotos


def image_files(paths: Sequence[Path]) -> ImageFiles:
    """Return the named images and those in named folders, in the order that training uses.

    An unreadable image in a folder is left out and counted; if it is named itself, it is an error.
    """
    digests: dict[Path, bytes] = {}
    decoded = DecodedPhotos()

    def checked(path: Path) -> bytes:
        return pixel_digest(Files([path], decoded=decoded)[0])

    unreadable: list[tuple[Path, str]] = []
    total = FilesRead(0)
    for path in paths:
        if path.is_dir():
            listed = list_photos(path)
            damaged: list[tuple[str, str]] = []
            for name in listed.photos:
                try:
                    digests[path / name] = checked(path / name)
                except (OSError, BlindsightError) as error:
                    damaged.append((name, str(error)))
            unreadable += [(path / name, reason) for name, reason in damaged]
            total += listed.files_read(read=0, damaged=damaged)
        elif path.exists():
            digests[path] = checked(path)
        else:
            raise MissingData(f"{path} does not exist. Name images, or folders of images.")
    if not digests:
        raise MissingData(no_photos(", ".join(map(str, paths)), total.skipped))
    different = len(set(digests.values()))
    files = total + FilesRead(different, len(digests) - different)
    return ImageFiles(digests, tuple(unreadable), files, decoded)


def split(rows: Array, *, one_in: int = HELD_OUT_ONE_IN) -> tuple[Ints, Ints, int]:
    """Split records into training records and about one in `one_in` held-out records.

    The side of a record depends on its own row only. If it depended on its position or on the
    number of records, one more photo would move others to the other side: the training sets of two
    folders that differ in one photo would differ in many, and no guarantee per photo would hold for
    the folder. The actual number of training records is private, because it reveals on which side a
    photo is; files state the expected number.

    Returns:
        The positions of the training records and of the held-out records, and the expected number
        of training records.
    """
    marks = [
        int.from_bytes(sha256(np.ascontiguousarray(row).tobytes()).digest()[:8], "little")
        for row in rows
    ]
    held = np.array(marks, np.uint64) % np.uint64(one_in) == 0
    return np.flatnonzero(~held), np.flatnonzero(held), expected_training(len(rows), one_in=one_in)


def expected_training(n_labelled: int, *, one_in: int = HELD_OUT_ONE_IN) -> int:
    """The expected number of training records of `split` for this number of labelled photos."""
    return max(1, round(n_labelled * (1 - 1 / one_in)))


def public_knowledge(
    names: Sequence[str],
    extractor: Extractor,
    public: ArrayLike | None = None,
    synonyms: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Prior | None, str | None]:
    """Return the prior for these labels or None, and a sentence on labels without one or None."""
    if extractor.encoder is None:
        return None, "Without public knowledge about the labels: these features come without it."
    try:
        prior = encoder_prior(names, extractor.encoder, public=public, synonyms=synonyms)
    except BlindsightError as error:
        return None, f"Without public knowledge about the labels: {error}"
    unknown = [
        name for name, weights in zip(names, prior.weights, strict=True) if not weights.any()
    ]
    if not unknown:
        return prior, None
    listed = f"{', '.join(unknown[:5])}{', ...' if len(unknown) > 5 else ''}"
    notice = (
        f"No public knowledge about {listed}: the text encoder knows English words only. Give "
        "these labels English names as well, as in Hund=dog."
    )
    return (prior if len(unknown) < len(names) else None), notice


@dataclass(frozen=True)
class Quality:
    """The quality of answers on labelled images, compared with answers by label rates alone."""

    mAP: float
    OF1: float
    rates_mAP: float
    rates_OF1: float

    @property
    def worth_it(self) -> bool:
        """Whether the answers are better than label rates alone.

        Mean average precision must gain a tenth of what is possible, and F1 must not be lower.
        """
        return self.mAP > self.rates_mAP + 0.1 * (1 - self.rates_mAP) and self.rates_OF1 <= self.OF1


def quality(tagger: PrivateTagger, rows: ArrayLike, labels: ArrayLike) -> Quality:
    """Measure the quality on these images. It is private, for the owner only, and never saved."""
    truth = label_rows(labels)
    if not truth.any():
        raise InvalidData("no image has a label of the vocabulary, so there is nothing to measure.")
    logits = tagger.logits(rows)
    noisy = tagger.answer_guarantee_ is not None
    # This is a trial: its noisy answers are discarded and not charged.
    answers = tagger.noisy(logits, ledger=NoCharge()) if noisy else tagger.answer(rows)
    scores = evaluate(truth, answers.scores, decisions=answers.tags)
    rates = truth.mean(axis=0)
    named = [
        evaluate(
            truth, np.tile(rates, (len(truth), 1)), decisions=np.tile(rates >= t, (len(truth), 1))
        )
        for t in np.quantile(rates[rates > 0], (0.5, 0.8, 0.95, 1.0))
    ]
    return Quality(scores.mAP, scores.OF1, named[0].mAP, max(baseline.OF1 for baseline in named))


# Photos whose answers are stored in the vault together; after a crash at most these are lost.
_TOGETHER = 256


def publish(
    tagger: PrivateTagger,
    records: Sequence[str],
    rows: Callable[[list[int]], Any],
    *,
    vault: Vault,
    ledger: Ledger | None = None,
    account: Callable[[str], Any] | None = None,
    out: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Answers:
    """Return the published answer of each photo, and draw it if there is none yet.

    The charge has the release's id as its key, so it is made once. Without a ledger the vault
    records the release, and the first run with a ledger is charged for it.

    Parameters:
        tagger: the fitted model.
        records: the ids of the photos (`Vault.record_of` their content).
        rows: returns the features of the photos at the given positions; it is called only for
            photos without an answer.
        vault: the owner's vault.
        ledger: charged before the first answer.
        account: called with the release's id, returns the account to charge instead of `ledger`.
        out: the path to which the answers will be written (`Vault.charge`).
        progress: called with (done, total).
    """
    mechanism, single = tagger.answer_mechanism_, tagger.answer_guarantee_
    if single is None or isinstance(mechanism, Exact):
        raise InvalidParameter(
            "exact answers protect no asked image: publish with answers=CodebookAnswers(...)."
        )
    if single.sampler != "exact":
        raise InvalidParameter(
            "permanent noise needs an exact sampler: CodebookAnswers, or Gaussian or Laplace noise."
        )
    promised = guarantees.of_publishing(single)
    mechanism_id = _function(tagger, promised.releases)
    number = release_of(tagger, vault)
    first = {record: position for position, record in reversed(list(enumerate(records)))}
    stored = vault.codes(number)
    missing = sorted((record for record in first if record not in stored), key=first.__getitem__)
    noise = mechanism.noise(tagger.n_labels_)
    shape = np.asarray(
        noise.release(
            mechanism.value(np.zeros((1, tagger.n_labels_))), rng=np.random.default_rng(0)
        )
    )
    what = "tags of photos, each released once"
    # Charged also if nothing is missing: the key makes it a single charge, and a run without a
    # ledger may have come before.
    charged: Any = vault.account(ledger, release=number, records=records, out=out)
    if account is not None:
        charged = account(number)
    charged.charge(promised.costs, what=what)
    for start in range(0, max(1, len(missing)), _TOGETHER):
        some = missing[start : start + _TOGETHER]
        source = vault.source(some, about=mechanism_id)
        door = Door(promised, what=what, ledger=charged, random_state=source)
        if some:
            logits = tagger.logits(rows([first[record] for record in some]))
            drawn = door.release_each(
                guarantees.ANSWER, mechanism.value(logits), some, about=mechanism_id
            )
            codes = (
                np.ascontiguousarray(drawn.astype(shape.dtype))
                .reshape(len(some), -1)
                .view(np.uint8)
            )
            standing = vault.keep_codes(number, some, codes)
            stored |= {record: code.tobytes() for record, code in zip(some, standing, strict=True)}
        if progress is not None:
            progress(min(start + _TOGETHER, len(missing)), len(missing))
    released = np.frombuffer(b"".join(stored[record] for record in records), shape.dtype).reshape(
        -1, *shape.shape[1:]
    )
    return mechanism.read(released)


def release_of(tagger: PrivateTagger, vault: Vault) -> str:
    """Return the id of the release of this model's published answers, in vault and ledger."""
    single = tagger.answer_guarantee_
    if single is None:
        raise InvalidParameter(
            "exact answers are no release: publish with answers=CodebookAnswers(...)."
        )
    return vault.release_of(_function(tagger, guarantees.of_publishing(single).releases))


def train_once(
    tagger: PrivateTagger,
    X: ArrayLike,
    y: ArrayLike,
    *,
    vault: Vault | None,
    ledger: Ledger | None = None,
    records: Sequence[str] = (),
    out: Path | None = None,
    account: Callable[[str], Any] | None = None,
    notes: Mapping[str, Any] | None = None,
    **options: Any,
) -> PrivateTagger:
    """Fit a model, store it in the vault, and charge it once.

    The same training again returns the stored model. A model is returned only after it is stored,
    so a run that a crash interrupts has released nothing and can be repeated under the same charge.
    One record more or less, or another setting, is another release. Without a vault nothing is
    stored, and a second run is another model.

    Parameters:
        tagger: the model to fit.
        X: as for `PrivateTagger.fit`.
        y: as for `PrivateTagger.fit`.
        vault: the owner's vault.
        ledger: the ledger to charge.
        records: ids of the training photos; every account whose data set contains one is charged.
        out: the path to which the model will be written (`Vault.charge`).
        account: called with the release's id, returns the account to charge instead of `ledger`,
            for callers that charge further units.
        notes: further public facts for the model's file.
        options: further arguments of `PrivateTagger.fit`.
    """
    if vault is None:
        tagger.fit(X, y, ledger=ledger, **options)
        tagger.public_ |= dict(notes or {})
        return tagger
    number = vault.release_of(_training(tagger, X, y, options.get("n_records")))
    path = vault.path / "models" / f"{number}.safetensors"
    simulated = ledger is None and tagger.random_state is not None
    charged: Any = (
        None if simulated else vault.account(ledger, release=number, records=records, out=out)
    )
    if account is not None:
        charged = account(number)
    if not path.exists():
        own = copy.copy(tagger)
        if tagger.random_state is None:
            own.random_state = vault.training_source(number)
        own.fit(X, y, ledger=charged, **options)
        own.public_ |= dict(notes or {})
        tagger.owner_only_ = own.owner_only_
        durable.make_folder(path.parent)
        partial = path.parent / f".{secrets.token_hex(8)}.part"
        try:
            own.save(partial)
            # If another process stored its model first, that model is used.
            with contextlib.suppress(FileExistsError):
                durable.link_new(partial, path)
        finally:
            durable.remove(partial)
    model = PrivateTagger.load(path)
    if charged is not None:
        charged.charge(model.guarantee_.costs, what=TRAINING)
    model.owner_only_ = getattr(tagger, "owner_only_", {})
    return model


def _training(tagger: PrivateTagger, X: ArrayLike, y: ArrayLike, n_records: int | None) -> str:
    """Return digests of the records and of public tables, and the settings, as text."""
    tables = {"rows": np.asarray(X), "labels": label_rows(y)}
    if tagger.public is not None:
        tables["public"] = np.asarray(tagger.public)
    if tagger.prior is not None:
        tables |= {f"prior.{name}": value for name, value in tagger.prior.tables().items()}
    fields: dict[str, Any] = {
        "training": repr(tagger.training),
        "random_state": repr(tagger.random_state),
        "n_records": n_records,
    }
    # The repr of a large array is abbreviated, so tables are included by their bytes.
    answers, classes = tagger.answers, tagger.classes
    if isinstance(answers, CodebookAnswers) and answers.words is not None:
        codebook_fields = answers.words.to_fields()
        tables |= {
            f"answers.{key}": value
            for key, value in codebook_fields.items()
            if isinstance(value, np.ndarray)
        }
        fields["words"] = {
            key: value
            for key, value in codebook_fields.items()
            if not isinstance(value, np.ndarray)
        }
        answers = replace(answers, words=None)
    fields |= {"answers": repr(answers), "names": isinstance(classes, FromLabels)}
    fields["classes"] = (
        label_names(classes, tables["labels"].shape[1]) if classes is not None else None
    )
    return storage.digest(TRAINING, tables) + json.dumps(fields, sort_keys=True)


def _function(tagger: PrivateTagger, plan: Any) -> str:
    """Return a digest of model and mechanism, which identifies the release."""
    tables: dict[str, Array] = {}
    fields: dict[str, Any] = {"releases": plan_to_fields(plan), "training": repr(tagger.training)}
    for part, values in (("public", tagger.public_), ("released", tagger.released_)):
        tables |= {
            f"{part}.{key}": value for key, value in values.items() if isinstance(value, np.ndarray)
        }
        fields[part] = {
            key: value for key, value in values.items() if not isinstance(value, np.ndarray)
        }
    text = storage.digest("published tags", tables) + json.dumps(fields, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
