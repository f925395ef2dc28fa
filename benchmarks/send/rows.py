"""Sending with a proof: accuracy of what a receiver learns, against the owner's head and DP-SGD.

Width, share of the second moment and refusal follow from the public rules; steps and learning rate
of the head were chosen on 10,000 held-out training images; those of DP-SGD were not tuned; the test
images are read once. Values are means over noise seeds, and notes give their standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.harness import Row
from benchmarks.send.features import encoded, labelled, public_features
from blindsight import data
from blindsight.core.errors import MissingData, MissingDependency
from blindsight.encoders.public_pictures import built_in_images
from blindsight.privacy.mechanisms import DiscreteGaussian
from blindsight.sketching import (
    FeatureBasis,
    PrivateHead,
    Statistics,
    StatisticsLayout,
    fit_from_statistics,
    merge_statistics,
)
from blindsight.sketching.statistics_rules import DEFAULT_DELTA, forecast, width_for

__all__ = ["rows"]

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
Progress = Callable[[int, int], None]
_SEEDS = 5
_PEER_SEEDS = 3
_SENDERS = 5
_BUILT_IN = 1000


@dataclass(frozen=True)
class _Set:
    """Features and classes of training and test images, and features of public pictures."""

    name: str
    train: Floats
    classes: Labels
    test: Floats
    truth: Labels
    public: Floats

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(str(number) for number in range(int(self.classes.max()) + 1))

    def part(self, chosen: NDArray[np.int64]) -> _Set:
        return _Set(
            self.name,
            self.train[chosen],
            self.classes[chosen],
            self.test,
            self.truth,
            self.public,
        )


def rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Progress | None = None
) -> Iterator[Row]:
    """Every row; quick measures on the digits of scikit-learn only."""
    parts = [_digits] if quick else [_cifar, _mnist, _merged, _head, _dp_sgd, _prediction, _people]
    for done, part in enumerate(parts):
        try:
            yield from part(seed)
        except (MissingData, MissingDependency) as error:
            name = part.__name__.strip("_")
            yield Row(id=f"send.skipped.{name}", value=0, unit="skipped", note=str(error))
        if progress is not None:
            progress(done + 1, len(parts))


def _grey_set(name: str) -> _Set:
    train, classes = labelled(name, "train", "gradients")
    test, truth = labelled(name, "test", "gradients")
    public = encoded("built-in", "gradients", built_in_images(_BUILT_IN, 28))
    return _Set(name, train, classes, test, truth, public)


def _digits_set() -> _Set:
    images = data.load("digits")
    pictures = (15 * images.array()).astype(np.uint8)
    X = encoded("digits", "gradients", pictures)
    public = encoded("built-in", "gradients", built_in_images(_BUILT_IN, 28))
    y = np.asarray(images.labels, np.int64)
    return _Set("digits", X[:1400], y[:1400], X[1400:], y[1400:], public)


def _cifar_set() -> _Set:
    train, classes = labelled("cifar10", "train", "lite0-224")
    test, truth = labelled("cifar10", "test", "lite0-224")
    return _Set("cifar10", train, classes, test, truth, public_features(32, "lite0-224"))


class _Sums:
    """Exact sums of a set for one basis and layout; noise is drawn as the door draws it."""

    def __init__(
        self, images: _Set, epsilon: float, *, all_images: int | None = None, most: int = 1
    ):
        total = all_images or len(images.train)
        width = width_for(total, len(images.names), epsilon=epsilon, most=most)
        self.images = images
        self.basis = FeatureBasis.learn(images.public, width=width)
        self.layout = StatisticsLayout.choose(
            images.names, n_records=total, epsilon=epsilon, most=most, largest=self.basis.width
        )
        self.epsilon, self.most = epsilon, most

    def exact(
        self, chosen: NDArray[np.int64] | slice, units: Labels | None = None
    ) -> NDArray[np.float64]:
        X, y = self.images.train[chosen], self.images.classes[chosen]
        return self.layout.sum(self.basis.rows(X), y, units=units, most=self.most)

    @cached_property
    def test_rows(self) -> Floats:
        return self.basis.rows(self.images.test)

    @property
    def mechanism(self) -> DiscreteGaussian:
        return DiscreteGaussian.calibrate(
            self.epsilon,
            delta=DEFAULT_DELTA,
            sensitivity=self.layout.bound(self.most),
            dimensions=self.layout.size,
            unit="record",
            neighbours="add or remove one",
        )

    def noisy(self, vector: NDArray[np.float64], seed: list[int]) -> Statistics:
        mechanism = self.mechanism
        released = mechanism.release(vector, rng=np.random.default_rng(seed))
        return Statistics.from_sum(released, self.layout, self.basis, sigma=mechanism.sigma)

    def accuracy(self, statistics: Statistics, method: str = "lda") -> float:
        model = fit_from_statistics(statistics, method)  # type: ignore[arg-type]
        guessed = model.decide_rows(self.test_rows).argmax(axis=1)
        return 100 * float((guessed == self.images.truth).mean())


def _row(name: str, values: list[float], note: str, seed: int) -> Row:
    spread = f"standard deviation {np.std(values):.2f} over {len(values)} seeds; " * (
        len(values) > 1
    )
    return Row(
        id=f"send.{name}",
        value=float(np.mean(values)),
        unit="% right",
        seed=seed,
        note=spread + note,
    )


def _released(images: _Set, name: str, epsilons: tuple[float, ...], seed: int) -> Iterator[Row]:
    for epsilon in epsilons:
        sums = _Sums(images, epsilon)
        vector = sums.exact(slice(None))
        about = (
            f"{len(images.train):,} images, width {sums.layout.width}, "
            f"share of moments {sums.layout.moments:g}"
        )
        noisy = [sums.noisy(vector, [seed, number]) for number in range(_SEEDS)]
        text = f"{epsilon:g}".replace(".", "")
        yield _row(f"{name}_eps{text}", [sums.accuracy(item) for item in noisy], about, seed)
        if epsilon == 1.0:
            yield _row(
                f"{name}_ridge_eps1", [sums.accuracy(item, "ridge") for item in noisy], about, seed
            )
            plain = Statistics.from_sum(vector, sums.layout, sums.basis, sigma=0.0)
            yield _row(f"{name}_without_noise", [sums.accuracy(plain)], about, seed)


def _digits(seed: int) -> Iterator[Row]:
    yield from _released(_digits_set(), "digits", (1.0, 8.0), seed)


def _mnist(seed: int) -> Iterator[Row]:
    yield from _released(_grey_set("mnist"), "mnist", (0.5, 1.0, 2.0, 8.0), seed)


def _cifar(seed: int) -> Iterator[Row]:
    yield from _released(_cifar_set(), "cifar10", (0.5, 1.0, 2.0, 8.0), seed)


def _merged(seed: int) -> Iterator[Row]:
    """Five senders of 10,000 images: each with noise, the noise once in a secure sum, one alone."""
    images = _cifar_set()
    deal = np.random.default_rng(seed).permutation(len(images.train))
    shares = np.array_split(deal, _SENDERS)
    sums = _Sums(images, 1.0, all_images=len(images.train) // 2)
    parts = [sums.exact(np.sort(share)) for share in shares]
    each, once = [], []
    for number in range(_SEEDS):
        noisy = [sums.noisy(part, [seed, number, place]) for place, part in enumerate(parts)]
        each.append(sums.accuracy(merge_statistics(noisy)))
        once.append(sums.accuracy(sums.noisy(np.sum(parts, axis=0), [seed, number])))
    about = f"10,000 images each, width {sums.layout.width}"
    yield _row("merged_5_senders_cifar10_eps1", each, f"every sender adds noise; {about}", seed)
    yield _row("merged_5_senders_cifar10_eps1_secure_sum", once, f"noise once; {about}", seed)
    alone = _Sums(images.part(np.sort(shares[0])), 1.0)
    vector = alone.exact(slice(None))
    single = [alone.accuracy(alone.noisy(vector, [seed, number])) for number in range(_SEEDS)]
    yield _row("one_of_5_senders_cifar10_eps1", single, "10,000 images alone", seed)


def _people(seed: int) -> Iterator[Row]:
    images = _cifar_set()
    for most in (5, 20):
        # A person has images of one class, which is the worst case of clipping.
        order = np.argsort(images.classes, kind="stable")
        units = np.empty(len(order), np.int64)
        units[order] = np.arange(len(order)) // most
        sums = _Sums(images, 1.0, most=most)
        vector = sums.exact(slice(None), units)
        values = [sums.accuracy(sums.noisy(vector, [seed, number])) for number in range(_SEEDS)]
        yield _row(f"cifar10_person{most}_eps1", values, f"{most} images of one class each", seed)


def _head(seed: int) -> Iterator[Row]:
    images = _cifar_set()
    basis = FeatureBasis.learn(images.public, width=512)
    for epsilon in (1.0, 8.0):
        values = []
        for number in range(_PEER_SEEDS):
            head = PrivateHead(epsilon, classes=images.names, basis=basis, random_state=number)
            head.fit(images.train, images.classes.astype(str))
            values.append(100 * head.score(images.test, images.truth.astype(str)))
        yield _row(f"head_cifar10_eps{epsilon:g}", values, "trained by the owner", seed)


def _dp_sgd(seed: int) -> Iterator[Row]:
    """The usual way: Poisson batches, clipped gradients, priced by Google's dp-accounting."""
    images = _cifar_set()
    basis = FeatureBasis.learn(images.public, width=512)
    X, T = (
        np.c_[basis.rows(part), np.full(len(part), 0.3)] for part in (images.train, images.test)
    )
    steps, rate = 500, 0.1
    for epsilon in (1.0, 8.0):
        noise = _sgd_noise(epsilon, steps, rate)
        values = [
            _sgd(X, images.classes, T, images.truth, noise, steps, rate, [seed, number])
            for number in range(_PEER_SEEDS)
        ]
        about = (
            f"softmax on the same features, {steps} Poisson batches of {rate:g}, noise {noise:.2f}"
        )
        yield _row(f"dp_sgd_cifar10_eps{epsilon:g}", values, about, seed)


