"""Feature statistics: what a receiver needs to train a classifier, released once with a guarantee.

An image is converted to a row z of norm at most 1 with public information only (`FeatureBasis`).
One vector with Gaussian noise is sent, the sum over all images of

    sqrt(1 - a) (z, .3) / sqrt(1.09)    in the block of the image's class,
    sqrt(a) z z'                        once for all classes (triangle, off-diagonal times sqrt 2),

so the class sums, the class counts and the pooled second moment. One image and its label change the
vector by at most (1 - a)(|z|^2 + .09) / 1.09 + a |z|^4 <= 1 in squared norm. A person's images
change it by at most sqrt(k), because the sum of their vectors is clipped to that norm. The share a
of the second moment and the width of z follow from public numbers (`statistics_rules`); with a = 0
no second moment is sent.

Statistics of several senders add (`merge_statistics`), also inside a secure sum, where the noise
is needed only once (`StatisticsLayout.sum`, `Statistics.from_sum`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from blindsight.core import checks, storage
from blindsight.core.arrays import Floats, Floats32, Ints
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy.door import added, finite_rows
from blindsight.sketching.statistics_rules import DEFAULT_DELTA, moments_share, width_for

__all__ = [
    "FeatureBasis",
    "Statistics",
    "StatisticsLayout",
    "UnitRows",
    "merge_statistics",
]


# The constant that is appended to z to count images, and the largest norm of (z, constant).
_COUNT = 0.3
_BLOCK_NORM = math.sqrt(1 + _COUNT**2)
_LARGEST_WIDTH = 4096
_MOST_CLASSES = 10_000
# Eigenvalues below this share of the largest are directions in which public pictures do not vary.
_LEAST_EIGENVALUE = 1e-7
_LEAST_PUBLIC = 8


@dataclass(frozen=True)
class FeatureBasis:
    """The public map from feature vectors to rows of norm at most 1, the same for all senders.

    Features are replaced by their square roots (with their sign) and scaled to norm 1; the mean of
    the public pictures is subtracted; the coordinates along their first principal directions are
    divided by the fourth root of the eigenvalue and by the median norm of the public rows; longer
    rows are shortened to norm 1.

    Parameters:
        mean: the mean (D,) of public pictures.
        directions: the map (width, D) to rows, with both scalings in it.

    Examples:
        >>> public = np.random.default_rng(0).random((200, 20))
        >>> basis = FeatureBasis.learn(public, width=8)
        >>> rows = basis.rows(public[:3])
        >>> rows.shape, bool((np.linalg.norm(rows, axis=1) <= 1).all())
        ((3, 8), True)
    """

    mean: Floats32
    directions: Floats32

    def __post_init__(self) -> None:
        if self.directions.ndim != 2 or self.mean.shape != self.directions.shape[1:]:
            raise InvalidData(
                "a basis has a mean (D,) and directions (width, D), got shapes "
                f"{self.mean.shape} and {self.directions.shape}."
            )
        if not (np.isfinite(self.mean).all() and np.isfinite(self.directions).all()):
            raise InvalidData("a basis must hold finite numbers.")

    @classmethod
    def learn(cls, public: ArrayLike, *, width: int) -> FeatureBasis:
        """Learn a basis from features (n, D) of public pictures.

        Parameters:
            public: features of public pictures, made by the encoder of the private ones, and best
                from pictures that were shrunk to the size of the private ones first.
            width: length of the rows; it is reduced if the pictures span fewer directions.

        Raises:
            InvalidData: if there are fewer than 8 public pictures.
        """
        checks.whole("width", width)
        unit = _unit_roots(checks.finite_array("public", public))
        if unit.ndim != 2 or len(unit) < _LEAST_PUBLIC:
            raise InvalidData(
                f"a basis needs features of at least {_LEAST_PUBLIC} public pictures, got shape "
                f"{unit.shape}."
            )
        mean = unit.mean(axis=0)
        centred = unit - mean
        values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
        values, vectors = values[::-1], vectors[:, ::-1]
        rank = int((values > _LEAST_EIGENVALUE * max(values[0], 1e-300)).sum())
        used = max(1, min(width, rank))
        directions = (vectors[:, :used] / np.maximum(values[:used], 1e-300) ** 0.25).T
        scale = float(np.median(np.linalg.norm(centred @ directions.T, axis=1))) or 1.0
        return cls(mean.astype(np.float32), (directions / scale).astype(np.float32))

    @classmethod
    def from_classifier(cls, weights: ArrayLike, public: ArrayLike, *, width: int) -> FeatureBasis:
        """Make a basis from a public classifier's weights, if there are few public pictures.

        Parameters:
            weights: the weights (C, D) of a classifier on the same features.
            public: features of some public pictures, which give the mean and the scale.
            width: length of the rows; at most the number of classes less one.
        """
        checks.whole("width", width)
        unit = _unit_roots(checks.finite_array("public", public))
        matrix = np.asarray(checks.finite_array("weights", weights), np.float64)
        if unit.ndim != 2 or matrix.ndim != 2 or matrix.shape[1] != unit.shape[1]:
            raise InvalidData(
                f"weights and public features must have as many columns, got {matrix.shape} and "
                f"{unit.shape}."
            )
        mean = unit.mean(axis=0)
        _, values, vectors = np.linalg.svd(matrix - matrix.mean(axis=0), full_matrices=False)
        rank = int((values > _LEAST_EIGENVALUE * max(values[0], 1e-300)).sum())
        vectors = vectors[: max(1, min(width, rank))]
        spread = ((unit - mean) @ vectors.T).std(axis=0)
        directions = vectors / np.sqrt(np.maximum(spread, 1e-6 * spread.max()))[:, None]
        scale = float(np.median(np.linalg.norm((unit - mean) @ directions.T, axis=1))) or 1.0
        return cls(mean.astype(np.float32), (directions / scale).astype(np.float32))

    @property
    def width(self) -> int:
        """The length of a row."""
        return len(self.directions)

    @property
    def n_features(self) -> int:
        """The length of the feature vectors."""
        return len(self.mean)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 digest by which two senders check that they use the same basis."""
        return storage.digest("feature basis", {"mean": self.mean, "directions": self.directions})

    def rows(self, features: ArrayLike) -> Floats32:
        """Return rows (n, width) of norm at most 1; a vector that is not finite becomes zeros.

        Raises:
            InvalidData: if the vectors do not have `n_features` numbers.
        """
        vectors = checks.number_array("features", features)
        if vectors.ndim != 2 or vectors.shape[1] != self.n_features:
            raise InvalidData(
                f"features must have shape (n, {self.n_features}), got {vectors.shape}."
            )
        result = np.empty((len(vectors), self.width), np.float32)
        for start in range(0, len(vectors), 4096):
            part = np.asarray(finite_rows(vectors[start : start + 4096]), np.float64)
            rows = (_unit_roots(part) - self.mean) @ self.directions.T.astype(np.float64)
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
            rows *= np.minimum(1.0, (1 - 1e-6) / np.maximum(norms, 1e-300))
            rows[~part.any(axis=1)] = 0.0
            result[start : start + 4096] = rows
        return result


