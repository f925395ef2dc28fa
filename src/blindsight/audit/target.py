"""Audit what a user has made: a saved hasher, metric, tagger or sketches, or an index, by what its file holds.

The private data are not in the file, so the attack is on the mechanism that the file describes: the same release,
on the two worst inputs there are. What is stated must also follow from the numbers stored beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blindsight import storage
from blindsight.audit.blackbox import Outcomes, collect_at_once, distinguish_outcomes
from blindsight.audit.exact import likelihood_ratio
from blindsight.audit.verdict import Verdict
from blindsight.errors import HostileFile, InvalidData
from blindsight.privacy import Audited, Disclosure, Guarantee
from blindsight.privacy.mechanisms import BitFlip, SubsetSelection

__all__ = ["Audit", "audit_file"]


@dataclass(frozen=True)
class Audit:
    """What a file promises, with what the attack measured attached, and the verdict where an epsilon is stated."""

    name: str
    card: Guarantee | Disclosure
    verdict: Verdict | None


def audit_file(path: str | Path, *, trials: int = 200_000, seed: int = 0) -> Audit:
    """Audit a model file or an index (file or folder)."""
    source = Path(path)
    if not source.exists():
        raise InvalidData(f"{path} does not exist. Give a saved model, sketches, or an index.")
    if source.is_dir():
        hashers = sorted(source.glob("*.safetensors"))
        if not hashers:
            raise InvalidData(f"{path} is no index: it holds no saved hasher. Make one with blindsight hash.")
        return _hasher(hashers[0], str(source), trials, seed)
    try:
        kind, _, _ = storage.load_any(source)
    except HostileFile:
        return _index(source, trials, seed)
    readers = {"hasher": _hasher, "metric": _metric, "tagger": _tagger, "sketches": _sketches}
    if kind not in readers:
        raise InvalidData(f"{path} holds a {kind!r}, which promises nothing that can be audited.")
    return readers[kind](source, source.name, trials, seed)


def _hasher(source: Path, name: str, trials: int, seed: int) -> Audit:
    from blindsight.hashing import load

    hasher: Any = load(source)
    guarantee = getattr(hasher, "guarantee_", None)
    if guarantee is None:
        raise InvalidData(f"{name} is a {type(hasher).__name__}: it releases plain codes and promises nothing.")
    audited = _attack(hasher.mechanism_, guarantee.unit, trials, seed)
    return _judged(name, type(hasher).__name__, guarantee, audited, "hashing")


def _index(source: Path, trials: int, seed: int) -> Audit:
    from blindsight.search.header import Header

    header = Header.of(source)
    if header.guarantee is None:
        raise InvalidData(f"{source} is an index of plain codes: it promises nothing.")
    beta = header.decoding.beta if header.decoding is not None else 0.0
    flip = BitFlip(beta=beta, n_bits=header.n_bits, unit="record")
    return _judged(
        source.name, "index", header.guarantee, _attack(flip, header.guarantee.unit, trials, seed), "hashing"
    )


def _attack(mechanism: Any, unit: str, trials: int, seed: int) -> Audited:
    """The likelihood ratio between the two worst inputs of a flip, or of a cell's release.

    What is promised per bit is attacked on codes that differ in one bit, everything else on opposite codes.
    """
    if isinstance(mechanism, BitFlip):
        zeros: Any = np.zeros(mechanism.n_bits, np.uint8)
        other = zeros.copy()
        other[: 1 if unit == "bit" else None] = 1
        pair = zeros, other
    elif isinstance(mechanism, SubsetSelection):
        pair = np.array([0]), np.array([1])
    else:
        raise InvalidData(f"no attack is known for {type(mechanism).__name__}.")
    # At least a million bits, at most a hundred million.
    count = max(1000, min(trials, 100_000_000 // max(1, getattr(mechanism, "n_bits", 1))))
    outcomes = collect_at_once(lambda x, rng: mechanism.release(x, rng=rng), *pair, trials=count, seed=seed)
    return distinguish_outcomes(outcomes, statistic=lambda released: likelihood_ratio(mechanism, released, *pair))


def _metric(source: Path, name: str, trials: int, seed: int) -> Audit:
    """Fit the same estimator on two neighbouring toy sets: does its output tell the label of one pair?"""
    from sklearn.base import clone

    from blindsight.audit.blackbox import collect
    from blindsight.metric import DPPMetric

    metric = DPPMetric.load(source)
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((24, 3))
    pairs = points.reshape(12, 2, 3)
    similar = np.arange(12) % 2
    other = similar.copy()
    other[0] = 1 - other[0]

    def run(y: Any, dice: np.random.Generator) -> Any:
        fresh = clone(metric).set_params(random_state=dice, n_components=None)
        return fresh.fit(pairs, y).get_mahalanobis_matrix()

    outcomes: Outcomes = collect(run, similar, other, trials=max(100, trials // 1000), seed=seed)
    # A changed label is a pair removed and a pair added: two steps of "add or remove one".
    steps = 2 if metric.guarantee_.neighbours == "add or remove one" else 1
    found = distinguish_outcomes(outcomes, delta=metric.guarantee_.delta)
    audited = Audited(
        epsilon=found.epsilon / steps, confidence=found.confidence, attack="refit on neighbours", trials=found.trials
    )
    return _judged(name, "DPPMetric", metric.guarantee_, audited, "metric")


def _tagger(source: Path, name: str, trials: int, seed: int) -> Audit:
    from blindsight.tagging import PrivateTagger

    tagger: Any = PrivateTagger.load(source)
    release, labels = tagger.release_, tagger.n_labels_
    bound = float(getattr(release, "bound", None) or getattr(release, "clip", None) or 5.0)
    high, low = np.full(labels, bound), np.full(labels, -bound)
    outcomes = collect_at_once(
        lambda logits, rng: release.answer(logits, rng=rng).scores, high, low, trials=min(trials, 20_000), seed=seed
    )
    return _judged(name, "PrivateTagger", tagger.guarantee_, distinguish_outcomes(outcomes), "tagging")


def _sketches(source: Path, name: str, trials: int, seed: int) -> Audit:
    from blindsight.sketching import leak_of
    from blindsight.sketching.sketcher import disclosure_of
    from blindsight.sketching.sketches import SketchSet

    sketches: Any = SketchSet.open(source)
    card = disclosure_of(sketches.parameters, leak_of(sketches.parameters), sketches.image_shape)
    return Audit(name, card, None)


def _judged(name: str, method: str, guarantee: Guarantee, audited: Audited, room: Any) -> Audit:
    verdict = Verdict.of(
        guarantee,
        audited,
        room=room,
        method=method,
        setting=guarantee.mechanism,
        advice="use calibration='proven' with unit='record'" if math.isinf(guarantee.epsilon) else "",
    )
    return Audit(name, guarantee.with_audit(audited), verdict)