def _sgd_noise(epsilon: float, steps: int, rate: float) -> float:
    import dp_accounting

    def event(noise: float) -> dp_accounting.DpEvent:
        batch = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
        return dp_accounting.SelfComposedDpEvent(batch, steps)

    return float(
        dp_accounting.calibrate_dp_mechanism(
            dp_accounting.rdp.RdpAccountant, event, epsilon, DEFAULT_DELTA
        )
    )


def _sgd(
    X: NDArray[np.float64],
    y: Labels,
    test: NDArray[np.float64],
    truth: Labels,
    noise: float,
    steps: int,
    rate: float,
    seed: list[int],
) -> float:
    rng = np.random.default_rng(seed)
    n_classes, clip, size = int(y.max()) + 1, 0.5, rate * len(X)
    weights = np.zeros((n_classes, X.shape[1]))
    velocity = np.zeros_like(weights)
    length = np.linalg.norm(X, axis=1)
    for _ in range(steps):
        batch = np.flatnonzero(rng.random(len(X)) < rate)
        scores = X[batch] @ weights.T
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        residual = powers / powers.sum(axis=1, keepdims=True)
        residual[np.arange(len(batch)), y[batch]] -= 1
        norms = np.linalg.norm(residual, axis=1) * length[batch]
        residual *= np.minimum(1, clip / np.maximum(norms, 1e-12))[:, None]
        gradient = residual.T @ X[batch] + rng.normal(0, noise * clip, weights.shape)
        velocity = 0.9 * velocity + gradient / size
        weights = weights - 4.0 * velocity
    return 100 * float(((test @ weights.T).argmax(axis=1) == truth).mean())


