"""The metric paper's figures again: the toy (7, 8), mechanisms (10) and parameters (11)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Row
from benchmarks.metric.protocol import BATCH, EPOCHS, LIPSCHITZ, ROWS, Split, measure, method
from blindsight.metric import (
    Contrastive,
    DPPMetric,
    PairGraph,
    RowNoise,
    Steps,
    Trace,
    algorithm1,
    kappa,
    mean_dissimilar_distance,
    spanning_forest,
)
from blindsight.metric.linear import normalised
from blindsight.metric.paper import MendedDML

__all__ = [
    "budgets",
    "canvas",
    "mechanism_rows",
    "parameter_rows",
    "proven_mechanism_rows",
    "start_rows",
    "toy",
    "toy_rows",
]

Floats = NDArray[np.float64]


def canvas(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure that writes SVG and touches no global state of matplotlib."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasSVG(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def budgets(panel: Any, epsilons: tuple[float, ...]) -> None:
    """A logarithmic axis that names the budgets and nothing between them."""
    panel.set_xscale("log")
    panel.minorticks_off()
    panel.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])


def toy(seed: int) -> tuple[Floats, NDArray[np.int64], PairGraph]:
    """Two aligned strips of 100 points; 50 pairs within each class and 50 between, without a
    cycle.
    """
    rng = np.random.default_rng(seed)
    along, across = rng.uniform(0.05, 0.55, 200), rng.normal(0, 0.012, 200)
    classes = np.repeat([0, 1], 100)
    X = np.column_stack(
        [along, 0.2 + 0.1 * classes + across]
    )  # l1 norms below 1, as the paper asks
    drawn = rng.integers(0, 200, (6000, 2))
    drawn = drawn[drawn[:, 0] != drawn[:, 1]]
    kinds = np.where(classes[drawn[:, 0]] != classes[drawn[:, 1]], 2, classes[drawn[:, 0]])
    alike = kinds < 2
    graph = PairGraph.from_pairs(drawn, alike, n_nodes=200)
    graph = graph.subset(spanning_forest(graph, rng=rng))
    ends = classes[graph.edges]
    kinds = np.where(ends[:, 0] != ends[:, 1], 2, ends[:, 0])
    return (
        X,
        classes,
        graph.subset(np.concatenate([np.flatnonzero(kinds == kind)[:50] for kind in range(3)])),
    )


def toy_rows(*, quick: bool, seed: int, out: Path) -> Iterator[Row]:
    """Figures 7 (four panels) and 8 (objective, sensitivity): epsilon 2, m = 1, h = 0.5, |B| = 30,
    T = 10.
    """
    X, classes, graph = toy(seed)
    loss, start, maps, traces = _learn_toy(seed, margin=1.0, scale=1.0)
    _plot_toy(X, classes, maps, traces, out)
    for name, W in maps.items():
        key = name.lower().replace("-", "_")
        yield Row(
            id=f"metric.toy_objective_{key}",
            value=loss.mean(W),
            unit="Eq. 7",
            seed=seed,
            note=f"Figure 7: kappa' = {kappa(graph, 'bound')}, {len(graph)} pairs; before: "
            f"{loss.mean(start):.4f}",
        )
    reduced = np.mean(traces["DPP-S"].sensitivity) / np.mean(traces["DPP"].sensitivity)
    yield Row(
        id="metric.toy_sensitivity_ratio",
        value=float(reduced),
        unit="ratio",
        note="Figure 8b: DPP-S over DPP",
    )
    yield from _toy_order_rows(range(seed, seed + (5 if quick else 20)))


_RUNS = (("NonPriv", None), ("DPP-S", RowNoise(reduced=True)), ("DPP", RowNoise()))
_GAP = 0.1  # between the two strips


def _learn_toy(
    seed: int, *, margin: float, scale: float
) -> tuple[Contrastive, Floats, dict[str, Floats], dict[str, Trace]]:
    """The loss, the first W (normal entries of deviation scale / sqrt 2), and what each of the
    three learns from it.
    """
    X, _, graph = toy(seed)
    differences = X[graph.edges[:, 0]] - X[graph.edges[:, 1]]
    loss = Contrastive(differences, ~graph.similar, margin=margin)
    start = scale * np.random.default_rng(seed).standard_normal((2, 2)) / np.sqrt(2)
    maps, traces = {}, {}
    for name, noise in _RUNS:
        rng = np.random.default_rng(seed + 1)
        traces[name] = Trace()
        maps[name] = algorithm1(
            loss,
            [list(graph.batches(30, rng=rng)) for _ in range(10)],
            n_components=2,
            lipschitz=0.5,
            kappa=kappa(graph, "bound"),
            epsilon=2.0,
            rng=rng,
            noise=noise,
            rule="root",
            start=start,
            trace=traces[name],
        )
    return loss, start, maps, traces


def _toy_order_rows(seeds: range) -> Iterator[Row]:
    """How often Figure 7's order, NonPriv below DPP-S below DPP, comes out: at the printed margin
    of 1, and at the gap of the strips.

    At 1 every dissimilar pair is inside the margin, so that a map that merely grows, as one under
    noise does, lowers the objective: the noisy learners come out below the one without noise.
    """
    for name, margin, scale in (("1", 1.0, 1.0), ("gap", _GAP, 0.3)):
        ends, inside, grown = [], [], []
        for seed in seeds:
            loss, _, maps, _ = _learn_toy(seed, margin=margin, scale=scale)
            ends.append([loss.mean(maps[label]) for label, _ in _RUNS])
            far = loss.differences[loss.dissimilar] @ maps["NonPriv"].T
            inside.append(float(np.mean(np.linalg.norm(far, axis=1) < margin)))
            size = np.linalg.norm
            grown.append(float(size(maps["DPP"]) / size(maps["NonPriv"])))
        order = np.array(ends)
        means = ", ".join(
            f"{label} {value:.4f}"
            for (label, _), value in zip(_RUNS, order.mean(axis=0), strict=True)
        )
        yield Row(
            id=f"metric.toy_order_holds_margin_{name}",
            value=float((np.diff(order, axis=1) > 0).all(axis=1).mean()),
            unit="share of seeds",
            paper=1.0,
            seed=seeds[0],
            note=f"Figures 7, 8 at margin {margin:g}, first W scaled by {scale:g}, {len(seeds)} "
            f"seeds: {means}; {np.mean(inside):.0%} of dissimilar pairs end inside the margin; "
            f"DPP's map is {np.mean(grown):.2f} times as large as NonPriv's",
        )


def _plot_toy(
    X: Floats,
    classes: NDArray[np.int64],
    maps: dict[str, Floats],
    traces: dict[str, Trace],
    out: Path,
) -> None:
    figure, axes = canvas(1, 4, (12, 3))
    order = zip("bcd", ("DPP", "DPP-S", "NonPriv"), strict=True)
    panels = [("(a) raw", X), *((f"({letter}) {name}", X @ maps[name].T) for letter, name in order)]
    for panel, (title, points) in zip(axes[0], panels, strict=True):
        for c, colour in ((0, "#2b6cb0"), (1, "#c05621")):
            panel.scatter(*points[classes == c].T, s=8, c=colour)
        panel.set_title(title, fontsize=9)
        panel.locator_params(nbins=5)
    figure.savefig(out / "metric_figure_7.svg", metadata={"Date": None})
    figure, axes = canvas(1, 2, (9.5, 3))
    for name, trace in traces.items():
        axes[0][0].plot(trace.objective, label=name)
        for r, values in enumerate(np.transpose(trace.sensitivity)) if trace.sensitivity else ():
            axes[0][1].plot(values, label=f"{name}, row {r + 1}")
    for panel, title in zip(axes[0], ("objective (Eq. 7)", "sensitivity"), strict=True):
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("iteration")
        panel.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1))
    figure.savefig(out / "metric_figure_8.svg", metadata={"Date": None})


def _letter_loss(split: Split, ratio: float = 1.0) -> tuple[Contrastive, PairGraph]:
    rows = normalised(split.X, "l1")
    graph = PairGraph.from_pairs(split.pairs, split.similar, n_nodes=len(split.X), transitive=False)
    differences = rows[graph.edges[:, 0]] - rows[graph.edges[:, 1]]
    margin = ratio * mean_dissimilar_distance(differences, ~graph.similar)
    return Contrastive(differences, ~graph.similar, margin=margin), graph


def _curve(loss: Contrastive, graph: PairGraph, seed: int, **changes: Any) -> list[float]:
    """The objective over iterations of Algorithm 1 with the paper's settings, on a sample of the
    pairs for speed.
    """
    rng = np.random.default_rng(seed)
    settings: dict[str, Any] = {
        "n_components": min(ROWS, loss.differences.shape[1]),
        "lipschitz": LIPSCHITZ,
        "kappa": kappa(graph, "bound"),
        "epsilon": 4.0,
        "epochs": 1,
        "rule": "root",
        "batch_size": BATCH,
        **changes,
    }
    size, epochs = settings.pop("batch_size"), settings.pop("epochs")
    batches = [list(graph.batches(size, rng=rng)) for _ in range(epochs)]
    trace = Trace(sample=loss.take(rng.choice(len(loss), min(len(loss), 2000), replace=False)))
    algorithm1(loss, batches, rng=rng, trace=trace, **settings)
    return trace.objective


def mechanism_rows(
    splits: dict[str, Split], *, seed: int, out: Path, epsilon: float = 4.0, seeds: int = 10
) -> Iterator[Row]:
    """Figure 10: the objective over one epoch under each mechanism (and Gaussian noise, Appendix
    C), over seeds.
    """
    figure, axes = canvas(1, len(splits), (4 * len(splits), 3))
    for panel, (name, split) in zip(axes[0], splits.items(), strict=False):
        loss, graph = _letter_loss(split)
        ends: dict[str, list[float]] = {}
        for label, noise in _MECHANISMS:
            curves = [
                _curve(loss, graph, seed + i, noise=noise, epsilon=epsilon) for i in range(seeds)
            ]
            ends[label] = [float(np.mean(curve[-10:])) for curve in curves]
            panel.plot(np.mean(curves, axis=0), label=label)
            low, high = _interval(ends[label])
            yield Row(
                id=f"metric.mechanism_{label.lower().replace('-', '_')}_{name}",
                value=float(np.mean(ends[label])),
                unit="Eq. 7",
                seed=seed,
                note=f"Figure 10: after an epoch at claimed epsilon {epsilon:g}, {seeds} seeds, "
                f"95% {low:.4g} to "
                f"{high:.4g}; at the start {curves[0][0]:.4f}",
            )
        yield _order_row(name, ends, seed)
        panel.set_yscale("log")
        panel.set_title(name, fontsize=9)
        panel.set(xlabel="iteration", ylabel="objective (Eq. 7)")
        panel.legend(fontsize=7)
    figure.savefig(out / "metric_figure_10.svg", metadata={"Date": None})


_MECHANISMS = (
    ("Lap", RowNoise()),
    ("Lap-S", RowNoise(reduced=True)),
    ("SCDF", RowNoise(family="scdf")),
    ("Duchi", RowNoise(family="duchi")),
    ("Gaussian", RowNoise(family="gaussian")),
)


def _interval(values: list[float]) -> tuple[float, float]:
    """A 95% interval of the mean, by Student's t."""
    from scipy.stats import t

    if len(values) < 2:
        return values[0], values[0]
    reach = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values) - reach), float(np.mean(values) + reach)


