"""The networks: LeNet-5 (MNIST, Fashion-MNIST), a small ResNet that a CPU trains, and the paper's ResNet-50."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from blindsight.core import checks

__all__ = ["NETWORKS", "LeNet5", "ResNet50", "SmallResNet", "build"]


class LeNet5(nn.Module):
    """Two 5 x 5 convolutions with ReLU and 2 x 2 max pools, then 120 and 84 neurons and the output (Section 5.1)."""

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5, padding=2 if min(height, width) < 16 else 0), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        with torch.no_grad():
            flat = self.features(torch.zeros(1, channels, height, width)).numel()
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes)."""
        return self.head(self.features(x))


class _Basic(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class _Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1 convolutions and a shortcut: ResNet-50's block of three layers."""

    def __init__(self, inside: int, middle: int, stride: int) -> None:
        super().__init__()
        outside = 4 * middle
        self.body = nn.Sequential(
            nn.Conv2d(inside, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(),
            nn.Conv2d(middle, middle, 3, stride, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(),
            nn.Conv2d(middle, outside, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class _Residual(nn.Module):
    def __init__(self, stem: nn.Module, blocks: list[nn.Module], width: int, classes: int) -> None:
        super().__init__()
        self.stem = stem
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes)."""
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


class SmallResNet(_Residual):
    """A ResNet of nine layers, 16 to 64 channels wide, strided early: about a minute a CIFAR-10 epoch on two cores."""

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        stem = nn.Sequential(nn.Conv2d(channels, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        blocks = [_Basic(16, 32, 2), _Basic(32, 64, 2), _Basic(64, 64, 1)]
        super().__init__(stem, blocks, 64, classes)


class ResNet50(_Residual):
    """The paper's CIFAR-10 network (Section 5.2): 7 x 7 stem, max pool, stages of 9, 12, 18 and 9 layers. For a GPU."""

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        stem = nn.Sequential(
            nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        blocks: list[nn.Module] = []
        inside = 64
        for stage, (middle, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
            for k in range(count):
                blocks.append(_Bottleneck(inside, middle, 2 if stage and k == 0 else 1))
                inside = 4 * middle
        super().__init__(stem, blocks, inside, classes)


NETWORKS = {"lenet5": LeNet5, "resnet": SmallResNet, "resnet50": ResNet50}


def build(name: str, channels: int, height: int, width: int, classes: int) -> nn.Module:
    """One of `NETWORKS` by name, for inputs of this shape."""
    return NETWORKS[checks.one_of("network", name, NETWORKS)](channels, height, width, classes)