@dataclass(frozen=True)
class StatisticsLayout:
    """The public layout of the released vector: class sums, counts and second moment.

    Parameters:
        classes: the names of the classes.
        width: length of the rows.
        moments: share a of the squared norm that is spent on the second moment, from 0 to .9.

    Examples:
        >>> layout = StatisticsLayout(("cat", "dog"), width=3, moments=0.5)
        >>> layout.size
        14
        >>> vector = layout.sum(np.full((4, 3), 0.5), np.array([0, 0, 1, 1]))
        >>> vector.shape
        (14,)
    """

    classes: tuple[str, ...]
    width: int
    moments: float = 0.0

    def __post_init__(self) -> None:
        names = tuple(str(name) for name in self.classes)
        object.__setattr__(self, "classes", names)
        if not 2 <= len(names) <= _MOST_CLASSES or len(set(names)) != len(names):
            raise InvalidParameter(
                f"classes must be between 2 and {_MOST_CLASSES:,} different names, got "
                f"{len(set(names))} different ones among {len(names)}."
            )
        if checks.whole("width", self.width) > _LARGEST_WIDTH:
            raise InvalidParameter(f"width must be at most {_LARGEST_WIDTH}, got {self.width}.")
        if not 0 <= checks.number("moments", self.moments) <= 0.9:
            raise InvalidParameter(f"moments must be from 0 to 0.9, got {self.moments!r}.")

    @classmethod
    def choose(
        cls,
        classes: Sequence[str],
        *,
        n_records: int,
        epsilon: float,
        delta: float = DEFAULT_DELTA,
        most: int = 1,
        largest: int = 512,
    ) -> StatisticsLayout:
        """Choose width and share of the second moment by the public rules.

        Parameters:
            classes: the names of the classes.
            n_records: number of images, of all senders together if statistics are merged.
            epsilon: privacy budget per image, or per person.
            delta: probability bound of the guarantee.
            most: number of images of one person, with whose square root the noise grows; 1 if
                images are protected.
            largest: the largest possible width, which is that of the basis.
        """
        width = width_for(n_records, len(classes), epsilon=epsilon, delta=delta, most=most)
        share = moments_share(n_records, len(classes), epsilon=epsilon, delta=delta, most=most)
        return cls(tuple(classes), min(width, largest), share)

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def size(self) -> int:
        """The length of the vector."""
        triangle = self.width * (self.width + 1) // 2 if self.moments else 0
        return self.n_classes * (self.width + 1) + triangle

    @staticmethod
    def bound(most: int = 1) -> float:
        """Return the l2 sensitivity of the vector: 1 for an image, sqrt(most) for a person."""
        return math.sqrt(checks.whole("most", most))

    def sum(
        self,
        rows: ArrayLike,
        labels: ArrayLike,
        *,
        units: ArrayLike | None = None,
        most: int = 1,
    ) -> Floats:
        """Return the exact sum over all images, without noise.

        It is private; use it as a summand of a secure sum.

        Parameters:
            rows: rows (n, width) of `FeatureBasis.rows`.
            labels: the number of each image's class; images with any other number are ignored.
            units: the number of the person, or of the distinct picture, that each row belongs to;
                by default every row is a separate unit.
            most: the sum of one unit's vectors is clipped to norm sqrt(most).
        """
        summands = UnitRows(self, rows, labels, units)
        bound = self.bound(most)
        with np.errstate(over="ignore", invalid="ignore"):
            norms = summands.norms(2)
        shrunk = np.minimum(1.0, bound * (1 - 2.0**-15) / np.maximum(norms, 1e-300))
        return summands.weighted_sum(np.where(np.isfinite(norms), shrunk, 0.0))


