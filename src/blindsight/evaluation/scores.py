"""Scores of predictions: multi-label measures, and how much of an image an attacker recovered.

Per class (CP, CR, CF1), overall (OP, OR, OF1), mean average precision, and their top-3 variants:
CP and CR are the means of precision and recall over labels; OP and OR pool all decisions first. CF1
and OF1 are the harmonic means of the two, so that CF1 is *not* the mean of the labels' F1; the
ML-GCN literature does the same. Average precision treats tied scores as one group, so that the
order of rows never matters.

A label that never occurs has no recall and no average precision. It is left out of CR and mAP by
default (`absent="skip"`), or counted as zero (`absent="zero"`). A label that is never predicted
counts as zero in CP, as in the literature. For an image without labels every predicted label is
wrong.

PSNR, SSIM and the share of exactly recovered pixels compare recovered images with originals.
Images are (n, h, w) or (n, h, w, channels), or one image (h, w). `psnr` and `ssim` return one value
per image. For colour images SSIM is the mean over the channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.ndimage import gaussian_filter

from blindsight.core import checks
from blindsight.core.arrays import Array, Bools, Floats
from blindsight.core.errors import InvalidData

__all__ = [
    "MultiLabelScores",
    "average_precisions",
    "decision_scores",
    "evaluate",
    "exact_pixels",
    "mean_average_precision",
    "mean_psnr",
    "mean_ssim",
    "psnr",
    "ssim",
    "top_k",
]

Absent = Literal["skip", "zero"]


@dataclass(frozen=True)
class MultiLabelScores:
    """The measures of one evaluation.

    Parameters:
        mAP: mean average precision over labels.
        CP: precision, averaged over labels.
        CR: recall, averaged over labels.
        CF1: the harmonic mean of CP and CR.
        OP: precision over all decisions.
        OR: recall over all decisions.
        OF1: the harmonic mean of OP and OR.
        CP3: CP if the three highest scores of each image are predicted; CR3 to OF13 likewise.
        labels_counted: how many labels occur at all.
    """

    mAP: float
    CP: float
    CR: float
    CF1: float
    OP: float
    OR: float
    OF1: float
    CP3: float
    CR3: float
    CF13: float
    OP3: float
    OR3: float
    OF13: float
    labels_counted: int

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def evaluate(
    truth: ArrayLike,
    scores: ArrayLike,
    *,
    decisions: ArrayLike | None = None,
    threshold: float = 0.0,
    k: int = 3,
    absent: Absent = "skip",
) -> MultiLabelScores:
    """Compute every measure of the ML-GCN literature.

    Parameters:
        truth: the true labels, 0 or 1 (n, C).
        scores: the predicted scores (n, C).
        decisions: the predicted labels, 0 or 1 (n, C); by default the scores above `threshold`.
        threshold: 0 suits logits.
        k: how many labels the top-k variants predict for each image.
        absent: whether labels that never occur are left out ("skip") or count as zero ("zero").

    Raises:
        InvalidData: shapes differ, or labels are not 0 and 1.

    Examples:
        >>> evaluate([[1, 0], [0, 1]], [[2.0, -1.0], [-1.0, 3.0]]).OF1
        1.0
    """
    y, s = _truth(truth), checks.finite_array("scores", scores, ndim=2)
    _same_shape(y, s, "scores")
    chosen = s > checks.number("threshold", threshold) if decisions is None else _truth(decisions)
    top = top_k(s, k)
    plain, best = decision_scores(y, chosen, absent=absent), decision_scores(y, top, absent=absent)
    return MultiLabelScores(
        mAP=mean_average_precision(y, s, absent=absent),
        **plain,
        **{f"{name}3": value for name, value in best.items()},
        labels_counted=int(y.any(axis=0).sum()),
    )


def decision_scores(
    truth: ArrayLike, decisions: ArrayLike, *, absent: Absent = "skip"
) -> dict[str, float]:
    """CP, CR, CF1, OP, OR, OF1 of 0/1 decisions (n, C)."""
    y, d = _truth(truth), _truth(decisions)
    _same_shape(y, d, "decisions")
    checks.one_of("absent", absent, ("skip", "zero"))
    hits, predicted, present = (y & d).sum(axis=0), d.sum(axis=0), y.sum(axis=0)
    precision, recall = _ratio(hits, predicted), _ratio(hits, present)
    counted = present > 0 if absent == "skip" else np.ones(len(present), bool)
    class_precision = float(precision.mean()) if len(precision) else 0.0
    class_recall = float(recall[counted].mean()) if counted.any() else 0.0
    overall_precision = float(_ratio(hits.sum(), predicted.sum()))
    overall_recall = float(_ratio(hits.sum(), present.sum()))
    return {
        "CP": class_precision,
        "CR": class_recall,
        "CF1": _harmonic(class_precision, class_recall),
        "OP": overall_precision,
        "OR": overall_recall,
        "OF1": _harmonic(overall_precision, overall_recall),
    }


def top_k(scores: ArrayLike, k: int = 3) -> Bools:
    """The k highest scores of each row as a mask; ties go to the lower column."""
    s = checks.finite_array("scores", scores, ndim=2)
    count = min(checks.whole("k", k), s.shape[1])
    order = np.argsort(-s, axis=1, kind="stable")[:, :count]
    mask = np.zeros(s.shape, bool)
    np.put_along_axis(mask, order, True, axis=1)
    return mask


def average_precisions(truth: ArrayLike, scores: ArrayLike) -> Floats:
    """The average precision of every label; NaN for a label that never occurs.

    Tied scores are treated as one group.
    """
    y, s = _truth(truth), checks.finite_array("scores", scores, ndim=2)
    _same_shape(y, s, "scores")
    return np.array([_average_precision(y[:, c], s[:, c]) for c in range(y.shape[1])])


def mean_average_precision(
    truth: ArrayLike, scores: ArrayLike, *, absent: Absent = "skip"
) -> float:
    """The mean of the labels' average precisions."""
    checks.one_of("absent", absent, ("skip", "zero"))
    values = average_precisions(truth, scores)
    if absent == "zero":
        values = np.nan_to_num(values, nan=0.0)
    counted = values[~np.isnan(values)]
    return float(counted.mean()) if counted.size else 0.0