def _prediction(seed: int) -> Iterator[Row]:
    """Predicted against reached accuracy on sets that the rules were not fitted on."""
    predicted, reached, names = [], [], []
    for images in (_digits_set(), _grey_set("fashion-mnist")):
        order = np.random.default_rng(seed).permutation(len(images.train))
        for count in (300, 600, 1_400, 5_000, 20_000):
            if count > len(order):
                continue
            part = images.part(np.sort(order[:count]))
            for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0):
                expected = forecast(count, len(part.names), epsilon=epsilon)
                if expected.refused:
                    continue
                sums = _Sums(part, epsilon)
                vector = sums.exact(slice(None))
                values = [sums.accuracy(sums.noisy(vector, [seed, n])) for n in range(_PEER_SEEDS)]
                predicted.append(100 * expected.accuracy)
                reached.append(float(np.mean(values)))
                names.append(images.name)
    gap = float(np.mean(np.abs(np.array(predicted) - np.array(reached))))
    about = (
        f"accuracy, predicted from public numbers and reached, {len(predicted)} settings of "
        f"{' and '.join(sorted(set(names)))}; mean difference {gap:.1f} points"
    )
    yield Row(
        id="send.prediction_rank_correlation",
        value=float(spearmanr(predicted, reached).statistic),
        unit="rank correlation",
        seed=seed,
        note=about,
    )