class UnitRows:
    """The vectors of units (images or persons) as rows for `Door.total`; they are never formed.

    Parameters:
        layout: the layout of the vector.
        rows: rows (n, width).
        labels: the numbers of the classes.
        units: which unit each row belongs to.
    """

    def __init__(
        self,
        layout: StatisticsLayout,
        rows: ArrayLike,
        labels: ArrayLike,
        units: ArrayLike | None = None,
    ) -> None:
        self.layout = layout
        z = np.asarray(finite_rows(checks.number_array("rows", rows)))
        y = np.asarray(labels)
        if z.ndim != 2 or z.shape[1] != layout.width:
            raise InvalidData(f"rows must have shape (n, {layout.width}), got {z.shape}.")
        if y.shape != (len(z),) or y.dtype.kind not in "biu":
            raise InvalidData(
                f"labels must be {len(z)} whole numbers, one for each row, got shape {y.shape} of "
                f"type {y.dtype}."
            )
        if units is None:
            self.unit_of = np.arange(len(z))
            self.count = len(z)
        else:
            unit_array = np.asarray(units)
            if unit_array.shape != (len(z),):
                raise InvalidData(
                    f"units must be one number or name for each of {len(z)} rows, got shape "
                    f"{unit_array.shape}."
                )
            names, self.unit_of = np.unique(unit_array, return_inverse=True)
            self.count = len(names)
        squared = np.einsum("ij,ij->i", z, z, dtype=np.float64)
        # A row of zeros is an image that could not be encoded; a basis gives no row longer than 1.
        self.counted = (y >= 0) & (y < layout.n_classes) & (squared > 0) & (squared <= 1)
        self.z = z
        self.y = np.where(self.counted, y, 0).astype(np.int64)
        self.squared = squared

    def __len__(self) -> int:
        return self.count

    def norms(self, order: float) -> Floats:
        """Return the l2 norm of every unit's vector, from inner products of its rows."""
        if order != 2:
            raise InvalidParameter(f"these rows have l2 norms only, asked for order {order}.")
        a = self.layout.moments
        own = (1 - a) * (self.squared + _COUNT**2) / _BLOCK_NORM**2 + a * self.squared**2
        total = np.bincount(
            self.unit_of, weights=np.where(self.counted, own, 0.0), minlength=self.count
        )
        sizes = np.bincount(self.unit_of, minlength=self.count)
        order_of_rows = np.argsort(self.unit_of, kind="stable")
        starts = np.concatenate([[0], np.cumsum(sizes)])
        for unit in np.flatnonzero(sizes > 1):
            members = order_of_rows[starts[unit] : starts[unit + 1]]
            members = members[self.counted[members]]
            total[unit] = self._joint_square(members)
        return np.sqrt(np.maximum(total, 0.0))

    def _joint_square(self, members: Ints) -> float:
        """Return |sum of the members' vectors|^2, computed in blocks."""
        a, z, y = self.layout.moments, self.z[members].astype(np.float64), self.y[members]
        square = 0.0
        for start in range(0, len(members), 1024):
            inner = z[start : start + 1024] @ z.T
            same = y[start : start + 1024, None] == y
            square += float(
                ((1 - a) / _BLOCK_NORM**2) * ((inner + _COUNT**2) * same).sum()
                + a * (inner * inner).sum()
            )
        return square

    def weighted_sum(self, weights: Floats) -> Floats:
        """Return the sum of all units' vectors, each multiplied by its weight."""
        layout = self.layout
        per_row = np.where(self.counted, np.asarray(weights)[self.unit_of], 0.0)
        blocks = math.sqrt(1 - layout.moments) / _BLOCK_NORM
        upper = np.triu_indices(layout.width)
        scale = np.where(upper[0] == upper[1], 1.0, math.sqrt(2)) * math.sqrt(layout.moments)

        def part(rows: Ints) -> Floats:
            z, w = self.z[rows].astype(np.float64), per_row[rows, None]
            membership = np.zeros((len(rows), layout.n_classes))
            membership[np.arange(len(rows)), self.y[rows]] = w[:, 0]
            beside = np.concatenate([z, np.full((len(rows), 1), _COUNT)], axis=1)
            sums = np.asarray((membership.T @ beside * blocks).ravel())
            if not layout.moments:
                return sums
            return np.asarray(np.concatenate([sums, ((z * w).T @ z)[upper] * scale]))

        return np.asarray(added(per_row, part))


