"""Deep hashers on pairs: DPSH, DSH and HashNet differ in one loss.

Each trains a small network, on images or as a head on features, by stochastic gradients over the
pairs within a batch: the papers' double sum over all pairs, sampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.hashing import networks, saving
from blindsight.hashing.base import Hasher
from blindsight.hashing.labels import as_indicator
from blindsight.privacy.entropy import RandomState, training_rng

__all__ = ["DPSH", "DSH", "DeepHasher", "HashNet"]

Array = NDArray[Any]
Progress = Callable[[int, int], None]


class DeepHasher(Hasher):
    """What the deep hashers share.

    Inputs are features (n, d), or images (n, h, w) or (n, h, w, 3), uint8 or [0, 1].
    """

    supervised: ClassVar[bool] = True

    def __init__(
        self,
        n_bits: int = 32,
        *,
        n_epochs: int = 10,
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        hidden: int = 256,
        random_state: RandomState = None,
    ) -> None:
        self.n_bits = n_bits
        self.n_epochs = n_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.hidden = hidden
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, progress: Progress | None = None) -> Self:
        """Train on images or features with labels (n,) or a multi-label indicator (n, C)."""
        for name in ("n_bits", "n_epochs", "batch_size", "hidden"):
            checks.whole(name, getattr(self, name))
        checks.positive("learning_rate", self.learning_rate)
        inputs, labels = self._training_set(X, y)
        rng, _ = training_rng(self.random_state)
        axes = 0 if inputs.ndim == 2 else (0, 2, 3)
        self.mean_ = inputs.mean(axis=axes, keepdims=True, dtype=np.float64).astype(np.float32)[0]
        # One scale for all coordinates: dividing each by its own spread (whitening) halves DSH and
        # DPSH.
        spread = np.float32(np.sqrt(np.mean(np.square(inputs - self.mean_), dtype=np.float64)))
        self.scale_ = np.array([spread if spread > 0 else 1], dtype=np.float32)
        self.input_shape_ = inputs.shape[1:]
        network = networks.build(self.input_shape_, self.n_bits, self.hidden, rng)
        self._train(network, (inputs - self.mean_) / self.scale_, labels, rng, progress)
        self.network_ = network
        return self

    def decision_function(self, X: Any) -> Array:
        """The network's outputs (n, c)."""
        check_is_fitted(self)
        if len(self.input_shape_) == 1:
            X = validate_data(self, X, dtype=np.float32, reset=False)
        inputs = networks.as_input(np.asarray(X))
        if inputs.shape[1:] != self.input_shape_:
            raise InvalidData(
                f"fit saw inputs of shape {self.input_shape_}, got {inputs.shape[1:]}."
            )
        return networks.forward(self.network_, (inputs - self.mean_) / self.scale_)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Weights, input statistics and shape."""
        arrays = {"mean_": self.mean_, "scale_": self.scale_, **networks.parameters(self.network_)}
        return arrays, {"input_shape": [int(size) for size in self.input_shape_]}

    def restore(self, arrays: dict[str, Array], fields: dict[str, Any]) -> None:
        """Take the learned state from what `state` gave."""
        saving.take(self, arrays, ("mean_", "scale_"))
        shape = tuple(checks.whole("input_shape", size) for size in fields["input_shape"])
        # A file from outside must not make us allocate: the first layer's weights have to be there
        # in that size.
        saving.require(
            len(shape) in (1, 3) and math.prod(shape) <= 1 << 24, "its input shape is not usable"
        )
        saving.require(
            arrays["network.0.weight"].shape[1] == shape[0], "its weights do not fit its inputs"
        )
        self.input_shape_ = shape
        self.n_features_in_ = math.prod(shape)
        network = networks.build(
            shape, checks.whole("n_bits", self.n_bits), self.hidden, np.random.default_rng(0)
        )
        networks.load_parameters(network, arrays)
        self.network_ = network
        networks.forward(network, (np.zeros((1, *shape), np.float32) - self.mean_) / self.scale_)

    def _training_set(self, X: Any, y: Any) -> tuple[Array, Array]:
        images = isinstance(X, np.ndarray) and X.ndim in (3, 4)
        if not images:
            X, y = validate_data(
                self, X, y, dtype=np.float32, multi_output=True, ensure_min_samples=2
            )
        inputs = networks.as_input(np.asarray(X))
        if images:
            self.n_features_in_ = math.prod(inputs.shape[1:])
            if y is None:
                raise InvalidData(f"{type(self).__name__} learns from labels: pass y.")
        labels = as_indicator(y)
        if len(labels) != len(inputs):
            raise InvalidData(f"need a label for each image, got {len(labels)} for {len(inputs)}.")
        return inputs, labels

    def _train(
        self,
        network: Any,
        inputs: Array,
        labels: Array,
        rng: np.random.Generator,
        progress: Progress | None,
    ) -> None:
        torch = networks.torch()
        optimiser = torch.optim.Adam(network.parameters(), lr=self.learning_rate, weight_decay=1e-5)
        size = min(self.batch_size, len(inputs))
        steps = self.n_epochs * (len(inputs) // size)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, max_lr=self.learning_rate, total_steps=steps + 1
        )
        network.train()
        done = 0
        for epoch in range(self.n_epochs):
            order = rng.permutation(len(inputs))
            for start in range(0, len(order) - size + 1, size):
                rows = order[start : start + size]
                outputs = network(torch.from_numpy(inputs[rows]))
                marks = torch.from_numpy(labels[rows])
                loss = self._loss(outputs, (marks @ marks.T > 0).float(), done / steps)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
                done += 1
            if progress is not None:
                progress(epoch + 1, self.n_epochs)

    def _loss(self, u: Any, similar: Any, done: float) -> Any:
        raise TypeError(f"{type(self).__name__} must define _loss.")


class DPSH(DeepHasher):
    """Deep pairwise-supervised hashing (Li, Wang and Kang 2016).

    Negative log-likelihood of the pair labels with Theta = u'u / 2, plus eta times the quantisation
    error.
    """

    eta: ClassVar[float] = 0.1

    def _loss(self, u: Any, similar: Any, done: float) -> Any:
        torch = networks.torch()
        theta = u @ u.T / 2
        likelihood = (torch.nn.functional.softplus(theta) - similar * theta).mean()
        return likelihood + self.eta * (u - torch.where(u >= 0, 1.0, -1.0)).square().mean()


class DSH(DeepHasher):
    """Deep supervised hashing (Liu, Wang, Shan and Chen 2016).

    Contrastive loss on squared distances with margin 2c, plus alpha times | |u| - 1 |.
    """

    alpha: ClassVar[float] = 0.01

    def _loss(self, u: Any, similar: Any, done: float) -> Any:
        squared = u.square().sum(dim=1)
        distance = (squared[:, None] + squared[None, :] - 2 * u @ u.T).clamp(min=0)
        margin = 2.0 * self.n_bits
        pairs = similar * distance / 2 + (1 - similar) * (margin - distance).clamp(min=0) / 2
        return pairs.mean() + self.alpha * (u.abs() - 1).abs().sum(dim=1).mean()


class HashNet(DeepHasher):
    """HashNet (Cao, Long, Wang and Yu 2017).

    Weighted likelihood (similar pairs are rare and count more) of codes tanh(beta z), where beta
    grows during training until tanh is nearly the sign: learning to hash by continuation.
    """

    last_beta: ClassVar[float] = 10.0

    def _loss(self, u: Any, similar: Any, done: float) -> Any:
        torch = networks.torch()
        codes = torch.tanh(self.last_beta**done * u)
        theta = codes @ codes.T * (10.0 / self.n_bits)
        total, positive = similar.numel(), similar.sum()
        weight = torch.where(
            similar > 0, total / positive.clamp(min=1), total / (total - positive).clamp(min=1)
        )
        return (weight * (torch.nn.functional.softplus(theta) - similar * theta)).mean()
