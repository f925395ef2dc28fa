"""Deep hashers: DPSH, DSH and HashNet, which differ in one loss on pairs, and ADSH.

Each trains a small network, on images or as a head on features. The first three use stochastic
gradients over the pairs within a batch, a sample of the papers' double sum over all pairs.

ADSH (Jiang and Li 2018) learns a network for queries and free codes V for the database. It
minimises, over V in {-1, +1} and the network F with u_i = tanh(F(x_i)),
    sum over sampled i and all j of (u_i'v_j - c S_ij)^2
    + gamma * sum over sampled i of |v_i - u_i|^2.
Images with the same labels have the same row of S, so all sums over the database are sums over its
distinct label sets, and no n x m matrix is formed. Dissimilar pairs get S = -r, where r is the
ratio of similar to dissimilar pairs: with -1 the many dissimilar pairs make all codes equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from blindsight.core.arrays import Array, Floats32
from blindsight.privacy.entropy import RandomState

if TYPE_CHECKING:
    from torch import Tensor, nn

import math
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.core import checks, codes
from blindsight.core.errors import InvalidData
from blindsight.hashing.base import Hasher, as_indicator, require, restore_arrays
from blindsight.privacy.entropy import training_rng

__all__ = ["ADSH", "DPSH", "DSH", "DeepHasher", "HashNet"]


def _torch() -> Any:
    """Import PyTorch, or raise an error that says how to install it."""
    return checks.optional_module("torch", extra="torch")


def _as_input(X: Array) -> Array:
    """Convert images to the input of a network; features (n, d) are returned unchanged.

    Images (n, h, w) or (n, h, w, channels) become float32 (n, channels, h, w) in [0, 1].
    """
    if X.ndim == 2:
        return np.asarray(X, dtype=np.float32)
    if X.ndim == 3:
        X = X[..., None]
    if X.ndim != 4 or X.shape[3] not in (1, 3) or min(X.shape[1:3]) < 8:
        raise InvalidData(
            "images must be (n, h, w) or (n, h, w, 3) of at least 8 x 8 pixels, got shape "
            f"{X.shape}."
        )
    scale = np.float32(255 if X.dtype == np.uint8 else 1)
    return np.ascontiguousarray(np.moveaxis(X, 3, 1), dtype=np.float32) / scale


def _build_network(
    shape: tuple[int, ...], n_bits: int, hidden: int, rng: np.random.Generator
) -> Any:
    """Build a network for inputs of `shape` (d,) or (channels, h, w) with random weights."""
    nn = _torch().nn
    if len(shape) == 1:
        layers = [nn.Linear(shape[0], hidden), nn.ReLU(), nn.Linear(hidden, n_bits)]
    else:
        channels, height, width = shape
        flat = 64 * (height // 4) * (width // 4)
        layers = [
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(flat, hidden),
            nn.ReLU(),
            nn.Linear(hidden, n_bits),
        ]
    network = nn.Sequential(*layers)
    _draw(network, rng)
    return network


def _draw(network: nn.Module, rng: np.random.Generator) -> None:
    """Apply He's uniform initialisation with `rng`, because torch would use its global seed."""
    with _torch().no_grad():
        for layer in network:
            if hasattr(layer, "weight"):
                fan_in = math.prod(layer.weight.shape[1:])
                bound = math.sqrt(6 / fan_in) if layer is not network[-1] else 1 / math.sqrt(fan_in)
                values = rng.uniform(-bound, bound, tuple(layer.weight.shape)).astype(np.float32)
                layer.weight.copy_(_torch().from_numpy(values))
                layer.bias.zero_()


def _outputs_of(network: nn.Module, inputs: Array, *, block: int = 1024) -> Floats32:
    """Compute the network's outputs (n, c) in blocks of rows."""
    t = _torch()
    network.eval()
    with t.no_grad():
        parts = [
            network(t.from_numpy(inputs[i : i + block])).numpy()
            for i in range(0, len(inputs), block)
        ]
    return np.concatenate(parts)


def _network_arrays(network: nn.Module) -> dict[str, Array]:
    return {
        f"network.{name}": value.detach().numpy() for name, value in network.state_dict().items()
    }


def _load_parameters(network: nn.Module, arrays: dict[str, Array]) -> None:
    """Copy saved weights into the network. Each must exist, with the right shape, and be finite."""
    for name, value in network.state_dict().items():
        weights = arrays.get(f"network.{name}")
        if (
            weights is None
            or tuple(weights.shape) != tuple(value.shape)
            or not np.isfinite(weights).all()
        ):
            raise InvalidData(f"the weights {name!r} are missing or do not fit.")
        value.copy_(_torch().from_numpy(np.ascontiguousarray(weights, dtype=np.float32)))


