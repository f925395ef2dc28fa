"""What the report shows beside the table, measured on data inside installed packages: curves, ROC, gallery, cards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.audit.evidence.hashing import Digits, rebuilt
from blindsight.audit.figures import Figure, curves, gallery, roc_curves, three_numbers
from blindsight.audit.membership import Membership, infer_membership
from blindsight.audit.report import Report
from blindsight.audit.verdict import Verdict
from blindsight.core import codes
from blindsight.evaluation.retrieval import mean_average_precision, score_precisions
from blindsight.hashing import ITQ, CodebookHasher, PHashing
from blindsight.privacy import Disclosure, Guarantee
from blindsight.privacy.mechanisms import Gaussian
from blindsight.sketching import NegativeSketcher
from blindsight.sketching.parameters import QKParameters

__all__ = ["cards", "figures", "report_on_all"]


def report_on_all(verdicts: list[Verdict], *, seed: int = 0) -> Report:
    """The report on all five methods: what `blindsight audit --all`, the demo and the studio leave."""
    return Report(
        title="Claimed, proven, audited",
        verdicts=verdicts,
        cards=cards(seed=seed),
        figures=figures(verdicts, seed=seed),
        notes=[f"Seed {seed}; audited numbers are lower bounds at 95% whose ceiling is set by the number of trials."],
    )


def figures(verdicts: list[Verdict], *, seed: int = 0) -> list[Figure]:
    """The report's pictures."""
    lines = _search_curves(seed)
    members = _memberships(seed)
    return [
        Figure(
            "The three numbers",
            "A red diamond to the right of the blue bar is a refuted claim. Audited numbers have a ceiling set by the "
            "number of trials, so a gap to the proven one is not a gap in the proof.",
            three_numbers(verdicts),
        ),
        Figure(
            "What privacy costs, and how little it can cost",
            "Mean average precision of image search on 5,000 digits, by record-level epsilon: flipped 32-bit codes "
            "against one well-asked question, the cell of a codebook.",
            curves(lines, xlabel="proven epsilon per record", ylabel="mAP", chance=0.1),
            [
                {"method": name, "epsilon": epsilon, "mAP": round(score, 3)}
                for name, points in lines.items()
                for epsilon, score in points
            ],
        ),
        Figure(
            "Whose picture was in the training set?",
            "Membership inference on a model that remembers, and on the same model with noise at epsilon 1.",
            roc_curves(members),
            [{"model": name, "AUC": round(found.auc, 3)} for name, found in members.items()],
        ),
        _rebuilt(seed),
        Figure(
            "What a sketch gives away",
            "Original digits and what the posterior-mean attacker recovers from their sketches, Q1 to Q12.",
            gallery(_recovered(seed)),
        ),
    ]


def _rebuilt(seed: int) -> Figure:
    """Features, plain codes, flipped codes and released cells, each through both decoders."""
    digits = Digits(seed)
    known, private = digits.X[digits.public], digits.X[digits.asked]
    flipped = PHashing(ITQ(32), epsilon=8.0, random_state=seed, learned_from="public").fit(known)
    book = CodebookHasher(epsilon=8.0, random_state=seed, learned_from="public").fit(known)
    releases: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
        "32 features": lambda x: x,
        "32 plain bits": lambda x: codes.unpack(flipped.query(x), 32),
        "32 flipped bits, ε = 8": lambda x: codes.unpack(flipped.transform(x), 32),
        "a cell, ε = 8": lambda x: codes.unpack(book.transform(x), book.n_cells_),
    }
    pictures, rows = rebuilt(digits, {name: (give(known), give(private)) for name, give in releases.items()}, seed=seed)
    return Figure(
        "What comes back of an image",
        "Digits rebuilt from features, from plain codes, from flipped codes and from the released cell of a "
        "codebook, by an attacker with 2,000 public digits: ridge regression and a small network, PSNR and SSIM "
        "over 300 digits. The mean image is what one gets who has seen nothing.",
        gallery(pictures),
        rows,
    )


def cards(*, seed: int = 0) -> list[tuple[str, Guarantee | Disclosure]]:
    """One card for a guarantee, one for a disclosure."""
    rows = np.random.default_rng(seed).standard_normal((200, 32))
    hasher = CodebookHasher(epsilon=8.0, n_cells=32, random_state=seed, learned_from="public").fit(rows)
    sketcher = NegativeSketcher(QKParameters.paper("Q6"), random_state=seed).fit(np.zeros((1, 28, 28), np.uint8))
    return [("A stored code", hasher.guarantee_), ("A sent sketch", sketcher.disclosure_)]


def _search_curves(seed: int) -> dict[str, list[tuple[float, float]]]:
    from blindsight import data
    from blindsight.features import PixelPCA

    digits = data.load("mnist5k")
    labels = np.asarray(digits.labels)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    public, stored, asked = order[:2000], order[2000:4600], order[4600:]
    X = PixelPCA(32, random_state=seed).fit(digits[public]).transform(digits)
    curves: dict[str, list[tuple[float, float]]] = {"codebook (ours)": [], "flipped 32 bits": []}
    for epsilon in (2.0, 4.0, 8.0, 16.0):
        book = CodebookHasher(epsilon=epsilon, random_state=seed, learned_from="public").fit(X[public])
        scores = book.scores(X[asked], book.transform(X[stored]))
        relevant = labels[asked][:, None] == labels[stored]
        curves["codebook (ours)"].append((epsilon, float(score_precisions(scores, relevant).mean())))
        flipped = PHashing(ITQ(32), epsilon=epsilon, random_state=seed, learned_from="public").fit(X[public])
        score = mean_average_precision(
            flipped.query(X[asked]), flipped.transform(X[stored]), labels[asked], labels[stored]
        )
        curves["flipped 32 bits"].append((epsilon, score))
    return curves


def _memberships(seed: int) -> dict[str, Membership]:
    """A sum of one-sided rows in many dimensions remembers each of them."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((400, 800))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    quiet = Gaussian.calibrate(1.0, delta=1e-5, sensitivity=1.0, unit="record", neighbours="add or remove one")
    found = {}
    for name, noise in (("no protection", None), ("epsilon 1", quiet)):

        def train(included: NDArray[np.bool_], dice: np.random.Generator, noise: Any = noise) -> NDArray[Any]:
            total = rows[included].sum(axis=0)
            return total if noise is None else noise.release(total, rng=dice)

        found[name] = infer_membership(train, lambda weights: rows @ weights, records=400, shadows=6, seed=seed)
    return found


def _recovered(seed: int) -> dict[str, NDArray[Any]]:
    from blindsight import data

    digits = data.load("mnist5k")
    labels = np.asarray(digits.labels)
    chosen = digits.array()[[int(np.flatnonzero(labels == digit)[3]) for digit in range(10)]]
    rows: dict[str, NDArray[Any]] = {"original": chosen}
    for number in range(1, 13):
        sketcher = NegativeSketcher(QKParameters.paper(f"Q{number}"), random_state=seed).fit(chosen)
        rows[f"Q{number}"] = sketcher.sketch(chosen).pictures()
    return rows
