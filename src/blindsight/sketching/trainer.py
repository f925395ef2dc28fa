"""`NegDL`, the network that the server trains on sketches (Algorithm 3), and its PyTorch data set.

`SketchDataset` turns sketches into network inputs by table lookup, for each batch or all at once.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.utils.data import Dataset

from blindsight.core import checks, storage
from blindsight.core.arrays import Array, Floats32, Ints
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.privacy.entropy import RandomState, training_rng
from blindsight.sketching.networks import (
    NETWORKS,
    TrainingRecipe,
    Whitened,
    build,
    default_network,
    recipe_of,
)
from blindsight.sketching.parameters import parameters_from_dict
from blindsight.sketching.sketches import SketchSet

__all__ = ["INPUTS", "NegDL", "SketchDataset"]

INPUTS = ("mean", "bits", "both")
CACHE_BYTES = 1 << 30


class SketchDataset(Dataset):  # type: ignore[misc]
    """A data set of (input, label) pairs from sketches; the label is -1 if there is none.

    Parameters:
        sketches: the set.
        inputs: "mean" gives posterior means of pixels in [0, 1] (channels, h, w), as the paper
            does; "bits" gives the posteriors of all bits (channels L, h, w), from which a network
            learns more; "both" gives the bits and then the means (channels (L + 1), h, w).
        cache: whether inputs are stored in memory; None does so if they take at most 1 GB.
    """

    def __init__(
        self, sketches: SketchSet, *, inputs: str = "mean", cache: bool | None = None
    ) -> None:
        self.sketches = sketches
        self.inputs = checks.one_of("inputs", inputs, INPUTS)
        channels, height, width = sketches.image_shape
        depth = sketches.parameters.depth
        planes = channels * {"mean": 1, "bits": depth, "both": depth + 1}[inputs]
        self.shape = (planes, height, width)
        size = 4 * len(sketches) * planes * height * width
        self._cached = (
            self._estimate(slice(None))
            if (size <= CACHE_BYTES if cache is None else cache)
            else None
        )
        labels = (
            np.full(len(sketches), -1, np.int64) if sketches.labels is None else sketches.labels
        )
        self.labels = torch.from_numpy(labels)

    def _estimate(self, rows: Any) -> Tensor:
        part = self.sketches[rows]
        planes: list[Floats32] = []
        if self.inputs != "mean":
            planes.append(part.posteriors())
        if self.inputs != "bits":
            means = part.means()
            means /= np.float32(2**self.sketches.parameters.depth - 1)
            planes.append(means)
        return torch.from_numpy(planes[0] if len(planes) == 1 else np.concatenate(planes, axis=1))

    def __len__(self) -> int:
        return len(self.sketches)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.batch(np.array([row]))[0], self.labels[row]

    def __getitems__(self, rows: list[int]) -> list[tuple[Tensor, Tensor]]:
        """Return a batch for torch's loader, computed together."""
        return list(
            zip(self.batch(np.asarray(rows)), self.labels[torch.as_tensor(rows)], strict=True)
        )

    def batch(self, rows: ArrayLike) -> Tensor:
        """Return the inputs of these rows, computed together."""
        if self._cached is not None:
            return self._cached[torch.as_tensor(rows)]
        order = np.asarray(rows)
        return self._estimate(order)

    def statistics(self, most: int = 4096) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of each plane over the first `most` sketches."""
        values = self.batch(np.arange(min(most, len(self))))
        mean, deviation = values.mean(dim=(0, 2, 3)), values.std(dim=(0, 2, 3))
        return mean, deviation.clamp_min(1e-3)


Progress = Callable[[int, int], None] | None
# Learning rates of an optimiser that is not the recipe's.
RATES = {"adam": 1e-3, "sgd": 0.1, "nesterov": 0.1}


class NegDL(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that is trained on sketches and never sees pixels.

    Parameters:
        network: "lenet5", "whitened", "whitened-wide", "resnet", "resnet50", or a function
            (channels, height, width, classes) -> torch module; "auto" is "whitened" for colour of
            32 x 32 pixels, else "lenet5".
        inputs: "mean" (the paper: posterior means of pixels), "bits" (posteriors of all bits as
            channels) or "both".
        scaling: "standard" (each plane has mean 0 and standard deviation 1) or "unit" ([0, 1], as
            in the paper).
        optimizer: "adam", "sgd" (momentum 0.9, weight decay 5e-4) or "nesterov" (0.85).
        schedule: "cosine", "triangle" (up, then down) or "constant".
        learning_rate: the largest step size: 1e-3 (adam) and 0.1 (sgd) are the paper's.
        batch_size: sketches per step.
        epochs: passes over all sketches.
        augment: random crops and horizontal flips of the estimates, as the paper does for CIFAR-10.
        random_state: seed of the initial weights, the batches and the augmentation.

    Parameters that are None come from the network's recipe (`networks.TrainingRecipe`); `recipe_`
    is the result.

    Examples:
        >>> from blindsight import data
        >>> from blindsight.sketching import NegativeSketcher
        >>> digits = data.load("digits")
        >>> images, labels = digits.array()[:200], np.asarray(digits.labels)[:200]
        >>> sketches = NegativeSketcher("Q3", random_state=0).fit(images).sketch(images)
        >>> model = NegDL("lenet5", epochs=1, random_state=0).fit(sketches, labels)
        >>> model.predict(sketches[:3]).shape
        (3,)
    """

    def __init__(
        self,
        network: str | Callable[[int, int, int, int], nn.Module] = "auto",
        *,
        inputs: str | None = None,
        scaling: str = "standard",
        optimizer: str | None = None,
        schedule: str | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        epochs: int = 5,
        augment: bool | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.network = network
        self.inputs = inputs
        self.scaling = scaling
        self.optimizer = optimizer
        self.schedule = schedule
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.epochs = epochs
        self.augment = augment
        self.random_state = random_state

    def fit(self, X: SketchSet, y: ArrayLike | None = None, *, progress: Progress = None) -> NegDL:
        """Train on sketches and their labels (steps 3 to 11 of Algorithm 3)."""
        sketches = self._sketches(X)
        labels = (
            np.asarray(X.labels if y is None else y)
            if (y is not None or X.labels is not None)
            else None
        )
        if labels is None or labels.shape != (len(sketches),):
            raise InvalidData(f"training needs one label a sketch ({len(sketches)}).")
        self._check()
        self.classes_, targets = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidData("training needs sketches of at least two classes, got one.")
        self._settle_recipe(sketches.image_shape)
        self.parameters_ = sketches.parameters
        self.image_shape_ = sketches.image_shape
        rng, self.simulation_ = training_rng(self.random_state)
        data = SketchDataset(sketches, inputs=self.recipe_.inputs)
        self.input_shape_ = data.shape
        # Weights are initialised by torch's own generator, which is seeded inside a fork, so that
        # the caller's generator is not changed.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(1 << 62)))
            self.module_ = self._network(len(self.classes_))
        mean, deviation = (
            data.statistics() if self.scaling == "standard" else (torch.zeros(()), torch.ones(()))
        )
        planes = data.shape[0]
        self.shift_ = mean.expand(planes).clone().reshape(1, planes, 1, 1)
        self.scale_ = deviation.expand(planes).clone().reshape(1, planes, 1, 1)
        if isinstance(self.module_, Whitened):
            first = data.batch(np.arange(min(len(data), 2000)))
            self.module_.prepare((first - self.shift_) / self.scale_)
        self.losses_: list[float] = []
        self._train(data, torch.from_numpy(targets.astype(np.int64)), rng, progress)
        return self

    def _check(self) -> None:
        checks.one_of("scaling", self.scaling, ("standard", "unit"))
        for name, choices in (
            ("inputs", INPUTS),
            ("optimizer", ("adam", "sgd", "nesterov")),
            ("schedule", ("cosine", "triangle", "constant")),
        ):
            if getattr(self, name) is not None:
                checks.one_of(name, getattr(self, name), choices)
        checks.whole("epochs", self.epochs)
        if self.batch_size is not None:
            checks.whole("batch_size", self.batch_size)
        if self.learning_rate is not None:
            checks.positive("learning_rate", self.learning_rate)

    def _settle_recipe(self, image_shape: tuple[int, int, int]) -> None:
        """Set the network's name and its recipe, with the parameters that were given."""
        self.network_ = default_network(*image_shape) if self.network == "auto" else self.network
        own = recipe_of(self.network_)
        names = ("inputs", "optimizer", "schedule", "batch_size", "augment")
        stated = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.learning_rate is not None:
            stated |= {"learning_rate": self.learning_rate, "per_sample": False}
        elif stated.get("optimizer", own.optimizer) != own.optimizer:
            stated |= {"learning_rate": RATES[stated["optimizer"]], "per_sample": False}
        self.recipe_: TrainingRecipe = replace(own, **stated)

    def _network(self, classes: int) -> nn.Module:
        if isinstance(self.network_, str):
            return build(self.network_, *self.input_shape_, classes)
        if isinstance(self.network, nn.Module) or not callable(self.network):
            raise InvalidParameter(
                f"network must be one of {', '.join(NETWORKS)} or a function (channels, height, "
                f"width, classes) that makes a module, got {type(self.network).__name__}."
            )
        return self.network_(*self.input_shape_, classes)

    def _sketches(self, X: object) -> SketchSet:
        if not isinstance(X, SketchSet):
            raise InvalidData(
                f"the server takes sketches (a SketchSet), got {type(X).__name__}. Sketch images "
                "first, at their owner."
            )
        if not len(X):
            raise InvalidData("the set of sketches must not be empty.")
        return X

    def _optimizer(self, steps: int) -> tuple[torch.optim.Optimizer, Callable[[int], float]]:
        """Return the optimiser, and the factor of its learning rates at each step."""
        recipe = self.recipe_
        weights = [value for value in self.module_.parameters() if value.requires_grad]
        rate = recipe.learning_rate * (recipe.batch_size if recipe.per_sample else 1)
        if recipe.optimizer == "adam":
            chosen: torch.optim.Optimizer = torch.optim.Adam(weights, lr=rate)
        elif recipe.optimizer == "sgd":
            chosen = torch.optim.SGD(weights, lr=rate, momentum=0.9, weight_decay=5e-4)
        else:
            # Batch norms have no scale parameter here, so their biases get a larger learning rate
            # and a smaller weight decay.
            shifts = [value for value in weights if value.ndim == 1]
            groups = [
                {
                    "params": [value for value in weights if value.ndim > 1],
                    "lr": rate,
                    "weight_decay": 1.3e-3,
                },
                {"params": shifts, "lr": 64 * rate, "weight_decay": 2e-5},
            ]
            chosen = torch.optim.SGD(
                [group for group in groups if group["params"]], momentum=0.85, nesterov=True
            )
        if recipe.schedule == "constant":
            return chosen, lambda step: 1.0
        if recipe.schedule == "cosine":
            return chosen, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps))
        return chosen, lambda step: float(np.interp(step / steps, [0, 0.23, 1], [0.2, 1, 0.07]))

    def _train(
        self,
        data: SketchDataset,
        targets: Tensor,
        rng: np.random.Generator,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        recipe = self.recipe_
        per_epoch = -(-len(data) // recipe.batch_size)
        steps = self.epochs * per_epoch
        optimizer, factor = self._optimizer(steps)
        tops = [group["lr"] for group in optimizer.param_groups]
        self.module_.train()
        step = 0
        for _ in range(self.epochs):
            total = 0.0
            for rows in self._batches(len(data), rng):
                for group, top in zip(optimizer.param_groups, tops, strict=True):
                    group["lr"] = top * factor(step)
                loss = self._loss(data.batch(rows), targets[rows], rng)  # steps 6 and 7
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # step 8
                optimizer.step()  # step 9
                total += float(loss.detach()) * len(rows)
                step += 1
                if progress is not None:
                    progress(step, steps)
            self.losses_.append(total / len(data))
        self.module_.eval()

    def _loss(self, x: Tensor, targets: Tensor, rng: np.random.Generator) -> Tensor:
        recipe = self.recipe_
        x = (x - self.shift_) / self.scale_
        if recipe.augment:
            x = flipped(cropped(x, rng, recipe.shift), rng)
        if recipe.bfloat16:
            x = x.contiguous(memory_format=torch.channels_last)
        # Weights stay in single precision; a copy of them is used in bfloat16.
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=recipe.bfloat16):
            logits = self.module_(x)
        return nn.functional.cross_entropy(
            logits.float(), targets, label_smoothing=recipe.smoothing
        )

    def _batches(self, n: int, rng: np.random.Generator) -> Iterator[Ints]:
        order, size = rng.permutation(n), self.recipe_.batch_size
        for start in range(0, n, size):
            # A batch of one has no variance to normalise by and is skipped in this epoch.
            if n - start > 1 or n == 1:
                yield order[start : start + size]

    def decision_function(self, X: SketchSet) -> Floats32:
        """Return logits (n, classes) for sketches of new images, made with the same parameters."""
        check_is_fitted(self, "module_")
        sketches = self._sketches(X)
        sketches.require(self.parameters_, self.image_shape_)
        data = SketchDataset(sketches, inputs=self.recipe_.inputs, cache=False)
        answer = self._answer()
        with torch.inference_mode():
            parts = [
                answer(data.batch(np.arange(a, min(a + 512, len(data)))))
                for a in range(0, len(data), 512)
            ]
        return np.asarray(torch.cat(parts).numpy())

    def _answer(self) -> nn.Module:
        return _AnswerNetwork(
            self.module_, self.shift_, self.scale_, self.recipe_.flips and self.recipe_.augment
        ).eval()

    def predict_proba(self, X: SketchSet) -> Floats32:
        return np.asarray(torch.softmax(torch.from_numpy(self.decision_function(X)), dim=1).numpy())

    def predict(self, X: SketchSet) -> Array:
        return np.asarray(self.classes_[self.decision_function(X).argmax(axis=1)])

    def score(
        self, X: SketchSet, y: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Return the accuracy, against `y` or the set's own labels."""
        truth = X.labels if y is None else y
        if truth is None:
            raise InvalidData("scoring needs labels.")
        return float(
            np.average(
                self.predict(X) == np.asarray(truth),
                weights=None if sample_weight is None else np.asarray(sample_weight),
            )
        )

    def save(self, path: str | Path) -> None:
        """Write weights and settings as safetensors.

        A custom network is not written; `load` then needs it as `network=`.
        """
        check_is_fitted(self, "module_")
        arrays = {
            f"weight.{name}": value.numpy() for name, value in self.module_.state_dict().items()
        }
        arrays |= {
            "shift": self.shift_.numpy(),
            "scale": self.scale_.numpy(),
            "classes": self.classes_,
        }
        plain = {
            k: v
            for k, v in self.get_params(deep=False).items()
            if k not in ("network", "random_state")
        }
        fields = {
            "settings": plain,
            "network": self.network_ if isinstance(self.network_, str) else None,
            "parameters": self.parameters_.to_dict(),
            "image_shape": list(self.image_shape_),
            "input_shape": list(self.input_shape_),
            "simulation": self.simulation_,
        }
        storage.save(path, kind="negdl", arrays=arrays, fields=fields)

    @classmethod
    def load(
        cls, path: str | Path, *, network: Callable[[int, int, int, int], nn.Module] | None = None
    ) -> NegDL:
        """Read what `save` wrote; `network` makes the module of a custom network."""
        arrays, fields = storage.load(path, kind="negdl")
        chosen = network if network is not None else fields.get("network")
        if chosen is None:
            raise InvalidParameter(
                "this model has a custom network: pass the function that makes it as network=."
            )
        try:
            model = cls(chosen, **fields["settings"])
            model._check()
            model.parameters_ = parameters_from_dict(fields["parameters"])
            channels, height, width = (
                checks.whole("image_shape", size) for size in fields["image_shape"]
            )
            model.image_shape_ = (channels, height, width)
            model._settle_recipe(model.image_shape_)
            planes, height, width = (
                checks.whole("input_shape", size) for size in fields["input_shape"]
            )
            model.input_shape_ = (planes, height, width)
            model.classes_ = arrays["classes"]
            model.shift_, model.scale_ = (
                torch.from_numpy(arrays["shift"]),
                torch.from_numpy(arrays["scale"]),
            )
            model.simulation_ = bool(fields["simulation"])
            model.losses_ = []
            model.module_ = model._network(len(model.classes_))
            weights = {
                k.removeprefix("weight."): torch.from_numpy(v)
                for k, v in arrays.items()
                if "weight." in k
            }
            model.module_.load_state_dict(weights)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise HostileFile(
                f"{path} does not fit the network it names ({type(error).__name__})."
            ) from error
        model.module_.eval()
        return model

    def export_onnx(self, path: str | Path) -> None:
        """Write the network as ONNX.

        The input "x" are estimates (n, planes, h, w) of `SketchDataset`; the output is "logits".
        """
        check_is_fitted(self, "module_")
        checks.optional_module("onnx", extra="torch")
        network = self._answer()
        example = torch.zeros(2, *self.input_shape_)
        with warnings.catch_warnings():
            # The exporter that needs no further package is deprecated and warns.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                network, (example,), str(path), dynamo=False, opset_version=17, input_names=["x"],
                output_names=["logits"], dynamic_axes={"x": {0: "n"}, "logits": {0: "n"}},
            )  # fmt: skip


class _AnswerNetwork(nn.Module):  # type: ignore[misc]
    """Scales estimates and computes logits, averaged over the mirrored image if `flips`."""

    def __init__(self, module: nn.Module, shift: Tensor, scale: Tensor, flips: bool) -> None:
        super().__init__()
        self.module, self.flips = module, flips
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.shift) / self.scale
        logits = self.module(x)
        return (logits + self.module(x.flip(3))) / 2 if self.flips else logits


def cropped(x: Tensor, rng: np.random.Generator, shift: int | None = None) -> Tensor:
    """Shift each image of (n, planes, h, w) at random by up to `shift` pixels.

    None shifts by up to an eighth of its side.
    """
    n, _, height, width = x.shape
    pad = max(1, min(height, width) // 8) if shift is None else shift
    padded = nn.functional.pad(
        x, (pad, pad, pad, pad), mode="reflect" if pad < min(height, width) else "constant"
    )
    tops, lefts = (torch.from_numpy(rng.integers(2 * pad + 1, size=n)) for _ in range(2))
    rows = (tops[:, None] + torch.arange(height))[:, :, None]
    columns = (lefts[:, None] + torch.arange(width))[:, None, :]
    # Indexing puts the planes last, the layout in which convolutions are fastest.
    return padded[torch.arange(n)[:, None, None], :, rows, columns].movedim(3, 1)


def flipped(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Mirror each image with probability one half."""
    coins = torch.from_numpy(rng.random(len(x)) < 0.5)
    return torch.where(coins[:, None, None, None], x.flip(3), x)