def _order_row(name: str, ends: dict[str, list[float]], seed: int) -> Row:
    """How often the paper's order, Lap-S below SCDF below Lap below Duchi, holds, and which order
    the means have.
    """
    claimed = ("Lap-S", "SCDF", "Lap", "Duchi")
    runs = np.array([ends[label] for label in claimed])
    parted = []
    for one, other in itertools.pairwise(claimed):
        low, high = _interval((np.array(ends[other]) - np.array(ends[one])).tolist())
        parted.append(f"{other} - {one} {low:.3g} to {high:.3g}")
    found = " < ".join(sorted(claimed, key=lambda label: float(np.mean(ends[label]))))
    return Row(
        id=f"metric.figure10_order_holds_{name}",
        value=float((np.diff(runs, axis=0) > 0).all(axis=0).mean()),
        unit="share of seeds",
        seed=seed,
        paper=1.0,
        note=f"means: {found}; 95% of the differences on equal seeds: {', '.join(parted)}",
    )


def _ends(
    loss: Contrastive, graph: PairGraph, seeds: range, scale: float, changes: dict[str, Any]
) -> list[float]:
    """Where the objective ends from a first W of normal entries of deviation `scale`, per seed."""
    shape = (min(ROWS, loss.differences.shape[1]), loss.differences.shape[1])
    found = []
    for number in seeds:
        start = scale * np.random.default_rng(100 + number).standard_normal(shape)
        curve = _curve(loss, graph, number, start=start, **changes)
        found.append(float(np.mean(curve[-10:])))
    return found


