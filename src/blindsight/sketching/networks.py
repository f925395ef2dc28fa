"""The networks that learn from sketches: the classifiers of `NegDL`, and the learned attacker.

*Classifiers*: LeNet-5 (MNIST), a whitened network that a CPU trains on CIFAR-10, and ResNets,
including the paper's. Each has a default training recipe.

*Attacker*: a network that is trained to invert sketches. The parameters of a sketch are public, so
an attacker with public images of the same kind can sketch any number of them (`rehearse`) and train
on them. The estimate is the best one that needs no training (the second reading, or the posterior
mean where that is better on the public images) plus four deviations of that estimate times the
network, whose last layer starts at zero: training starts from that attacker and changes it only
where uncertainty is left. The addition is finally scaled by the factor that fits held-out public
images best, zero if it does not help there. The network is convolutional, learns from tiles and
reads images of any size, grey or colour; the number of steps bounds its time for images of any
size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from blindsight.core import checks
from blindsight.core.arrays import Array, Floats32
from blindsight.core.errors import InvalidData
from blindsight.privacy.entropy import RandomState
from blindsight.sketching.attackers import SketchReading, moments, read, rehearse
from blindsight.sketching.parameters import SketchParameters, as_images

__all__ = [
    "NETWORKS",
    "LeNet5",
    "LearnedPrior",
    "ResNet50",
    "SmallResNet",
    "TrainingRecipe",
    "Whitened",
    "Wide",
    "build",
    "default_network",
    "recipe_of",
]


@dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """How a network is trained.

    Parameters:
        inputs: "mean", "bits" or "both".
        optimizer: "adam", "sgd" or "nesterov".
        schedule: "cosine", "triangle" or "constant".
        learning_rate: the rate for a batch, or for one sample of it if `per_sample`.
        per_sample: whether the rate is multiplied by the size of the batch.
        batch_size: sketches per step.
        augment: whether inputs are cropped and mirrored at random.
        shift: largest shift of a crop in pixels; None for an eighth of the side.
        flips: whether predictions are averaged over the mirrored image.
        smoothing: label smoothing.
        bfloat16: whether forward and backward passes use bfloat16; weights are in single precision.
    """

    inputs: str = "both"
    optimizer: str = "adam"
    schedule: str = "cosine"
    learning_rate: float = 1e-3
    per_sample: bool = False
    batch_size: int = 128
    augment: bool = False
    shift: int | None = None
    flips: bool = False
    smoothing: float = 0.0
    bfloat16: bool = False


class LeNet5(nn.Module):  # type: ignore[misc]
    """LeNet-5 (Section 5.1).

    Two 5 x 5 convolutions with ReLU and 2 x 2 max pools, then 120 and 84 neurons and the output.
    """

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5, padding=2 if min(height, width) < 16 else 0),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        with torch.no_grad():
            flat = self.features(torch.zeros(1, channels, height, width)).numel()
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(flat, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class _Basic(nn.Module):  # type: ignore[misc]
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class _Bottleneck(nn.Module):  # type: ignore[misc]
    """1 x 1, 3 x 3, 1 x 1 convolutions and a shortcut: ResNet-50's block of three layers."""

    def __init__(self, inside: int, middle: int, stride: int) -> None:
        super().__init__()
        outside = 4 * middle
        self.body = nn.Sequential(
            nn.Conv2d(inside, middle, 1, bias=False),
            nn.BatchNorm2d(middle),
            nn.ReLU(),
            nn.Conv2d(middle, middle, 3, stride, 1, bias=False),
            nn.BatchNorm2d(middle),
            nn.ReLU(),
            nn.Conv2d(middle, outside, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class _Residual(nn.Module):  # type: ignore[misc]
    def __init__(self, stem: nn.Module, blocks: list[nn.Module], width: int, classes: int) -> None:
        super().__init__()
        self.stem = stem
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


class SmallResNet(_Residual):
    """A ResNet of nine layers, 16 to 64 channels wide, with early strides.

    An epoch of CIFAR-10 takes about a minute on two cores.
    """

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        stem = nn.Sequential(
            nn.Conv2d(channels, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        blocks = [_Basic(16, 32, 2), _Basic(32, 64, 2), _Basic(64, 64, 1)]
        super().__init__(stem, blocks, 64, classes)


class ResNet50(_Residual):
    """The paper's CIFAR-10 network (Section 5.2), which needs a GPU.

    It has a 7 x 7 stem, a max pool, and stages of 9, 12, 18 and 9 layers.
    """

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        stem = nn.Sequential(
            nn.Conv2d(channels, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks: list[nn.Module] = []
        inside = 64
        for stage, (middle, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
            for k in range(count):
                blocks.append(_Bottleneck(inside, middle, 2 if stage and k == 0 else 1))
                inside = 4 * middle
        super().__init__(stem, blocks, inside, classes)


class Whitened(nn.Module):  # type: ignore[misc]
    """A whitening layer for patches of 2 x 2 pixels, three convolution blocks, and a linear head.

    The first layer is fixed, and a block has two convolutions. Whitening gives every direction of a
    patch the same variance, which a first layer would take epochs to learn. Batch norm has no scale
    parameter, convolutions are initialised as the identity, and the head is scaled by a ninth.
    """

    WIDTHS = (32, 128, 128)

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        self.directions = min(4 * channels, 12)
        self.whiten = nn.Conv2d(channels, 2 * self.directions, 2, bias=True)
        self.whiten.weight.requires_grad_(False)
        inside, blocks = 2 * self.directions, []
        for outside in self.WIDTHS:
            blocks.append(_Block(inside, outside))
            inside = outside
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inside, classes, bias=False)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def prepare(self, images: Tensor) -> None:
        """Learn the whitening from training inputs.

        It uses the directions of largest variance of their patches, with both signs.
        """
        patches = nn.functional.unfold(images, 2).movedim(1, -1).flatten(0, 1).double()
        patches = patches - patches.mean(dim=0)
        strengths, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
        chosen = (directions / torch.sqrt(strengths + 5e-4)).T.flip(0)[: self.directions]
        filters = chosen.reshape(self.directions, images.shape[1], 2, 2).to(
            self.whiten.weight.dtype
        )
        self.whiten.weight.copy_(torch.cat([filters, -filters]))
        self.whiten.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(nn.functional.gelu(self.whiten(x)))
        return self.head(x.amax(dim=(2, 3))) / 9


class Wide(Whitened):
    """`Whitened` with twice the channels, and about four times the work."""

    WIDTHS = (64, 256, 256)


class _Block(nn.Module):  # type: ignore[misc]
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, padding=1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outside, momentum=0.4) for _ in range(2))
        for convolution in (self.first, self.second):
            # Each output is initialised as a copy of one input, as far as there are inputs.
            nn.init.dirac_(convolution.weight[: convolution.weight.shape[1]].data)
        for norm in self.norms:
            norm.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if min(x.shape[2:]) > 1:
            x = nn.functional.max_pool2d(x, 2)
        x = nn.functional.gelu(self.norms[0](x))
        return nn.functional.gelu(self.norms[1](self.second(x)))


NETWORKS = {
    "lenet5": LeNet5,
    "whitened": Whitened,
    "whitened-wide": Wide,
    "resnet": SmallResNet,
    "resnet50": ResNet50,
}
_WHITENED = TrainingRecipe(
    inputs="mean",
    optimizer="nesterov",
    schedule="triangle",
    learning_rate=1.5e-3,
    per_sample=True,
    batch_size=500,
    augment=True,
    shift=2,
    flips=True,
    smoothing=0.2,
    bfloat16=True,
)
_RECIPES = {"whitened": _WHITENED, "whitened-wide": _WHITENED}


def default_network(channels: int, height: int, width: int) -> str:
    """Return the default network: whitened for colour images of 32 x 32 pixels, else LeNet-5."""
    return "whitened" if (channels, height, width) == (3, 32, 32) else "lenet5"


def recipe_of(network: object) -> TrainingRecipe:
    """Return the recipe of one of `NETWORKS` by name, or the default recipe for others."""
    return _RECIPES.get(network, TrainingRecipe()) if isinstance(network, str) else TrainingRecipe()


def build(name: str, channels: int, height: int, width: int, classes: int) -> nn.Module:
    """Build one of `NETWORKS` by name, for inputs of this shape."""
    return NETWORKS[checks.one_of("network", name, NETWORKS)](channels, height, width, classes)


TILE = 48  # pixels per side of training tiles; smaller images are used whole
VALUES = 1 << 15  # pixels times channels of a training step, about
REACH = 4.0  # standard deviations that correspond to one unit of the network's output
RATE = 3e-3


class LearnedPrior:
    """A gated residual network on bits and means of sketches.

    Parameters:
        steps: training steps, each on fresh sketches of about 33,000 values; they bound the time.
        width: channels of the finest layer.
        random_state: seed of the initial weights and of the sketches.
    """

    def __init__(self, *, steps: int = 120, width: int = 24, random_state: RandomState = 0) -> None:
        self.steps = checks.whole("steps", steps)
        self.width = checks.whole("width", width)
        self.random_state = random_state

    def fit(
        self,
        public: ArrayLike,
        parameters: SketchParameters,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> LearnedPrior:
        """Learn, from public images, to recover images from sketches with these parameters."""
        rng = np.random.default_rng(self.random_state)
        images = as_images(public, parameters.depth)
        self.parameters_, self.channels_ = parameters, images.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(1 << 62)))
            self.module_ = _Gated(self.channels_, parameters.depth, self.width)
        images = images[rng.permutation(len(images))]
        held = max(1, len(images) // 10) if len(images) > 1 else 0
        tiles = _Tiles(images[held:], parameters, rng)
        self.again_, self.widen_ = tiles.second_reading()
        optimizer = torch.optim.Adam(self.module_.parameters(), lr=RATE)
        self.module_.train()
        for step in range(self.steps):
            optimizer.param_groups[0]["lr"] = RATE * (
                0.5 * (1 + math.cos(math.pi * step / self.steps)) + 0.003
            )
            truth, reading = tiles.draw()
            inputs = self._inputs(reading)
            error = (self.module_(*inputs) - truth) ** 2
            # Relative to the initial error, so that one learning rate fits weak and strong noise.
            before = torch.maximum(((inputs[1] - truth) ** 2).mean(), (inputs[2] ** 2).mean())
            loss = error.mean() / before.clamp_min(1e-12)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if progress is not None:
                progress(step + 1, self.steps)
        self.module_.eval()
        self.gate_ = self._best_gate(_Tiles(images[:held] if held else images, parameters, rng))
        return self

    def _best_gate(self, tiles: _Tiles) -> float:
        """Return the least-squares factor, at least 0, of the network's addition.

        It is fitted on held-out images.
        """
        across = power = 0.0
        with torch.inference_mode():
            for _ in range(4):
                truth, reading = tiles.draw()
                inputs = self._inputs(reading)
                added = self.module_(*inputs) - inputs[1]
                across += float((added * (truth - inputs[1])).sum())
                power += float((added**2).sum())
        return min(max(across / power, 0.0), 1.5) if power > 0 else 0.0

    def recover(self, reading: SketchReading) -> Floats32:
        """Return the recovered images (n, channels, h, w), from 0 to 2^L - 1."""
        channels, depth = reading.planes.shape[1:3]
        if (channels, depth) != (self.channels_, self.parameters_.depth):
            raise InvalidData(
                f"this attacker learned {self.channels_} channels under {self.parameters_.name}, "
                f"got {channels}."
            )
        with torch.inference_mode():
            inputs = self._inputs(reading)
            images = inputs[1] + self.gate_ * (self.module_(*inputs) - inputs[1])
        return np.asarray(images.clamp(0, 1).numpy() * np.float32(2.0**depth - 1), np.float32)

    def _inputs(self, reading: SketchReading) -> tuple[Tensor, Tensor, Tensor]:
        """Return the network's inputs (n, planes, h, w) and the initial estimate.

        The estimate is in 0..1 and comes with its standard deviation.
        """
        n, channels, depth, height, width = reading.planes.shape
        peak = np.float32(2.0**depth - 1)
        mean, deviation = moments(reading.planes)
        again, doubt = reading.again / peak, reading.doubt / peak
        # Unbiased values in units of their noise, which the network's filters can average.
        level = (reading.values / peak - 0.5) / np.float32(
            max(1.0, reading.noise / 2.0 ** (depth - 2))
        )
        bits = reading.planes.reshape(n, channels * depth, height, width)
        planes = np.concatenate(
            [2 * bits - 1, 2 * mean - 1, level, 2 * again - 1, REACH * doubt], axis=1
        )
        base, reach = (
            (again, np.hypot(doubt, self.widen_ * deviation)) if self.again_ else (mean, deviation)
        )
        return torch.from_numpy(planes), torch.from_numpy(base), torch.from_numpy(reach)


class _Tiles:
    """Random tiles of public images (small images are used whole) with fresh sketches of them."""

    def __init__(
        self, images: Array, parameters: SketchParameters, rng: np.random.Generator
    ) -> None:
        self.images, self.parameters, self.rng = images, parameters, rng
        self.height, self.width = (min(TILE, side) for side in images.shape[2:])
        self.count = max(2, VALUES // (self.height * self.width * images.shape[1]))

    def draw(self) -> tuple[Tensor, SketchReading]:
        """Return tiles of a step (k, channels, h, w) in 0..1, and readings of their sketches."""
        chosen = self.rng.integers(len(self.images), size=self.count)
        tops = self.rng.integers(self.images.shape[2] - self.height + 1, size=self.count)
        lefts = self.rng.integers(self.images.shape[3] - self.width + 1, size=self.count)
        picked = np.stack(
            [
                self.images[i, :, top : top + self.height, left : left + self.width]
                for i, top, left in zip(chosen, tops, lefts, strict=True)
            ]
        )
        reading = read(
            rehearse(np.moveaxis(picked, 1, -1), self.parameters, rng=self.rng, n_jobs=1)
        )
        peak = np.float32(2.0**self.parameters.depth - 1)
        return torch.from_numpy(picked.astype(np.float32) / peak), reading

    def second_reading(self) -> tuple[bool, np.float32]:
        """Return whether the second reading is better than the posterior mean on a few tiles.

        The second result states by how much its standard deviation is too small. If its errors are
        larger than its standard deviation, as on digits, a multiple of the posterior's variance is
        added so that they agree; the network can correct only what is uncertain.
        """
        (images, reading), peak = self.draw(), 2.0**self.parameters.depth - 1
        truth, (mean, deviation) = images.numpy(), moments(reading.planes)
        error = float(np.mean((reading.again / peak - truth) ** 2))
        surplus = max(0.0, error - float(np.mean((reading.doubt / peak) ** 2)))
        widen = math.sqrt(surplus / max(float(np.mean(deviation**2)), 1e-12))
        return error < float(np.mean((mean - truth) ** 2)), np.float32(widen)


def _conv(inside: int, outside: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()
    )


class _Gated(nn.Module):  # type: ignore[misc]
    """A network with several scales, for shapes and pixels. Its last layer is initialised at 0."""

    def __init__(self, channels: int, depth: int, width: int) -> None:
        super().__init__()
        self.fine = nn.Sequential(_conv(channels * (depth + 4), width), _conv(width, width))
        self.second = _conv(width, 2 * width, 2)
        self.fourth = nn.Sequential(_conv(2 * width, 4 * width, 2), _conv(4 * width, 4 * width))
        self.eighth = nn.Sequential(_conv(4 * width, 4 * width, 2), _conv(4 * width, 4 * width))
        self.up_fourth = _conv(8 * width, 2 * width)
        self.up_second = _conv(4 * width, width)
        self.up_fine = _conv(2 * width, width)
        self.last = nn.Conv2d(width, channels, 3, 1, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, planes: Tensor, base: Tensor, reach: Tensor) -> Tensor:
        fine = self.fine(planes)
        second = self.second(fine)
        fourth = self.fourth(second)
        up = self.up_fourth(torch.cat([fourth, _like(self.eighth(fourth), fourth)], 1))
        up = self.up_second(torch.cat([second, _like(up, second)], 1))
        up = self.up_fine(torch.cat([fine, _like(up, fine)], 1))
        return base + REACH * reach * self.last(up)


def _like(x: Tensor, other: Tensor) -> Tensor:
    return nn.functional.interpolate(x, size=other.shape[2:], mode="nearest")