@dataclass(frozen=True)
class Statistics:
    """Noisy class sums, counts and second moment, from which a receiver learns.

    Parameters:
        layout: the names of the classes, the width, and the share of the second moment.
        basis: the map from features to rows.
        vector: the released vector, with its noise.
        sigma: standard deviation of the noise in each coordinate.
        encoder: identity of the encoder whose features the basis takes; empty if unknown.
        senders: number of releases in the sum.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.random((400, 12)), np.repeat([0, 1], 200)
        >>> X[y == 1, :6] += 1
        >>> basis = FeatureBasis.learn(rng.random((300, 12)), width=12)
        >>> layout = StatisticsLayout(("a", "b"), width=12)
        >>> noisy = layout.sum(basis.rows(X), y) + rng.normal(size=layout.size)
        >>> made = Statistics.from_sum(noisy, layout, basis, sigma=1.0)
        >>> made.sums.shape, made.counts.shape
        ((2, 12), (2,))
    """

    layout: StatisticsLayout
    basis: FeatureBasis
    vector: Floats
    sigma: float
    encoder: dict[str, object] = field(default_factory=dict)
    senders: int = 1

    def __post_init__(self) -> None:
        if self.vector.shape != (self.layout.size,) or self.basis.width != self.layout.width:
            raise InvalidData(
                f"statistics of this layout are a vector of {self.layout.size} numbers on a basis "
                f"of width {self.layout.width}, got shape {self.vector.shape} and width "
                f"{self.basis.width}."
            )
        if not np.isfinite(self.vector).all():
            raise InvalidData("statistics must hold finite numbers.")
        checks.non_negative("sigma", self.sigma)

    @classmethod
    def from_sum(
        cls,
        total: ArrayLike,
        layout: StatisticsLayout,
        basis: FeatureBasis,
        *,
        sigma: float,
        senders: int = 1,
    ) -> Statistics:
        """Make statistics from a sum of `StatisticsLayout.sum` over all sites, with noise.

        Parameters:
            total: the sum, with its noise.
            layout: the layout that all sites used.
            basis: the basis that all sites used.
            sigma: standard deviation of the noise in each coordinate of the sum.
            senders: number of sites.
        """
        vector = np.asarray(checks.number_array("total", total), np.float64)
        return cls(layout, basis, vector, float(sigma), senders=senders)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.layout.classes

    @property
    def noise_of_sums(self) -> float:
        """Standard deviation of the noise on each number of a class sum."""
        return self.sigma * _BLOCK_NORM / math.sqrt(1 - self.layout.moments)

    @property
    def noise_of_counts(self) -> float:
        """Standard deviation of the noise on a class count."""
        return self.noise_of_sums / _COUNT

    @property
    def noise_of_moments(self) -> float:
        """Standard deviation of the noise on the diagonal of the second moment."""
        return self.sigma / math.sqrt(self.layout.moments) if self.layout.moments else math.inf

    @cached_property
    def _blocks(self) -> Floats:
        layout = self.layout
        head = self.vector[: layout.n_classes * (layout.width + 1)]
        return np.asarray(
            head.reshape(layout.n_classes, -1) * (_BLOCK_NORM / math.sqrt(1 - layout.moments))
        )

    @property
    def sums(self) -> Floats:
        """Noisy class sums (C, width)."""
        return self._blocks[:, :-1]

    @property
    def counts(self) -> Floats:
        """Noisy number of images of each class (C,)."""
        return self._blocks[:, -1] / _COUNT

    @cached_property
    def moment(self) -> Floats | None:
        """The noisy second moment (width, width), or None if none was released."""
        layout = self.layout
        if not layout.moments:
            return None
        triangle = self.vector[layout.n_classes * (layout.width + 1) :]
        upper = np.triu_indices(layout.width)
        values = triangle / math.sqrt(layout.moments)
        values = np.where(upper[0] == upper[1], values, values / math.sqrt(2))
        full = np.zeros((layout.width, layout.width))
        full[upper] = values
        return full + np.triu(full, 1).T


