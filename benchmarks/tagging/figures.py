"""Figures 1 to 5 of the paper, on the sets at hand: the paper's method to the letter, measured as
it is used.

A model is trained with the paper's loss (noise of scale S_b S/ε on training outputs, drawn at the
door as `P2MLGCN` draws it) and asked with the same noise on its answers, over several seeds.
Figures 1 to 4 and the corollaries of Figure 5 are there for the sensitivity of the authors'
published code, S = 1 (rows with `S1`), and for that of the text, the number of labels. λ weighs
against the sum over the records (λ/N against the mean loss). What the paper's order claims, and
whether it comes out in the mean, are rows of their own (value 1 or 0). The JSON file holds every
metric with the half width of its 95% interval, top-3 both as we count it (exactly three tags) and
as the authors do (only scores above 0, `3passing`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row
from benchmarks.tagging.baselines import FeatureNoise, noisy_weights
from benchmarks.tagging.published import METRICS, paper_numbers
from benchmarks.tagging.sets import Problem, half_width, spread_note
from blindsight.evaluation.scores import decision_scores, evaluate, top_k
from blindsight.privacy.door import Door
from blindsight.tagging import DPTraining, GraphHead, PrivateTagger
from blindsight.tagging.gcn import MLGCN, TaggingLoss, classifier_array, train
from blindsight.tagging.paper import (
    OUTPUTS,
    PaperInputs,
    PaperLaplace,
    Penalty,
    Schedule,
    of_printed_training,
)

__all__ = ["claim_rows", "figure_rows", "rp2_rows"]

Sensitivity = Literal["C", "1"]
_SHOWN = ("mAP", "OP", "OF1", "CF1")
_BOTH: tuple[Sensitivity, ...] = ("C", "1")


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """One model of the paper."""

    epsilon: float | None = None
    sensitivity: Sensitivity = "C"
    bound_factor: float = 1.0
    robust: float = 0.0
    penalty: Penalty = "ridge"
    floor: float | None = None
    ceiling: float | None = None
    weight_ceiling: float | None = None
    weight_floor: float | None = None

    def release(self, n_labels: int) -> PaperLaplace | None:
        """Its noise."""
        if self.epsilon is None:
            return None
        return PaperLaplace(
            epsilon=self.epsilon,
            n_labels=n_labels,
            sensitivity=self.sensitivity,
            bound_factor=self.bound_factor,
        )


@dataclass
class _Bench:
    """One set, and every result so far."""

    problem: Problem
    seeds: tuple[int, ...]
    hidden: int
    results: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    runs: dict[tuple[_Setting, int, int], dict[int, dict[str, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.paper = paper_numbers("MS-COCO" if self.problem.name.startswith("coco") else "Voc2007")

    @property
    def last(self) -> int:
        """The epoch at which models are compared."""
        return self.problem.compared or self.problem.looks[2]

    def head(self, rng: np.random.Generator, **bounds: Any) -> MLGCN:
        """A fresh ML-GCN on the exact label graph, as the paper has it."""
        made = GraphHead(hidden=self.hidden, label_vectors=self.problem.vectors)
        problem = self.problem
        built: MLGCN = made.build(problem.labels, problem.train.shape[1], rng=rng, **bounds)
        return built

    def at_last(self, setting: _Setting) -> list[dict[str, float]]:
        """The scores where models are compared, one table per seed."""
        return [self.run(setting, seed, (self.last,))[self.last] for seed in self.seeds]

    def run(
        self, setting: _Setting, seed: int, looks: tuple[int, ...]
    ) -> dict[int, dict[str, float]]:
        """The scores after each epoch in `looks`, the last of which ends training."""
        # The figures share settings (Figure 4's P2 is Figure 3's S_b = 1): what was trained once is
        # not trained again.
        if (setting, seed, looks[-1]) in self.runs:
            return self.runs[setting, seed, looks[-1]]
        rng, problem, schedule = np.random.default_rng(seed), self.problem, Schedule(looks[-1])
        inputs, release = (
            PaperInputs(setting.floor, setting.ceiling),
            setting.release(problem.labels.shape[1]),
        )
        asked, found = inputs(problem.test), {}

        def look(epoch: int, head: MLGCN) -> None:
            if epoch in looks:
                logits = (asked @ classifier_array(head).T).astype(np.float64)
                if release is not None:
                    logits = release.answer(logits, rng=np.random.default_rng(seed)).scores
                found[epoch] = _scores(problem.truth, logits)

        perturb = None
        if release is not None:
            steps = schedule.steps(len(problem.train))
            promised = of_printed_training(release, steps, claimed=None, entropy="seed")
            door = Door(promised, what="training outputs", random_state=seed)
            perturb = lambda outputs: door.release(OUTPUTS, outputs)  # noqa: E731
        head = self.head(
            rng, weight_ceiling=setting.weight_ceiling, weight_floor=setting.weight_floor
        )
        loss = TaggingLoss.of(setting.robust, setting.penalty, n_records=len(problem.train))
        rows = inputs(problem.train)
        train(head, rows, problem.labels, loss, schedule, rng=rng, perturb=perturb, on_epoch=look)
        self.runs[setting, seed, looks[-1]] = found
        return found

    @property
    def means(self) -> dict[str, float]:
        """Every metric's mean over the seeds, by the name of its row."""
        return {
            f"tagging.{figure}.{self.problem.name}.{setting}.{metric}": float(np.mean(values))
            for name, metrics in self.results.items()
            for figure, setting in (name.split(".", 1),)
            for metric, values in metrics.items()
        }

    def rows(
        self, name: str, tables: list[dict[str, float]], paper_of: str | None = None
    ) -> Iterator[Row]:
        """Rows of mAP and the paper's metrics, means over seeds, beside the authors' own numbers
        where there are any.
        """
        figure, setting = name.split(".", 1)
        self.results[name] = {metric: [table[metric] for table in tables] for metric in tables[0]}
        stated = self.paper.get(f"{figure}.{paper_of or setting}", {})
        for metric in ("mAP", *METRICS):
            values = self.results[name][metric]
            beside: float | str | None = stated.get(metric)
            if beside is not None and (
                figure in ("fig3a", "fig3b") or not self.problem.name.startswith("coco")
            ):
                beside = beside if self.problem.name == "voc2007" else f"{beside} (VOC2007)"
            yield Row(
                id=f"tagging.{figure}.{self.problem.name}.{setting}.{metric}",
                value=float(np.mean(values)),
                unit=metric,
                paper=beside,
                seed=self.seeds[0],
                note=spread_note(values),
            )


