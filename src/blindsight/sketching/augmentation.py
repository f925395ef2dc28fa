"""Crops and flips of estimates, drawn for each image by itself."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["cropped", "flipped"]


def cropped(x: Tensor, rng: np.random.Generator, shift: int | None = None) -> Tensor:
    """Each image of (n, planes, h, w) moved by up to `shift` pixels either way; None moves by an eighth of its side."""
    n, _, height, width = x.shape
    pad = max(1, min(height, width) // 8) if shift is None else shift
    padded = nn.functional.pad(x, (pad, pad, pad, pad), mode="reflect" if pad < min(height, width) else "constant")
    tops, lefts = (torch.from_numpy(rng.integers(2 * pad + 1, size=n)) for _ in range(2))
    rows = (tops[:, None] + torch.arange(height))[:, :, None]
    columns = (lefts[:, None] + torch.arange(width))[:, None, :]
    # Indexing leaves the planes last, which is the layout that convolutions like.
    return padded[torch.arange(n)[:, None, None], :, rows, columns].movedim(3, 1)


def flipped(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Each image mirrored, or not, by a coin."""
    coins = torch.from_numpy(rng.random(len(x)) < 0.5)
    return torch.where(coins[:, None, None, None], x.flip(3), x)
