"""Cost against size over three decades for the six things that grow: drawn, with the exponent; then
a sized plan.

CPU seconds of this process, not wall time, so that a busy machine disturbs little; one thread. The
exponent is the slope in log-log over the upper two decades: below them it is set-up that is
measured, not growth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.growth import sizing
from benchmarks.harness import Row
from benchmarks.metric.kappa import random_graph

__all__ = ["CONTROL", "SUBJECTS", "Subject", "cpu_seconds", "exponent", "rows"]

Work = Callable[[], Any]


@dataclass(frozen=True)
class Subject:
    """One thing that grows: its name, what is counted, the sizes, how to prepare the work of a
    size, a remark.
    """

    name: str
    counted: str
    sizes: tuple[int, ...]
    prepare: Callable[[int, int], Work]
    remark: str = ""


def rows(
    *, quick: bool, seed: int = 0, out: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Row]:
    """`growth.WHAT.SIZE` in CPU seconds, `growth.WHAT_exponent`, the rates and the plan that follow
    from them.
    """
    step = progress or (lambda done, total: None)
    subjects = (*SUBJECTS, CONTROL)
    total = sum(len(subject.sizes) for subject in subjects) + 1
    made: list[Row] = []
    curves: list[tuple[Subject, list[float], float]] = []
    for subject in subjects:
        seconds = []
        for size in subject.sizes:
            step(len(made), total)
            seconds.append(cpu_seconds(subject.prepare(size, seed), repeats=3 if quick else 7))
            made.append(
                Row(
                    id=f"growth.{subject.name}.{size}",
                    value=seconds[-1],
                    unit="CPU s",
                    seed=seed,
                    note=f"{size:,} {subject.counted}",
                )
            )
            yield made[-1]
        slope = exponent(subject.sizes, seconds)
        curves.append((subject, seconds, slope))
        yield Row(
            id=f"growth.{subject.name}_exponent",
            value=slope,
            unit="exponent (1 is linear)",
            seed=seed,
            note=f"{subject.sizes[-3]:,} to {subject.sizes[-1]:,} {subject.counted}{subject.remark}",  # noqa: E501
        )
    _draw(curves[: len(SUBJECTS)], out)
    for row in sizing.rate_rows(quick=quick, seed=seed):
        made.append(row)
        yield row
    yield from sizing.plan({row.id: row.value for row in made})
    step(total, total)


def cpu_seconds(work: Work, *, repeats: int = 3) -> float:
    """The least CPU time of one call: what it costs when nothing else is in the way.

    Short work is run many times.
    """
    start = time.process_time()
    work()
    once = time.process_time() - start
    many = max(1, int(0.02 / max(once, 1e-6)))
    if once > 2.0:  # long enough to be its own mean
        return once
    least = once
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(many):
            work()
        least = min(least, (time.process_time() - start) / many)
    return least


def exponent(sizes: tuple[int, ...], seconds: list[float]) -> float:
    """The slope of log time by log size over the last three sizes."""
    return float(np.polyfit(np.log(sizes[-3:]), np.log(seconds[-3:]), 1)[0])


def _sketching(size: int, seed: int) -> Work:
    from blindsight.sketching import NegativeSketcher

    images = np.random.default_rng(seed).integers(0, 256, (size, 28, 28), dtype=np.uint8)
    sketcher = NegativeSketcher("Q3", n_jobs=1).fit(images[:1])
    sketcher.transform(images[:1])
    return lambda: sketcher.transform(images)


def _hashing(size: int, seed: int) -> Work:
    from blindsight.hashing import ITQ, PHashing

    vectors = np.random.default_rng(seed).normal(size=(1000, 128))
    hasher = PHashing(ITQ(64, random_state=seed), epsilon=8.0, learned_from="public").fit(vectors)
    batches = [vectors[: min(1000, size)]] * max(1, size // 1000)
    return lambda: [hasher.transform(batch) for batch in batches]


def _search(size: int, seed: int) -> Work:
    from blindsight.index import HammingIndex

    rng = np.random.default_rng(seed)
    index = HammingIndex(64)
    index.add(rng.integers(0, 256, (size, 8), dtype=np.uint8))
    queries = rng.integers(0, 256, (sizing.QUERIES, 8), dtype=np.uint8)
    index.search(queries, 10)
    return lambda: index.search(queries, 10)


def _kappa(size: int, seed: int) -> Work:
    from blindsight.metric import PairGraph, kappa

    kappa(random_graph(100), "bound")  # compile
    graph = random_graph(size, seed=seed)
    # Anew each time: the adjacency is part of the work.
    return lambda: kappa(
        PairGraph(graph.n_nodes, graph.edges, graph.similar, graph.transitive), "bound"
    )


def _kappa_near(size: int, seed: int) -> Work:
    """As many pairs of as many nodes as `_kappa`, but of neighbouring numbers, so that memory is
    read in order.
    """
    from blindsight.metric import PairGraph, kappa

    rng = np.random.default_rng(seed)
    nodes = size // 2
    first = np.sort(
        rng.integers(0, nodes - 8, int(1.15 * size))
    )  # some pairs come twice and count once
    pairs = np.stack([first, first + rng.integers(1, 8, len(first))], axis=1)
    graph = PairGraph.from_pairs(pairs, np.ones(len(pairs)), n_nodes=nodes)
    return lambda: kappa(
        PairGraph(graph.n_nodes, graph.edges, graph.similar, graph.transitive), "bound"
    )


def _encryption(size: int, seed: int) -> Work:
    update = np.random.default_rng(seed).uniform(-1, 1, size)
    federation = sizing.federation(dimension=size)
    federation.contribute(1, update)
    return lambda: federation.contribute(1, update)


def _audit(size: int, seed: int) -> Work:
    from blindsight.audit.engine.blackbox import distinguish
    from blindsight.privacy.mechanisms import Laplace

    noise = Laplace.calibrate(1.0, sensitivity=1.0, unit="record")

    def run(x: Any, rng: Any) -> Any:
        return noise.release(x, rng=rng)

    return lambda: distinguish(run, np.zeros(1), np.ones(1), trials=size, seed=seed)


SUBJECTS = (
    Subject("sketching", "images of 28 x 28 to sketches", (10, 100, 1000, 10_000), _sketching),
    Subject(
        "hashing",
        "feature vectors to released 64-bit codes",
        (100, 1000, 10_000, 100_000),
        _hashing,
    ),
    Subject(
        "search",
        f"codes searched by {sizing.QUERIES} queries",
        (1000, 10_000, 100_000, 1_000_000),
        _search,
    ),
    Subject(
        "kappa",
        "pairs, kappa'",
        (1000, 10_000, 100_000, 1_000_000),
        _kappa,
        "; a large random graph outgrows the cache: compare kappa_near",
    ),
    Subject(
        "encryption", "weights of an update, 2048 bits", (100, 1000, 10_000, 100_000), _encryption
    ),
    Subject(
        "audit",
        "trials of a black-box audit",
        (100, 1000, 10_000, 100_000),
        _audit,
        "; choosing the event takes a time of its own, nearly fixed, which still shows",
    ),
)
# The same work with memory read in order: what is left of the exponent is the algorithm's.
CONTROL = Subject(
    "kappa_near", "pairs of near nodes, kappa'", (1000, 10_000, 100_000, 1_000_000), _kappa_near
)


def _draw(curves: list[tuple[Subject, list[float], float]], out: Path) -> None:
    """Six small panels, log-log, each with its exponent."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.4), layout="constrained")
    FigureCanvasSVG(figure)
    for axes, (subject, seconds, slope) in zip(figure.subplots(2, 3).flat, curves, strict=True):
        axes.loglog(subject.sizes, seconds, "o-", color="#2b6cb0")
        linear = [seconds[-1] * size / subject.sizes[-1] for size in subject.sizes]
        axes.loglog(subject.sizes, linear, ":", color="#888888", label="linear")
        axes.set_title(f"{subject.name}: size^{slope:.2f}", fontsize=10)
        axes.set_xlabel(subject.counted, fontsize=8)
        axes.set_ylabel("CPU seconds", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.legend(fontsize=7, frameon=False)
    figure.savefig(out / "growth.svg", metadata={"Date": None})
