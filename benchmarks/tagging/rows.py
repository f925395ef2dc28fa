"""Tagging: Figures 1 to 5, and mean average precision against the proven epsilon, ours beside the paper's method.

Scenes of digits are always there and carry the room's headline rows; COCO, scene, corel5k and VOC2007 are measured
where they are on the machine. Everything is on frozen features.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row
from benchmarks.tagging.attacks import attack_rows
from benchmarks.tagging.sets import Problem, load_sets, scenes
from blindsight.core import checks
from blindsight.core.errors import MissingDependency
from blindsight.evaluation.multilabel import MultiLabelScores, evaluate, top_k
from blindsight.tagging.codebook import choose_codebook
from blindsight.tagging.label_graph import CountsRelease, LabelGraph, conditional, cooccurrence
from blindsight.tagging.learning import Learned, Recipe, learn
from blindsight.tagging.outputs import (
    CodebookAnswer,
    GaussianScores,
    LaplaceScores,
    Release,
    TopTags,
)

__all__ = ["rows"]

Progress = Callable[[int, int], None]
EPSILONS = (1.0, 2.0, 4.0, 8.0, 10.0, 30.0)
METHODS = ("graded codebook", "set codebook", "top-k", "gaussian", "laplace", "laplace, graph")
_REPEATS = 3
_MANY = 200


def rows(*, quick: bool, seed: int = 0, out: Path, progress: Progress | None = None) -> Iterator[Row]:
    """All rows of the room; figures go to `out` as SVG, every metric of Figures 1 to 5 as JSON."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        checks.optional_module("torch", extra="torch")
    except MissingDependency as error:
        yield Row(id="tagging.skipped.torch", value=0, unit="skipped", note=str(error))
        return
    from benchmarks.tagging.figures import figure_rows

    made = scenes(4_000 if quick else 20_000, seed=seed)
    yield from headline_rows(made, prefix="tagging", quick=quick, seed=seed, out=out)
    yield from attack_rows(quick=quick, seed=seed)
    if quick:
        yield from figure_rows(replace(made, train=made.train[:1500], labels=made.labels[:1500], looks=(4, 6, 8, 10)),
                               seed=seed, out=out, hidden=64)  # fmt: skip
    done = 0
    for problem in load_sets(quick=quick):
        if isinstance(problem, Row):
            yield problem
            continue
        yield from headline_rows(problem, prefix=f"tagging.{problem.name}", quick=quick, seed=seed, out=out)
        if not quick:
            # Hundreds of labels make the graph convolution dear, and a wide one no better.
            wide = problem.labels.shape[1] <= _MANY
            yield from figure_rows(problem, seed=seed, out=out, hidden=512 if wide else 128)
        done += 1
        if progress is not None:
            progress(done, 5)


def headline_rows(problem: Problem, *, prefix: str, quick: bool, seed: int, out: Path) -> Iterator[Row]:
    """Non-private, DP-SGD, and private answers at every epsilon, each from the same private model."""
    hidden, rate = (256, 3e-3) if quick else (1024, 1e-3)
    best = yield from _plain_rows(problem, prefix, seed, hidden, rate)
    for epsilon in (1.0, 2.0):
        start = time.perf_counter()
        private = _learn(problem, seed=seed, training_epsilon=epsilon)
        scores = _evaluate(problem, private)
        note = f"DP-SGD on the head at ε = {epsilon:g} per record, answers without noise; counts at a further ε = 1"
        yield Row(id=f"{prefix}.map_dpsgd_eps{epsilon:g}", value=scores.mAP, unit="mAP", seed=seed,
                  seconds=time.perf_counter() - start, note=note)  # fmt: skip
    yield from _graph_rows(problem, prefix, seed)
    models = {"dpsgd2": private, "ordinary": _learn(problem, seed=seed, **best)}
    for name, learned in models.items():
        curves = _curves(problem, learned, (2.0, 10.0) if quick else EPSILONS, seed=seed)
        yield from _answer_rows(curves, prefix, name, seed)
        yield from _difference_rows(curves, problem, name, seed)
        _plot(curves, problem, out / f"tagging-{problem.name}-{name}.svg", name)


