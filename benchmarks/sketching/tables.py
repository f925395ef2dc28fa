"""Tables 2, 3 and 5 of the paper, the local epsilon that each setting implies, and the gallery."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row
from benchmarks.sketching.common import halves
from blindsight.core.errors import MissingData
from blindsight.evaluation.scores import exact_pixels, mean_psnr, mean_ssim
from blindsight.sketching import PAPER_Q, NegativeSketcher, QKParameters, leak_of
from blindsight.sketching.paper import settings_gallery

__all__ = ["table_rows"]

FIRST = (0.25, 0.40, 0.45, 0.57, 0.67, 0.73, 0.77, 0.80, 0.82, 0.84, 0.85, 0.86)
LAST = (0.70, 0.67, 0.45, 0.57, 0.40, 0.67, 0.57, 0.40, 0.25, 0.25, 0.25, 0.25)
PSNR = {
    "mnist": (15.04, 10.50, 7.27, 9.86, 14.82, 26.59, 27.31, 27.37, 33.46, 45.49, 57.71, 64.67),
    "cifar10": (18.19, 14.14, 12.87, 13.57, 18.04, 27.14, 27.94, 27.98, 33.93, 45.42, 56.07, 61.73),
}
SSIM = {
    "mnist": (
        0.6278,
        0.4431,
        0.1645,
        0.3880,
        0.6220,
        0.8465,
        0.8494,
        0.8505,
        0.9189,
        0.9901,
        0.9993,
        0.9997,
    ),
    "cifar10": (
        0.5663,
        0.3082,
        0.1660,
        0.2587,
        0.5576,
        0.8805,
        0.8941,
        0.8948,
        0.9648,
        0.9967,
        0.9987,
        0.9986,
    ),
}
G = {
    "mnist": (1670, 1936, 3890, 2295, 1933, 252, 546, 484, 212, 141, 71, 36),
    "cifar10": (2177, 2523, 5082, 2992, 2526, 331, 716, 631, 278, 183, 91, 47),
}


def table_rows(*, quick: bool, seed: int, out: Path) -> Iterator[Row]:
    """One row a cell of the tables, with the paper's number beside it."""
    for k, name in enumerate(PAPER_Q):
        yield from _computed(k, name)
    images = halves("mnist", seed=seed).x_test[: 200 if quick else 2000]
    yield from _measured("", images, PSNR["mnist"], SSIM["mnist"], seed)
    settings_gallery(out / "sketching-gallery.svg", images[:8], random_state=seed)
    if quick:
        return
    try:
        colour = halves("cifar10", seed=seed).x_test[:500]
    except MissingData as error:
        yield Row(id="sketching.skipped.cifar10", value=0, unit="skipped", note=str(error))
        return
    yield from _measured("cifar_", colour, PSNR["cifar10"], SSIM["cifar10"], seed)
    settings_gallery(out / "sketching-gallery-cifar10.svg", colour[:8], random_state=seed)


def _computed(k: int, name: str) -> Iterator[Row]:
    parameters, low = QKParameters.paper(name), name.lower()
    leak = leak_of(parameters)
    yield Row(
        id=f"sketching.pdiff1_{low}",
        value=float(parameters.p_diff[0]),
        unit="probability",
        paper=FIRST[k],
    )
    yield Row(
        id=f"sketching.pdiff8_{low}",
        value=float(parameters.p_diff[7]),
        unit="probability",
        paper=LAST[k],
    )
    yield Row(id=f"sketching.g_{low}", value=leak.G(784), unit="bits", paper=G["mnist"][k])
    yield Row(
        id=f"sketching.cifar_g_{low}",
        value=leak.G(1024),
        unit="bits per channel",
        paper=G["cifar10"][k],
    )
    finite = math.isfinite(leak.epsilon_pixel)
    yield Row(
        id=f"sketching.epsilon_pixel_{low}",
        value=leak.epsilon_pixel if finite else -1.0,
        unit="epsilon per pixel",
        note=f"implied, delta 1e-5; first bit {leak.epsilon_bit[0]:.4g}"
        + (
            ""
            if finite
            else "; none finite: some bits always show the truth (-1 stands for infinity)"
        ),
    )


def _measured(
    prefix: str,
    images: NDArray[np.uint8],
    psnr: tuple[float, ...],
    ssim: tuple[float, ...],
    seed: int,
) -> Iterator[Row]:
    for k, name in enumerate(PAPER_Q):
        low = name.lower()
        pictures = NegativeSketcher(name, random_state=seed).fit(images).sketch(images).pictures()
        note = (
            f"{len(images)} images, the paper's attacker; exactly right "
            f"{exact_pixels(images, pictures):.1%}"
        )
        yield Row(
            id=f"sketching.{prefix}psnr_{low}",
            value=mean_psnr(images, pictures),
            unit="dB",
            paper=psnr[k],
            seed=seed,
            note=note,
        )
        yield Row(
            id=f"sketching.{prefix}ssim_{low}",
            value=mean_ssim(images, pictures),
            unit="SSIM",
            paper=ssim[k],
            seed=seed,
        )