Progress = Callable[[int, int], None]


class DeepHasher(Hasher):
    """The base class of the deep hashers: input scaling, the network, training and files.

    Inputs are features (n, d), or images (n, h, w) or (n, h, w, 3), uint8 or floats in [0, 1].
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

    def fit(
        self, X: ArrayLike, y: ArrayLike | None = None, *, progress: Progress | None = None
    ) -> Self:
        """Train on images or features with labels (n,) or a multi-label indicator (n, C)."""
        for name in ("n_bits", "n_epochs", "batch_size", "hidden"):
            checks.whole(name, getattr(self, name))
        checks.positive("learning_rate", self.learning_rate)
        inputs, labels = self._training_set(X, y)
        rng, _ = training_rng(self.random_state)
        axes = 0 if inputs.ndim == 2 else (0, 2, 3)
        self.mean_ = inputs.mean(axis=axes, keepdims=True, dtype=np.float64).astype(np.float32)[0]
        # One scale for all coordinates: dividing each coordinate by its own standard deviation
        # halves the mean average precision of DSH and DPSH.
        spread = np.float32(np.sqrt(np.mean(np.square(inputs - self.mean_), dtype=np.float64)))
        self.scale_ = np.array([spread if spread > 0 else 1], dtype=np.float32)
        self.input_shape_ = inputs.shape[1:]
        network = _build_network(self.input_shape_, self.n_bits, self.hidden, rng)
        self._train(network, (inputs - self.mean_) / self.scale_, labels, rng, progress)
        self.network_ = network
        return self

    def decision_function(self, X: ArrayLike) -> Array:
        """The network's outputs (n, c)."""
        check_is_fitted(self)
        if len(self.input_shape_) == 1:
            X = validate_data(self, X, dtype=np.float32, reset=False)
        inputs = _as_input(np.asarray(X))
        if inputs.shape[1:] != self.input_shape_:
            raise InvalidData(
                f"fit saw inputs of shape {self.input_shape_}, got {inputs.shape[1:]}."
            )
        return _outputs_of(self.network_, (inputs - self.mean_) / self.scale_)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Weights, input statistics and shape."""
        arrays = {"mean_": self.mean_, "scale_": self.scale_, **_network_arrays(self.network_)}
        return arrays, {"input_shape": [int(size) for size in self.input_shape_]}

    def restore(self, arrays: dict[str, Array], fields: dict[str, Any]) -> None:
        """Set the learned state from what `state` returned."""
        restore_arrays(self, arrays, ("mean_", "scale_"))
        shape = tuple(checks.whole("input_shape", size) for size in fields["input_shape"])
        # A hostile file must not cause a large allocation: the input shape has to agree with the
        # size of the first layer's weights.
        require(
            len(shape) in (1, 3) and math.prod(shape) <= 1 << 24, "its input shape is not usable"
        )
        require(
            arrays["network.0.weight"].shape[1] == shape[0], "its weights do not fit its inputs"
        )
        self.input_shape_ = shape
        self.n_features_in_ = math.prod(shape)
        network = _build_network(
            shape, checks.whole("n_bits", self.n_bits), self.hidden, np.random.default_rng(0)
        )
        _load_parameters(network, arrays)
        self.network_ = network
        _outputs_of(network, (np.zeros((1, *shape), np.float32) - self.mean_) / self.scale_)

    def _training_set(self, X: ArrayLike, y: ArrayLike | None) -> tuple[Array, Array]:
        images = isinstance(X, np.ndarray) and X.ndim in (3, 4)
        if not images:
            X, y = validate_data(
                self, X, y, dtype=np.float32, multi_output=True, ensure_min_samples=2
            )
        inputs = _as_input(np.asarray(X))
        if images:
            self.n_features_in_ = math.prod(inputs.shape[1:])
            if y is None:
                raise InvalidData(f"{type(self).__name__} learns from labels: pass y.")
        labels = as_indicator(np.asarray(y))
        if len(labels) != len(inputs):
            raise InvalidData(f"need a label for each image, got {len(labels)} for {len(inputs)}.")
        return inputs, labels

    def _train(
        self,
        network: nn.Module,
        inputs: Array,
        labels: Array,
        rng: np.random.Generator,
        progress: Progress | None,
    ) -> None:
        torch = _torch()
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

    def _loss(self, u: Tensor, similar: Tensor, done: float) -> Tensor:
        raise TypeError(f"{type(self).__name__} must define _loss.")


# Below this share of similar pairs in a batch, the published losses of DPSH and DSH fail.
_MIN_SIMILAR_SHARE = 0.05


def _balanced(values: Any, similar: Tensor) -> Any:
    """The mean over similar pairs and the mean over dissimilar ones, averaged."""
    n_similar, n_different = similar.sum().clamp(min=1), (1 - similar).sum().clamp(min=1)
    return ((values * similar).sum() / n_similar + (values * (1 - similar)).sum() / n_different) / 2


def _mean_of_pairs(values: Any, similar: Tensor) -> Any:
    """The mean as published, or the balanced mean if similar pairs are rare."""
    return _balanced(values, similar) if similar.mean() < _MIN_SIMILAR_SHARE else values.mean()


class DPSH(DeepHasher):
    """Deep pairwise-supervised hashing (Li, Wang and Kang 2016).

    The loss is the negative log-likelihood of the pair labels with Theta = u'u / 2, plus eta times
    the quantisation error. Where similar pairs are rare, as with a hundred classes, they get the
    same total weight as the dissimilar ones; without weights the outputs of all images become
    alike.

    Parameters:
        n_bits: length of a code.
        n_epochs: passes over the training images.
        batch_size: images in a batch; the loss is taken over the pairs inside it.
        learning_rate: largest step of Adam's one-cycle schedule.
        hidden: width of the hidden layer.
        random_state: seed or generator for training; None uses fresh entropy.

    Examples:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).standard_normal((40, 8))
        >>> y = np.repeat([0, 1], 20)
        >>> DPSH(16, n_epochs=1, random_state=0).fit(X, y).transform(X).shape
        (40, 2)
    """

    eta: ClassVar[float] = 0.1

    def _loss(self, u: Tensor, similar: Tensor, done: float) -> Tensor:
        torch = _torch()
        theta = u @ u.T / 2
        likelihood = torch.nn.functional.softplus(theta) - similar * theta
        return (
            _mean_of_pairs(likelihood, similar)
            + self.eta * (u - torch.where(u >= 0, 1.0, -1.0)).square().mean()
        )


class DSH(DeepHasher):
    """Deep supervised hashing (Liu, Wang, Shan and Chen 2016).

    The loss is the contrastive loss on squared distances with margin 2c, plus alpha times
    | |u| - 1 |. Rare similar pairs are weighted as in `DPSH`.

    Parameters:
        n_bits: length of a code.
        n_epochs: passes over the training images.
        batch_size: images in a batch; the loss is taken over the pairs inside it.
        learning_rate: largest step of Adam's one-cycle schedule.
        hidden: width of the hidden layer.
        random_state: seed or generator for training; None uses fresh entropy.

    Examples:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).standard_normal((40, 8))
        >>> y = np.repeat([0, 1], 20)
        >>> DSH(16, n_epochs=1, random_state=0).fit(X, y).transform(X).shape
        (40, 2)
    """

    alpha: ClassVar[float] = 0.01

    def _loss(self, u: Tensor, similar: Tensor, done: float) -> Tensor:
        squared = u.square().sum(dim=1)
        distance = (squared[:, None] + squared[None, :] - 2 * u @ u.T).clamp(min=0)
        margin = 2.0 * self.n_bits
        pairs = similar * distance / 2 + (1 - similar) * (margin - distance).clamp(min=0) / 2
        penalty = (u.abs() - 1).abs().sum(dim=1).mean()
        return _mean_of_pairs(pairs, similar) + self.alpha * penalty


class HashNet(DeepHasher):
    """HashNet (Cao, Long, Wang and Yu 2017).

    The loss is the weighted likelihood of codes tanh(beta z), in which the rare similar pairs have
    a larger weight. beta grows during training until tanh is nearly the sign function (learning to
    hash by continuation).

    Parameters:
        n_bits: length of a code.
        n_epochs: passes over the training images.
        batch_size: images in a batch; the loss is taken over the pairs inside it.
        learning_rate: largest step of Adam's one-cycle schedule.
        hidden: width of the hidden layer.
        random_state: seed or generator for training; None uses fresh entropy.

    Examples:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).standard_normal((40, 8))
        >>> y = np.repeat([0, 1], 20)
        >>> HashNet(16, n_epochs=1, random_state=0).fit(X, y).transform(X).shape
        (40, 2)
    """

    last_beta: ClassVar[float] = 10.0

    def _loss(self, u: Tensor, similar: Tensor, done: float) -> Tensor:
        torch = _torch()
        codes = torch.tanh(self.last_beta**done * u)
        theta = codes @ codes.T * (10.0 / self.n_bits)
        likelihood = torch.nn.functional.softplus(theta) - similar * theta
        return 2 * _balanced(likelihood, similar)


class ADSH(DeepHasher):
    """Asymmetric deep supervised hashing (Jiang and Li 2018).

    Each of `n_epochs` rounds samples `n_sampled` images, trains the network on them and then
    updates all codes V.

    `database_codes_` are the learned codes V of the training images. They contain little more than
    the labels, so releasing them, even with flipped bits, releases labels. `transform` always uses
    the network.

    Parameters:
        n_bits: length of a code.
        n_epochs: outer rounds.
        batch_size: images in a batch; the loss is taken over the pairs inside it.
        learning_rate: largest step of Adam's one-cycle schedule.
        hidden: width of the hidden layer.
        n_sampled: images sampled in each round.
        gamma: weight of the difference between an image's output and its free code.
        random_state: seed or generator for training; None uses fresh entropy.

    Examples:
        >>> import numpy as np
        >>> X = np.random.default_rng(0).standard_normal((40, 8))
        >>> y = np.repeat([0, 1], 20)
        >>> ADSH(16, n_epochs=1, random_state=0).fit(X, y).transform(X).shape
        (40, 2)
    """

    def __init__(
        self,
        n_bits: int = 32,
        *,
        n_epochs: int = 10,
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        hidden: int = 256,
        n_sampled: int = 5000,
        gamma: float = 200.0,
        random_state: RandomState = None,
    ) -> None:
        super().__init__(
            n_bits,
            n_epochs=n_epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            hidden=hidden,
            random_state=random_state,
        )
        self.n_sampled = n_sampled
        self.gamma = gamma

    def _train(
        self,
        network: nn.Module,
        inputs: Array,
        labels: Array,
        rng: np.random.Generator,
        progress: Progress | None,
    ) -> None:
        torch = _torch()
        optimiser = torch.optim.Adam(network.parameters(), lr=self.learning_rate, weight_decay=1e-5)
        n, gamma = len(inputs), checks.non_negative("gamma", self.gamma)
        groups = _Groups(labels)
        V = np.where(rng.random((n, self.n_bits)) < 0.5, np.float32(-1), np.float32(1))
        for epoch in range(self.n_epochs):
            chosen = rng.permutation(n)[: min(checks.whole("n_sampled", self.n_sampled), n)]
            gram = torch.from_numpy(V.T @ V)
            pull = groups.pull(V)  # row g: sum over j of S_gj v_j
            network.train()
            for start in range(0, len(chosen), self.batch_size):
                rows = chosen[start : start + self.batch_size]
                u = torch.tanh(network(torch.from_numpy(inputs[rows])))
                target = torch.from_numpy(pull[groups.index[rows]])
                fit = ((u @ gram) * u).sum() - 2 * self.n_bits * (u * target).sum()
                near = gamma * (u - torch.from_numpy(V[rows])).square().sum()
                loss = (fit + near) / (len(rows) * n * self.n_bits)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            U = np.tanh(_outputs_of(network, inputs[chosen]))
            V = self._update(V, U, chosen, groups, gamma)
            if progress is not None:
                progress(epoch + 1, self.n_epochs)
        self.database_codes_ = codes.from_signs(V)

    def _update(self, V: Array, U: Array, chosen: Array, groups: _Groups, gamma: float) -> Array:
        """The paper's Equation 10, column by column: V_k = -sign(2 V_other U_other'U_k + Q_k)."""
        Q = -2 * self.n_bits * groups.pull(U, chosen)[groups.index]
        Q[chosen] -= 2 * gamma * U
        gram = U.T @ U
        V = V.copy()
        for k in range(self.n_bits):
            others = V @ gram[:, k] - V[:, k] * gram[k, k]
            V[:, k] = np.where(2 * others + Q[:, k] > 0, np.float32(-1), np.float32(1))
        return V


class _Groups:
    """Images grouped by their label set, with the similarity S between two label sets."""

    def __init__(self, labels: Array) -> None:
        sets, index = np.unique(labels, axis=0, return_inverse=True)
        self.index: Array = index.ravel()
        similar = (sets @ sets.T > 0).astype(np.float32)
        size = np.bincount(self.index, minlength=len(sets)).astype(np.float64)
        positive = float(size @ similar @ size)
        ratio = positive / max(float(size.sum() ** 2 - positive), 1.0)
        self.S = np.where(similar > 0, 1.0, -min(ratio, 1.0)).astype(np.float32)

    def pull(self, values: Array, rows: Array | None = None) -> Array:
        """Return, in row g, the sum over images j (all, or `rows`) of S_gj times their values."""
        index = self.index if rows is None else self.index[rows]
        sums = np.zeros((len(self.S), values.shape[1]), dtype=np.float32)
        np.add.at(sums, index, values)
        return self.S @ sums
