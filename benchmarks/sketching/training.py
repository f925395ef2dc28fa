"""Figures 3 to 6: accuracy of networks trained on sketches, on MNIST, Fashion-MNIST and
CIFAR-10.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Row
from benchmarks.plots import label_points
from benchmarks.sketching.common import Halves, canvas, halves, train_pixels, train_sketches
from blindsight.core.errors import MissingData
from blindsight.sketching import PAPER_Q, NegativeSketcher, QKParameters

__all__ = ["cifar_rows", "fashion_rows", "mnist_rows", "records_rows"]

MNIST = dict(
    zip(
        PAPER_Q,
        (98.71, 97.88, 91.31, 96.99, 98.64, 98.97, 99.02, 98.97, 99.02, 99.01, 99.04, 98.98),
        strict=True,
    )
)
CIFAR = dict(
    zip(
        PAPER_Q,
        (87.23, 75.15, 50.77, 68.17, 87.52, 94.32, 94.51, 94.52, 94.69, 95.41, 95.56, 95.37),
        strict=True,
    )
)
TABLE_4 = {"Q1": 61.0, "Q6": 73.0, "Q12": 77.0, "original": 80.0}
TABLE_4_WORDS = (
    "the same whitened network at half width (paper: the convolutional network of Abadi et al., "
    "250 epochs)"
)
CIFAR_EPOCHS, LONG_EPOCHS = 3, 10
FAITHFUL: dict[str, Any] = {"inputs": "mean", "scaling": "unit", "schedule": "constant"}


def _row(
    name: str, found: Any, sets: Halves, epochs: int, seed: int, paper: float | None, words: str
) -> Row:
    return Row(
        id=f"sketching.{name}",
        value=found.accuracy,
        unit="%",
        paper=paper,
        seed=seed,
        seconds=found.seconds,
        note=f"{words}, {epochs} epochs on {len(sets.x):,} images of {sets.name}",
    )


def mnist_rows(*, quick: bool, seed: int, out: Path) -> Iterator[Row]:
    """Figures 3 and 4: the paper's way for Q1 to Q12, and the bits' posteriors as channels."""
    sets = halves("mnist", seed=seed)
    sets = sets.first(12000, 5000) if quick else sets
    names = ("Q3", "Q6") if quick else tuple(PAPER_Q)
    epochs = 3 if quick else 5
    options = {
        **({"inputs": "mean"} if quick else FAITHFUL),
        "epochs": epochs,
        "random_state": seed,
    }
    clear = train_pixels(sets, **options)
    yield _row(
        "accuracy_original",
        clear,
        sets,
        epochs,
        seed,
        99.07,
        "LeNet-5 on pixels (paper: 100 epochs)",
    )
    found: dict[str, float] = {}
    for name in names:
        trained = train_sketches(NegativeSketcher(name, random_state=seed), sets, **options)
        found[name] = trained.accuracy
        words = (
            f"LeNet-5 on {name}, posterior means{', standardised' if quick else ''} (paper: 100 "
            "epochs)"
        )
        yield _row(f"accuracy_{name.lower()}", trained, sets, epochs, seed, MNIST[name], words)
    for name, inputs in (
        ("Q3", "bits"),
        *(() if quick else ((name, "both") for name in ("Q2", "Q3", "Q4"))),
    ):
        own = 2 if quick else 3
        sketcher = NegativeSketcher(name, random_state=seed)
        trained = train_sketches(sketcher, sets, inputs=inputs, epochs=own, random_state=seed)
        words = (
            f"LeNet-5 on {name}, bit posteriors "
            f"{'' if inputs == 'bits' else 'and posterior means '}as channels"
        )
        yield _row(
            f"accuracy_{inputs}_{name.lower()}", trained, sets, own, seed, MNIST[name], words
        )
    if not quick:
        _figure_3(
            found,
            clear.accuracy,
            out / "sketching-figure-3.svg",
            MNIST,
            99.07,
            "MNIST, LeNet-5",
        )
        _figure_4(found, MNIST, "MNIST", out / "sketching-figure-4.svg")


def _figure_3(
    found: dict[str, float],
    clear: float,
    path: Path,
    paper: dict[str, float],
    paper_clear: float,
    title: str,
) -> None:
    figure, axes = canvas()
    axes.plot(list(paper), list(paper.values()), "o--", color="0.6", label="paper")
    axes.axhline(paper_clear, color="0.6", lw=0.8, ls=":", label="paper, no protection")
    axes.plot(list(found), list(found.values()), "o-", label="ours, posterior means")
    axes.axhline(clear, lw=0.8, ls=":", label="ours, no protection")
    axes.set(title=title, ylabel="test accuracy (%)")
    axes.legend(fontsize=7)
    figure.savefig(path)


def _figure_4(found: dict[str, float], paper: dict[str, float], title: str, path: Path) -> None:
    figure, axes = canvas()
    away = {name: abs(float(QKParameters.paper(name).p_diff[0]) - 0.5) for name in found}
    axes.scatter([away[name] for name in found], [found[name] for name in found], label="ours")
    axes.scatter(
        [away[name] for name in found], [paper[name] for name in found], marker="x", label="paper"
    )
    axes.set(title=title, xlabel="|P_diff[1] - 0.5|", ylabel="test accuracy (%)")
    axes.legend(fontsize=7)
    label_points(axes, [(name, (away[name], found[name])) for name in found], size=7)
    figure.savefig(path)


def records_rows(*, seed: int, out: Path) -> Iterator[Row]:
    """Figure 5: accuracy against r at Q2 (the paper: from 93.13% at r = 2 to 98.63% at 20)."""
    sets = halves("mnist", seed=seed).first(20000)
    found = {}
    for r in (2.0, 4.0, 6.5, 9.0, 11.5, 14.0, 17.0, 20.0):
        sketcher = NegativeSketcher("Q2", r=r, random_state=seed)
        trained = train_sketches(sketcher, sets, inputs="mean", epochs=4, random_state=seed)
        found[r] = trained.accuracy
        paper = {2.0: 93.13, 20.0: 98.63}.get(r)
        yield _row(f"accuracy_r{r:g}", trained, sets, 4, seed, paper, f"LeNet-5 on Q2 at r = {r:g}")
    figure, axes = canvas()
    axes.plot(list(found), list(found.values()), "o-", label="ours, 4 epochs on 20,000 images")
    axes.plot([2, 20], [93.13, 98.63], "x", color="0.5", label="paper")
    axes.set(title="MNIST, Q2", xlabel="r", ylabel="test accuracy (%)")
    axes.legend(fontsize=7)
    figure.savefig(out / "sketching-figure-5.svg")


def fashion_rows(*, seed: int) -> Iterator[Row]:
    """Fashion-MNIST, which the paper leaves out: pixels and all twelve settings, at equal
    epochs.
    """
    try:
        sets = halves("fashion-mnist", seed=seed)
    except MissingData as error:
        yield Row(id="sketching.skipped.fashion-mnist", value=0, unit="skipped", note=str(error))
        return
    options = {"inputs": "mean", "epochs": 2, "random_state": seed}
    yield _row(
        "fashion_accuracy_original",
        train_pixels(sets, **options),
        sets,
        2,
        seed,
        None,
        "LeNet-5 on pixels",
    )
    for name in PAPER_Q:
        trained = train_sketches(NegativeSketcher(name, random_state=seed), sets, **options)
        yield _row(
            f"fashion_accuracy_{name.lower()}", trained, sets, 2, seed, None, f"LeNet-5 on {name}"
        )


def cifar_rows(*, seed: int, out: Path) -> Iterator[Row]:
    """Figure 6, and CIFAR-10's half of Table 4, with a network that two cores can train: equal
    epochs for all.
    """
    try:
        sets = halves("cifar10", seed=seed)
    except MissingData as error:
        yield Row(id="sketching.skipped.cifar10_training", value=0, unit="skipped", note=str(error))
        return
    options: dict[str, Any] = {"network": "whitened", "epochs": CIFAR_EPOCHS, "random_state": seed}
    longer = {**options, "epochs": LONG_EPOCHS}
    trained = train_sketches(NegativeSketcher("Q6", random_state=seed), sets, **longer)
    yield _row(
        "cifar10_q6_accuracy", trained, sets, LONG_EPOCHS, seed, CIFAR["Q6"], "half width on Q6"
    )
    clear = train_pixels(sets, **options)
    words = "a whitened network at half width on pixels (paper: ResNet-50, 300 epochs)"
    yield _row("cifar_accuracy_original", clear, sets, CIFAR_EPOCHS, seed, 95.44, words)
    yield _row(
        "cifar_table4_original", clear, sets, CIFAR_EPOCHS, seed, TABLE_4["original"], TABLE_4_WORDS
    )
    found = {}
    for name in PAPER_Q:
        trained = train_sketches(NegativeSketcher(name, random_state=seed), sets, **options)
        found[name] = trained.accuracy
        words = f"a whitened network at half width on {name} (paper: ResNet-50, 300 epochs)"
        yield _row(
            f"cifar_accuracy_{name.lower()}", trained, sets, CIFAR_EPOCHS, seed, CIFAR[name], words
        )
        if name in TABLE_4:
            yield _row(
                f"cifar_table4_{name.lower()}",
                trained,
                sets,
                CIFAR_EPOCHS,
                seed,
                TABLE_4[name],
                TABLE_4_WORDS,
            )
    _figure_4(found, CIFAR, "CIFAR-10", out / "sketching-figure-4-cifar10.svg")
    _figure_3(
        found,
        clear.accuracy,
        out / "sketching-figure-6.svg",
        CIFAR,
        95.44,
        "CIFAR-10, half width",
    )
    wide = {**options, "network": "whitened-wide"}
    for name in ("Q6", "Q12", "original"):
        if name == "original":
            trained, paper = train_pixels(sets, **wide), 95.44
        else:
            trained, paper = (
                train_sketches(NegativeSketcher(name, random_state=seed), sets, **wide),
                CIFAR[name],
            )
        what = f"cifar_accuracy_{name.lower()}_wide"
        yield _row(what, trained, sets, CIFAR_EPOCHS, seed, paper, f"full width on {name}")
    longest = {**wide, "epochs": LONG_EPOCHS}
    trained = train_sketches(NegativeSketcher("Q6", random_state=seed), sets, **longest)
    yield _row(
        "cifar10_q6_accuracy_full",
        trained,
        sets,
        LONG_EPOCHS,
        seed,
        CIFAR["Q6"],
        "full width on Q6",
    )