def _scores(truth: NDArray[np.uint8], scores: NDArray[np.float64]) -> dict[str, float]:
    """All metrics, and top-3 as the authors count it: of the three highest, those above the
    threshold.
    """
    passing = decision_scores(truth, top_k(scores, 3) & (scores > 0))
    return {
        **evaluate(truth, scores).to_dict(),
        **{f"{name}3passing": v for name, v in passing.items()},
    }


def _mean(tables: list[dict[str, float]], metric: str) -> float:
    return float(np.mean([table[metric] for table in tables]))


def rp2_rows(problem: Problem, *, seeds: tuple[int, ...], hidden: int) -> Iterator[Row]:
    """RP2 less P2 at λ = 0.5 and ε = 10 for both S, and R-ML-GCN less ML-GCN, seed by seed."""
    yield from _differences(_Bench(problem, seeds, hidden))


def _differences(bench: _Bench) -> Iterator[Row]:
    pairs: dict[str, dict[str, Any]] = {
        "rp2_minus_p2": {"epsilon": 10.0, "sensitivity": "1"},
        "rp2_minus_p2.SC": {"epsilon": 10.0, "sensitivity": "C"},
        "r_minus_mlgcn": {},
    }
    for name, settings in pairs.items():
        plain = bench.at_last(_Setting(**settings))
        robust = bench.at_last(_Setting(robust=0.5, **settings))
        first, *rest = name.split(".")
        for metric in _SHOWN:
            both = [(one[metric], two[metric]) for one, two in zip(plain, robust, strict=True)]
            gains = [two - one for one, two in both]
            means = np.mean(both, axis=0)
            note = f"{means[1]:.3f} - {means[0]:.3f}; {spread_note(gains)}"
            yield Row(
                id=".".join((f"tagging.{first}_{metric.lower()}", *rest, bench.problem.name)),
                value=float(np.mean(gains)),
                unit=metric,
                seed=bench.seeds[0],
                note=note,
            )


def figure_rows(
    problem: Problem, *, seeds: tuple[int, ...], out: Path, hidden: int
) -> Iterator[Row]:
    """All five figures on one set, and what `rp2_rows` gives."""
    from benchmarks.tagging.plots import plot_figures

    bench = _Bench(problem, seeds, hidden)
    for part in (_differences, _figures_1_2, _figure_3, _figure_4, _figure_5):
        yield from part(bench)
        # Written as it grows: a run that is stopped keeps what it has.
        whole = {
            name: {
                m: {"mean": float(np.mean(v)), "within": half_width(v)} for m, v in metrics.items()
            }
            for name, metrics in bench.results.items()
        }
        plot_figures(whole, problem, out / f"tagging-figures-{problem.name}.svg")
        (out / f"tagging-figures-{problem.name}.json").write_text(json.dumps(whole, indent=1))


def _word(sensitivity: Sensitivity) -> str:
    return "" if sensitivity == "C" else "S1."