def _average_precision(y: Bools, s: Floats) -> float:
    positives = int(y.sum())
    if positives == 0:
        return float("nan")
    order = np.argsort(-s, kind="stable")
    hits, ranked = np.cumsum(y[order]), s[order]
    ends = np.append(np.flatnonzero(np.diff(ranked) != 0), len(ranked) - 1)
    recall = hits[ends] / positives
    return float(np.sum(np.diff(recall, prepend=0.0) * hits[ends] / (ends + 1)))


def _truth(labels: ArrayLike) -> Bools:
    array = np.asarray(labels)
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] == 0:
        raise InvalidData(
            f"labels must be a non-empty table of images by labels, got shape {array.shape}."
        )
    if array.dtype == bool:
        return array
    if array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all():
        raise InvalidData("labels must be 0 or 1 (or True and False).")
    return array.astype(bool)


def _same_shape(y: Array, other: Array, name: str) -> None:
    if y.shape != other.shape:
        raise InvalidData(f"{name} must have the labels' shape {y.shape}, got {other.shape}.")


def _ratio(part: ArrayLike, total: ArrayLike) -> Floats:
    divisor = np.asarray(total, np.float64)
    return np.asarray(np.divide(part, divisor, out=np.zeros_like(divisor), where=divisor > 0))


def _harmonic(a: float, b: float) -> float:
    return 2 * a * b / (a + b) if a + b > 0 else 0.0


SIGMA = 1.5  # of Wang et al.'s Gaussian window
TRUNCATE = 3.5  # an 11 x 11 window
_VALUES_PER_STRIP = 1 << 20


def _pair(truth: ArrayLike, guess: ArrayLike) -> tuple[Array, Array]:
    a, b = np.asarray(truth), np.asarray(guess)
    if a.shape != b.shape or a.ndim not in (2, 3, 4) or not a.size:
        raise InvalidData(
            f"truth and guess must be images of one shape, got {a.shape} and {b.shape}."
        )
    return (a[None], b[None]) if a.ndim == 2 else (a, b)


