"""The demo's gallery of digits: its codes released at each budget, once, charged first; mAP and
leak measured.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.storage import write_atomically
from blindsight.workbench.infra.jobs import JobContext

if TYPE_CHECKING:
    from blindsight.privacy import Ledger

__all__ = ["EPSILONS", "GALLERY", "parts", "run"]

EPSILONS = (8.0, 4.0, 2.0, 1.0, 16.0)


GALLERY = "gallery mnist5k"


def parts(total: int = 5000) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Rows that are public (to learn from), stored (protected) and asked; the same every time."""
    order = np.random.default_rng(7).permutation(total)
    return order[:2000], order[2000:4600], order[4600:]


def run(arguments: dict[str, Any], place: JobContext) -> dict[str, Any]:
    """Release what is not released yet; a budget that is ready can be searched while the next is
    made.
    """

    from blindsight import data
    from blindsight.encoders import PixelPCA
    from blindsight.privacy import Cost, Ledger

    epsilons = tuple(arguments.get("epsilons", EPSILONS))
    folder = place.prepared / "search"
    folder.mkdir(parents=True, exist_ok=True)
    digits = data.load("mnist5k")
    labels = np.asarray(digits.labels)
    public, stored, asked = parts(len(labels))
    place.say(0, len(epsilons), "learning from public digits")
    if not (folder / "features.safetensors").exists():
        PixelPCA(48, random_state=0).fit(digits[public]).save(folder / "features.safetensors")
    X = PixelPCA.load(folder / "features.safetensors").transform(digits)
    with Ledger(place.settings.ledger_place, dataset=GALLERY) as ledger:
        if not ledger.balances():
            ledger.grant(
                Cost(epsilon=place.settings.gallery_budget, unit="record"),
                what="the built-in gallery",
            )
        facts = []
        for done, epsilon in enumerate(epsilons):
            place.say(done, len(epsilons), f"releasing codes at ε = {epsilon:g}")
            target = folder / f"{epsilon:g}"
            if not (target / "facts.json").exists():
                _release(target, epsilon, X[public], labels[public], X[stored], ledger)
                _measure(
                    target, epsilon, X, labels, stored, asked, int(arguments.get("trials", 200_000))
                )
            facts.append(json.loads((target / "facts.json").read_text()))
    place.say(len(epsilons), len(epsilons), "done")
    return {"budgets": sorted(facts, key=lambda fact: fact["epsilon"])}


def _release(
    target: Path,
    epsilon: float,
    X: NDArray[Any],
    y: NDArray[Any],
    secret: NDArray[Any],
    ledger: Ledger,
) -> None:
    from blindsight.hashing import CodebookHasher
    from blindsight.index import HammingIndex

    target.mkdir(exist_ok=True)
    hasher = CodebookHasher(epsilon=epsilon, supervised=True, learned_from="public").fit(X, y)
    hasher.save(target / "hasher.safetensors")
    codes = hasher.transform(secret, ledger=ledger)
    index = HammingIndex(hasher.n_cells_, guarantee=hasher.guarantee_)
    index.add(codes)
    index.save(target / "codes.index")


def _measure(
    target: Path,
    epsilon: float,
    X: NDArray[Any],
    labels: NDArray[Any],
    stored: NDArray[Any],
    asked: NDArray[Any],
    trials: int,
) -> None:
    """mAP of private and open ranking; how often the index alone gives a picture's class away; the
    audit.
    """

    from blindsight.audit.target import audit_file
    from blindsight.evaluation.retrieval import score_precisions
    from blindsight.hashing import CodebookHasher
    from blindsight.index import HammingIndex

    hasher = CodebookHasher.load(target / "hasher.safetensors")
    _, codes = next(iter(HammingIndex.load(target / "codes.index").items()))
    relevant = labels[asked][:, None] == labels[stored]
    private = score_precisions(hasher.scores(X[asked], codes), relevant).mean()
    chances = np.exp(hasher.codebook_.similarity(X))  # of each class
    plain = score_precisions(chances[asked] @ chances[stored].T, relevant).mean()
    # The attacker knows the public cells, which are the classes.
    guess = hasher.posterior(codes).argmax(axis=1)
    audited = audit_file(target / "hasher.safetensors", trials=trials).card.audited  # type: ignore[union-attr]
    facts = {
        "epsilon": epsilon,
        "map": float(private),
        "open_map": float(plain),
        "leak": float(np.mean(guess == labels[stored])),
        "cells": int(hasher.n_cells_),
        "audited": None if audited is None else round(float(audited.epsilon), 3),
        "guarantee": json.loads(hasher.guarantee_.to_json()),
    }
    write_atomically(target / "facts.json", json.dumps(facts).encode())
