"""(e) Reconstruction: how much of an image comes back from its code, its sketch or its features.

The attacker has public images and can run the same release on them; it learns the way back and
applies it to what was released of private images. A ridge regression is the baseline, a small
network the stronger attacker.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from blindsight.core import checks
from blindsight.core.arrays import Bytes, Floats
from blindsight.core.errors import InvalidData
from blindsight.evaluation.scores import mean_psnr, mean_ssim
from blindsight.privacy import Recovery

__all__ = ["Reconstruction", "reconstruct"]

Decoder = Literal["ridge", "network"]


@dataclass(frozen=True)
class Reconstruction:
    """What came back, how near it is to the truth, and how near the mean public image would have
    been.
    """

    images: Bytes
    psnr: float
    ssim: float
    psnr_of_mean: float
    decoder: str

    def recovery(self, what: str) -> Recovery:
        """The PSNR as a line for a disclosure card; chance is the mean public image."""
        return Recovery(
            attack=f"{self.decoder} decoder from {what}",
            measure="PSNR in dB",
            value=self.psnr,
            chance=self.psnr_of_mean,
        )


def reconstruct(
    public_released: Any,
    public_images: Any,
    released: Any,
    images: Any,
    *,
    decoder: Decoder = "ridge",
    seed: int = 0,
) -> Reconstruction:
    """Learn images from releases on public pairs and judge the guess on private ones.

    Releases are arrays, one row an image; images are uint8, (n, h, w) or (n, h, w, channels).
    `images` are the private truth, used to measure only.
    """
    checks.one_of("decoder", decoder, ("ridge", "network"))
    x, z = _rows("public_released", public_released), _rows("released", released)
    known, truth = np.asarray(public_images), np.asarray(images)
    if (
        len(x) != len(known)
        or len(z) != len(truth)
        or x.shape[1] != z.shape[1]
        or known.shape[1:] != truth.shape[1:]
    ):
        raise InvalidData(
            "releases and images must come in pairs, of one width and one image shape."
        )
    y = known.reshape(len(known), -1) / 255.0
    # A column that hardly moves (a pixel of the border) must not be blown up to the size of the
    # others.
    centre, spread = x.mean(axis=0), x.std(axis=0)
    spread = np.maximum(spread, 0.2 * spread.max()) + 1e-9
    guess = _fit(decoder, seed, (x - centre) / spread, y).predict((z - centre) / spread)
    pictures = np.clip(np.rint(guess * 255), 0, 255).astype(np.uint8).reshape(truth.shape)
    mean = np.broadcast_to(known.mean(axis=0), truth.shape)
    return Reconstruction(
        images=pictures,
        psnr=mean_psnr(truth, pictures),
        ssim=mean_ssim(truth, pictures) if min(truth.shape[1:3]) > 10 else float("nan"),
        psnr_of_mean=mean_psnr(truth, mean),
        decoder=decoder,
    )


def _fit(decoder: Decoder, seed: int, x: Floats, y: Floats) -> Any:
    if decoder == "ridge":
        from sklearn.linear_model import RidgeCV

        return RidgeCV(alphas=np.logspace(-1, 5, 13)).fit(x, y)
    from sklearn.neural_network import MLPRegressor

    network = MLPRegressor(
        hidden_layer_sizes=(256,),
        alpha=1e-3,
        batch_size=128,
        max_iter=25,
        early_stopping=True,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # stopping after 25 epochs is on purpose
        # Single precision: half the time, and pixels need no more.
        return network.fit(x.astype(np.float32), y.astype(np.float32))


def _rows(name: str, value: Any) -> Floats:
    rows = checks.finite_array(name, np.asarray(value, np.float64))
    if rows.ndim < 2:
        raise InvalidData(f"{name} must have one row an image, got shape {rows.shape}.")
    return rows.reshape(len(rows), -1)
