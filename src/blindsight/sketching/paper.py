"""NegDL's sketches of images, and Algorithm 3 as messages between users and a server.

`NegativeSketcher` turns images into sketches (`index.bulk.sketch_to` writes files larger than
memory). `SketchUser` sketches, `SketchServer` trains, and only bytes pass between them. A message
holds counts, labels and public parameters (`SketchSet.to_bytes`), and the server has no function
that accepts images. The transport is the caller's choice: a file, a socket, a queue.

`settings_gallery` draws originals above what the paper's attacker recovers under each setting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from blindsight.core import storage
from blindsight.core.arrays import Array, Ints
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter, ProtocolError
from blindsight.privacy import Disclosure, Recovery
from blindsight.privacy.entropy import RandomState
from blindsight.sketching.leak import Leak, leak_of
from blindsight.sketching.negative_database import NegativeDatabase, hide_image
from blindsight.sketching.parameters import (
    PAPER_P,
    PAPER_Q,
    PAPER_R,
    QKParameters,
    as_images,
    pixels_of,
    resolve,
)
from blindsight.sketching.sampler import Dice, draw_sketches
from blindsight.sketching.sketches import Permanent, SketchSet

if TYPE_CHECKING:
    from blindsight.sketching.trainer import NegDL

__all__ = [
    "NegativeSketcher",
    "SketchServer",
    "SketchUser",
    "disclosure_of",
    "draw_gallery",
    "settings_gallery",
]


class NegativeSketcher(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Converts images to sketches of their negative databases (Algorithms 1 and 2).

    The sketches are drawn directly as counts.

    Parameters:
        q: "Q1" to "Q12", a sequence of q_j (one per bit, most significant first), or `QKParameters`
            (then p and r are those). Q3 hides most and Q12 reveals the image; see `leak_` and
            `disclosure_`.
        p: shares of the K types of records: type i differs from the image in i of its K bits.
        r: records per bit of the image.
        n_jobs: threads; None for all cores.
        random_state: None for the operating system's entropy; `Permanent(vault)` always gives an
            image the same sketch. With a seed every call repeats its random numbers, for
            simulations only.

    Guarantee:
        None. A sketch is obfuscation: `leak_` states what it implies (local epsilon per bit and per
        pixel, the paper's G) and `disclosure_` who sees what. For a proven guarantee use
        `FlippedBits` or `CodebookSketcher`.

    Examples:
        >>> images = np.arange(32, dtype=np.uint8).reshape(2, 4, 4)
        >>> len(NegativeSketcher("Q3", random_state=0).fit(images).sketch(images))
        2
    """

    def __init__(
        self,
        q: str | Sequence[float] | QKParameters = "Q3",
        *,
        p: Sequence[float] = PAPER_P,
        r: float = PAPER_R,
        n_jobs: int | None = None,
        random_state: RandomState | Permanent = None,
    ) -> None:
        self.q = q
        self.p = p
        self.r = r
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> NegativeSketcher:
        """Check the parameters against the images' depth and shape.

        Nothing is learned from the images.
        """
        parameters = resolve(self.q, p=self.p, r=self.r)
        images = as_images(pixels_of(X), parameters.depth)
        self._settle(parameters, images.shape[1:])
        return self

    def _settle(self, parameters: QKParameters, image_shape: Sequence[int]) -> None:
        channels, height, width = (int(size) for size in image_shape)
        parameters.check_string(height * width)
        self.parameters_ = parameters
        self.image_shape_ = (channels, height, width)
        self.leak_: Leak = leak_of(parameters)
        self.disclosure_: Disclosure = disclosure_of(parameters, self.leak_, self.image_shape_)

    def transform(self, X: ArrayLike) -> Array:
        """Return counts (n, channels, L, 2, height, width), uint8 or uint16.

        Index 0 of the fourth axis counts zeros.
        """
        check_is_fitted(self, "parameters_")
        images = as_images(pixels_of(X), self.parameters_.depth)
        if images.shape[1:] != self.image_shape_:
            raise InvalidData(
                f"images must have (channels, height, width) {self.image_shape_} as in fit, got "
                f"{images.shape[1:]}."
            )
        n, channels, height, width = images.shape
        # Each channel is a separate string, as in the paper's CIFAR-10 experiment.
        strings = images.reshape(n * channels, height * width)
        if isinstance(self.random_state, Permanent):
            counts = self._permanent(images, self.random_state)
        else:
            counts = draw_sketches(
                strings, self.parameters_, dice=Dice.throw(self.random_state), n_jobs=self.n_jobs
            )
        return counts.reshape(n, channels, self.parameters_.depth, 2, height, width)

    def _permanent(self, images: Array, state: Permanent) -> Array:
        """Draw counts with randomness that depends on the vault and the image only."""
        fingerprint, parameters = self.parameters_.fingerprint, self.parameters_
        each = [
            draw_sketches(
                image.reshape(len(image), -1),
                parameters,
                dice=Dice.keyed(state.stream(f"{name}/{fingerprint}")),
                n_jobs=1,
            )
            for name, image in zip(state.names(images), images, strict=True)
        ]
        return np.stack(each) if each else np.empty(0, parameters.dtype)

    def sketch(
        self, X: ArrayLike, y: ArrayLike | None = None, *, classes: Sequence[str] = ()
    ) -> SketchSet:
        """Sketch images and return the set that is sent: counts, labels and parameters."""
        labels = getattr(X, "labels", None) if y is None else np.asarray(y)
        return SketchSet(
            self.transform(X), self.parameters_, labels, tuple(classes or getattr(X, "classes", ()))
        )

    def records(self, image: ArrayLike, *, unsafe_records: bool = False) -> list[NegativeDatabase]:
        """Return the records, one negative database per channel, for study; never send them."""
        if not unsafe_records:
            raise InvalidParameter(
                "records reveal the image (belief propagation reverses them). Send sketches, or "
                "pass unsafe_records=True to study them."
            )
        check_is_fitted(self, "parameters_")
        channels = as_images(np.asarray(image)[None], self.parameters_.depth)[0]
        state = None if isinstance(self.random_state, Permanent) else self.random_state
        return [hide_image(channel, self.parameters_, random_state=state) for channel in channels]

    def save(self, path: str | Path) -> None:
        """Write parameters and shape, which are public."""
        check_is_fitted(self, "parameters_")
        seed = self.random_state if isinstance(self.random_state, int) else None
        fields = {
            "parameters": self.parameters_.to_dict(),
            "image_shape": list(self.image_shape_),
            "n_jobs": self.n_jobs,
            "seed": seed,
        }
        storage.save(path, kind="negative-sketcher", arrays={}, fields=fields)

    @classmethod
    def load(cls, path: str | Path) -> NegativeSketcher:
        """Read what `save` wrote."""
        _, fields = storage.load(path, kind="negative-sketcher")
        try:
            parameters = QKParameters.from_dict(fields["parameters"])
            sketcher = cls(
                parameters.q,
                p=parameters.p,
                r=parameters.r,
                n_jobs=fields["n_jobs"],
                random_state=fields["seed"],
            )
            sketcher._settle(parameters, fields["image_shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise HostileFile(f"{path} is not a sketcher: {error}") from error
        return sketcher


def disclosure_of(
    parameters: QKParameters, leak: Leak, image_shape: tuple[int, int, int]
) -> Disclosure:
    """Return the disclosure of sketches with these parameters.

    It states who sees what, and what an attacker can compute from a sketch.
    """
    channels, height, width = image_shape
    per_bit = ", ".join("inf" if math.isinf(e) else f"{e:.3g}" for e in leak.epsilon_bit)
    ratio = f"likelihood ratio (delta {leak.delta:g}, computed)"
    return Disclosure(
        method=f"sketch of a negative database, {parameters.name}, p = {parameters.p}, K = "
        f"{parameters.specified}, r = {parameters.r:g}",
        sees=(
            (
                "the server",
                "for every bit of every pixel, two counts that lean towards its true value; labels "
                "if sent",
            ),
            ("the owner", "images and noise; records never leave"),
        ),
        recovered=(
            Recovery(attack=ratio, measure="local epsilon per pixel", value=leak.epsilon_pixel),
            Recovery(
                attack=ratio,
                measure="local epsilon of the first bit",
                value=leak.epsilon_bit[0],
            ),
            Recovery(
                attack="the likelier bits (computed)",
                measure="share of pixels exactly right",
                value=leak.pixels_right,
                chance=2.0**-parameters.depth,
            ),
            Recovery(attack="Equation 11", measure="G per channel", value=leak.G(height * width)),
        ),
        verdict=f"At {parameters.name}: {leak.verdict_at(image_shape)}",
        assumptions=(
            "no epsilon is claimed: a sketch is obfuscation",
            "computed, not measured: what is seen depends on the images; attack sketches of images "
            "like yours",
            f"implied local epsilon of each bit, first to last: {per_bit}",
            f"{channels} channel(s), each hidden as a string of its own",
        ),
    )


class SketchUser:
    """The owner of images in Algorithm 3: steps 1 and 2 of training and of inference."""

    def __init__(self, sketcher: NegativeSketcher) -> None:
        self.sketcher = sketcher

    def contribute(self, images: ArrayLike, labels: ArrayLike) -> bytes:
        """Return a message with sketches and labels of the images, for training."""
        return self.sketcher.fit(images).sketch(images, labels).to_bytes()

    def ask(self, images: ArrayLike) -> bytes:
        """Return a message with sketches of new images, for inference."""
        fitted = self.sketcher.fit(images)
        return SketchSet(fitted.transform(images), fitted.parameters_).to_bytes()


class SketchServer:
    """The server in Algorithm 3: it collects the messages of all users, trains and answers."""

    def __init__(self, model: NegDL) -> None:
        self.model = model
        self._received: list[SketchSet] = []

    def receive(self, message: bytes) -> int:
        """Receive one user's sketches (step 3), and return the number of all sketches received."""
        sketches = SketchSet.from_bytes(message)
        if sketches.labels is None:
            raise ProtocolError("a contribution must carry labels.")
        if self._received:
            sketches.require(self._received[0].parameters, self._received[0].image_shape)
        self._received.append(sketches)
        return sum(map(len, self._received))

    def train(self, *, progress: Callable[[int, int], None] | None = None) -> NegDL:
        """Train on all received sketches (steps 4 to 11)."""
        if not self._received:
            raise ProtocolError("no sketches were received yet.")
        return self.model.fit(SketchSet.concatenate(self._received), progress=progress)

    def answer(self, message: bytes) -> Ints:
        """Return the classes of the sketched images (testing phase)."""
        return self.model.predict(SketchSet.from_bytes(message))


_SIDE = 512  # pixels of a picture that are drawn


def draw_gallery(
    path: str | Path, rows: Sequence[tuple[str, Array]], *, peak: float = 255.0
) -> Path:
    """Write rows of images, each with its caption, as SVG or PNG (by the file's ending)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not rows or not all(len(images) for _, images in rows):
        raise InvalidData("a gallery needs at least one row of images.")
    columns = max(len(images) for _, images in rows)
    figure = Figure(figsize=(1.6 + columns * 0.9, 0.95 * len(rows)))
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, (caption, images) in zip(axes, rows, strict=True):
        for axis in line:
            axis.axis("off")
        for axis, image in zip(line, images, strict=False):
            # Pixels are skipped, not averaged: averaging would be an attack.
            step = max(1, max(image.shape[:2]) // _SIDE)
            axis.imshow(
                np.clip(image[::step, ::step] / peak, 0, 1),
                cmap="gray",
                vmin=0,
                vmax=1,
                interpolation="nearest",
            )
        line[0].text(
            -0.15, 0.5, caption, transform=line[0].transAxes, ha="right", va="center", fontsize=8
        )
    figure.subplots_adjust(
        left=1.5 / (1.6 + columns * 0.9),
        right=0.99,
        top=0.99,
        bottom=0.01,
        wspace=0.05,
        hspace=0.05,
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=150)
    return target


def settings_gallery(
    path: str | Path,
    images: Any,
    *,
    names: Sequence[str] = tuple(PAPER_Q),
    p: Sequence[float] = PAPER_P,
    r: float = PAPER_R,
    random_state: RandomState = None,
) -> Path:
    """Draw originals, and what the paper's attacker recovers under each setting Q1 to Q12."""
    pixels = pixels_of(images)
    rows: list[tuple[str, Array]] = [("original", pixels)]
    for name in names:
        sketcher = NegativeSketcher(name, p=p, r=r, random_state=random_state).fit(pixels)
        rows.append((name, sketcher.sketch(pixels).pictures()))
    return draw_gallery(path, rows)
