"""Parameters of sketches, the paper's settings Q1 to Q12, and the conversion of pixels to bits.

Bit 1 is the most significant. A string lists attribute after attribute, as in the paper.

Flipped bits use the storage and the training code of sketches and have a proven epsilon. A flipped
bit is a sketch with exactly one observation of each bit, wrong with probability beta_j. So P_diff =
beta_j, Equations 5 to 7 and everything built on them apply unchanged, and epsilon per pixel is the
sum over its bits of ln((1 - beta_j)/beta_j): randomised response, pure, in the local model.

Images of several sizes and modes are converted to one shape before anything is charged or drawn,
because a job that failed at the ninth photo would already have been charged for all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from blindsight.core import checks
from blindsight.core.arrays import Array, Bytes, Floats
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.data import ImageSet, to_rgb

__all__ = [
    "PAPER_P",
    "PAPER_Q",
    "PAPER_R",
    "FlipParameters",
    "ImagePreparation",
    "QKParameters",
    "SketchParameters",
    "as_images",
    "from_bits",
    "parameters_from_dict",
    "pixels_of",
    "read_like",
    "resolve",
    "to_bits",
    "window",
]

MOST_BITS = 16


def _depth(depth: int) -> int:
    if checks.whole("depth", depth) > MOST_BITS:
        raise InvalidParameter(f"depth must be at most {MOST_BITS} bits, got {depth}.")
    return int(depth)


def to_bits(values: Array, depth: int) -> Bytes:
    """Return the bits (..., depth) of whole numbers, most significant first."""
    shifts = np.arange(_depth(depth) - 1, -1, -1, dtype=np.uint16)
    return ((np.asarray(values, np.uint16)[..., None] >> shifts) & 1).astype(np.uint8)


def from_bits(bits: Array) -> NDArray[np.uint16]:
    """Return the whole numbers with these bits (..., depth), most significant first."""
    bits = np.asarray(bits)
    weights = 1 << np.arange(_depth(bits.shape[-1]) - 1, -1, -1, dtype=np.uint32)
    return (bits.astype(np.uint32) @ weights).astype(np.uint16)


def as_images(images: ArrayLike, depth: int) -> Array:
    """Convert images to whole numbers (n, channels, height, width), each below 2^depth.

    Parameters:
        images: (n, h, w), (n, h, w, channels), or a table (n, pixels), which becomes images of one
            row.
        depth: bits per value.

    Raises:
        InvalidData: the shape is another one, or a value is not a whole number within the depth.
    """
    array = np.asarray(images)
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise InvalidData(
                "images must be finite: they contain NaN or infinity. Clean them first."
            )
        if array.size and (array != np.rint(array)).any():
            raise InvalidData(
                f"images must hold whole numbers from 0 to {2**depth - 1}, got fractions. Scale "
                "and round them first."
            )
    elif array.dtype.kind not in "iub":
        raise InvalidData(f"images must be an array of whole numbers, got dtype {array.dtype}.")
    if array.ndim == 2:
        array = array[:, None, None, :]
    elif array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4:
        array = np.moveaxis(array, -1, 1)
    else:
        raise InvalidData(
            "images must have shape (n, height, width) or (n, height, width, channels), got "
            f"{array.shape}."
        )
    if not array.size:
        raise InvalidData(f"images must not be empty, got shape {array.shape}.")
    low, high = array.min(), array.max()
    if low < 0 or high >= 2**depth:
        raise InvalidData(
            f"images must hold values from 0 to {2**depth - 1} at depth {depth}, found values from "
            f"{low:g} to {high:g}. Choose a q with one entry for each bit of a pixel, or rescale "
            "the image."
        )
    return np.ascontiguousarray(array, dtype=np.uint8 if depth <= 8 else np.uint16)


def pixels_of(X: ArrayLike) -> Array:
    """Return the pixels of an image set, or the array itself."""
    return X.array() if hasattr(X, "array") and not isinstance(X, np.ndarray) else np.asarray(X)


# Table 2 of the paper: q_1 (most significant bit) to q_8.
PAPER_Q: dict[str, tuple[float, ...]] = {
    "Q1": (0.05, 0.10, 0.10, 0.10, 0.10, 0.10, 0.10, 0.35),
    "Q2": (0.10, 0.10, 0.10, 0.10, 0.10, 0.10, 0.10, 0.30),
    "Q3": (0.125,) * 8,
    "Q4": (0.20, 0.10, 0.10, 0.10, 0.10, 0.10, 0.10, 0.20),
    "Q5": (0.30, 0.10, 0.10, 0.10, 0.10, 0.10, 0.10, 0.10),
    "Q6": (0.40, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.30),
    "Q7": (0.50, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.20),
    "Q8": (0.60, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.10),
    "Q9": (0.70, 0.0, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05),
    "Q10": (0.80, 0.0, 0.0, 0.0, 0.05, 0.05, 0.05, 0.05),
    "Q11": (0.90, 0.0, 0.0, 0.0, 0.0, 0.0, 0.05, 0.05),
    "Q12": (0.95, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.05),
}
PAPER_P = (0.70, 0.24, 0.06)  # Section 5
PAPER_R = 6.5


def _distribution(name: str, values: Any) -> tuple[float, ...]:
    if isinstance(values, (str, bytes)):
        raise InvalidParameter(f"{name} must be a sequence of probabilities, got {values!r}.")
    try:
        row = tuple(checks.probability(f"{name}[{i}]", value) for i, value in enumerate(values))
    except TypeError:
        raise InvalidParameter(
            f"{name} must be a sequence of probabilities, got {values!r}."
        ) from None
    if not row or abs(math.fsum(row) - 1) > 1e-9:
        raise InvalidParameter(
            f"{name} must sum to 1, got {math.fsum(row):.10g}. Rescale its entries."
        )
    return row


@dataclass(frozen=True, kw_only=True)
class QKParameters:
    """The public parameters of sketches, on which the owner and the server agree.

    Parameters:
        q: q_1..q_L, how often bit j (1 is the most significant) is chosen to differ from the image;
            sums to 1.
        p: p_1..p_K, how often a record has 1..K differing bits; sums to 1. Its length is K.
        r: records per bit of the hidden string.
    """

    q: tuple[float, ...]
    p: tuple[float, ...] = PAPER_P
    r: float = PAPER_R

    def __post_init__(self) -> None:
        object.__setattr__(self, "q", _distribution("q", self.q))
        object.__setattr__(self, "p", _distribution("p", self.p))
        object.__setattr__(self, "r", checks.positive("r", self.r))
        if self.depth > MOST_BITS:
            raise InvalidParameter(
                f"q must have at most {MOST_BITS} entries, one per bit, got {self.depth}."
            )

    @classmethod
    def paper(cls, name: str, *, p: Sequence[float] = PAPER_P, r: float = PAPER_R) -> QKParameters:
        """Return one of the paper's settings Q1 to Q12, for 8-bit images."""
        return cls(q=PAPER_Q[checks.one_of("q", name, PAPER_Q)], p=tuple(p), r=r)

    @classmethod
    def k_hidden(
        cls, depth: int, *, p: Sequence[float] = PAPER_P, r: float = PAPER_R
    ) -> QKParameters:
        """Return the parameters of the K-hidden algorithm, the special case q_j = 1/L."""
        depth = checks.whole("depth", depth)
        return cls(q=(1 / depth,) * depth, p=tuple(p), r=r)

    @property
    def depth(self) -> int:
        """The number L of bits per pixel."""
        return len(self.q)

    @property
    def specified(self) -> int:
        """The number K of specified bits per record."""
        return len(self.p)

    @property
    def name(self) -> str:
        """The paper's name of this q ("Q1" to "Q12"), or its values."""
        for name, q in PAPER_Q.items():
            if q == self.q:
                return name
        return "q=(" + ", ".join(f"{value:.3g}" for value in self.q) + ")"

    @property
    def mean_differing(self) -> float:
        """The mean number of differing bits per record, mu = sum of j p_j."""
        return math.fsum(i * p for i, p in enumerate(self.p, start=1))

    @property
    def differing_rate(self) -> Floats:
        """The expected number of wrong observations of each bit, lambda_d = r L mu q_j."""
        return self.r * self.depth * self.mean_differing * np.asarray(self.q)

    @property
    def agreeing_rate(self) -> float:
        """The expected number of true observations of a bit, lambda_s = r (K - mu)."""
        # fsum over the terms, not K - mu: at p_K = 1 the difference must be exactly zero.
        return self.r * math.fsum((self.specified - i) * p for i, p in enumerate(self.p, start=1))

    @property
    def p_diff(self) -> Floats:
        """The share of wrong values among the observations of each bit, P_diff of Equation 4."""
        differing = self.differing_rate
        total = differing + self.agreeing_rate
        # A bit that is never observed reveals nothing: one half.
        return np.asarray(
            np.divide(differing, total, out=np.full(self.depth, 0.5), where=total > 0)
        )

    def n_records(self, n_attributes: int) -> int:
        """Return the number of records N = m r, rounded, for a string of `n_attributes` pixels."""
        return max(1, round(self.depth * n_attributes * self.r))

    def check_string(self, n_attributes: int) -> None:
        """Raise `InvalidParameter` if a string is too short.

        It must have room for K specified bits and for as many differing bits as p requires.
        """
        bits = self.depth * checks.whole("n_attributes", n_attributes)
        if self.specified > bits:
            raise InvalidParameter(
                f"K (the length of p) must be at most the string's {bits} bits, got "
                f"{self.specified}."
            )
        most = max(i for i, p in enumerate(self.p, start=1) if p > 0)
        candidates = n_attributes * sum(q > 0 for q in self.q)
        if most > candidates:
            raise InvalidParameter(
                f"q must allow {most} differing bits in a record, got {candidates} bits with q "
                "above 0. Use more pixels, a shorter p, or a q without zeros."
            )

    @property
    def top_count(self) -> int:
        """A number that a count exceeds with a probability below 1e-18.

        It is Chernoff's bound for a Poisson count.
        """
        rate = max(self.differing_rate.max(), self.agreeing_rate, 1e-9)
        top = math.ceil(rate) + 1
        while top * math.log(top / rate) - top + rate < 41.5:
            top += 1
        return int(top)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest of uint8 and uint16 that holds the counts."""
        if self.top_count > np.iinfo(np.uint16).max:
            raise InvalidParameter(f"r must be small enough for 16-bit counts, got {self.r:g}.")
        return np.dtype(np.uint8 if self.top_count <= np.iinfo(np.uint8).max else np.uint16)

    @property
    def fingerprint(self) -> str:
        """A digest of the parameters (16 hexadecimal digits), which sketches and models store."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        return {"q": list(self.q), "p": list(self.p), "r": self.r}

    @classmethod
    def from_dict(cls, fields: object) -> QKParameters:
        """Invert `to_dict`; raise `InvalidData` for anything else."""
        if not isinstance(fields, dict) or fields.keys() != {
            f.name for f in dataclasses.fields(cls)
        }:
            raise InvalidData("QK parameters must be an object with exactly q, p and r.")
        return cls(**fields)


