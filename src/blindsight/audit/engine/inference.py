"""Inference about records: membership in the training set, and reconstruction of images.

Membership inference is LiRA (Carlini et al. 2022) with a few shadow models. Every record is in or
out of every training by an independent fair coin. The shadow models estimate the distribution of a
record's score when it is in and when it is out (with one variance for all records, because there
are few shadow models), and the likelihood ratio judges the target's score. The result is also a
one-run audit of the target, so it bounds epsilon from below.

Reconstruction measures how well an image can be recovered from its code, its sketch or its
features. The attacker has public images and can run the same release on them; it learns to map
releases to images and applies the map to the releases of private images. Ridge regression is the
baseline, a small network the stronger attacker.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from blindsight.audit.engine.blackbox import audit_scores
from blindsight.core import checks
from blindsight.core.arrays import Bools, Bytes, Floats
from blindsight.core.errors import InvalidData
from blindsight.evaluation.scores import mean_psnr, mean_ssim
from blindsight.privacy import Audited, Recovery

__all__ = ["Membership", "Reconstruction", "infer_membership", "reconstruct", "roc"]

Train = Callable[[Bools, np.random.Generator], Any]
Score = Callable[[Any], Floats]


@dataclass(frozen=True)
class Membership:
    """The result of membership inference: the target's scores, its members, and the bound."""

    scores: Floats
    included: Bools
    audited: Audited

    @property
    def auc(self) -> float:
        """The probability that a member scores above a non-member; 0.5 is chance."""
        fpr, tpr = roc(self.scores, self.included)
        return float(np.trapezoid(tpr, fpr))


def infer_membership(
    train: Train,
    score: Score,
    *,
    records: int,
    shadows: int = 8,
    seed: int = 0,
    confidence: float = 0.95,
    delta: float = 0.0,
) -> Membership:
    """Train `shadows` models and one target on random halves and judge every record of the target.

    `train(included, rng)` trains on the marked records; `score(model)` gives one number per record,
    larger for a better fit (the logit of the true class's probability is the usual choice).
    """
    count, shadows = (
        checks.whole("records", records, least=4),
        checks.whole("shadows", shadows, least=2),
    )
    rng = np.random.default_rng(seed)
    # Every record is in half of the shadow models and out of the other half.
    coins = rng.permuted(np.tile(np.arange(shadows) % 2 == 0, (count, 1)), axis=1).T
    shadow_scores = np.stack([_checked(score(train(mask, rng)), count) for mask in coins])
    included = rng.random(count) < 0.5
    target = _checked(score(train(included, rng)), count)
    ratio = _log_ratio(shadow_scores, coins, target)
    return Membership(
        scores=ratio,
        included=included,
        audited=Audited(
            epsilon=audit_scores(ratio, included, confidence=confidence, delta=delta).epsilon,
            confidence=confidence,
            attack=f"membership, {shadows} shadow models",
            trials=count,
        ),
    )


def roc(scores: Floats, included: Bools) -> tuple[Floats, Floats]:
    """Return false and true positive rates over all thresholds; tied scores share a threshold."""
    order = np.argsort(-scores, kind="stable")
    hits = included[order]
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    tpr = np.cumsum(hits)[last] / max(1, hits.sum())
    fpr = np.cumsum(~hits)[last] / max(1, (~hits).sum())
    return np.append(0.0, fpr), np.append(0.0, tpr)


def _log_ratio(shadow_scores: Floats, coins: Bools, target: Floats) -> Floats:
    inside = np.where(coins, shadow_scores, np.nan)
    outside = np.where(coins, np.nan, shadow_scores)
    mean_in, mean_out = np.nanmean(inside, axis=0), np.nanmean(outside, axis=0)
    variance = max(float(np.mean([np.nanvar(inside, axis=0), np.nanvar(outside, axis=0)])), 1e-12)
    return np.asarray(((target - mean_out) ** 2 - (target - mean_in) ** 2) / (2 * variance))


def _checked(scores: ArrayLike, count: int) -> Floats:
    values = np.asarray(scores, np.float64)
    if values.shape != (count,) or not np.isfinite(values).all():
        raise InvalidData(
            f"score must give one finite number for each of {count} records, got shape "
            f"{values.shape}."
        )
    return values


Decoder = Literal["ridge", "network"]


@dataclass(frozen=True)
class Reconstruction:
    """Reconstructed images, their quality, and the quality of the mean public image."""

    images: Bytes
    psnr: float
    ssim: float
    psnr_of_mean: float
    decoder: str

    def recovery(self, what: str) -> Recovery:
        """Return the PSNR as a line of a disclosure card; chance is the mean public image."""
        return Recovery(
            attack=f"{self.decoder} decoder from {what}",
            measure="PSNR in dB",
            value=self.psnr,
            chance=self.psnr_of_mean,
        )


def reconstruct(
    public_released: ArrayLike,
    public_images: ArrayLike,
    released: ArrayLike,
    images: ArrayLike,
    *,
    decoder: Decoder = "ridge",
    seed: int = 0,
) -> Reconstruction:
    """Learn to reconstruct images from public pairs, and measure it on private ones.

    Parameters:
        public_released: releases of the public images, one row per image.
        public_images: uint8 images, (n, h, w) or (n, h, w, channels).
        released: releases of the private images.
        images: the private images; they are used for the measurement only.
        decoder: the attacker's model.
        seed: of its training.
    """
    checks.one_of("decoder", decoder, ("ridge", "network"))
    x, z = _rows("public_released", public_released), _rows("released", released)
    public, truth = np.asarray(public_images), np.asarray(images)
    if (
        len(x) != len(public)
        or len(z) != len(truth)
        or x.shape[1] != z.shape[1]
        or public.shape[1:] != truth.shape[1:]
    ):
        raise InvalidData(
            "releases and images must come in pairs, of one width and one image shape."
        )
    y = public.reshape(len(public), -1) / 255.0
    # A column that is nearly constant (a border pixel) must not be scaled up to the others' range.
    centre, spread = x.mean(axis=0), x.std(axis=0)
    spread = np.maximum(spread, 0.2 * spread.max()) + 1e-9
    guess = _fit(decoder, seed, (x - centre) / spread, y).predict((z - centre) / spread)
    pictures = np.clip(np.rint(guess * 255), 0, 255).astype(np.uint8).reshape(truth.shape)
    mean = np.broadcast_to(public.mean(axis=0), truth.shape)
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
        warnings.simplefilter("ignore")  # training stops after 25 epochs on purpose
        # Single precision: half the time, and pixels need no more.
        return network.fit(x.astype(np.float32), y.astype(np.float32))


def _rows(name: str, value: ArrayLike) -> Floats:
    rows = checks.finite_array(name, np.asarray(value, np.float64))
    if rows.ndim < 2:
        raise InvalidData(f"{name} must have one row per image, got shape {rows.shape}.")
    return rows.reshape(len(rows), -1)
