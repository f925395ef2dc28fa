"""Inputs of the head, and public knowledge about labels in the form of linear scores.

Private training clips the gradient of every record, which is its residual times its input, so rows
of equal norm use the bound fully. Features share a large common part that carries no information
and takes up the bound. It is subtracted: the mean of the records, released with noise, or the mean
of public images.

Public knowledge comes from the encoder. An encoder with classes (a network that was trained on
ImageNet) has a matrix of class vectors. The head works in its main directions, half-whitened, and
fewer directions need less noise. The names of labels are compared with the names of
classes by sentence vectors (MiniLM) and by WordNet, and the score of a label is the weighted mean
of the scores of its nearest classes. An encoder with a text tower provides both: the vectors of the
labels' names, and the directions of general names. This costs no epsilon, and private training only
has to learn the rest.

Guarantee: the prior uses nothing private. The encoder, the class names and the sentence vectors
are public, and so must be `public`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from blindsight.core import checks
from blindsight.core.arrays import Floats, Floats32
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy.door import finite_rows, unusable_rows

if TYPE_CHECKING:
    from blindsight.encoders.base import Encoder

__all__ = [
    "CONSTANT",
    "MOST_DIRECTIONS",
    "Inputs",
    "Prior",
    "encoder_prior",
    "feature_rows",
    "private_rows",
    "unit_rows",
]

# The constant that is appended to a row of norm 1: large enough to learn a rate, small enough to
# use little of the clipping bound.
CONSTANT = 0.3
#: The number of public directions that a prior holds; training uses the first of them.
MOST_DIRECTIONS = 256


def feature_rows(x: ArrayLike, *, n_features: int | None = None) -> Floats32:
    """Return finite float rows (n, D); raise `InvalidData` for anything else."""
    rows = checks.finite_array("X", x)
    _check_shape(rows.shape, n_features)
    return rows.astype(np.float32)


def private_rows(x: ArrayLike, *, n_features: int | None = None) -> tuple[Floats32, int]:
    """Return float rows (n, D) of private records, and the number of those replaced by zeros.

    See `blindsight.privacy.door.finite_rows`.
    """
    rows = checks.number_array("X", x)
    _check_shape(rows.shape, n_features)
    return finite_rows(rows).astype(np.float32), int(unusable_rows(rows).sum())


def unit_rows(x: ArrayLike) -> Floats:
    """Scale every row to norm 1; rows of zeros are unchanged."""
    rows = np.asarray(x, np.float64)
    peak = np.abs(rows).max(axis=1, keepdims=True, initial=0)
    rows = rows / np.where(peak > 0, peak, 1.0)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1.0)


@dataclass(frozen=True)
class Inputs:
    """The centre that is subtracted from unit rows, and the directions (D, r) that are used.

    Both are public or released. The head's input is a row of norm 1 with a constant appended.
    """

    centre: Floats
    directions: Floats | None = None

    def __post_init__(self) -> None:
        # A fixed memory layout, so that a model that was saved and loaded gives the same numbers to
        # the last bit.
        object.__setattr__(self, "centre", np.ascontiguousarray(self.centre, np.float64))
        if self.directions is not None:
            object.__setattr__(
                self, "directions", np.ascontiguousarray(self.directions, np.float64)
            )

    @classmethod
    def from_public(cls, x: ArrayLike, *, components: int) -> Inputs:
        """Make inputs from the mean and the main directions of public features.

        Each direction is divided by the square root of its standard deviation.
        """
        rows = unit_rows(feature_rows(x))
        centre = rows.mean(axis=0)
        directions = _main_directions(rows - centre, checks.whole("components", components))
        if directions.shape[1] == 0:
            raise InvalidData("public must hold images that differ from each other.")
        return cls(centre, directions)

    @property
    def width(self) -> int:
        """The number of inputs of the head."""
        return 1 + (len(self.centre) if self.directions is None else self.directions.shape[1])

    def __call__(self, x: ArrayLike) -> Floats:
        """Return the head's input (n, width)."""
        rows = unit_rows(x) - self.centre
        rows = unit_rows(rows if self.directions is None else rows @ self.directions)
        return np.hstack([rows, np.full((len(rows), 1), CONSTANT)])