def start_rows(splits: dict[str, Split], *, seed: int, seeds: int = 5) -> Iterator[Row]:
    """Figures 10 and 11 again from a larger first W, which the paper only calls random: normal
    entries of deviation 1 (and 3 for Figure 11) in place of 1/sqrt(d).
    """
    numbers = range(seed, seed + seeds)
    for name, split in splits.items():
        loss, graph = _letter_loss(split)
        kinds = {
            label: _ends(loss, graph, numbers, 1.0, {"noise": noise})
            for label, noise in _MECHANISMS[:3]
        }
        kinds["none"] = _ends(loss, graph, numbers, 1.0, {"noise": None})
        for first, second in (("Lap-S", "Lap"), ("SCDF", "Lap"), ("Lap-S", "SCDF")):
            gain = np.array(kinds[second]) - np.array(kinds[first])
            low, high = _interval(gain.tolist())
            word = f"{first}_below_{second}".lower().replace("-", "_")
            yield Row(
                id=f"metric.figure10_unit_start_{word}_{name}",
                value=float(np.mean(gain > 0)),
                unit="share of seeds",
                paper=1.0,
                seed=seed,
                note=f"first W of deviation 1, {seeds} seeds: {np.mean(kinds[first]):.4f} against "
                f"{np.mean(kinds[second]):.4f}, 95% of the difference {low:.3g} to {high:.3g}; "
                f"without noise {np.mean(kinds['none']):.4f}",
            )
        if name != "bank":
            continue
        for scale in (1.0, 3.0):
            for parameter, argument, values, best in (
                ("h", "lipschitz", (0.1, 0.5, 1.0, 2.0), 0.5),
                ("batch", "batch_size", (10, 50, 100, 200), 50),
            ):
                common = {"noise": RowNoise(), "epochs": EPOCHS}
                means = {
                    value: float(
                        np.mean(_ends(loss, graph, numbers, scale, {**common, argument: value}))
                    )
                    for value in values
                }
                least = min(means, key=lambda value: means[value])
                listed = ", ".join(f"{value:g}: {mean:.4f}" for value, mean in means.items())
                yield Row(
                    id=f"metric.figure11_best_{parameter}_start_{scale:g}",
                    value=float(least),
                    unit=parameter,
                    paper=float(best),
                    seed=seed,
                    note=f"least objective, first W of deviation {scale:g}, {seeds} seeds, "
                    f"claimed epsilon 4: {listed}",
                )