def _strips(a: Array, b: Array, rim: int = 0) -> Iterator[tuple[Floats, Floats]]:
    """Yield strips of a pair of images, so that memory does not grow with the size of a photo.

    Each strip has `rim` more rows above and below.
    """
    height = len(a)
    step = max(1, _VALUES_PER_STRIP // max(1, a[0].size))
    for top in range(rim, height - rim, step):
        rows = slice(top - rim, min(top + step, height - rim) + rim)
        yield checks.finite_array("truth", a[rows]), checks.finite_array("guess", b[rows])


def psnr(truth: ArrayLike, guess: ArrayLike, *, peak: float = 255.0) -> Floats:
    """The peak signal-to-noise ratio of each image in dB; infinite where the guess is exact.

    Parameters:
        truth: the true images.
        guess: what the attacker recovered, of the same shape.
        peak: the largest possible pixel value.

    Raises:
        InvalidData: the shapes differ, or are not those of images.

    Examples:
        >>> psnr([[0.0, 255.0]], [[0.0, 0.0]]).round(2)
        array([3.01])
    """
    peak = checks.positive("peak", peak)
    a, b = _pair(truth, guess)
    squared = np.array(
        [
            sum(float(((x - y) ** 2).sum()) for x, y in _strips(*pair))
            for pair in zip(a, b, strict=True)
        ]
    )
    with np.errstate(divide="ignore"):
        return np.asarray(10 * np.log10(peak**2 * a[0].size / squared))


def ssim(truth: ArrayLike, guess: ArrayLike, *, peak: float = 255.0) -> Floats:
    """The structural similarity of each image, with a Gaussian window of sigma 1.5.

    As Wang et al. (2004) define it, with population covariances, c1 = (0.01 peak)^2 and
    c2 = (0.03 peak)^2; the rim of half a window is left out. Parameters are those of `psnr`.

    Raises:
        InvalidData: the shapes differ, or an image is smaller than the window (11 pixels).
    """
    peak = checks.positive("peak", peak)
    a, b = _pair(truth, guess)
    radius = int(TRUNCATE * SIGMA + 0.5)
    if min(a.shape[1:3]) <= 2 * radius:
        raise InvalidData(
            f"images must be larger than the window, {2 * radius + 1} pixels a side, got "
            f"{a.shape[1]} x {a.shape[2]}."
        )
    inside = a[0, radius:-radius, radius:-radius].size
    return (
        np.array(
            [
                sum(
                    _similarity(x, y, peak)[radius:-radius, radius:-radius].sum()
                    for x, y in _strips(*pair, rim=radius)
                )
                for pair in zip(a, b, strict=True)
            ]
        )
        / inside
    )


def _similarity(a: Floats, b: Floats, peak: float) -> Floats:
    """The similarity at every pixel of one pair of images (h, w, ...)."""
    sigma = (SIGMA, SIGMA, *(0,) * (a.ndim - 2))

    def smooth(values: Array) -> Array:
        return np.asarray(gaussian_filter(values, sigma, truncate=TRUNCATE))

    mean_a, mean_b = smooth(a), smooth(b)
    var_a, var_b = smooth(a * a) - mean_a**2, smooth(b * b) - mean_b**2
    covariance = smooth(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    return np.asarray(
        ((2 * mean_a * mean_b + c1) * (2 * covariance + c2))
        / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    )


def exact_pixels(truth: ArrayLike, guess: ArrayLike) -> float:
    """The share of pixels whose rounded guess equals the true value."""
    a, b = _pair(truth, guess)
    equal = sum(
        int((np.rint(y) == x).sum()) for pair in zip(a, b, strict=True) for x, y in _strips(*pair)
    )
    return equal / a.size


def mean_psnr(truth: ArrayLike, guess: ArrayLike, *, peak: float = 255.0) -> float:
    """The mean PSNR over images; an image that was recovered exactly counts as 100 dB."""
    return float(np.minimum(psnr(truth, guess, peak=peak), 100.0).mean())


def mean_ssim(truth: ArrayLike, guess: ArrayLike, *, peak: float = 255.0) -> float:
    """The mean SSIM over images."""
    return float(ssim(truth, guess, peak=peak).mean())
