"""A hasher or an index: search quality by proven epsilon, and digits rebuilt from codes as this file releases them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from blindsight import data
from blindsight.audit.figures import Figure, curves, gallery
from blindsight.audit.reconstruction import Reconstruction, reconstruct
from blindsight.audit.target import Audit
from blindsight.core import codes
from blindsight.evaluation.retrieval import mean_average_precision, score_precisions
from blindsight.features import PixelPCA
from blindsight.hashing import ITQ, CodebookHasher, PHashing
from blindsight.privacy import Guarantee
from blindsight.privacy.mechanisms import BitFlip, SubsetSelection

__all__ = ["Digits", "figures", "rebuilt", "reconstructions"]

_EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_WIDEST = 128
_PUBLIC = 2000
_SHOWN = 10


class Digits:
    """5,000 built-in digits as 32 principal components: public ones to learn from, stored ones, and queries."""

    def __init__(self, seed: int) -> None:
        digits = data.load("mnist5k")
        self.images, self.labels = digits.array(), np.asarray(digits.labels)
        order = np.random.default_rng(seed).permutation(len(self.labels))
        self.public, self.stored, self.asked = order[:_PUBLIC], order[2000:3500], order[4700:]
        self.X = PixelPCA(32, random_state=seed).fit(digits[self.public]).transform(digits)
        # One of each digit first, to be shown.
        firsts = [self.asked[np.flatnonzero(self.labels[self.asked] == digit)[0]] for digit in range(_SHOWN)]
        self.asked = np.concatenate([firsts, np.setdiff1d(self.asked, firsts)])


def figures(found: Audit, *, seed: int = 0) -> list[Figure]:
    """The curve and the gallery."""
    digits, twin = Digits(seed), _twin(found.subject, seed)
    return [_curve(found, digits, twin, seed), _gallery(found, digits, twin, seed)]


def _twin(subject: Any, seed: int) -> Any:
    """The same method with the same settings, to be fitted on digits; a mechanism gets a hash function under it."""
    if isinstance(subject, BitFlip):
        calibration: Any = "paper" if subject.beta > 0.5 else "proven"
        return PHashing(
            ITQ(min(subject.n_bits, _WIDEST)),
            beta=subject.beta,
            calibration=calibration,
            random_state=seed,
            learned_from="public",
        )
    if isinstance(subject, SubsetSelection):
        return CodebookHasher(
            epsilon=subject.epsilon, n_cells=min(subject.k, 1000), random_state=seed, learned_from="public"
        )
    twin = clone(subject).set_params(random_state=seed)
    if isinstance(twin, PHashing):
        base = clone(subject.base_)
        plain = type(base).__name__ in ("LSH", "ITQ", "SH")
        bits = min(int(base.n_bits), _WIDEST)
        twin.set_params(base=base.set_params(n_bits=bits, random_state=seed) if plain else ITQ(bits, random_state=seed))
    elif isinstance(twin, CodebookHasher):
        twin.set_params(n_cells=min(int(subject.n_cells_), 1000), supervised=False)
    elif hasattr(twin, "n_bits"):
        twin.set_params(n_bits=min(int(twin.n_bits), _WIDEST))
    return twin


def _quality(hasher: Any, digits: Digits) -> float:
    """Mean average precision of the queries among the released codes of the stored digits."""
    stored, asked = digits.X[digits.stored], digits.X[digits.asked]
    ours, theirs = digits.labels[digits.asked], digits.labels[digits.stored]
    released = hasher.transform(stored)
    if hasattr(hasher, "scores"):
        return float(score_precisions(hasher.scores(asked, released), ours[:, None] == theirs).mean())
    return float(mean_average_precision(hasher.query(asked), released, ours, theirs))


def _curve(found: Audit, digits: Digits, twin: Any, seed: int) -> Figure:
    public = digits.X[digits.public]
    settings: dict[str, Any] = {"epsilon": None}
    if isinstance(twin, PHashing) or hasattr(twin, "procrustes"):
        settings |= {"calibration": "proven", "unit": "record"} | ({"beta": None} if isinstance(twin, PHashing) else {})
    if hasattr(twin, "procrustes"):
        settings["procrustes"] = "correct"

    def at(epsilon: float) -> tuple[float, float]:
        return epsilon, _quality(clone(twin).set_params(**settings | {"epsilon": epsilon}).fit(public), digits)

    def rival(make: Any, epsilon: float) -> tuple[float, float]:
        return epsilon, _quality(make(epsilon=epsilon, random_state=seed).fit(public), digits)

    codebook = isinstance(twin, CodebookHasher)
    other = partial(PHashing, ITQ(32)) if codebook else CodebookHasher
    mine = "codebook" if codebook else "sampled bits" if hasattr(twin, "n_sampled") else type(twin).__name__
    lines = {
        f"{mine}, as yours": [at(epsilon) for epsilon in _EPSILONS],
        ("flipped 32 bits" if codebook else "codebook (CodebookHasher)"): [rival(other, e) for e in _EPSILONS],
    }
    own = _record_epsilon(found.card), _quality(clone(twin).fit(public), digits)
    rows = [
        {"setting": name, "epsilon per record": epsilon, "mAP": round(score, 4)}
        for name, points in lines.items()
        for epsilon, score in points
    ]
    stated = "none proven" if math.isinf(own[0]) else round(own[0], 4)
    rows.append({"setting": "your file", "epsilon per record": stated, "mAP": round(own[1], 4)})
    picture = curves(lines, xlabel="proven epsilon per record", ylabel="mAP", own=own, chance=0.1)
    return Figure(
        "What privacy costs",
        "Mean average precision of search among 1,500 built-in digits (32 principal components), by proven epsilon "
        "per record: your file's method with its settings, and another method at the same price. One seed; your "
        "images will give other heights, the order is what to look at.",
        picture,
        rows,
    )


def _record_epsilon(card: Any) -> float:
    assert isinstance(card, Guarantee)  # noqa: S101  (a hasher's card)
    costs = (card.cost, *card.also)
    return next((cost.epsilon for cost in costs if cost.unit == "record"), math.inf)


def _bits(hasher: Any, rows: NDArray[Any], *, plain: bool) -> NDArray[Any]:
    """What is released of these rows, as numbers a decoder can read; `plain`: what would be without noise."""
    if isinstance(hasher, CodebookHasher):
        return (
            np.eye(hasher.n_cells_)[hasher.assign(rows)]
            if plain
            else codes.unpack(hasher.transform(rows), hasher.n_cells_)
        )
    released = hasher.query(rows) if plain else hasher.transform(rows)
    if released.dtype != np.uint8:
        return np.asarray(released)
    if hasattr(hasher, "n_sampled") and not plain:
        width = codes.n_bytes(hasher.n_bits_)
        signs = 2.0 * codes.unpack(released[:, :width], hasher.n_bits_) - 1
        return signs * codes.unpack(released[:, width:], hasher.n_bits_)
    return codes.unpack(released, int(getattr(hasher, "n_bits_", None) or hasher.n_bits))


def _gallery(found: Audit, digits: Digits, twin: Any, seed: int) -> Figure:
    hasher = twin.fit(digits.X[digits.public])
    known, private = digits.X[digits.public], digits.X[digits.asked]
    given = {
        name: (_bits(hasher, known, plain=plain), _bits(hasher, private, plain=plain))
        for name, plain in (("plain codes", True), ("as your file releases", False))
    }
    pictures, rows = rebuilt(digits, given, seed=seed)
    return Figure(
        "What comes back of an image",
        "Built-in digits and what an attacker rebuilds who has 2,000 public digits and the same hash function: "
        "from codes without noise, and from codes released as your file says; by ridge regression and by a small "
        "network, PSNR and SSIM over 300 digits. The mean image is what one gets who has seen no code: what is no "
        "better tells no more.",
        gallery(pictures),
        rows,
    )


def reconstructions(
    digits: Digits, given: dict[str, tuple[NDArray[Any], NDArray[Any]]], *, seed: int
) -> dict[str, Reconstruction]:
    """Both decoders on each (public releases, private releases)."""
    known, truth = digits.images[digits.public], digits.images[digits.asked]
    decoders: tuple[Any, ...] = ("ridge", "network")
    return {
        f"{name}, {decoder}": reconstruct(public, known, private, truth, decoder=decoder, seed=seed)
        for name, (public, private) in given.items()
        for decoder in decoders
    }


def rebuilt(
    digits: Digits, given: dict[str, tuple[NDArray[Any], NDArray[Any]]], *, seed: int
) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]]]:
    """Captioned rows of pictures, and the same as numbers."""
    found = reconstructions(digits, given, seed=seed)
    first = next(iter(found.values()))
    mean = np.broadcast_to(digits.images[digits.public].mean(axis=0), (_SHOWN, 28, 28))
    pictures: dict[str, NDArray[Any]] = {"original": digits.images[digits.asked[:_SHOWN]]}
    rows: list[dict[str, Any]] = []
    for name, result in found.items():
        pictures[f"{name}: {result.psnr:.1f} dB, SSIM {result.ssim:.2f}"] = result.images[:_SHOWN]
        rows.append({"from": name, "PSNR in dB": round(result.psnr, 2), "SSIM": round(result.ssim, 3)})
    pictures[f"mean image: {first.psnr_of_mean:.1f} dB"] = mean
    rows.append({"from": "mean image", "PSNR in dB": round(first.psnr_of_mean, 2), "SSIM": ""})
    return pictures, rows