def _main_directions(centred: Floats, most: int) -> Floats:
    """Return the main directions (D, r) of centred rows, each divided by the root of its size."""
    _, size, axes = np.linalg.svd(centred, full_matrices=False)
    count = min(most, int((size > 1e-6 * max(size[0], 1e-300)).sum()))
    return np.asarray(axes[:count].T / np.sqrt(size[:count]))


def _check_shape(shape: tuple[int, ...], n_features: int | None) -> None:
    if len(shape) != 2 or shape[0] == 0 or shape[1] == 0:
        raise InvalidData(f"X must be a non-empty table of images by features, got shape {shape}.")
    if n_features is not None and shape[1] != n_features:
        raise InvalidData(
            f"X must have the {n_features} features of the training data, got {shape[1]}."
        )


# Settings that were chosen on the training photos of the COCO and VOC2012 subsets.
# The number of nearest classes that represent a label by their names alone, and the temperature of
# their weights.
_NEAREST, _TEMPERATURE = 10, 0.1
# A name without a known word needs a class of at least this cosine ("surfboard" .45, "qqxzyq" .24).
_LEAST_COSINE = 0.38
# The approximate standard deviation of the cosine of a photo's vector with a label's direction.
_DEVIATION = 1 / 30
# In a simulated scene: the strength of each label, the standard deviation of its logarithm, and the
# strength of everything else.
_LABEL_PART, _LABEL_SPREAD, _OTHER_PART = 0.35, 0.4, 1.2


