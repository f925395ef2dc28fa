"""The attacker with public images of the same kind: a network trained to invert the sketch.

The parameters of a sketch are public, so an attacker can sketch any number of images
(`rehearse`) and train on them.

The estimate is the best one that needs no training (the second reading, or the posterior mean where
that is better on the public images) plus four deviations of that estimate times the network, whose
last layer starts at zero: training starts from that attacker and changes it only where uncertainty
is left. The addition is finally scaled by the factor that fits held-out public images best, zero if
it does not help there. The network is convolutional, learns from tiles and reads images of any
size, grey or colour; the number of steps bounds its time for images of any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable

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

__all__ = ["LearnedPrior"]

TILE = 48  # pixels a side of what it learns from; smaller images are taken whole
VALUES = 1 << 15  # a step's worth of pixels times channels, about
REACH = 4.0  # deviations that the network adds a unit of
RATE = 3e-3


class LearnedPrior:
    """A gated residual network on bits and means of sketches.

    Parameters:
        steps: of training, each on fresh sketches of about 33,000 values: the bound on time.
        width: channels of the finest layer.
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
        """Learn from public images what images look like behind sketches with these parameters."""
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
            given = self._given(reading)
            error = (self.module_(*given) - truth) ** 2
            # Relative to the error that it starts from, so that the rate suits weak and strong
            # noise alike.
            before = torch.maximum(((given[1] - truth) ** 2).mean(), (given[2] ** 2).mean())
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
        """The least-squares factor of what the network adds, on images it did not learn from; none
        where it harms.
        """
        across = power = 0.0
        with torch.inference_mode():
            for _ in range(4):
                truth, reading = tiles.draw()
                given = self._given(reading)
                added = self.module_(*given) - given[1]
                across += float((added * (truth - given[1])).sum())
                power += float((added**2).sum())
        return min(max(across / power, 0.0), 1.5) if power > 0 else 0.0

    def recover(self, reading: SketchReading) -> Floats32:
        """The attacker's images (n, channels, h, w), in 0..2^L - 1."""
        channels, depth = reading.planes.shape[1:3]
        if (channels, depth) != (self.channels_, self.parameters_.depth):
            raise InvalidData(
                f"this attacker learned {self.channels_} channels under {self.parameters_.name}, "
                f"got {channels}."
            )
        with torch.inference_mode():
            given = self._given(reading)
            found = given[1] + self.gate_ * (self.module_(*given) - given[1])
        return np.asarray(found.clamp(0, 1).numpy() * np.float32(2.0**depth - 1), np.float32)

    def _given(self, reading: SketchReading) -> tuple[Tensor, Tensor, Tensor]:
        """What the network sees, (n, planes, h, w); the estimate it starts from, and the deviation
        of that, in 0..1.
        """
        n, channels, depth, height, width = reading.planes.shape
        peak = np.float32(2.0**depth - 1)
        mean, deviation = moments(reading.planes)
        again, doubt = reading.again / peak, reading.doubt / peak
        # Unbiased values in units of their noise: what a filter inside the network can average at
        # once.
        level = (reading.values / peak - 0.5) / np.float32(
            max(1.0, reading.noise / 2.0 ** (depth - 2))
        )
        bits = reading.planes.reshape(n, channels * depth, height, width)
        seen = np.concatenate(
            [2 * bits - 1, 2 * mean - 1, level, 2 * again - 1, REACH * doubt], axis=1
        )
        base, reach = (
            (again, np.hypot(doubt, self.widen_ * deviation)) if self.again_ else (mean, deviation)
        )
        return torch.from_numpy(seen), torch.from_numpy(base), torch.from_numpy(reach)


class _Tiles:
    """Random tiles of public images, whole where the images are small, and what fresh sketches of
    them show.
    """

    def __init__(
        self, images: Array, parameters: SketchParameters, rng: np.random.Generator
    ) -> None:
        self.images, self.parameters, self.rng = images, parameters, rng
        self.height, self.width = (min(TILE, side) for side in images.shape[2:])
        self.count = max(2, VALUES // (self.height * self.width * images.shape[1]))

    def draw(self) -> tuple[Tensor, SketchReading]:
        """A step's tiles (k, channels, h, w) in 0..1, and the reading of their sketches."""
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
        """Whether it is better than the posterior mean on a few of these tiles, and how much it
        overrates itself.

        Where its errors are larger than its doubt, as on digits, so much of the posterior deviation
        is to be added in squares that they agree: the network could not correct what nobody doubts.
        """
        (given, reading), peak = self.draw(), 2.0**self.parameters.depth - 1
        truth, (mean, deviation) = given.numpy(), moments(reading.planes)
        error = float(np.mean((reading.again / peak - truth) ** 2))
        surplus = max(0.0, error - float(np.mean((reading.doubt / peak) ** 2)))
        widen = math.sqrt(surplus / max(float(np.mean(deviation**2)), 1e-12))
        return error < float(np.mean((mean - truth) ** 2)), np.float32(widen)


def _conv(inside: int, outside: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()
    )


class _Gated(nn.Module):  # type: ignore[misc]
    """Three scales, so that it sees shapes as well as pixels; the last layer starts at zero."""

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

    def forward(self, seen: Tensor, base: Tensor, reach: Tensor) -> Tensor:
        fine = self.fine(seen)
        second = self.second(fine)
        fourth = self.fourth(second)
        up = self.up_fourth(torch.cat([fourth, _like(self.eighth(fourth), fourth)], 1))
        up = self.up_second(torch.cat([second, _like(up, second)], 1))
        up = self.up_fine(torch.cat([fine, _like(up, fine)], 1))
        return base + REACH * reach * self.last(up)


def _like(x: Tensor, other: Tensor) -> Tensor:
    return nn.functional.interpolate(x, size=other.shape[2:], mode="nearest")
