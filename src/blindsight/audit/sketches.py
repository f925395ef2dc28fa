"""Attacks on sketches and on negative databases: what an attacker gets back of the images.

Three of them, each stronger than the last where it applies. The paper's own: the posterior mean of every pixel. One
that has seen public images of the same kind: a small network that learned to undo the sketch (`LearnedPrior`). And,
where the records themselves were sent, belief propagation on them (`propagate_beliefs`): reversing a negative database
is NP-hard in the worst case, and takes a second on these.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData
from blindsight.evaluation.reconstruction import exact_pixels, mean_psnr, mean_ssim
from blindsight.privacy import Disclosure, Recovery
from blindsight.sketching.bits import as_images, from_bits
from blindsight.sketching.negative_database import NegativeDatabase
from blindsight.sketching.parameters import QKParameters
from blindsight.sketching.sketcher import NegativeSketcher
from blindsight.sketching.sketches import SketchSet

__all__ = ["LearnedPrior", "Recovered", "attack_card", "measure", "posterior_mean", "propagate_beliefs", "reverse"]


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """How much of the images an attack got back."""

    attack: str
    psnr: float
    ssim: float | None
    exact: float

    def rows(self) -> tuple[Recovery, ...]:
        """As rows of a disclosure card."""
        rows = [("PSNR in dB", self.psnr), ("share of pixels exactly right", self.exact)]
        rows += [("SSIM", self.ssim)] if self.ssim is not None else []
        return tuple(Recovery(attack=self.attack, measure=name, value=float(value)) for name, value in rows)


def measure(attack: str, images: NDArray[Any], guess: NDArray[Any], *, depth: int = 8) -> Recovered:
    """Compare a guess with the images. SSIM needs more than 11 pixels a side."""
    peak = 2.0**depth - 1
    large = min(np.shape(images)[1:3]) > 11
    return Recovered(
        attack=attack,
        psnr=mean_psnr(images, guess, peak=peak),
        ssim=mean_ssim(images, guess, peak=peak) if large else None,
        exact=exact_pixels(images, guess),
    )


def posterior_mean(sketches: SketchSet) -> NDArray[np.float32]:
    """The paper's attacker: each pixel's posterior mean, images (n, h, w) or (n, h, w, channels)."""
    return sketches.pictures()


class LearnedPrior:
    """The attacker who has public images: it sketches them itself and learns to undo that.

    A small convolutional network with a coarse and a fine path takes the posteriors of all bits and returns pixels.
    The attacker can make as many sketches as it likes, so every epoch sees fresh dice. Any sketch-like release with
    the same storage (flipped bits, too) can be attacked: `sketch` makes one from images.
    """

    def __init__(self, *, epochs: int = 6, width: int = 24, batch_size: int = 64, random_state: Any = 0) -> None:
        self.epochs = checks.whole("epochs", epochs)
        self.width = checks.whole("width", width)
        self.batch_size = checks.whole("batch_size", batch_size)
        self.random_state = random_state

    def fit(
        self,
        public: NDArray[Any],
        sketch: Callable[[NDArray[Any]], SketchSet],
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> LearnedPrior:
        """Learn from public images and a function that sketches them as the owner would."""
        import torch

        rng = np.random.default_rng(self.random_state)
        first = sketch(public[:2])
        self.depth_ = first.parameters.depth
        targets = torch.from_numpy(as_images(public, self.depth_).astype(np.float32) / (2.0**self.depth_ - 1))
        channels = targets.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(1 << 62)))
            self.module_ = _denoiser(channels * self.depth_, channels, self.width)
        steps = self.epochs * -(-len(public) // self.batch_size)
        optimizer = torch.optim.Adam(self.module_.parameters(), lr=3e-3)
        step = 0
        for _ in range(self.epochs):
            sketches = sketch(public)
            order = rng.permutation(len(public))
            for start in range(0, len(order), self.batch_size):
                optimizer.param_groups[0]["lr"] = 1.5e-3 * (1 + math.cos(math.pi * step / steps)) + 1e-5
                rows = np.sort(order[start : start + self.batch_size])
                guess = self.module_(torch.from_numpy(sketches[rows].posteriors(n_jobs=1)) * 2 - 1)
                loss = ((guess - targets[rows]) ** 2).mean()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                step += 1
                if progress is not None:
                    progress(step, steps)
        self.module_.eval()
        return self

    def recover(self, sketches: SketchSet) -> NDArray[np.float32]:
        """The attacker's images, (n, h, w) or (n, h, w, channels), in 0..2^L - 1."""
        import torch

        if sketches.parameters.depth != self.depth_:
            raise InvalidData(f"this attacker learned depth {self.depth_}, got {sketches.parameters.depth}.")
        with torch.inference_mode():
            parts = [
                self.module_(torch.from_numpy(part.posteriors()) * 2 - 1).clamp(0, 1).numpy()
                for part in sketches.batches(256)
            ]
        images = np.concatenate(parts) * np.float32(2.0**self.depth_ - 1)
        return images[:, 0] if images.shape[1] == 1 else np.moveaxis(images, 1, -1)