def resolve(
    q: str | Sequence[float] | QKParameters, *, p: Sequence[float], r: float
) -> QKParameters:
    """Return parameters from a name ("Q6") or a sequence of q_j, or the parameters given."""
    if isinstance(q, QKParameters):
        return q
    if isinstance(q, str):
        return QKParameters.paper(q, p=p, r=r)
    return QKParameters(q=q, p=p, r=r)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class FlipParameters:
    """The parameters of flipped bits.

    Parameters:
        beta: the probability, in (0, 1/2], that each bit of a pixel is flipped, most significant
            first.
    """

    beta: tuple[float, ...]

    def __post_init__(self) -> None:
        try:
            beta = tuple(
                checks.probability(f"beta[{j}]", value) for j, value in enumerate(self.beta)
            )
        except TypeError:
            raise InvalidParameter(
                f"beta must be a sequence of probabilities, got {self.beta!r}."
            ) from None
        if not 1 <= len(beta) <= 16 or any(not 0 < value <= 0.5 for value in beta):
            raise InvalidParameter(
                "beta must hold 1 to 16 probabilities above 0 and up to 1/2, one per bit."
            )
        object.__setattr__(self, "beta", beta)

    @classmethod
    def proven(cls, epsilon_per_pixel: float, *, depth: int = 8) -> FlipParameters:
        """Divide an epsilon per pixel among its bits so that the squared error is least.

        The squared error of a pixel is the sum over bits of 4^(L-j) beta_j (1 - beta_j), where
        beta_j (1 - beta_j) is the posterior variance of a fair bit and beta_j = 1/(1 + e^eps_j).
        The budget is assigned in small steps, each to the bit whose error it reduces most.

        Parameters:
            epsilon_per_pixel: the budget.
            depth: bits per pixel.
        """
        budget = checks.positive("epsilon_per_pixel", epsilon_per_pixel)
        depth = checks.whole("depth", depth)
        # Slightly less than the budget, so that rounding never exceeds it.
        share = _spend(budget * (1 - 1e-12), depth)
        return cls(
            beta=tuple(min(0.5, 1 / (1 + math.exp(min(epsilon, 500.0)))) for epsilon in share)
        )

    @property
    def depth(self) -> int:
        """The number L of bits per pixel."""
        return len(self.beta)

    @property
    def p_diff(self) -> Floats:
        """The probability of a wrong value of each bit, which is beta."""
        return np.asarray(self.beta)

    @property
    def epsilon_bit(self) -> tuple[float, ...]:
        """The epsilon of each bit, ln((1 - beta_j)/beta_j)."""
        return tuple(math.log1p(-b) - math.log(b) for b in self.beta)

    @property
    def epsilon_pixel(self) -> float:
        """The epsilon of a pixel, the sum over its bits."""
        return math.fsum(self.epsilon_bit)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the counts, which are 0 or 1."""
        return np.dtype(np.uint8)

    @property
    def name(self) -> str:
        """A short name that contains epsilon."""
        return f"flipped bits, epsilon {self.epsilon_pixel:.3g} per pixel"

    @property
    def fingerprint(self) -> str:
        """A digest of the parameters (16 hexadecimal digits)."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        return {"beta": list(self.beta)}

    @classmethod
    def from_dict(cls, fields: object) -> FlipParameters:
        """Invert `to_dict`; raise `InvalidData` for anything else."""
        if not isinstance(fields, dict) or fields.keys() != {
            f.name for f in dataclasses.fields(cls)
        }:
            raise InvalidData("flip parameters must be an object with exactly beta.")
        return cls(**fields)