@dataclass(frozen=True)
class Prior:
    """Public scores of C labels from features x, and other public knowledge about the features.

    The scores are weights (C, D) x + offset (C,) and have a standard deviation of about 1.

    Parameters:
        weights: one row for each label.
        offset: one number for each label.
        directions: the directions (D, R) in which photos differ, the main ones first; private
            training uses the first of them. None uses the features as they are.
        things: unit vectors (K, D) of things that photos show, from which scenes are simulated.
        meaning: the weight (C, K) of each thing for each label; rows sum to 1, or to 0 if nothing
            is known.
        unit: whether features are scaled to norm 1 before they are scored.

    Examples:
        >>> Prior(np.eye(2), np.zeros(2))(np.array([[3.0, 4.0]]))
        array([[3., 4.]])
    """

    weights: Floats
    offset: Floats
    directions: Floats | None = None
    things: Floats | None = None
    meaning: Floats | None = None
    unit: bool = False

    def __post_init__(self) -> None:
        weights = checks.finite_array("weights", self.weights, ndim=2)
        object.__setattr__(self, "weights", np.ascontiguousarray(weights))
        object.__setattr__(self, "offset", checks.finite_array("offset", self.offset, ndim=1))
        if len(self.weights) != len(self.offset):
            raise InvalidData(
                f"a prior needs one offset per label, got {len(self.offset)} for "
                f"{len(self.weights)}."
            )
        for name in ("directions", "things", "meaning"):
            if getattr(self, name) is not None:
                table = checks.finite_array(name, getattr(self, name), ndim=2)
                object.__setattr__(self, name, table)
        labels, features = weights.shape
        if self.directions is not None and len(self.directions) != features:
            raise InvalidData(
                f"directions of a prior must have {features} rows, got {len(self.directions)}."
            )
        if (self.things is None) != (self.meaning is None):
            raise InvalidData("a prior needs things and their meaning, or neither.")
        if self.things is not None and self.meaning is not None:
            expected = ((len(self.things), features), (labels, len(self.things)))
            if (self.things.shape, self.meaning.shape) != expected:
                raise InvalidData(
                    f"things and meaning of a prior must have the shapes {expected[0]} and "
                    f"{expected[1]}, got {self.things.shape} and {self.meaning.shape}."
                )

    def __call__(self, features: Any) -> Floats:
        """Return the score (n, C) of each label."""
        rows = unit_rows(features) if self.unit else np.asarray(features, np.float64)
        return rows @ self.weights.T + self.offset

    def tables(self) -> dict[str, Floats]:
        """Return all arrays by name, which identify the prior."""
        named = {
            name: getattr(self, name)
            for name in ("weights", "offset", "directions", "things", "meaning")
        }
        return {name: value for name, value in named.items() if value is not None}

    def scenes(
        self, rates: ArrayLike, centre: ArrayLike, n: int, *, rng: np.random.Generator
    ) -> Floats | None:
        """Simulate features (n, D) of scenes with some of the labels; return None without things.

        A scene has each label with the probability of its rate, and at least one. Its vector is the
        sum of the centre, of two things for each label with random strengths, and of random parts
        along the directions of all things; its distance from the centre is that of unit rows. All
        inputs are public or released.
        """
        if self.things is None or self.meaning is None or self.directions is None:
            return None
        has_meaning = self.meaning.sum(axis=1) > 0
        chance = np.where(has_meaning, np.asarray(rates, np.float64), 0.0)
        if not chance.any():
            return None
        present = rng.random((n, len(chance))) < chance
        empty = np.flatnonzero(~present.any(axis=1))
        present[empty, rng.choice(len(chance), len(empty), p=chance / chance.sum())] = True
        scene, label = np.nonzero(present)
        reach = np.cumsum(self.meaning, axis=1)
        scenes = np.zeros((n, self.things.shape[1]))
        for _ in range(2):
            drawn = rng.random(len(label)) * reach[label, -1]
            thing = np.zeros(len(label), np.intp)
            for each in np.unique(label):
                rows = label == each
                thing[rows] = np.searchsorted(reach[each], drawn[rows])
            thing = thing.clip(max=len(self.things) - 1)
            part = _LABEL_PART / 2 * np.exp(_LABEL_SPREAD * rng.standard_normal(len(label)))
            scenes += sparse.csr_matrix((part, (scene, thing)), (n, len(self.things))) @ self.things
        # A column of `directions` has norm size^-1/2, so this is the axis times its size.
        length = np.linalg.norm(self.directions, axis=0)
        axes = self.directions / length**3
        axes = axes / np.linalg.norm(axes)
        scenes += _OTHER_PART * rng.standard_normal((n, axes.shape[1])) @ axes.T
        middle = np.asarray(centre, np.float64)
        distance = np.sqrt(max(1.0 - float(middle @ middle), 0.01))
        return np.asarray(middle + distance * unit_rows(scenes))


def encoder_prior(
    names: Sequence[str],
    encoder: Encoder,
    *,
    public: ArrayLike | None = None,
    synonyms: Mapping[str, Sequence[str]] | None = None,
) -> Prior:
    """Make the prior for an encoder with a text tower or classes.

    Parameters:
        names: the labels' names. MiniLM and WordNet know English; a text tower knows the languages
            that it was trained on. An English synonym always helps.
        encoder: the encoder whose vectors are the features.
        public: vectors of public images, with which the scores of a text tower are centred and
            scaled; by default those of built-in pictures. Classes need none.
        synonyms: other names of labels, if their own are not clear ("tv": ["television"]).

    Returns:
        The prior: scores, directions and things. A label without a known word has zero weights.

    Raises:
        InvalidParameter: the encoder has neither texts nor classes.

    Examples:
        >>> from blindsight.encoders import built_in
        >>> prior = encoder_prior(["dog", "beach"], built_in("lite0"))
        >>> prior.weights.shape
        (2, 1280)
    """
    spelled = [[spaced(name), *map(spaced, (synonyms or {}).get(name, ()))] for name in names]
    if encoder.texts(["photo"]) is not None:
        return _from_texts(spelled, encoder, public)
    classes = encoder.classes()
    if classes is None:
        raise InvalidParameter(
            f"{encoder.name} has neither a text tower nor classes, so it knows nothing about words."
        )
    built_in = encoder.identity().get("kind") == "built-in"
    meaning = _meaning(spelled, None if built_in else classes.names, len(classes.names))
    # Pooled features have a common level that is not related to any class.
    vectors = classes.weights.astype(np.float64)
    if built_in:
        vectors = vectors - vectors.mean(axis=1, keepdims=True)
    things = unit_rows(vectors)
    return Prior(
        (meaning @ things) / _DEVIATION,
        np.zeros(len(names)),
        _main_directions(vectors - vectors.mean(axis=0), MOST_DIRECTIONS),
        unit_rows(things - things.mean(axis=0)),
        meaning,
        unit=True,
    )