def _denoiser(planes: int, channels: int, width: int) -> Any:
    """A fine path and a path at a quarter of the size, which sees the whole shape; their sum is refined."""
    from torch import Tensor, nn

    def conv(inside: int, outside: int, stride: int = 1) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inside, outside, 3, stride, 1), nn.BatchNorm2d(outside), nn.ReLU())

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fine = conv(planes, width)
            self.middle = conv(width, 2 * width, 2)
            self.coarse = nn.Sequential(conv(2 * width, 4 * width, 2), conv(4 * width, 4 * width))
            self.merge = conv(6 * width, 2 * width)
            self.refine = conv(3 * width, width)
            self.out = nn.Conv2d(width, channels, 3, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            import torch

            fine = self.fine(x)
            half = self.middle(fine)
            coarse = nn.functional.interpolate(self.coarse(half), size=half.shape[2:], mode="nearest")
            half = self.merge(torch.cat([half, coarse], 1))
            wide = nn.functional.interpolate(half, size=fine.shape[2:], mode="nearest")
            return self.out(self.refine(torch.cat([fine, wide], 1)))

    return Denoiser()


def propagate_beliefs(
    database: NegativeDatabase, parameters: QKParameters, *, iterations: int = 30
) -> NDArray[np.float64]:
    """Log odds of a one for every hidden bit, by belief propagation on the records.

    A record is a factor on its K bits: if D of them differ from the string, its probability is proportional to
    p_|D| |D|! (K - |D|)! times the product over D of q_j L; no record agrees on all its bits, which the counts of a
    sketch cannot say. Messages pass between records and bits until the bits are decided.
    """
    K, L, m = parameters.specified, parameters.depth, database.length
    if (np.diff(database.offsets) != K).any() or m % L:
        raise InvalidData(f"the records must have {K} specified bits each, of strings with {L} bits a pixel.")
    positions = database.positions.reshape(-1, K)
    sign = 2.0 * database.values.reshape(-1, K) - 1  # agreeing with a 1 speaks for a one
    with np.errstate(divide="ignore"):
        relative = np.log(np.asarray(parameters.q) * L)[positions % L]
        types = np.array(
            [-np.inf, *(np.log(p) + math.lgamma(i + 1) + math.lgamma(K - i + 1) for i, p in enumerate(parameters.p, 1))]
        )
    states = np.array(list(itertools.product((0, 1), repeat=K)))  # 1: this bit differs
    # Weight of each state in each record; impossible states at a floor instead of minus infinity.
    weight = np.maximum(types[states.sum(axis=1)][None] + np.maximum(relative, -60) @ states.T, -200)
    to_record = np.zeros(positions.shape)
    evidence: NDArray[Any] = np.zeros(m)
    for step in range(checks.whole("iterations", iterations)):
        agree = np.clip(to_record * sign, -30, 30)  # log odds that the record's bit agrees
        ln_differ, ln_agree = -np.logaddexp(0, agree), -np.logaddexp(0, -agree)
        joint = weight + ln_differ @ states.T + ln_agree @ (1 - states).T
        message = np.empty_like(to_record)
        for t in range(K):
            inside = states[:, t] == 1
            differ = np.logaddexp.reduce(joint[:, inside], axis=1) - ln_differ[:, t]
            same = np.logaddexp.reduce(joint[:, ~inside], axis=1) - ln_agree[:, t]
            message[:, t] = (same - differ) * sign[:, t]
        evidence = np.bincount(positions.ravel(), weights=message.ravel(), minlength=m)
        fresh = evidence[positions] - message
        if step and np.abs(np.tanh(fresh / 2) - np.tanh(to_record / 2)).max() < 1e-3:
            break
        to_record = 0.5 * to_record + 0.5 * fresh
    return evidence


def reverse(database: NegativeDatabase, parameters: QKParameters, *, iterations: int = 30) -> NDArray[np.uint16]:
    """The pixels that belief propagation reads out of the records, as one row."""
    bits = propagate_beliefs(database, parameters, iterations=iterations) > 0
    return from_bits(bits.reshape(-1, parameters.depth))


def attack_card(
    sketcher: NegativeSketcher,
    images: NDArray[Any],
    *,
    public: NDArray[Any] | None = None,
    records: int = 1,
    epochs: int = 6,
    progress: Callable[[int, int], None] | None = None,
) -> Disclosure:
    """The disclosure of a sketcher with what the attacks recovered of these images.

    With `public` images the stronger attacker runs too; `records` images are attacked through their records, which
    are made here and thrown away.
    """
    fitted = sketcher.fit(images)
    depth = fitted.parameters_.depth
    sketches = fitted.sketch(images)
    found = [measure("posterior mean", images, posterior_mean(sketches), depth=depth)]
    if public is not None:
        attacker = LearnedPrior(epochs=epochs).fit(public, fitted.sketch, progress=progress)
        found.append(measure("prior learned from public images", images, attacker.recover(sketches), depth=depth))
    rows = [row for result in found for row in result.rows()]
    right = []
    for image in images[:records]:
        for database, channel in zip(
            fitted.records(image, unsafe_records=True), as_images(image[None], depth)[0], strict=True
        ):
            right.append((reverse(database, fitted.parameters_) == channel.ravel()).mean())
    if right:
        rows.append(
            Recovery(
                attack="belief propagation, had the records been sent",
                measure="share of pixels exactly right",
                value=float(np.mean(right)),
            )
        )
    return fitted.disclosure_.with_recovery(*rows)