def _plain_rows(
    problem: Problem, prefix: str, seed: int, hidden: int, rate: float
) -> Generator[Row, None, dict[str, Any]]:
    """The ceiling: ML-GCN as published, and both heads in the same public directions as DP-SGD, whichever is best.

    Returns how the best was made.
    """
    options: dict[str, dict[str, Any]] = {"mlgcn": {"hidden": hidden, "learning_rate": rate}}
    if problem.public is not None:
        directions = {"public": problem.public, "public_components": problem.components}
        options["mlgcn_public"] = {**options["mlgcn"], **directions}
        options["linear_public"] = {"head": "linear", "learning_rate": 1e-2, **directions}
    found = {}
    for name, more in options.items():
        start = time.perf_counter()
        made = _learn(problem, seed=seed, private=False, confidence=False, spread=False, **more)
        found[name] = _evaluate(problem, made)
        yield Row(id=f"{prefix}.map_{name}", value=found[name].mAP, unit="mAP", seed=seed,
                  seconds=time.perf_counter() - start, note=f"{len(problem.train):,} records, no privacy")  # fmt: skip
    best = max(found, key=lambda name: found[name].mAP)
    note = f"{problem.name}, no privacy; the best of {', '.join(found)}: {best}"
    yield Row(id=f"{prefix}.map_nonprivate", value=found[best].mAP, unit="mAP", seed=seed, note=note)
    yield Row(id=f"{prefix}.of1_nonprivate", value=found[best].OF1, unit="OF1", seed=seed, note=note)
    return options[best]


def _answer_rows(curves: dict[str, dict[float, MultiLabelScores]], prefix: str, model: str, seed: int) -> Iterator[Row]:
    """One row a method and epsilon; the headline ids are the codebook's and clipped Laplace's at 10, fully private."""
    notes = {"dpsgd2": "training at ε = 2 per record", "ordinary": "ordinary training: answers alone are private"}
    for method, by_epsilon in curves.items():
        for epsilon, scores in by_epsilon.items():
            word = method.replace(", ", "-").replace(" ", "-")
            for metric in ("mAP", "OF1"):
                yield Row(
                    id=f"{prefix}.{model}.{word}.eps{epsilon:g}.{metric}",
                    value=getattr(scores, metric),
                    unit=metric,
                    seed=seed,
                    note=f"proven ε = {epsilon:g} per query; {notes[model]}",
                )
    if model != "dpsgd2":
        return
    ours, theirs = curves["graded codebook"][10.0], curves["laplace"][10.0]
    for metric in ("mAP", "OF1"):
        name, note = metric.lower(), f"ε = 10 per query, {notes[model]}"
        yield Row(id=f"{prefix}.{name}_proven_eps10", value=getattr(ours, metric), unit=metric, seed=seed, note=note)
        yield Row(id=f"{prefix}.{name}_laplace_eps10", value=getattr(theirs, metric), unit=metric, seed=seed,
                  note=f"{note}; best of clipping at 0.3, 1, 3, 5")  # fmt: skip


def _difference_rows(
    curves: dict[str, dict[float, MultiLabelScores]], problem: Problem, model: str, seed: int
) -> Iterator[Row]:
    """Ours less the proven P2, so that the claim can fail: above 0 ours wins."""
    part = "" if model == "dpsgd2" else f"{model}."
    chance = float(problem.truth.mean(axis=0)[problem.truth.any(axis=0)].mean())
    for epsilon, theirs in curves["laplace"].items():
        ours = curves["graded codebook"][epsilon]
        for metric in ("mAP", "OF1"):
            mine, other = getattr(ours, metric), getattr(theirs, metric)
            note = (
                f"{mine:.3f} - {other:.3f}, mean of {_REPEATS} draws; Laplace has its best bound and decision on test"
            )
            if metric == "mAP" and mine < 1.5 * chance + 0.01:
                note += f"; both are near chance ({chance:.3f})"
            yield Row(id=f"tagging.{problem.name}.{part}ours_minus_laplace_eps{epsilon:g}.{metric}", value=mine - other,
                      unit=metric, seed=seed, note=note)  # fmt: skip


def _graph_rows(problem: Problem, prefix: str, seed: int) -> Iterator[Row]:
    """How far the noisy counts move a conditional probability, over labels that occur."""
    exact = conditional(cooccurrence(problem.labels))
    here = problem.labels.sum(axis=0) >= 20
    rng = np.random.default_rng(seed)
    for epsilon in (1.0, 4.0):
        noisy = LabelGraph(CountsRelease(epsilon=epsilon).release(problem.labels, rng=rng)).conditional
        yield Row(
            id=f"{prefix}.graph_error_eps{epsilon:g}",
            value=float(np.abs(noisy - exact)[here][:, here].mean()),
            unit="mean absolute error",
            seed=seed,
            note="conditional probabilities of labels with at least 20 images, from noisy counts",
        )


def _learn(problem: Problem, *, seed: int, hidden: int = 1024, **recipe: Any) -> Learned:
    rng = np.random.default_rng(seed)
    options: dict[str, Any] = {"private": True, "confidence": True, "spread": True, "hidden": hidden}
    if recipe.get("training_epsilon") is not None:
        options |= {"public": problem.public, "public_components": problem.components}
    made = Recipe(**{**options, **recipe})
    return learn(made, problem.train, problem.labels, rng=rng, secret=rng)