def merge_statistics(parts: Sequence[Statistics]) -> Statistics:
    """Add the statistics of several senders.

    The guarantee of every sender is unchanged for that sender's images, because the sum is computed
    from released values. The noise of all senders adds up; a secure sum needs it only once.

    Parameters:
        parts: statistics with the same classes, width, share of moments and basis.

    Returns:
        Statistics of all images together.

    Raises:
        InvalidData: if the parts do not fit together; the message names the difference.

    Examples:
        >>> from blindsight.sketching import FeatureStatistics
        >>> rng = np.random.default_rng(0)
        >>> public, labels = rng.random((300, 12)), np.tile(["cat", "dog"], 200)
        >>> sites = [
        ...     FeatureStatistics(2.0, classes=("cat", "dog"), public=public, random_state=seed)
        ...     .fit(rng.random((400, 12)), labels).statistics_
        ...     for seed in (0, 1)
        ... ]
        >>> merge_statistics(sites).senders
        2
    """
    if not parts:
        raise InvalidData("there are no statistics to merge.")
    first = parts[0]
    for part in parts[1:]:
        for setting, first_value, part_value in (
            ("classes", first.layout.classes, part.layout.classes),
            ("width", first.layout.width, part.layout.width),
            ("share of moments", first.layout.moments, part.layout.moments),
            ("basis", first.basis.digest[:12], part.basis.digest[:12]),
            ("encoder", first.encoder, part.encoder),
        ):
            if first_value != part_value:
                raise InvalidData(
                    f"statistics can be merged only if they have the same {setting}, got "
                    f"{first_value} and {part_value}. Agree on classes, width, moments and public "
                    "pictures first."
                )
    total = np.sum([part.vector for part in parts], axis=0)
    sigma = math.sqrt(math.fsum(part.sigma**2 for part in parts))
    senders = sum(part.senders for part in parts)
    return Statistics(first.layout, first.basis, total, sigma, first.encoder, senders)


def _unit_roots(features: Floats) -> Floats:
    """Return square roots with the sign of the feature, scaled to norm 1; zeros are unchanged."""
    roots = np.sign(features) * np.sqrt(np.abs(np.asarray(features, np.float64)))
    norms = np.linalg.norm(roots, axis=1, keepdims=True)
    return np.asarray(roots / np.where(norms > 0, norms, 1.0))