def parameter_rows(split: Split, *, quick: bool, seed: int, out: Path) -> Iterator[Row]:
    """Figure 11 on Bank: h and |B| by objective (epsilon 4, T = 3), rho and d' by accuracy
    (non-private).
    """
    loss, graph = _letter_loss(split)
    epochs = 1 if quick else EPOCHS
    figure, axes = canvas(1, 4, (14, 3))
    for column, parameter, values in (
        (0, "h", (0.1, 0.5, 1.0, 2.0)),
        (1, "batch", (10, 50, 100, 200)),
    ):
        for value in values:
            change = {"lipschitz": value} if parameter == "h" else {"batch_size": value}
            curve = _curve(loss, graph, seed, noise=RowNoise(), epochs=epochs, **change)
            axes[0][column].plot(
                np.linspace(0, epochs, len(curve)), curve, label=f"{parameter} = {value:g}"
            )
            yield Row(
                id=f"metric.parameter_{parameter}_{value:g}",
                value=float(np.mean(curve[-10:])),
                unit="Eq. 7",
                seed=seed,
                note=f"Figure 11: DPP at claimed epsilon 4, {epochs} epochs",
            )
        axes[0][column].set_yscale("log")
        axes[0][column].set(xlabel="epoch", ylabel="objective (Eq. 7)")
        axes[0][column].legend(
            fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=2, frameon=False
        )
    repeats = range(1 if quick else 5)
    sweeps: tuple[tuple[int, str, tuple[float, ...]], ...] = (
        (2, "rho", (0.5, 1.0, 2.0, 4.0)),
        (3, "dimension", (2, 4, 8, 16, 32)),
    )
    for column, parameter, sweep in sweeps:
        means = []
        for value in sweep:
            other: dict[str, Any] = (
                {"margin": value * loss.margin}
                if parameter == "rho"
                else {"n_components": min(int(value), split.X.shape[1])}
            )
            other["steps"] = Steps(epochs=epochs, batch_size=BATCH, rule="root")
            fitted = [method("nonprivate", 1.0, split, seed + i, **other) for i in repeats]
            found = [measure(metric, split) for metric in fitted]
            means.append(float(np.mean([m.accuracy for m in found])))
            yield Row(
                id=f"metric.parameter_{parameter}_{value:g}",
                value=means[-1],
                unit="kNN accuracy",
                seed=seed,
                note=f"Figure 11: non-private; balanced {np.mean([m.balanced for m in found]):.3f}",
            )
            if parameter == "rho":
                yield _direction_row(value, [metric.components_ for metric in fitted], loss, seed)
        axes[0][column].plot(sweep, means, "o-")
        axes[0][column].set(xlabel=parameter, ylabel="kNN accuracy")
    figure.savefig(out / "metric_figure_11.svg", metadata={"Date": None})