SketchParameters = QKParameters | FlipParameters


def parameters_from_dict(fields: object) -> SketchParameters:
    """Read parameters of either kind from what `to_dict` returned."""
    if isinstance(fields, dict) and "beta" in fields:
        return FlipParameters.from_dict(fields)
    return QKParameters.from_dict(fields)


def _spend(budget: float, depth: int, steps: int = 512) -> list[float]:
    """Assign the budget in small steps, each to the bit whose error it reduces most."""
    step = budget / steps
    weights = 4.0 ** np.arange(depth - 1, -1, -1)
    spent = np.zeros(depth)

    def error(epsilon: Array) -> Array:
        beta = 1 / (1 + np.exp(epsilon))
        return np.asarray(weights * beta * (1 - beta))

    # The gain of a single small step on an unused bit is of second order only, so larger steps are
    # tried too.
    remaining = steps
    while remaining > 0:
        sizes = [size for size in (1, 4, 16, 64, 256) if size <= remaining]
        gains = np.array([(error(spent) - error(spent + size * step)) / size for size in sizes])
        size_at, bit = np.unravel_index(int(gains.argmax()), gains.shape)
        spent[bit] += sizes[int(size_at)] * step
        remaining -= sizes[int(size_at)]
    return spent.tolist()


# Pixels per side to which larger public images are cropped; attackers use no larger context.
WINDOW = 512
PUBLIC_VALUES = 600_000_000  # bytes of public images that are read, at most
_LUMINANCE = np.array([0.299, 0.587, 0.114])