def _figures_1_2(bench: _Bench) -> Iterator[Row]:
    """ML-GCN and P2-ML-GCN at epsilon 8, 10, 30, after growing numbers of epochs."""
    figure, looks = "fig2" if bench.problem.name.startswith("coco") else "fig1", bench.problem.looks

    def runs(setting: _Setting) -> dict[int, list[dict[str, float]]]:
        each = [bench.run(setting, seed, looks) for seed in bench.seeds]
        return {epoch: [one[epoch] for one in each] for epoch in looks}

    plain = runs(_Setting())
    for epoch, tables in plain.items():
        yield from bench.rows(f"{figure}.ml-gcn.epoch{epoch}", tables)
    for sensitivity in _BOTH:
        order = []
        for epsilon in (8.0, 10.0, 30.0):
            found = runs(_Setting(epsilon=epsilon, sensitivity=sensitivity))
            order.append(found[bench.last])
            for epoch, tables in found.items():
                name = f"eps{epsilon:g}.epoch{epoch}"
                yield from bench.rows(f"{figure}.p2.S{sensitivity}.{name}", tables, f"p2.{name}")
        yield from _verdicts(
            bench,
            f"{figure}.S{sensitivity}.order",
            [*order, plain[bench.last]],
            "ε 8 < 10 < 30 < ML-GCN",
        )


def _figure_3(bench: _Bench) -> Iterator[Row]:
    """λ from 0.1 to 0.9, and S_b from 0.75 to 1, at epsilon 10."""
    for s in _BOTH:
        for robust in bench.problem.lambdas:
            tables = bench.at_last(_Setting(epsilon=10.0, sensitivity=s, robust=robust))
            yield from bench.rows(f"fig3a.{_word(s)}lambda{robust:g}", tables, f"lambda{robust:g}")
        for factor in bench.problem.bound_factors:
            tables = bench.at_last(_Setting(epsilon=10.0, sensitivity=s, bound_factor=factor))
            yield from bench.rows(f"fig3b.{_word(s)}sb{factor:g}", tables, f"sb{factor:g}")
        yield from claim_rows(bench.means, bench.problem.name, figure="fig3", sensitivity=s)


def _figure_4(bench: _Bench) -> Iterator[Row]:
    """The six models at epsilon 10, λ = 0.5, S_b = 0.8; and λ against the mean loss, which destroys
    the model.
    """
    for s in _BOTH:
        word = _word(s)
        settings = {
            "ml-gcn": _Setting(),
            "r-ml-gcn": _Setting(robust=0.5),
            "p2": _Setting(epsilon=10.0, sensitivity=s),
            "rp2": _Setting(epsilon=10.0, sensitivity=s, robust=0.5),
            "p2-sb": _Setting(epsilon=10.0, sensitivity=s, bound_factor=0.8),
            "rp2-sb": _Setting(epsilon=10.0, sensitivity=s, robust=0.5, bound_factor=0.8),
            "rp2.mean-loss": _Setting(epsilon=10.0, sensitivity=s, robust=0.5, penalty="mean"),
        }
        found = {name: bench.at_last(setting) for name, setting in settings.items()}
        for name, tables in found.items():
            yield from bench.rows(f"fig4.{word}{name}", tables, name)
        for better, worse in (
            ("rp2", "p2"),
            ("p2-sb", "p2"),
            ("rp2-sb", "p2-sb"),
            ("r-ml-gcn", "ml-gcn"),
        ):
            yield from _verdicts(
                bench,
                f"fig4.{word}{better}_above_{worse}",
                [found[worse], found[better]],
                f"{worse} < {better}",
            )


def _figure_5(bench: _Bench) -> Iterator[Row]:
    """Corollaries 1 and 2 against weight noise and input noise, at 1 and 0.1."""
    problem = bench.problem
    for goal in (1.0, 0.1):
        factor = goal / 10.0  # P or Q, at epsilon 10
        word = f"eps{goal:g}"
        for s in _BOTH:
            one = bench.at_last(
                _Setting(epsilon=10.0, sensitivity=s, floor=0.1, weight_ceiling=100 * factor)
            )
            yield from bench.rows(f"fig5.{_word(s)}corollary1.{word}", one, f"corollary1.{word}")
            two = bench.at_last(
                _Setting(epsilon=10.0, sensitivity=s, ceiling=100 * factor, weight_floor=0.1)
            )
            yield from bench.rows(f"fig5.{_word(s)}corollary2.{word}", two, f"corollary2.{word}")
        yield from bench.rows(f"fig5.weights.{word}", _weight_noise(bench, goal))
        proven = []
        for seed in bench.seeds:
            tagger = PrivateTagger(
                DPTraining(epsilon=goal, components=problem.components),
                classes=problem.classes,
                public=problem.public,
                random_state=seed,
            )
            tagger.fit(problem.train, problem.labels)
            proven.append(_scores(problem.truth, tagger.logits(problem.test)))
        yield from bench.rows(f"fig5.weights-proven.{word}", proven)
        for paper in (True, False):
            name = f"features{'' if paper else '-proven'}.{word}"
            yield from bench.rows(f"fig5.{name}", _input_noise(bench, goal, paper=paper))
    for s in _BOTH:
        yield from claim_rows(bench.means, bench.problem.name, figure="fig5", sensitivity=s)


