"""The interface of encoders, which turn images (and some of them texts) into vectors.

Everything that is made from an encoder's vectors (an index, a tagger, a metric, a federation)
keeps the encoder's identity and refuses another one, because vectors of two encoders cannot be
compared.

`Preparation` describes how an image file becomes the numbers that a network expects. A network
gives meaningful vectors only for images prepared as in its training: side, crop, resampling,
scale, mean and deviation. A wrong mean or deviation raises no error and changes the vectors
strongly (cosines down to .43 were measured), so nothing is guessed: a preparation file with a
missing value, or with values that contradict each other, is refused.

The order of resizing is fixed here, first horizontally and then vertically. Pillow chooses the
order itself and has changed it between versions, which would move stored images to other cells.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import HostileFile, InvalidParameter
from blindsight.data import read_image, to_rgb
from blindsight.data.limits import regular_file

__all__ = [
    "MAX_SIDE",
    "Classes",
    "Encoder",
    "Floats",
    "Identity",
    "Images",
    "Preparation",
    "Source",
    "file_digest",
    "identity_digest",
    "require_same_encoder",
    "resized",
    "unit_rows",
]

Source = str | os.PathLike[str] | bytes
Resize = Literal["squash", "shortest"]

#: The largest side of an input, in pixels, that an encoder may require.
MAX_SIDE = 1024
#: A JPEG at reduced scale keeps at least this many times the side that it is resized to.
_REDUCED_MARGIN = 4
# Pillow's numbers for its filters, as preprocessor_config.json uses them.
_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
# Steps of other processors that change the picture. Ignoring one would change the vectors.
_UNSUPPORTED = (
    "crop_pct",
    "do_align_long_axis",
    "do_convert_grayscale",
    "do_flip_channel_order",
    "do_pad",
    "do_reduce_labels",
    "do_thumbnail",
    "include_top",
    "rescale_offset",
    "size_divisor",
)


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """The steps from an image to a network's input.

    Parameters:
        size: Side in pixels of the square that the network takes.
        resize: "squash" resizes the whole picture to the square; "shortest" scales the shortest
            side to `shortest_side` and cuts the square out of the middle.
        shortest_side: Only for "shortest"; at least `size`.
        resampling: The name of Pillow's filter.
        scale, mean, deviation: The input is `(pixel * scale - mean) / deviation`. All three are
            None if the network takes the bytes as they are.
        reduced: Decode JPEG files at a reduced scale: faster for camera photos, with slightly
            different vectors.
        pinned: Resize horizontally first. False leaves the order to Pillow, as in indexes made
            before this setting existed.

    Examples:
        >>> squash = Preparation(size=4)
        >>> squash.prepare(np.zeros((6, 3, 3), np.uint8)).shape
        (4, 4, 3)
    """

    size: int
    resize: Resize = "squash"
    shortest_side: int | None = None
    resampling: str = "bicubic"
    scale: float | None = None
    mean: tuple[float, float, float] | None = None
    deviation: tuple[float, float, float] | None = None
    reduced: bool = False
    pinned: bool = True

    @property
    def at_least(self) -> int | None:
        """The smallest side at which a JPEG file may be decoded; None for its full size."""
        return _REDUCED_MARGIN * self.size if self.reduced else None

    def read(self, source: Source) -> NDArray[np.uint8]:
        """Read one image file (a path or its bytes) and prepare it: uint8 (size, size, 3)."""
        return self.prepare(read_image(source, at_least=self.at_least))

    def prepare(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Resize and crop decoded pixels, grey or RGB, to uint8 (size, size, 3)."""
        if not self.pinned:
            return to_rgb(image, self.size)
        colour = to_rgb(image)
        if self.resize == "squash":
            return resized(colour, self.size, self.size, self.resampling)
        height, width = colour.shape[:2]
        shortest = self.shortest_side or self.size
        factor = shortest / min(height, width)
        wide, high = (max(shortest, int(side * factor)) for side in (width, height))
        scaled = resized(colour, wide, high, self.resampling)
        top, left = (high - self.size) // 2, (wide - self.size) // 2
        return np.ascontiguousarray(scaled[top : top + self.size, left : left + self.size])

    def numbers(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Scale and normalise prepared pixels (n, size, size, 3) to float32 of the same shape."""
        values = pixels.astype(np.float32)
        if self.scale is not None:
            values *= np.float32(self.scale)
        if self.mean is not None and self.deviation is not None:
            values -= np.array(self.mean, np.float32)
            values /= np.array(self.deviation, np.float32)
        return values

    def to_fields(self) -> dict[str, object]:
        """Plain JSON values that identify the preparation; `from_fields` reads them."""
        return {
            "size": self.size,
            "resize": self.resize,
            "shortest_side": self.shortest_side,
            "resampling": self.resampling,
            "scale": self.scale,
            "mean": None if self.mean is None else list(self.mean),
            "deviation": None if self.deviation is None else list(self.deviation),
            "reduced": self.reduced,
            "order": "horizontal first" if self.pinned else "by Pillow",
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, object]) -> Preparation:
        """Read the section "preparation" of encoder.json.

        Raises:
            HostileFile: A value is missing, unknown, or contradicts another.
        """
        unknown = set(fields) - {*cls.__dataclass_fields__, "order"} - {"pinned"}
        if unknown:
            raise HostileFile(f"the preparation has unknown entries: {', '.join(sorted(unknown))}.")
        resize = fields.get("resize")
        if resize not in ("squash", "shortest"):
            raise HostileFile(
                f'the preparation must say "resize": "squash" or "shortest", got {resize!r}.'
            )
        size = _side("size", fields.get("size"))
        shortest = fields.get("shortest_side")
        preparation = cls(
            size=size,
            resize="squash" if resize == "squash" else "shortest",
            shortest_side=None if shortest is None else _side("shortest_side", shortest),
            resampling=_filter(fields.get("resampling")),
            scale=_number("scale", fields.get("scale")),
            mean=_triple("mean", fields.get("mean")),
            deviation=_triple("deviation", fields.get("deviation")),
            reduced=fields.get("reduced") is True,
            pinned=fields.get("order", "horizontal first") == "horizontal first",
        )
        return preparation._checked()

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, object]) -> Preparation:
        """Read the content of a preprocessor_config.json, as Hugging Face exports it.

        Raises:
            HostileFile: A step is not supported, a value is missing, or two values contradict each
                other.
        """
        for step in _UNSUPPORTED:
            if config.get(step):
                raise HostileFile(
                    f"preprocessor_config.json asks for {step}, which is not supported. Write an "
                    "encoder.json with the steps of the network's training."
                )
        if config.get("do_resize", True) is not True:
            raise HostileFile(
                "preprocessor_config.json resizes nothing, so images of any size would reach the "
                "network. Write an encoder.json that states the size."
            )
        crop = config.get("do_center_crop", "crop_size" in config)
        shortest, squash = _sizes(config.get("size"), cropped=bool(crop))
        size = _square("crop_size", config.get("crop_size", shortest)) if crop else squash
        if size is None:
            raise HostileFile(
                "preprocessor_config.json scales the shortest side and does not crop, so inputs "
                "would not be square. Add do_center_crop and crop_size."
            )
        scaled = config.get("do_rescale", True) is True
        normalised = config.get("do_normalize", True) is True
        preparation = cls(
            size=size,
            resize="shortest" if shortest is not None else "squash",
            shortest_side=shortest,
            resampling=_filter(config.get("resample")),
            scale=_number("rescale_factor", config.get("rescale_factor", 1 / 255))
            if scaled
            else None,
            mean=_triple("image_mean", config.get("image_mean")) if normalised else None,
            deviation=_triple("image_std", config.get("image_std")) if normalised else None,
        )
        if normalised and (preparation.mean is None or preparation.deviation is None):
            raise HostileFile(
                "preprocessor_config.json normalises but lacks image_mean or image_std. Take both "
                "from the network's training; a wrong value would go unnoticed."
            )
        return preparation._checked()

    def _checked(self) -> Preparation:
        """Refuse values that no training used together."""
        if self.resize == "shortest" and (self.shortest_side or 0) < self.size:
            raise HostileFile(
                f"the crop of {self.size} pixels is larger than the shortest side "
                f"({self.shortest_side}). The shortest side must be at least the crop."
            )
        if (self.mean is None) != (self.deviation is None):
            raise HostileFile("the preparation has only one of mean and deviation. Give both.")
        if self.mean is None or self.deviation is None:
            return self
        if min(self.deviation) <= 0:
            raise HostileFile(f"the deviation must be above 0, got {list(self.deviation)}.")
        largest = 255 * (self.scale or 1.0)
        if not all(-largest <= value <= largest for value in self.mean):
            raise HostileFile(
                f"the mean {list(self.mean)} lies outside of the pixels' range, which is 0 to "
                f"{largest:.4g} after scaling. Mean, deviation and scale must use one unit."
            )
        spread = largest / max(self.deviation)
        if not 0.5 <= spread <= 100:
            raise HostileFile(
                f"pixels would reach the network with a range of {spread:.3g}, and networks are "
                "trained with about 2 to 5. Check scale (1/255 or none) against the deviation."
            )
        return self


def resized(
    image: NDArray[np.uint8], width: int, height: int, resampling: str = "bicubic"
) -> NDArray[np.uint8]:
    """Resize RGB pixels, always horizontally first and then vertically."""
    if image.shape[:2] == (height, width):
        return np.ascontiguousarray(image)
    from PIL import Image

    try:
        chosen = Image.Resampling[resampling.upper()]
    except KeyError:
        raise InvalidParameter(f"there is no resampling {resampling!r}.") from None
    picture = Image.fromarray(np.ascontiguousarray(image))
    # One axis at a time: if given both, Pillow decides which comes first.
    return np.asarray(
        picture.resize((width, picture.height), chosen).resize((width, height), chosen)
    )


def _sizes(size: object, *, cropped: bool) -> tuple[int | None, int | None]:
    """Parse an entry "size" into (shortest side, None) or (None, side of the square)."""
    if isinstance(size, Mapping):
        if "shortest_edge" in size and "longest_edge" not in size:
            return _side("size.shortest_edge", size["shortest_edge"]), None
        return None, _square("size", size)
    # A plain number means the shortest side for processors that crop, a square for others.
    side = _side("size", size)
    return (side, None) if cropped else (None, side)


def _square(name: str, value: object) -> int:
    if isinstance(value, Mapping):
        height, width = (_side(f"{name}.{part}", value.get(part)) for part in ("height", "width"))
        if height != width:
            raise HostileFile(f"{name} must be a square, got {height} by {width}.")
        return height
    return _side(name, value)


def _side(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 8 <= value <= MAX_SIDE:
        raise HostileFile(
            f"{name} must be a whole number of pixels from 8 to {MAX_SIDE}, got {value!r}."
        )
    return value


def _number(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise HostileFile(f"{name} must be a finite number, got {value!r}.")
    if value <= 0 or value > 1:
        raise HostileFile(f"{name} must be above 0 and at most 1, got {value!r}.")
    return float(value)


def _triple(name: str, value: object) -> tuple[float, float, float] | None:
    if value is None:
        return None
    plain = isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 3
    numbers = list(value) if plain and isinstance(value, Sequence) else []
    if len(numbers) != 3 or not all(
        isinstance(item, int | float) and not isinstance(item, bool) and math.isfinite(item)
        for item in numbers
    ):
        raise HostileFile(f"{name} must be three finite numbers (red, green, blue), got {value!r}.")
    return float(numbers[0]), float(numbers[1]), float(numbers[2])


def _filter(value: object) -> str:
    """The name of a filter that is given by name or by Pillow's number."""
    name = _FILTERS.get(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(name, str) or name not in _FILTERS.values():
        raise HostileFile(
            f"the resampling must be one of {', '.join(_FILTERS.values())} (or Pillow's number "
            f"for it), got {value!r}."
        )
    return name


Floats = NDArray[np.float32]
Images = NDArray[np.uint8]
#: Plain JSON values by which two encoders are distinguished.
Identity = dict[str, object]

_BLOCK = 1 << 20


class Classes(NamedTuple):
    """A public classifier's classes: their names, and one weight vector (row) for each."""

    names: tuple[str, ...]
    weights: Floats


@runtime_checkable
class Encoder(Protocol):
    """Turns images, and for some encoders texts, into vectors of one space.

    `texts` and `classes` return None if the encoder does not offer them. No vector depends on
    any other image of the call, and nothing is written to disk.
    """

    @property
    def name(self) -> str:
        """A short name for messages; the identity decides whether two encoders are the same."""

    @property
    def dimensions(self) -> int:
        """The length of a vector."""

    def read(self, source: Source) -> Images:
        """Read an image file (a path or its bytes) into the pixels that `images` takes."""

    def prepare(self, image: NDArray[np.uint8]) -> Images:
        """Resize decoded pixels, grey or RGB, into the pixels that `images` takes."""

    def images(self, pixels: Images) -> Floats:
        """Unit vectors (n, dimensions) of prepared pixels (n, side, side, 3)."""

    def texts(self, texts: Sequence[str]) -> Floats | None:
        """Unit vectors (n, dimensions) of texts in the space of the images, or None."""

    def classes(self) -> Classes | None:
        """A public classifier on top of the vectors, or None."""

    def identity(self) -> Identity:
        """Plain JSON values that distinguish this encoder from every other one."""


def unit_rows(rows: NDArray[np.floating]) -> Floats:
    """Scale every row to norm 1; rows of zeros are unchanged."""
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norm > 0, norm, 1), dtype=np.float32)