@dataclass(frozen=True)
class ImagePreparation:
    """Converts a slice of an image set to one array (n, h, w), or (n, h, w, 3) with colour.

    Parameters:
        size: pixels per side to which images are resized; None leaves their size.
        grey: whether images are converted to grey.
    """

    size: int | None
    grey: bool

    @classmethod
    def of(
        cls, images: ImageSet, *, size: int | None = None, grey: bool = False
    ) -> ImagePreparation:
        """Choose the preparation for a set: grey if requested or if all images are grey.

        Grey images stay grey when they are resized: three equal channels would be sketched with
        independent noise each, and so reveal three times as much.

        Raises:
            InvalidData: the images have several sizes, and `size` is None.
        """
        if isinstance(images.images, np.ndarray):
            return cls(size, grey or images.images.ndim == 3)
        shapes = [np.shape(image) for image, _ in images]
        sizes = sorted({shape[:2] for shape in shapes})
        if size is None and len(sizes) > 1:
            raise InvalidData(
                f"the images have {len(sizes)} sizes, from {_pixels(sizes[0])} to "
                f"{_pixels(sizes[-1])}, and sketches of one set must have one. Say which "
                "(--size 256), or sort them into folders."
            )
        return cls(size, grey or all(len(shape) == 2 for shape in shapes))

    def __call__(self, part: Any) -> Bytes:
        array = part.array() if self.size is None else part.array(self.size)
        return _coloured(array, not self.grey)


def read_like(images: ImageSet, image_shape: tuple[int, int, int], *, most: int) -> Bytes:
    """Read public images as an attacker would use them, resized to (channels, height, width).

    At most `most` images are read, and fewer large ones, to bound memory. Images larger than
    `WINDOW` are cropped to their middle.
    """
    channels, height, width = image_shape
    values = channels * min(height, WINDOW) * min(width, WINDOW)
    read = []
    for image, _ in images[: min(most, max(16, PUBLIC_VALUES // values))]:
        if image.shape[:2] != (height, width):
            image = np.asarray(
                Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC)
            )
        read.append(window(_coloured(image[None], channels == 3)))
    if not read:
        raise InvalidData("there are no public images to learn from.")
    return np.concatenate(read)


def window(images: Array, side: int = WINDOW) -> Array:
    """Crop images (n, h, w, ...) to their middle, at most `side` pixels per side."""
    top, left = (max(0, (length - side) // 2) for length in images.shape[1:3])
    return images[:, top : top + side, left : left + side]


def _coloured(array: Bytes, colour: bool) -> Bytes:
    """Convert images (n, h, w) or (n, h, w, 3) to colour or to grey."""
    if colour:
        return np.stack([to_rgb(image) for image in array]) if array.ndim == 3 else array
    return np.rint(array @ _LUMINANCE).astype(np.uint8) if array.ndim == 4 else array


def _pixels(size: tuple[int, ...]) -> str:
    return f"{size[1]} x {size[0]}"