# Label names of well-known data sets that join two words, and British words that class names spell
# differently.
_SPELLED = {
    "aeroplane": "airplane",
    "cellphone": "cell phone",
    "diningtable": "dining table",
    "firehydrant": "fire hydrant",
    "hotdog": "hot dog",
    "pottedplant": "potted plant",
    "tvmonitor": "tv monitor",
}


def spaced(name: str) -> str:
    """Convert the name of a label to words.

    Examples:
        >>> spaced("diningtable"), spaced("Traffic_light")
        ('dining table', 'traffic light')
    """
    plain = " ".join(name.replace("_", " ").lower().split())
    return _SPELLED.get(plain, plain)


def _meaning(
    names: Sequence[Sequence[str]], classes: Sequence[str] | None, n_classes: int
) -> Floats:
    """Return the weight of each class for each label (labels, classes).

    Rows sum to 1, or to 0 if no word of a label is known.
    """
    from blindsight.encoders.words import class_likeness, class_weights

    rows = np.zeros((len(names), n_classes))
    for row, spelled in zip(rows, names, strict=True):
        for name in spelled:
            if not _known(name, classes):
                continue
            likeness = class_likeness(f"a photo of a {name}", classes).astype(np.float64)
            best = np.argsort(-likeness, kind="stable")[:_NEAREST]
            near = np.exp((likeness[best] - likeness[best[0]]) / _TEMPERATURE)
            # Half of the weight is by the names alone, half includes the classes below a noun in
            # WordNet.
            weight = class_weights(name, classes).astype(np.float64)
            weight[best] += near / near.sum()
            row += weight
    return np.asarray(rows / np.maximum(rows.sum(axis=1, keepdims=True), 1e-12))


def _known(name: str, classes: Sequence[str] | None) -> bool:
    """Whether a name has a known word or a class near it, so that its classes are meaningful."""
    from blindsight.encoders.words import class_likeness, understood

    meant = understood(name, classes)
    if meant.names or meant.ignored:
        return True
    return bool(class_likeness(name, classes).max() >= _LEAST_COSINE)


def _from_texts(
    names: Sequence[Sequence[str]], encoder: Encoder, public: ArrayLike | None
) -> Prior:
    """Make the prior of a text tower; texts and images are centred by their own means."""
    from blindsight.encoders.embeddings import general_texts
    from blindsight.encoders.public_pictures import typical_vectors

    general = general_texts(encoder)
    pictures = typical_vectors(encoder) if public is None else public
    rows = feature_rows(pictures, n_features=encoder.dimensions).astype(np.float64)
    own = []
    for spelled in names:
        vectors = encoder.texts(list(spelled))
        assert vectors is not None  # noqa: S101  (the encoder has a text tower)
        own.append(vectors.astype(np.float64).mean(axis=0))
    labels = np.stack(own)
    middle = labels.mean(axis=0) if general is None else general.astype(np.float64).mean(axis=0)
    labels = unit_rows(labels - middle)
    others = labels if general is None else unit_rows(general.astype(np.float64) - middle)
    scores = rows @ labels.T
    scale = 1 / np.maximum(scores.std(axis=0), 1e-6)
    things = np.vstack([labels, others])
    return Prior(
        labels * scale[:, None],
        -scores.mean(axis=0) * scale,
        _main_directions(things - things.mean(axis=0), MOST_DIRECTIONS),
        labels,
        np.eye(len(labels)),
        unit=True,
    )