def _direction_row(rho: float, maps: list[Floats], loss: Contrastive, seed: int) -> Row:
    """How much of the learned maps lies in one direction, and how many dissimilar pairs they leave
    inside the margin: each of those is pushed apart, along the direction in which they differ most.
    """
    strengths = [np.linalg.svd(W, compute_uv=False) ** 2 for W in maps]
    apart = loss.differences[loss.dissimilar]
    inside = [np.linalg.norm(apart @ W.T, axis=1) < rho * loss.margin for W in maps]
    return Row(
        id=f"metric.figure11_rho_{rho:g}_largest_direction",
        value=float(np.mean([values[0] / values.sum() for values in strengths])),
        unit="share of |W|²",
        seed=seed,
        note=f"mean of {len(maps)} seeds; {np.mean(inside):.1%} of the dissimilar pairs are inside "
        "the margin after training",
    )


def proven_mechanism_rows(
    splits: dict[str, Split], *, seed: int, epsilon: float = 4.0
) -> Iterator[Row]:
    """Figure 10 again at a *proven* epsilon per pair: held-out pair AUC of each mechanism."""
    for name, split in splits.items():
        width = min(ROWS, split.X.shape[1])
        common: dict[str, Any] = {"epsilon": epsilon, "preprocessor": split.X, "random_state": seed}
        made: dict[str, Any] = {
            mechanism: MendedDML(
                width, mechanism=mechanism, steps=Steps(epochs=EPOCHS, rule="root"), **common
            )
            for mechanism in ("laplace", "scdf", "duchi")
        }
        made["gaussian"] = DPPMetric(width, **common)
        for mechanism, estimator in made.items():
            found = measure(estimator.fit(split.pairs, split.similar), split)
            yield Row(
                id=f"metric.proven_{mechanism}_{name}",
                value=found.auc,
                unit="pair AUC",
                seed=seed,
                note=f"proven epsilon {epsilon:g} per pair; balanced kNN {found.balanced:.3f}",
            )