def identity_digest(identity: Mapping[str, object]) -> str:
    """The SHA-256 of an identity, which is the same on every machine.

    Examples:
        >>> identity_digest({"name": "a", "dimensions": 3})[:8]
        'ae0bbfc3'
    """
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def require_same_encoder(
    stored: Mapping[str, object], encoder: Encoder | Mapping[str, object], *, what: str
) -> None:
    """Refuse an encoder that did not make what was stored.

    Parameters:
        stored: The identity that was saved.
        encoder: The encoder (or its identity) that is to be used now.
        what: What was saved and where, for the message: "the index release/".

    Raises:
        InvalidParameter: The identities differ; the message names both encoders and the first
            difference.
    """
    now = dict(encoder) if isinstance(encoder, Mapping) else encoder.identity()
    if identity_digest(stored) == identity_digest(now):
        return
    for key in sorted({*stored, *now}, key=lambda key: (key not in ("kind", "name"), key)):
        if stored.get(key) != now.get(key):
            raise InvalidParameter(
                f"{what} was made with the encoder {stored.get('name', 'unknown')!r}, and this is "
                f"{now.get('name', 'unknown')!r}: their {key} differs ({_short(stored.get(key))}, "
                f"not {_short(now.get(key))}). Use the encoder that made it, or make it again."
            )


def file_digest(path: Path, *, largest: int) -> str:
    """The SHA-256 of an ordinary file of at most `largest` bytes, read in pieces."""
    digest = hashlib.sha256()
    total = 0
    with regular_file(path, largest=largest).open("rb") as stream:
        while piece := stream.read(_BLOCK):
            total += len(piece)
            if total > largest:
                raise HostileFile(f"{path.name} has more than {largest:,} bytes.")
            digest.update(piece)
    return digest.hexdigest()


def _short(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 60 else f"{text[:57]}..."