def _evaluate(problem: Problem, learned: Learned) -> MultiLabelScores:
    return evaluate(problem.truth, learned.logits(problem.test))


def _curves(
    problem: Problem, learned: Learned, epsilons: tuple[float, ...], *, seed: int
) -> dict[str, dict[float, MultiLabelScores]]:
    logits = learned.logits(problem.test)
    found: dict[str, dict[float, MultiLabelScores]] = {method: {} for method in METHODS}
    for epsilon in epsilons:
        for method in METHODS:
            if learned.n_labels > _MANY and method not in ("graded codebook", "laplace"):
                continue  # the others take minutes there
            if method == "gaussian" and epsilon not in (4.0, 10.0):
                continue  # seconds for every hundred thousand scores
            tried = [
                scores
                for release in _releases(method, epsilon, learned, seed)
                for scores in _measure(release, logits, problem.truth, seed, decide=method in ("laplace", "gaussian"))
            ]
            # The baselines get their best setting on the test data; in earnest that choice would cost privacy.
            found[method][epsilon] = max(tried, key=lambda scores: scores.mAP + scores.OF1)
    return found


def _releases(method: str, epsilon: float, learned: Learned, seed: int) -> list[Release]:
    n = learned.n_labels
    bounds = (0.3, 1.0, 3.0, 5.0) if n <= _MANY else (0.3, 1.0, 3.0)
    if method.endswith("codebook"):
        source = learned.spread if method.startswith("graded") else learned.tree
        assert source is not None  # noqa: S101  (learned above)
        return [CodebookAnswer(epsilon=epsilon, codebook=choose_codebook(source, epsilon=epsilon,
                                                                         rng=np.random.default_rng(seed)))]  # fmt: skip
    if method == "top-k":
        conditionals = learned.graph.conditional
        return [TopTags(epsilon=epsilon, k=k, bound=b, conditional=conditionals) for k in (2, 3) for b in (1.0, 3.0)]
    if method == "gaussian":
        return [GaussianScores(epsilon=epsilon, delta=1e-6, n_labels=n, bound=3.0)]
    if method == "laplace":
        return [LaplaceScores(epsilon=epsilon, n_labels=n, bound=b) for b in bounds]
    return [
        LaplaceScores(epsilon=epsilon, n_labels=n, bound=b, tree=learned.tree, confidence=learned.confidence)
        for b in (1.0, 3.0)
    ]


def _measure(
    release: Release, logits: NDArray[np.float64], truth: NDArray[np.uint8], seed: int, *, decide: bool
) -> list[MultiLabelScores]:
    """The mean over draws; with `decide` also for tags that are the highest scores, as many as images have."""
    usual = max(1, round(float(truth.sum(axis=1).mean())))
    found: list[list[MultiLabelScores]] = [[], []] if decide else [[]]
    for repeat in range(1 if isinstance(release, GaussianScores) else _REPEATS):  # its exact sampler is slow
        rng = np.random.default_rng((seed, repeat))
        answers = release.answer(logits, rng=rng)
        scores = _untied(answers.scores, rng)
        for kept, tags in zip(found, (answers.tags, top_k(answers.scores, usual)), strict=False):
            kept.append(evaluate(truth, scores, decisions=tags))
    return [_mean(kept) for kept in found]


def _untied(scores: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Places instead of scores, ties in random order, for every label.

    Average precision takes tied rows together, and for a rare label that is less than what chance alone gives to
    scores without ties: noise would look better than a codebook that says nothing.
    """
    order = np.lexsort((rng.random(scores.shape), scores), axis=0)
    places = np.empty(scores.shape)
    np.put_along_axis(places, order, np.arange(float(len(scores)))[:, None], axis=0)
    return places


def _mean(scores: list[MultiLabelScores]) -> MultiLabelScores:
    tables = [one.to_dict() for one in scores]
    mean = {name: float(np.mean([table[name] for table in tables])) for name in tables[0]}
    return MultiLabelScores(**{**mean, "labels_counted": scores[0].labels_counted})  # type: ignore[arg-type]


def _plot(curves: dict[str, dict[float, MultiLabelScores]], problem: Problem, path: Path, model: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, metric in zip(figure.subplots(1, 2), ("mAP", "OF1"), strict=True):
        for method, by_epsilon in curves.items():
            if not by_epsilon:
                continue
            axes.plot(list(by_epsilon), [getattr(s, metric) for s in by_epsilon.values()], marker="o", label=method)
        axes.set(xlabel="proven ε per query", ylabel=metric, title=f"{problem.name}, {model}")
        axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.savefig(path, format="svg")
