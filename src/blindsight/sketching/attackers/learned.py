"""The attacker who has public images of the same kind: a network that learned to undo the sketch.

Its answer is the posterior mean plus four posterior deviations times the network, whose last layer starts at zero: it
begins as the paper's attacker and can only be moved where the sketch leaves doubt. What it adds is finally scaled by
the factor that fits held-out public images best, zero if it does not help there. It is convolutional, learns from tiles
and reads images of any size, grey or colour; the number of steps bounds its time, whatever the images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.sketching.attackers.rehearsal import rehearse
from blindsight.sketching.attackers.unbiased import unbiased
from blindsight.sketching.bits import as_images
from blindsight.sketching.flips import Law
from blindsight.sketching.sketches import SketchSet

__all__ = ["LearnedPrior"]

TILE = 48  # pixels a side of what it learns from; smaller images are taken whole
PIXELS = 1 << 15  # a step's worth of pixels, about
REACH = 4.0  # posterior deviations that the network may add a unit of
RATE = 3e-3


class LearnedPrior:
    """A gated residual network on bits and means of sketches.

    Parameters
    ----------
    steps: of training, each on fresh sketches of about 32,000 pixels: the bound on time.
    width: channels of the finest layer.
    """

    def __init__(self, *, steps: int = 300, width: int = 24, random_state: Any = 0) -> None:
        self.steps = checks.whole("steps", steps)
        self.width = checks.whole("width", width)
        self.random_state = random_state

    def fit(self, public: Any, parameters: Law, *, progress: Callable[[int, int], None] | None = None) -> LearnedPrior:
        """Learn from public images what images look like behind sketches with these parameters."""
        rng = np.random.default_rng(self.random_state)
        images = as_images(public, parameters.depth)
        self.parameters_, self.channels_ = parameters, images.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(1 << 62)))
            self.module_ = _Gated(self.channels_, parameters.depth, self.width)
        self.gate_ = 1.0
        images = images[rng.permutation(len(images))]
        held = max(1, len(images) // 10) if len(images) > 1 else 0
        tiles = _Tiles(images[held:], rng)
        optimizer = torch.optim.Adam(self.module_.parameters(), lr=RATE)
        self.module_.train()
        for step in range(self.steps):
            optimizer.param_groups[0]["lr"] = RATE * (0.5 * (1 + math.cos(math.pi * step / self.steps)) + 0.003)
            truth = tiles.draw()
            given = _given(truth, parameters, rng)
            error = (self.module_(*given) - torch.from_numpy(_unit(truth, parameters))) ** 2
            # Relative to the doubt that the sketch leaves, so that the rate suits weak and strong noise alike.
            loss = error.mean() / (given[2] ** 2).mean().clamp_min(1e-12)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if progress is not None:
                progress(step + 1, self.steps)
        self.module_.eval()
        self.gate_ = self._best_gate(_Tiles(images[:held] if held else images, rng), rng)
        return self

    def _best_gate(self, tiles: _Tiles, rng: np.random.Generator) -> float:
        """The least-squares factor of what the network adds, on images it did not learn from; none where it harms."""
        across = power = 0.0
        with torch.inference_mode():
            for _ in range(8):
                truth = tiles.draw()
                given = _given(truth, self.parameters_, rng)
                added = self.module_(*given) - given[1]
                missing = torch.from_numpy(_unit(truth, self.parameters_)) - given[1]
                across += float((added * missing).sum())
                power += float((added**2).sum())
        return min(max(across / power, 0.0), 1.5) if power > 0 else 0.0

    def recover(self, sketches: SketchSet) -> NDArray[np.float32]:
        """The attacker's images (n, channels, h, w), in 0..2^L - 1."""
        if sketches.parameters != self.parameters_ or sketches.image_shape[0] != self.channels_:
            raise InvalidData(
                f"this attacker learned {self.channels_} channels under {self.parameters_.name}, got "
                f"{sketches.image_shape[0]} under {sketches.parameters.name}."
            )
        peak = np.float32(2.0**self.parameters_.depth - 1)
        parts = []
        with torch.inference_mode():
            for part in sketches.batches(max(1, 4 * PIXELS // math.prod(sketches.image_shape[1:]))):
                given = _planes(part)
                found = given[1] + self.gate_ * (self.module_(*given) - given[1])
                parts.append(found.clamp(0, 1).numpy() * peak)
        return np.concatenate(parts)


class _Tiles:
    """Random tiles of images, whole where the images are small."""

    def __init__(self, images: NDArray[Any], rng: np.random.Generator) -> None:
        self.images, self.rng = images, rng
        self.height, self.width = (min(TILE, side) for side in images.shape[2:])
        self.count = max(2, PIXELS // (self.height * self.width * images.shape[1] // 2 + 1))

    def draw(self) -> NDArray[Any]:
        """A step's tiles (k, h, w, channels)."""
        chosen = self.rng.integers(len(self.images), size=self.count)
        tops = self.rng.integers(self.images.shape[2] - self.height + 1, size=self.count)
        lefts = self.rng.integers(self.images.shape[3] - self.width + 1, size=self.count)
        picked = [
            self.images[i, :, top : top + self.height, left : left + self.width]
            for i, top, left in zip(chosen, tops, lefts, strict=True)
        ]
        return np.moveaxis(np.stack(picked), 1, -1)


def _unit(images: NDArray[Any], parameters: Law) -> NDArray[np.float32]:
    return as_images(images, parameters.depth).astype(np.float32) / np.float32(2.0**parameters.depth - 1)


def _given(truth: NDArray[Any], parameters: Law, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    return _planes(rehearse(truth, parameters, rng=rng))


def _planes(sketches: SketchSet) -> tuple[Tensor, Tensor, Tensor]:
    """What the network sees, (n, planes, h, w), with the posterior means and deviations of pixels in 0..1."""
    depth, (channels, height, width) = sketches.parameters.depth, sketches.image_shape
    weights = (2.0 ** np.arange(depth - 1, -1, -1) / (2.0**depth - 1)).astype(np.float32)
    bits = sketches.posteriors(n_jobs=1)
    apart = bits.reshape(len(bits), channels, depth, height, width)
    mean = np.einsum("nclhw,l->nchw", apart, weights, optimize=True)
    deviation = np.sqrt(np.einsum("nclhw,l->nchw", apart * (1 - apart), weights**2, optimize=True))
    values, noise = unbiased(sketches)
    # Unbiased values in units of their noise: what a filter inside the network can average at once.
    level = (values / np.float32(2.0**depth - 1) - 0.5) / np.float32(max(1.0, noise / 2.0 ** (depth - 2)))
    seen = np.concatenate([2 * bits - 1, 2 * mean - 1, level], axis=1)
    return torch.from_numpy(seen), torch.from_numpy(mean), torch.from_numpy(deviation)


def _conv(inside: int, outside: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU())


class _Gated(nn.Module):
    """Three scales, so that it sees shapes as well as pixels; the last layer starts at zero."""

    def __init__(self, channels: int, depth: int, width: int) -> None:
        super().__init__()
        self.fine = nn.Sequential(_conv(channels * (depth + 2), width), _conv(width, width))
        self.second = _conv(width, 2 * width, 2)
        self.fourth = nn.Sequential(_conv(2 * width, 4 * width, 2), _conv(4 * width, 4 * width))
        self.eighth = nn.Sequential(_conv(4 * width, 4 * width, 2), _conv(4 * width, 4 * width))
        self.up_fourth = _conv(8 * width, 2 * width)
        self.up_second = _conv(4 * width, width)
        self.up_fine = _conv(2 * width, width)
        self.last = nn.Conv2d(width, channels, 3, 1, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]

    def forward(self, seen: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
        fine = self.fine(seen)
        second = self.second(fine)
        fourth = self.fourth(second)
        up = self.up_fourth(torch.cat([fourth, _like(self.eighth(fourth), fourth)], 1))
        up = self.up_second(torch.cat([second, _like(up, second)], 1))
        up = self.up_fine(torch.cat([fine, _like(up, fine)], 1))
        return mean + REACH * deviation * self.last(up)


def _like(x: Tensor, other: Tensor) -> Tensor:
    return nn.functional.interpolate(x, size=other.shape[2:], mode="nearest")
