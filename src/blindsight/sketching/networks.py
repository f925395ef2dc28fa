"""The networks: LeNet-5 (MNIST), a whitened network that a CPU trains on CIFAR-10, and ResNets, the
paper's among them.

Each comes with the recipe that it is trained by unless told otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blindsight.core import checks

__all__ = [
    "NETWORKS",
    "LeNet5",
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

    inputs: "mean", "bits" or "both"; optimizer: "adam", "sgd" or "nesterov"; schedule: "cosine",
    "triangle" or "constant"; learning_rate: of a batch, or of one sample of it where `per_sample`;
    shift: pixels that crops move by, None for an eighth of the side; flips: averaged over at the
    test, too; bfloat16: forward and backward in it, with weights kept in single precision.
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
    """Two 5 x 5 convolutions with ReLU and 2 x 2 max pools, then 120 and 84 neurons and the output
    (Section 5.1).
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
        """Logits (n, classes)."""
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
        """Logits (n, classes)."""
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


class SmallResNet(_Residual):
    """A ResNet of nine layers, 16 to 64 channels wide, strided early: about a minute a CIFAR-10
    epoch on two cores.
    """

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        stem = nn.Sequential(
            nn.Conv2d(channels, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        blocks = [_Basic(16, 32, 2), _Basic(32, 64, 2), _Basic(64, 64, 1)]
        super().__init__(stem, blocks, 64, classes)


class ResNet50(_Residual):
    """The paper's CIFAR-10 network (Section 5.2): 7 x 7 stem, max pool, stages of 9, 12, 18 and 9
    layers. For a GPU.
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
    """Patches of 2 x 2 pixels whitened and then fixed; three blocks of two convolutions; a linear
    head.

    Whitening gives every direction of a patch the same strength at once, which a first layer would
    spend epochs on. Batch norm has no scale of its own, convolutions start as the identity, and the
    head is scaled by a ninth.
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
        """Learn the whitening from training inputs: the strongest directions of their patches, and
        their opposites.
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
        """Logits (n, classes)."""
        x = self.blocks(nn.functional.gelu(self.whiten(x)))
        return self.head(x.amax(dim=(2, 3))) / 9


class Wide(Whitened):
    """The same at twice the width: about four times the work."""

    WIDTHS = (64, 256, 256)


class _Block(nn.Module):  # type: ignore[misc]
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, padding=1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outside, momentum=0.4) for _ in range(2))
        for convolution in (self.first, self.second):
            # As far as there are inputs, each output starts as a copy of one.
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
    """The network for images of this shape: whitened for colour of 32 x 32 pixels, else LeNet-5."""
    return "whitened" if (channels, height, width) == (3, 32, 32) else "lenet5"


def recipe_of(network: object) -> TrainingRecipe:
    """The recipe of one of `NETWORKS` by name; the usual one for others."""
    return _RECIPES.get(network, TrainingRecipe()) if isinstance(network, str) else TrainingRecipe()


def build(name: str, channels: int, height: int, width: int, classes: int) -> nn.Module:
    """One of `NETWORKS` by name, for inputs of this shape."""
    return NETWORKS[checks.one_of("network", name, NETWORKS)](channels, height, width, classes)
