"""The base class of the hashers without privacy, their labels and their files.

A hasher learns c real-valued functions of an image's features. Bit j of the code is 1 where
function j is at least 0. `decision_function` returns the real values, which soft decoding uses;
`transform` returns the packed bits.

A file holds arrays and plain fields (`blindsight.core.storage`) and is never unpickled. Hashers
without privacy save everything they learned; private ones (`guarantee.ReleasesCodes`) save only
what is public or was released.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.core import checks, codes, storage
from blindsight.core.arrays import Array, Floats32
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.privacy.entropy import RandomState, training_rng

__all__ = [
    "KIND",
    "Hasher",
    "as_indicator",
    "hasher_from_parts",
    "hasher_to_parts",
    "load",
    "new_hasher",
    "plain_parameters",
    "require",
    "restore_arrays",
    "save",
    "similarity",
]


def as_indicator(y: ArrayLike, classes: Sequence[Any] | None = None) -> Floats32:
    """Convert labels (n,), or a multi-label indicator (n, C) of 0 and 1, to a float32 indicator.

    Parameters:
        y: the labels.
        classes: with labels (n,), one column is made for each of these classes, whether it occurs
            or not; a label that is not among them becomes a row of zeros.

    Returns:
        The indicator matrix (n, C).

    Raises:
        InvalidData: the labels have another shape, or an indicator has other values than 0 and 1.

    Examples:
        >>> as_indicator(["cat", "dog", "cat"]).tolist()
        [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    """
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 1 and classes is not None:
        return np.asarray(labels[:, None] == np.asarray(classes)[None, :], dtype=np.float32)
    if labels.ndim == 1:
        distinct, index = np.unique(labels, return_inverse=True)
        return np.eye(len(distinct), dtype=np.float32)[index]
    if labels.ndim != 2:
        raise InvalidData(f"labels must have shape (n,) or (n, C), got {labels.shape}.")
    if labels.dtype.kind not in "biuf" or not ((labels == 0) | (labels == 1)).all():
        raise InvalidData("multi-label targets must be an indicator matrix of 0 and 1.")
    return labels.astype(np.float32)


def similarity(a: Array, b: Array) -> Floats32:
    """Return the paper's S (n, m): +1 where two indicator rows share a label, -1 elsewhere."""
    return np.where(a @ b.T > 0, np.float32(1), np.float32(-1))


KIND = "hasher"
T = TypeVar("T")


def require(holds: bool, reason: str) -> None:
    """Raise `HostileFile` with the reason unless `holds`."""
    if not holds:
        raise HostileFile(f"not a hasher that can be used: {reason}. Fit and save it again.")


def hasher_to_parts(hasher: Hasher) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays and fields of a fitted plain hasher, for `hasher_from_parts`."""
    if not hasattr(hasher, "state") or type(hasher).__name__ not in _names():
        raise InvalidParameter(
            f"only Blindsight's own hashers can be saved, got {type(hasher).__name__}."
        )
    arrays, learned = hasher.state()
    return arrays, {
        "class": type(hasher).__name__,
        "params": plain_parameters(hasher),
        "learned": learned,
    }


def plain_parameters(hasher: Hasher) -> dict[str, Any]:
    """Return the parameters that can be saved as JSON; a generator as `random_state` cannot."""
    return {key: value for key, value in hasher.get_params(deep=False).items() if _plain(value)}


def new_hasher(name: object, params: object) -> Hasher:
    """Make an unfitted plain hasher from the name of its class and its parameters."""
    require(isinstance(name, str) and name in _names(), "it names no known class")
    if not isinstance(params, dict):
        raise HostileFile("not a hasher that can be used: its parameters are missing.")
    cls = getattr(importlib.import_module("blindsight.hashing"), str(name))
    require(hasattr(cls, "restore"), "it names no plain hasher")
    hasher: Hasher = cls(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in params.items()}
    )
    return hasher


def hasher_from_parts(arrays: dict[str, Array], fields: dict[str, Any]) -> Hasher:
    """Invert `hasher_to_parts`; raise `HostileFile` if arrays and fields are inconsistent."""
    require(isinstance(fields.get("learned"), dict), "its fields are missing")
    try:
        hasher = new_hasher(fields.get("class"), fields.get("params"))
        hasher.restore(arrays, fields["learned"])
    except HostileFile:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise HostileFile(
            f"not a hasher that can be used: {type(error).__name__} while reading it."
        ) from error
    return hasher


def save(path: str | Path, hasher: Hasher) -> None:
    """Write a fitted plain hasher to `path`."""
    arrays, fields = hasher_to_parts(hasher)
    storage.save(path, kind=KIND, arrays=arrays, fields=fields)


def load(path: str | Path, cls: type[T] | None = None) -> T:
    """Read a hasher, plain or private, from a file.

    Parameters:
        path: a file that the hasher's `save` wrote.
        cls: the class that the hasher must have; None accepts any hasher.

    Raises:
        HostileFile: the file holds no usable hasher, or one of another class.
    """
    arrays, fields = storage.load(path, kind=KIND)
    if isinstance(fields.get("parameters"), dict):
        name = fields["parameters"].get("class")
        require(isinstance(name, str) and name in _names(), "it names no known class")
        hasher = getattr(importlib.import_module("blindsight.hashing"), str(name)).load(path)
    else:
        hasher = hasher_from_parts(arrays, fields)
    if cls is not None and not isinstance(hasher, cls):
        raise HostileFile(f"the file holds a {type(hasher).__name__}, not a {cls.__name__}.")
    return hasher  # type: ignore[no-any-return]


def restore_arrays(target: object, arrays: dict[str, Array], names: tuple[str, ...]) -> None:
    """Set the named arrays as attributes of `target`; each must exist and be finite."""
    for name in names:
        require(name in arrays, f"the array {name!r} is missing")
        value = np.asarray(arrays[name])
        require(
            value.dtype.kind in "iufb" and bool(np.isfinite(value).all()),
            f"the array {name!r} is not finite",
        )
        setattr(target, name, value)


def _names() -> tuple[str, ...]:
    names: tuple[str, ...] = importlib.import_module("blindsight.hashing").ESTIMATORS
    return names


def _plain(value: ArrayLike) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


class Hasher(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """The base class of the hashers without privacy: a subclass defines `_learn` and `_project`.

    Guarantee:
        None. The codes and the hash function reveal information about the images; use `PHashing`
        to release codes.
    """

    #: whether `fit` needs labels.
    supervised: ClassVar[bool] = False
    #: whether the hash function is independent of the images it is fitted on.
    data_free: bool = False
    #: names of the learned arrays, in the order they are saved.
    _learned: ClassVar[tuple[str, ...]] = ()

    n_bits: int
    random_state: RandomState

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn the hash function.

        Parameters:
            X: features (n, d).
            y: labels (n,) or a multi-label indicator (n, C), for hashers that learn from labels.
        """
        checks.whole("n_bits", self.n_bits)
        if self.supervised:
            rows, targets = validate_data(
                self, X, y, dtype=(np.float64, np.float32), multi_output=True, ensure_min_samples=2
            )
            labels = as_indicator(targets)
        else:
            rows = validate_data(self, X, dtype=(np.float64, np.float32), ensure_min_samples=2)
            labels = None
        rng, _ = training_rng(self.random_state)
        self._learn(rows, labels, rng)
        return self

    def decision_function(self, X: ArrayLike) -> Array:
        """The real values (n, c) whose signs are the bits."""
        check_is_fitted(self)
        return self._project(validate_data(self, X, dtype=(np.float64, np.float32), reset=False))

    def transform(self, X: ArrayLike, *, signs: bool = False) -> Array:
        """Compute the codes of features (n, d).

        Returns:
            Packed codes, uint8 (n, ceil(c/8)) in little bit order; with `signs=True`, +1 and -1 as
            int8 (n, c).
        """
        bits = self.decision_function(X) >= 0
        return np.where(bits, 1, -1).astype(np.int8) if signs else codes.pack(bits)

    def save(self, path: str | Path) -> None:
        """Write the hasher to one file, without pickle."""
        check_is_fitted(self)
        save(path, self)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a hasher of this class; raise `HostileFile` for anything else."""
        return load(path, cls)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return the learned arrays and fields (JSON values) that `restore` reads."""
        return {name: np.asarray(getattr(self, name)) for name in self._learned}, {
            "n_features_in_": int(self.n_features_in_)
        }

    def restore(self, arrays: dict[str, Array], fields: dict[str, Any]) -> None:
        """Set the learned state from what `state` returned."""
        restore_arrays(self, arrays, self._learned)
        self.n_features_in_ = checks.whole("n_features_in_", fields.get("n_features_in_"))
        # The shapes in an untrusted file may be inconsistent: projecting one row detects that here
        # rather than during a search.
        width = self._project(np.zeros((1, self.n_features_in_))).shape
        require(width == (1, self.n_bits), "the learned arrays do not fit the number of bits")

    @property
    def _n_features_out(self) -> int:
        return codes.n_bytes(self.n_bits)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.supervised
        tags.target_tags.multi_output = self.supervised
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _learn(self, X: Array, labels: Array | None, rng: np.random.Generator) -> None:
        raise TypeError(f"{type(self).__name__} must define _learn.")

    def _project(self, X: Array) -> Array:
        raise TypeError(f"{type(self).__name__} must define _project.")
