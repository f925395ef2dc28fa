"""What every hasher shares: validation, packing of the bits, saving and loading.

A hasher learns c real-valued functions of an image's features; bit j of the code says whether
function j is at least 0. `decision_function` gives the real values (soft decoding uses them),
`transform` the packed bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.core import checks, codes
from blindsight.hashing import saving
from blindsight.hashing.labels import as_indicator
from blindsight.privacy.entropy import RandomState, training_rng

__all__ = ["Hasher"]

Array = NDArray[Any]


class Hasher(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """The base of the non-private hashers. A subclass learns in `_learn` and projects in
    `_project`.

    Guarantee:
        None. The codes and the hash function tell about the images; wrap the hasher in `PHashing`
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

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the hash function from features (n, d); `y` are labels (n,) or a multi-label
        indicator (n, C).
        """
        checks.whole("n_bits", self.n_bits)
        if self.supervised:
            X, y = validate_data(
                self, X, y, dtype=(np.float64, np.float32), multi_output=True, ensure_min_samples=2
            )
            labels = as_indicator(y)
        else:
            X, labels = (
                validate_data(self, X, dtype=(np.float64, np.float32), ensure_min_samples=2),
                None,
            )
        rng, _ = training_rng(self.random_state)
        self._learn(X, labels, rng)
        return self

    def decision_function(self, X: Any) -> Array:
        """The real values (n, c) whose signs are the bits."""
        check_is_fitted(self)
        return self._project(validate_data(self, X, dtype=(np.float64, np.float32), reset=False))

    def transform(self, X: Any, *, signs: bool = False) -> Array:
        """Packed codes uint8 (n, ceil(c/8)), little bit order; +1 and -1 as int8 (n, c) with
        `signs=True`.
        """
        bits = self.decision_function(X) >= 0
        return np.where(bits, 1, -1).astype(np.int8) if signs else codes.pack(bits)

    def save(self, path: str | Path) -> None:
        """Write the hasher to one file, without pickle."""
        check_is_fitted(self)
        saving.save(path, self)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a hasher of this class back; anything else is refused."""
        return saving.load(path, cls)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Learned arrays and JSON-able fields; `restore` reads them back."""
        return {name: np.asarray(getattr(self, name)) for name in self._learned}, {
            "n_features_in_": int(self.n_features_in_)
        }

    def restore(self, arrays: dict[str, Array], fields: dict[str, Any]) -> None:
        """Take the learned state from what `state` gave."""
        saving.take(self, arrays, self._learned)
        self.n_features_in_ = checks.whole("n_features_in_", fields.get("n_features_in_"))
        # The shapes in a file from outside need not fit: one dry run finds out here rather than in
        # a search.
        width = self._project(np.zeros((1, self.n_features_in_))).shape
        saving.require(
            width == (1, self.n_bits), "the learned arrays do not fit the number of bits"
        )

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
