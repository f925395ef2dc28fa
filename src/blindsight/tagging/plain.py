"""`Tagger`: ML-GCN and R-ML-GCN without any privacy, to compare with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from blindsight.core import storage
from blindsight.core.errors import HostileFile, InvalidData
from blindsight.privacy.entropy import training_rng
from blindsight.tagging.label_graph import label_matrix
from blindsight.tagging.learning import Recipe, learn
from blindsight.tagging.scaling import Scaling, feature_rows

__all__ = ["Tagger"]

KIND = "plain tagger"


class Tagger(BaseEstimator):
    """ML-GCN (Chen et al. 2019) on features, and with `robust` > 0 R-ML-GCN. Nothing is protected.

    Parameters are those of `PrivateTagger` with the same names.
    """

    def __init__(
        self,
        *,
        robust: float = 0.0,
        threshold: float = 0.4,
        reweight: float = 0.2,
        head: Literal["auto", "gcn", "linear"] = "gcn",
        hidden: int = 1024,
        label_vectors: Any = None,
        classes: Any = None,
        epochs: int = 20,
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        random_state: Any = None,
    ) -> None:
        self.robust = robust
        self.threshold = threshold
        self.reweight = reweight
        self.head = head
        self.hidden = hidden
        self.label_vectors = label_vectors
        self.classes = classes
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, validation: Any = None, progress: Any = None) -> Tagger:
        """Learn from features (n, D) and labels (n, C) of 0 and 1."""
        rows, labels = feature_rows(X), label_matrix(y)
        if len(rows) != len(labels):
            raise InvalidData(f"X and y must have as many rows, got {len(rows)} and {len(labels)}.")
        rng, _ = training_rng(self.random_state)
        params = self.get_params()
        params.pop("random_state")
        recipe = Recipe(private=False, confidence=False, **params)
        learned = learn(recipe, rows, labels, rng=rng, secret=rng, validation=validation, progress=progress)
        self.weights_, self.curves_ = learned.weights, learned.curves
        self.n_features_in_, self.n_labels_ = rows.shape[1], labels.shape[1]
        return self

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Logits (n, C)."""
        check_is_fitted(self, "weights_")
        rows = feature_rows(X, n_features=self.n_features_in_)
        return (Scaling()(rows) @ self.weights_.T).astype(np.float64)

    def predict(self, X: Any) -> NDArray[np.uint8]:
        """Tags (n, C): where the logit is above 0."""
        return (self.decision_function(X) > 0).astype(np.uint8)

    def save(self, path: str | Path) -> None:
        """One safetensors file with the classifier matrix."""
        check_is_fitted(self, "weights_")
        storage.save(path, kind=KIND, arrays={"weights": self.weights_}, fields={"robust": float(self.robust)})

    @classmethod
    def load(cls, path: str | Path) -> Tagger:
        """Read back what `save` wrote."""
        arrays, fields = storage.load(path, kind=KIND)
        weights = arrays.get("weights")
        if weights is None or weights.ndim != 2 or not np.isfinite(weights).all():
            raise HostileFile(f"{Path(path).name} does not hold a tagger's weights.")
        tagger = cls(robust=float(fields.get("robust", 0.0)))
        tagger.weights_, tagger.curves_ = weights.astype(np.float32), None
        tagger.n_labels_, tagger.n_features_in_ = weights.shape
        return tagger

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output, tags.target_tags.single_output = True, False
        return tags
