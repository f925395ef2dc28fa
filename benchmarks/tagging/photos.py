"""What people get on photos: the COCO and VOC2012 subsets, 3,000 photos to train on, 1,500 to test.

No public folder unless a row says so. Features are those of the default encoder, both built-in
networks. Labels that VOC marks as difficult count as absent in training and are left out of a
label's average precision. Settings were chosen on a third of the training photos. Beside the tagger
stand, on the same features, a linear head trained by DP-SGD (Opacus) and noisy class means.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row, race
from benchmarks.tagging.sets import spread_note
from blindsight import data
from blindsight.audit.engine.inference import infer_membership, roc
from blindsight.codebooks.build import build_codebook
from blindsight.codebooks.codebook import own_share
from blindsight.core import storage
from blindsight.core.errors import BlindsightError, MissingData
from blindsight.data import cache_folder
from blindsight.encoders import built_in
from blindsight.evaluation.scores import average_precisions, evaluate
from blindsight.privacy.mechanisms import KaryResponse
from blindsight.privacy.mechanisms.gaussian import gaussian_epsilon
from blindsight.tagging import (
    CodebookAnswers,
    DPTraining,
    Exact,
    Prior,
    PrivateTagger,
    encoder_prior,
)
from blindsight.tagging.answer_codebook import shifted_to
from blindsight.tagging.labels import sigmoid
from blindsight.tagging.training import forecast

__all__ = ["photo_rows", "untied"]

SETS = {"voc": "voc2012-subset", "coco": "coco-subset"}
ENCODER, SMALLER = "both-large", "lite2"
EPSILONS = (1.0, 2.0, 8.0)
FEW = (60, 120, 250, 500, 1000)
DELTA = 1e-5
PAYS = 0.005  # gain in mean average precision from which learning pays
_BATCH = 16
_SHADOWS = 8


@dataclass(frozen=True)
class Photos:
    """Features and labels of one set; `known` is False for labels that are marked as difficult."""

    name: str
    train: NDArray[np.float32]
    labels: NDArray[np.uint8]
    test: NDArray[np.float32]
    truth: NDArray[np.uint8]
    known: NDArray[np.bool_]
    prior: Prior
    classes: tuple[str, ...]

    def score(self, scores: NDArray[np.float64]) -> float:
        """Mean average precision on the test photos."""
        values = [
            average_precisions(self.truth[known][:, [label]], scores[known][:, [label]])[0]
            for label, known in enumerate(self.known.T)
        ]
        return float(np.nanmean(values))

    def fit(self, training: Any, answers: Any = None, **options: Any) -> PrivateTagger:
        """A tagger with the prior, fitted on all training photos."""
        tagger = PrivateTagger(
            training, answers or Exact(), classes=self.classes, prior=self.prior, **options
        )
        return tagger.fit(self.train, self.labels)


def photo_rows(
    *, seeds: tuple[int, ...], progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """All rows about photos, or one that says which set is missing."""
    found: dict[str, Photos] = {}
    for name, stored in SETS.items():
        try:
            found[name] = load_photos(name, stored, ENCODER)
        except (MissingData, BlindsightError) as error:
            yield Row(id=f"tagging.skipped.{stored}", value=0, unit="skipped", note=str(error))
    parts: list[Callable[[Photos], Iterator[Row]]] = [
        lambda photos: _total_rows(photos, seeds),
        lambda photos: _published_rows(photos, None, seeds),
        lambda photos: _baseline_rows(photos, seeds),
        lambda photos: _smaller_rows(photos.name, seeds),
        lambda photos: _published_rows(photos, _other(found, photos), seeds[:2]),
    ]
    for done, part in enumerate(parts):
        for photos in found.values():
            yield from part(photos)
        if done == 1 and found:
            yield from _few_rows(found, seeds)
        if progress is not None:
            progress(done + 1, len(parts) + 1)
    if "voc" in found:
        yield from _membership_rows(found["voc"], seeds[0])
    if "coco" in found:
        yield from _speed_rows(found["coco"])


def _other(found: dict[str, Photos], photos: Photos) -> Photos | None:
    return next((each for each in found.values() if each is not photos), None)


def _few_rows(found: dict[str, Photos], seeds: tuple[int, ...]) -> Iterator[Row]:
    """What training on few photos loses and gains, and whether the forecast knew it."""
    gains = {
        (photos.name, n, epsilon): [_gain(photos, n, epsilon, seed) for seed in seeds]
        for photos in found.values()
        for n in FEW
        for epsilon in EPSILONS
    }
    loss, (name, n, epsilon) = max((-min(each), cell) for cell, each in gains.items())
    yield Row(
        id="tagging.worst_loss_below_free_start",
        value=max(0.0, loss),
        unit="mAP",
        seed=seeds[0],
        note=f"the worst of {len(gains) * len(seeds)} single trainings ({name}, n = {n}, ε = "
        f"{epsilon:g}); n in {FEW}, ε in {EPSILONS}, {len(seeds)} seeds, sets {', '.join(found)}; "
        f"mean gain {np.mean(list(gains.values())):.4f}",
    )
    wrong = [
        f"{name} n = {n} ε = {epsilon:g} ({np.mean(each):+.3f})"
        for (name, n, epsilon), each in gains.items()
        if forecast(DPTraining(epsilon=epsilon, delta=DELTA), n, len(found[name].classes)).pays
        != (np.mean(each) >= PAYS)
    ]
    yield Row(
        id="tagging.forecast_right",
        value=1 - len(wrong) / len(gains),
        unit=f"of {len(gains)} cells",
        seed=seeds[0],
        note=f"whether the mean gain on the free start is at least {PAYS}, said before training; "
        f"wrong: {', '.join(wrong) or 'none'}",
    )


def _gain(photos: Photos, n: int, epsilon: float, seed: int) -> float:
    """How far one training on `n` photos ends above its own free start."""
    some = np.random.default_rng(seed).permutation(len(photos.train))[:n]
    tagger = PrivateTagger(
        DPTraining(epsilon=epsilon, delta=DELTA),
        classes=photos.classes,
        prior=photos.prior,
        random_state=seed,
    ).fit(photos.train[some], photos.labels[some])
    free = photos.score(photos.prior(photos.test))
    return photos.score(tagger.logits(photos.test)) - free


def load_photos(name: str, stored: str, encoder: str) -> Photos:
    """Features of a set, computed once for this machine."""
    whole = data.load(stored)
    train = np.array([str(photo).startswith("train/") for photo in whole.names])
    rows = _features(stored, whole.images, encoder)
    known = np.ones(whole.labels.shape, bool) if whole.known is None else whole.known
    return Photos(
        name,
        rows[train],
        whole.labels[train],
        rows[~train],
        whole.labels[~train],
        known[~train],
        encoder_prior(whole.classes, built_in(encoder)),
        whole.classes,
    )


def _features(stored: str, images: Any, name: str) -> NDArray[np.float32]:
    encoder = built_in(name)
    path = cache_folder() / "features" / f"bench-{stored}-{encoder.name}-unit.safetensors"
    try:
        return np.asarray(storage.load(path, kind="bench-features")[0]["rows"], np.float32)
    except BlindsightError:
        pass
    blocks = [
        encoder.images(
            np.stack([encoder.prepare(images[i]) for i in range(a, min(a + _BATCH, len(images)))])
        )
        for a in range(0, len(images), _BATCH)
    ]
    rows = np.concatenate(blocks)
    storage.save(path, kind="bench-features", arrays={"rows": rows}, fields={})
    return rows


def _total_rows(photos: Photos, seeds: tuple[int, ...]) -> Iterator[Row]:
    free = photos.score(photos.prior(photos.test))
    yield Row(
        id=f"tagging.{photos.name}_map_eps0",
        value=free,
        unit="mAP",
        note="public knowledge only: no private photo, no public folder",
    )
    for epsilon in EPSILONS:
        models = [
            photos.fit(DPTraining(epsilon=epsilon, delta=DELTA), random_state=seed)
            for seed in seeds
        ]
        logits = [model.logits(photos.test) for model in models]
        scores = [photos.score(each) for each in logits]
        note = f"ε = {epsilon:g}, δ = {DELTA:g} per photo in all, no public folder"
        yield Row(
            id=f"tagging.{photos.name}_map_eps{epsilon:g}",
            value=float(np.mean(scores)),
            unit="mAP",
            seed=seeds[0],
            note=f"{note}; {spread_note(scores)}",
        )
        for kind, tags in (
            ("", [model.answer(photos.test).tags for model in models]),
            ("_fixed", [sigmoid(each) > 0.2 for each in logits]),
        ):
            values = [
                evaluate(photos.truth, each, decisions=named).OF1
                for each, named in zip(logits, tags, strict=True)
            ]
            rule = "threshold 0.2" if kind else "quotas from released rates"
            yield Row(
                id=f"tagging.{photos.name}_of1_eps{epsilon:g}{kind}",
                value=float(np.mean(values)),
                unit="OF1",
                seed=seeds[0],
                note=f"{note}; {rule}; {spread_note(values)}",
            )


def _smaller_rows(name: str, seeds: tuple[int, ...]) -> Iterator[Row]:
    """The same with the larger network alone, which takes 60% of the time."""
    photos = load_photos(name, SETS[name], SMALLER)
    for epsilon in (0.0, *EPSILONS):
        models = [
            photos.fit(DPTraining(epsilon=epsilon, delta=DELTA), random_state=seed)
            for seed in (seeds if epsilon else ())
        ]
        scores = [photos.score(model.logits(photos.test)) for model in models]
        scores = scores or [photos.score(photos.prior(photos.test))]
        yield Row(
            id=f"tagging.{name}_map_eps{epsilon:g}_{SMALLER}",
            value=float(np.mean(scores)),
            unit="mAP",
            seed=seeds[0],
            note=f"encoder {SMALLER}, no public folder; {spread_note(scores)}",
        )
    yield from _one_release_rows(photos, seeds[:2])


def _published_rows(photos: Photos, other: Photos | None, seeds: tuple[int, ...]) -> Iterator[Row]:
    """Tags of private photos at epsilon 10 each, training at a total of 2."""
    chance = float(np.nanmean(photos.truth.mean(axis=0)))
    values, named = [], []
    for seed in seeds:
        tagger = photos.fit(
            DPTraining(epsilon=2.0, delta=DELTA),
            CodebookAnswers(10.0),
            public=None if other is None else other.train,
            random_state=seed,
        )
        answers = tagger.answer(photos.test)
        values.append(photos.score(untied(answers.scores, np.random.default_rng(seed))))
        named.append(evaluate(photos.truth, answers.scores, decisions=answers.tags).OF1)
    source = "words from made scenes"
    source += "" if other is None else f" and from {other.name}'s photos as a public folder"
    yield Row(
        id=f"tagging.published_map_{photos.name}_eps10{'' if other is None else '_public'}",
        value=float(np.mean(values)),
        unit="mAP",
        seed=seeds[0],
        note=f"training at ε = 2, {source}; OF1 {np.mean(named):.3f}; label rates alone "
        f"{chance:.3f}; {spread_note(values)}",
    )


def _one_release_rows(photos: Photos, seeds: tuple[int, ...]) -> Iterator[Row]:
    """One release per photo for tags and search: the cells of search, read as tags.

    The tags of a cell are the mean answer of the model about made scenes that lie in it.
    """
    book = build_codebook(built_in(SMALLER), 10.0)
    values = []
    for seed in seeds:
        tagger = photos.fit(DPTraining(epsilon=2.0, delta=DELTA), random_state=seed)
        rates, rng = sigmoid(tagger.offset_), np.random.default_rng(seed)
        scenes = photos.prior.scenes(rates, tagger.released_["centre"], 20_000, rng=rng)
        assert scenes is not None  # noqa: S101  (built-in networks have things)
        answers = sigmoid(shifted_to(tagger.logits(scenes), rates))
        cells = book.assign(scenes.astype(np.float32))
        counts = np.bincount(cells, minlength=book.k)
        sums = np.zeros((book.k, len(rates)))
        np.add.at(sums, cells, answers)
        usual = answers.mean(axis=0)
        words = (sums + usual) / (counts + 1)[:, None]
        noise = KaryResponse(epsilon=10.0, k=book.k, unit="query")
        released = noise.release(book.assign(photos.test), rng=rng)
        own = own_share(counts / counts.sum(), truth=noise.truth_probability, k=book.k)
        scores = own[released, None] * words[released] + (1 - own[released, None]) * usual
        values.append(photos.score(untied(scores, rng)))
    yield Row(
        id=f"tagging.published_map_{photos.name}_eps10_search_cells",
        value=float(np.mean(values)),
        unit="mAP",
        seed=seeds[0],
        note=f"encoder {SMALLER}, the {book.k} cells of search serve tags, too; "
        f"{spread_note(values)}",
    )


def _baseline_rows(photos: Photos, seeds: tuple[int, ...]) -> Iterator[Row]:
    for epsilon in EPSILONS:
        means = [photos.score(_class_means(photos, epsilon, seed)) for seed in seeds]
        yield Row(
            id=f"tagging.{photos.name}_map_eps{epsilon:g}_class_means",
            value=float(np.mean(means)),
            unit="mAP",
            peer="noisy class means",
            seed=seeds[0],
            note="Gaussian noise on the sum of each label's vectors, the centre for nothing; "
            f"{spread_note(means)}",
        )
        linear = [photos.score(_dpsgd(photos, epsilon, seed)) for seed in seeds]
        rate, epochs, batch = _DPSGD[epsilon]
        yield Row(
            id=f"tagging.{photos.name}_map_eps{epsilon:g}_dpsgd",
            value=float(np.mean(linear)),
            unit="mAP",
            peer="Opacus, linear head by DP-SGD",
            seed=seeds[0],
            note=f"batches of {batch}, {epochs} epochs, step {rate:g}, clipping 1, the centre for "
            f"nothing; {spread_note(linear)}",
        )


def _mu(epsilon: float) -> float:
    """The mu of Gaussian privacy that epsilon is worth at DELTA."""
    from scipy.optimize import brentq

    return float(brentq(lambda mu: gaussian_epsilon(mu, DELTA) - epsilon, 1e-3, 20.0))


def _class_means(photos: Photos, epsilon: float, seed: int) -> NDArray[np.float64]:
    """Product with each label's noisy sum of centred vectors.

    Average precision ranks photos label by label, so neither counts nor lengths are needed.
    """
    rng, centre = np.random.default_rng(seed), photos.train.mean(axis=0)  # given for nothing
    rows = photos.train.astype(np.float64) - centre
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    shares = photos.labels / np.maximum(np.linalg.norm(photos.labels, axis=1, keepdims=True), 1.0)
    sums = shares.T @ rows
    sums += rng.normal(size=sums.shape) / _mu(epsilon)
    return np.asarray((photos.test - centre) @ sums.T)


def _dpsgd(photos: Photos, epsilon: float, seed: int) -> NDArray[np.float64]:
    """Scores of a linear head that Opacus trained, with ghost clipping, which is as exact."""
    import torch
    from opacus import PrivacyEngine

    class SummedLoss(torch.nn.Module):  # type: ignore[misc]  # torch says no types
        """Binary cross-entropy, summed over labels; Opacus sets `reduction` to "none" for norms."""

        reduction = "mean"

        def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            losses = torch.nn.functional.binary_cross_entropy_with_logits(
                scores, labels, reduction="none"
            ).sum(dim=1)
            return losses if self.reduction == "none" else losses.mean()

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    rate, epochs, batch = _DPSGD[epsilon]
    centre = photos.train.mean(axis=0)  # without noise: the baseline gets it for nothing
    rows = torch.from_numpy(photos.train - centre)
    labels = torch.from_numpy(photos.labels.astype(np.float32))
    head = torch.nn.Linear(rows.shape[1], labels.shape[1])
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.constant_(head.bias, -3.0)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(rows, labels), batch_size=batch
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        head, optimiser, loss, loader = PrivacyEngine().make_private_with_epsilon(
            module=head,
            optimizer=torch.optim.SGD(head.parameters(), lr=rate, momentum=0.9),
            criterion=SummedLoss(),
            data_loader=loader,
            target_epsilon=epsilon,
            target_delta=DELTA,
            epochs=epochs,
            max_grad_norm=1.0,
            grad_sample_mode="ghost",
        )
        for _ in range(epochs):
            for x, y in loader:
                optimiser.zero_grad()
                loss(head(x), y).backward()
                optimiser.step()
    with torch.no_grad():
        scores = head(torch.from_numpy(photos.test - centre))
    return np.asarray(scores.numpy(), np.float64)


# Step size, epochs and batch by epsilon: the best of fourteen on a third of the training photos of
# both sets together.
_DPSGD = {1.0: (0.5, 40, 1000), 2.0: (0.5, 40, 1000), 8.0: (1.0, 40, 1000)}


def _membership_rows(photos: Photos, seed: int) -> Iterator[Row]:
    """LiRA on the shipped recipe: shadow models on random halves of 1,000 photos."""
    rows, labels = photos.train[:1000], photos.labels[:1000]
    on = labels > 0

    def train(included: NDArray[np.bool_], rng: np.random.Generator) -> PrivateTagger:
        tagger = PrivateTagger(
            DPTraining(epsilon=epsilon, delta=DELTA),
            classes=photos.classes,
            prior=photos.prior,
            random_state=int(rng.integers(1 << 31)),
        )
        return tagger.fit(rows[included], labels[included], n_records=500)

    def score(model: PrivateTagger) -> NDArray[np.float64]:
        logits = model.logits(rows)
        likelihood = np.where(on, -np.logaddexp(0, -logits), -np.logaddexp(0, logits))
        return np.asarray(likelihood.sum(axis=1))

    for epsilon in (2.0, 8.0):
        found = infer_membership(
            train, score, records=len(rows), shadows=_SHADOWS, seed=seed, delta=DELTA
        )
        fpr, tpr = roc(found.scores, found.included)
        yield Row(
            id=f"tagging.lira_eps{epsilon:g}",
            value=found.audited.epsilon,
            unit="audited ε, 95%",
            seed=seed,
            note=f"proven ε = {epsilon:g}; {_SHADOWS} shadow models, AUC {found.auc:.3f}, "
            f"true positives at 1% false {tpr[fpr <= 0.01].max():.3f}",
        )


def _speed_rows(photos: Photos) -> Iterator[Row]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    seen = photos.labels.any(axis=0) & ~photos.labels.all(axis=0)
    peer = OneVsRestClassifier(LogisticRegression(max_iter=200))
    result = race(
        lambda: photos.fit(DPTraining(), random_state=0),
        lambda: peer.fit(photos.train, photos.labels[:, seen]),
        repeats=1,
        clock=time.process_time,
    )
    yield Row(
        id="tagging.coco_fit_vs_logistic_regression",
        value=result.ratio,
        unit="times as fast",
        peer="scikit-learn, one-vs-rest logistic regression",
        seconds=result.ours_seconds,
        note="CPU time of one private fit; above 0.2 is within five times",
    )
    tagger = photos.fit(DPTraining(steps=2), random_state=0)
    for name, together in (("coco_answer_ms", 1000), ("coco_answer_alone_ms", 1)):
        asked = photos.test[:together]
        tagger.answer(asked)
        start, calls = time.process_time(), max(3, 1000 // together)
        for _ in range(calls):
            tagger.answer(asked)
        each = 1000 * (time.process_time() - start) / (calls * len(asked))
        yield Row(
            id=f"tagging.{name}",
            value=each,
            unit="ms CPU per row",
            note=f"{len(asked):,} rows per call",
        )


def untied(scores: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Places instead of scores, ties in random order, for every label.

    Average precision takes tied rows together, and for a rare label that is less than what chance
    alone gives to scores without ties: noise would look better than a codebook that says nothing.
    """
    order = np.lexsort((rng.random(scores.shape), scores), axis=0)
    places = np.empty(scores.shape)
    np.put_along_axis(places, order, np.arange(float(len(scores)))[:, None], axis=0)
    return places
