"""Photos to features, public knowledge about their labels, and the quality of a tagger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from blindsight.core import checks
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
from blindsight.encoders.network import DIMENSIONS
from blindsight.encoders.weights import available
from blindsight.evaluation.multilabel import evaluate
from blindsight.tagging.answers import NoCharge
from blindsight.tagging.estimator import PrivateTagger
from blindsight.tagging.labels import label_rows
from blindsight.tagging.prior import Prior, encoder_prior

__all__ = [
    "HELD_OUT_ONE_IN",
    "MIN_HELD_OUT",
    "Extractor",
    "ImageFiles",
    "Quality",
    "expected_training",
    "image_files",
    "public_knowledge",
    "quality",
    "split",
]

Progress = Callable[[int, int], None]
#: About one labelled photo in so many is held out, to measure the quality of a tagger on. The
#: number is constant: if it depended on the number of photos, one photo more would move others.
HELD_OUT_ONE_IN = 5
#: Quality is not measured on fewer held-out photos than this.
MIN_HELD_OUT = 12
_LARGEST = 1024  # pixels to a side that a network is given


@dataclass(frozen=True)
class Extractor:
    """How images become features, as a model's file states it.

    Parameters:
        kind: "efficientnet" (EfficientNet-Lite0), "pixels", "encoder" (any other encoder), or
            "none" for a model that was trained on ready features.
        size: the side in pixels of an image; 0 for "encoder" and "none".
        identity: what tells the encoder from others, for "encoder".
        encoder: the opened encoder; None where it has not been given yet.
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
        """The features of an encoder: a name, a path, or one that was opened."""
        encoder = open_encoder(source)
        return cls("encoder", 0, encoder.identity(), encoder)

    @classmethod
    def default(cls) -> Extractor:
        """The best built-in features on this machine: both networks, else the small one.

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
        """The one that a model's file names.

        Files may be hostile: it must give as many features as the model takes.

        Parameters:
            tagger: the model.
            encoder: the encoder that it was trained with, where that is not built in.
            what: the model and where it is, for messages.

        Raises:
            HostileFile: the file does not say how images become features.
            InvalidParameter: the encoder is another one, or is needed and was not given.
        """
        stated = tagger.public_.get("extractor", {"kind": "none", "size": 0})
        try:
            made = cls(**stated)
        except (TypeError, InvalidParameter) as error:
            raise HostileFile(
                f"this model's file does not say how images become features: {error}"
            ) from error
        if made.kind == "encoder" or encoder is not None:
            made = made._opened(encoder, what)
        given = {
            "pixels": 3 * made.size**2,
            "efficientnet": DIMENSIONS if made.size <= _LARGEST else 0,
            "encoder": made.encoder.dimensions if made.encoder is not None else 0,
        }
        if given.get(made.kind, tagger.n_features_in_) != tagger.n_features_in_:
            raise HostileFile(
                f"this model takes {tagger.n_features_in_} features, which are not those of {made}."
            )
        return made

    def to_fields(self) -> dict[str, object]:
        """Plain values for the model's file; what was not used is left out."""
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
        """Features (n, D). Those of private images are kept nowhere; those of public ones may be
        cached. `names` are needed where the encoder is a file of vectors.
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
        """Features of a folder of public images."""
        public = load_folder(folder)
        names = None if public.names is None else public.names.tolist()
        return self(public.images, names=names, public=True, progress=progress)

    def _opened(self, given: str | Path | Encoder | None, what: str) -> Extractor:
        if self.identity is None:
            raise InvalidParameter(
                f"{what} was made with the features {self.kind!r}, not with an encoder of your "
                "own: leave the encoder out."
            )
        encoder = open_same_encoder(self.identity, given, what=what)
        return replace(self, encoder=encoder)


@dataclass(frozen=True)
class ImageFiles:
    """Images that were named on a command line, alone or by their folders.

    Attributes:
        digests: the digest of each image's pixels, by its path.
        unreadable: images in folders that could not be read, and why.
        files: what became of every file that was named or lies in a named folder.
        decoded: pixels of the images, for their features.
    """

    digests: dict[Path, bytes]
    unreadable: tuple[tuple[Path, str], ...]
    files: FilesRead
    decoded: DecodedPhotos


def image_files(given: Sequence[Path]) -> ImageFiles:
    """The images that are named, and those in folders that are named, as training lists them.

    An image in a folder that cannot be read is left out and counted; one that is named is refused.
    """
    digests: dict[Path, bytes] = {}
    decoded = DecodedPhotos()

    def checked(path: Path) -> bytes:
        return pixel_digest(Files([path], decoded=decoded)[0])

    unreadable: list[tuple[Path, str]] = []
    total = FilesRead(0)
    for path in given:
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
        raise MissingData(no_photos(", ".join(map(str, given)), total.skipped))
    different = len(set(digests.values()))
    files = total + FilesRead(different, len(digests) - different)
    return ImageFiles(digests, tuple(unreadable), files, decoded)


def split(rows: Array, *, one_in: int = HELD_OUT_ONE_IN) -> tuple[Ints, Ints, int]:
    """Places of records to learn from, of about one in `one_in` to measure on, and how many were to
    be learned from.

    Each is told by its own row alone. By place or by number, one photo more would move others
    across, and the training sets of two folders that differ in one photo would differ in many: no
    promise per photo would hold for the folder. How many really are learned from is then private,
    for it tells on which side a photo is: files state how many were to be.
    """
    marks = [
        int.from_bytes(sha256(np.ascontiguousarray(row).tobytes()).digest()[:8], "little")
        for row in rows
    ]
    held = np.array(marks, np.uint64) % np.uint64(one_in) == 0
    return np.flatnonzero(~held), np.flatnonzero(held), expected_training(len(rows), one_in=one_in)


def expected_training(n_labelled: int, *, one_in: int = HELD_OUT_ONE_IN) -> int:
    """How many of so many labelled photos `split` is expected to train on."""
    return max(1, round(n_labelled * (1 - 1 / one_in)))


def public_knowledge(
    names: Sequence[str],
    extractor: Extractor,
    public: ArrayLike | None = None,
    synonyms: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Prior | None, str | None]:
    """The prior for these labels, or None; and what is not known in public, as a sentence."""
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
        f"No public knowledge about {listed}: the text encoder knows English words, and these are "
        "none that it knows. Give labels English names beside their own, as in Hund=dog."
    )
    return (prior if len(unknown) < len(names) else None), notice


@dataclass(frozen=True)
class Quality:
    """How good answers are on images with known labels, beside what the label rates alone would
    give.
    """

    mAP: float
    OF1: float
    rates_mAP: float
    rates_OF1: float

    @property
    def worth_it(self) -> bool:
        """Whether answers gain a tenth of what there is to gain in order over label rates, and name
        tags no worse.
        """
        return self.mAP > self.rates_mAP + 0.1 * (1 - self.rates_mAP) and self.rates_OF1 <= self.OF1


def quality(tagger: PrivateTagger, rows: ArrayLike, labels: ArrayLike) -> Quality:
    """Measured on these images: a private number, for the owner only, and never saved."""
    truth = label_rows(labels)
    if not truth.any():
        raise InvalidData("no image has a label of the vocabulary, so there is nothing to measure.")
    logits = tagger.logits(rows)
    noisy = tagger.answer_guarantee_ is not None
    # A trial that leaves nothing: its noise is thrown away with it.
    answers = tagger.noisy(logits, ledger=NoCharge()) if noisy else tagger.answer(rows)
    found = evaluate(truth, answers.scores, decisions=answers.tags)
    rates = truth.mean(axis=0)
    named = [
        evaluate(
            truth, np.tile(rates, (len(truth), 1)), decisions=np.tile(rates >= t, (len(truth), 1))
        )
        for t in np.quantile(rates[rates > 0], (0.5, 0.8, 0.95, 1.0))
    ]
    return Quality(found.mAP, found.OF1, named[0].mAP, max(one.OF1 for one in named))