def _weight_noise(bench: _Bench, epsilon: float) -> list[dict[str, float]]:
    """Noise on the weights' updates, as the paper reads [1]."""
    problem, inputs, found = bench.problem, PaperInputs(), []
    for seed in bench.seeds:
        rng = np.random.default_rng(seed)
        head = bench.head(rng)
        rows, schedule = inputs(problem.train), Schedule(bench.last)
        noisy_weights(head, rows, problem.labels, epsilon=epsilon, schedule=schedule, rng=rng)
        logits = (inputs(problem.test) @ classifier_array(head).T).astype(np.float64)
        found.append(_scores(problem.truth, logits))
    return found


def _input_noise(bench: _Bench, epsilon: float, *, paper: bool) -> list[dict[str, float]]:
    """Train and ask on noisy features."""
    problem, inputs, found = bench.problem, PaperInputs(), []
    noise = FeatureNoise(epsilon=epsilon, paper=paper, bound=10.0)
    for seed in bench.seeds:
        rng = np.random.default_rng(seed)
        head = bench.head(rng)
        x = noise.release(inputs(problem.train), rng=rng)
        train(head, x, problem.labels, TaggingLoss(), Schedule(bench.last), rng=rng)
        asked = noise.release(inputs(problem.test), rng=rng)
        found.append(_scores(problem.truth, (asked @ classifier_array(head).T).astype(np.float64)))
    return found


def claim_rows(
    means: dict[str, float], data: str, *, figure: str, sensitivity: Sensitivity
) -> Iterator[Row]:
    """Whether the comparisons that the paper draws from Figures 3 and 5 come out, from the rows of
    the figure: in OP, which is the paper's example, and in mAP, which needs no threshold.

    Parameters:
        means: values by the id of their row, such as the rows of a report.
        data: the set's name in those ids.
        figure: "fig3" or "fig5".
        sensitivity: which S the noise is scaled to.
    """
    word = _word(sensitivity)
    for name, better, worse in _CLAIMS[figure]:
        for metric in ("OP", "mAP"):
            one, other = (
                means.get(f"tagging.{part}.{data}.{'' if plain else word}{setting}.{metric}")
                for part, setting, plain in (better, worse)
            )
            if one is not None and other is not None:
                yield Row(
                    id=f"tagging.{name.replace('.', f'.{word}', 1)}.{metric}.{data}.reproduces",
                    value=float(one > other),
                    unit="1 yes, 0 no",
                    note=f"{metric} of {better[1]} {one:.3f}, of {worse[1]} {other:.3f}, S = "
                    f"{sensitivity}",
                )


# row, what the paper finds better, what worse: each a figure, a setting, and whether the setting
# is the same for every S.
_Side = tuple[str, str, bool]
_CLAIMS: dict[str, tuple[tuple[str, _Side, _Side], ...]] = {
    "fig3": (
        ("fig3a.half_above_least", ("fig3a", "lambda0.5", False), ("fig3a", "lambda0.1", False)),
        ("fig3a.half_above_most", ("fig3a", "lambda0.5", False), ("fig3a", "lambda0.9", False)),
        ("fig3b.bound_above_none", ("fig3b", "sb0.8", False), ("fig3b", "sb1", False)),
    ),
    "fig5": tuple(
        (
            f"fig5.corollary{number}_above_{peer}.{epsilon}",
            ("fig5", f"corollary{number}.{epsilon}", False),
            ("fig5", f"{peer}.{epsilon}", True),
        )
        for epsilon in ("eps1", "eps0.1")
        for number, peer in ((1, "weights"), (2, "features"))
    ),
}


def _verdicts(
    bench: _Bench, name: str, rising: list[list[dict[str, float]]], claim: str
) -> Iterator[Row]:
    """Whether the means rise as the paper says: in mAP, and in OP, which is the paper's own."""
    for metric, word in (("mAP", ""), ("OP", ".OP")):
        means = [_mean(tables, metric) for tables in rising]
        holds = all(one < other for one, other in itertools.pairwise(means))
        yield Row(
            id=f"tagging.{name}{word}.{bench.problem.name}.reproduces",
            value=float(holds),
            unit="1 yes, 0 no",
            seed=bench.seeds[0],
            note=f"{metric}: {claim} {'reproduces' if holds else 'does not reproduce'}: "
            + ", ".join(f"{mean:.4f}" for mean in means),
        )
