"""The releases that are more than one mechanism: a tagger's answers, and the counts or flipped bits of a pixel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.audit.blackbox import Outcomes, collect_at_once
from blindsight.audit.mechanisms import Attack, attack_mechanism, attack_outcomes
from blindsight.privacy import Disclosure
from blindsight.privacy.mechanisms import BitFlip, Laplace

__all__ = ["attack_answers", "attack_pixel", "attack_plan", "attack_printed", "sketch_card"]

_RAW = 5.0  # what raw logits are within, for an attacker who asks about ordinary images


def attack_answers(way: Any, n_labels: int, *, trials: int, seed: int) -> list[Attack]:
    """One answer: the noise by its likelihood ratio on its worst inputs, and the answer itself on opposite logits."""
    noise = way.noise(n_labels)
    attacks = [attack_mechanism(noise, trials=trials, seed=seed)]
    # Twice the bound: a clipping that is forgotten shows.
    reach = 2 * float(getattr(way, "bound", _RAW))
    high, low = np.full(n_labels, reach), np.full(n_labels, -reach)
    statistic = None
    if getattr(way, "words", None) is not None:
        cells = way.value(np.stack([high, low]))

        def statistic(released: NDArray[Any]) -> NDArray[np.float64]:
            return (released[:, 0] == cells[0]).astype(float) - (released[:, 0] == cells[1])

    outcomes = collect_at_once(
        lambda logits, rng: np.asarray(noise.release(way.value(logits), rng=rng)).reshape(len(logits), -1),
        high,
        low,
        trials=max(1000, trials // 5),
        seed=seed,
    )
    what, delta = "one answer about opposite images", noise.cost.delta
    attacks.append(attack_outcomes(outcomes, what=what, delta=delta, statistic=statistic))
    return attacks


def attack_printed(release: Any, *, trials: int, seed: int) -> Attack:
    """The paper's answer about opposite images, by its likelihood ratio."""
    bound = _RAW if release.clip is None else float(release.clip)
    # Raw logits have no clipping to forget.
    reach = bound if release.clip is None else 2 * bound
    high, low = np.full(release.n_labels, reach), np.full(release.n_labels, -reach)
    noise = Laplace(scale=release.scale, sensitivity=1.0, unit="query")
    ends = np.clip(high, -bound, bound), np.clip(low, -bound, bound)
    # The noise is cheap to draw and the claims are large: more runs lift the ceiling of what can be measured.
    outcomes = collect_at_once(
        lambda logits, rng: release.answer(logits, rng=rng).scores, high, low, trials=max(1000, 5 * trials), seed=seed
    )
    return attack_outcomes(
        outcomes,
        what="one answer about opposite images",
        statistic=lambda scores: (noise.log_prob(scores, ends[0]) - noise.log_prob(scores, ends[1])).sum(axis=1),
    )


def attack_plan(guarantee: Any, *, trials: int, seed: int) -> list[Attack]:
    """Everything that is released about a record, together: each release on its worst pair, by the likelihood ratio."""
    parts = [(item.mechanism, item.mechanism.worst_pair()) for item in guarantee.releases for _ in range(item.count)]
    if not parts or guarantee.unproven:
        return []
    here, there = (np.concatenate([np.ravel(pair[side]) for _, pair in parts]) for side in (0, 1))
    widths = np.cumsum([0] + [np.size(pair[0]) for _, pair in parts])

    def release(values: NDArray[Any], rng: Any) -> NDArray[Any]:
        return np.hstack([
            np.asarray(noise.release(values[:, start:end], rng=rng))
            for (noise, _), start, end in zip(parts, widths, widths[1:], strict=False)
        ])  # fmt: skip

    def statistic(released: NDArray[Any]) -> NDArray[np.float64]:
        total = np.zeros(len(released))
        for (noise, pair), start, end in zip(parts, widths, widths[1:], strict=False):
            seen = released[:, start:end]
            total += (noise.log_prob(seen, pair[0]) - noise.log_prob(seen, pair[1])).sum(axis=1)
        return total

    outcomes = collect_at_once(release, here, there, trials=trials, seed=seed)
    what = f"likelihood ratio of all {len(parts)} releases on their worst inputs"
    return [attack_outcomes(outcomes, what=what, delta=guarantee.delta, statistic=statistic)]


def attack_pixel(parameters: Any, *, trials: int, seed: int) -> Attack:
    """A pixel of 0 or of all ones, by the likelihood ratio of its bits' counts."""
    from blindsight.sketching import FlipParameters, NegativeSketcher, leak_of

    top = 2**parameters.depth - 1
    wrong = np.clip(parameters.p_diff, 1e-12, 1 - 1e-12)
    weight = np.log(1 - wrong) - np.log(wrong)

    def statistic(counts: NDArray[Any]) -> NDArray[np.float64]:
        """Sightings of zeros speak for the pixel of 0, bit by bit."""
        return (counts[:, :, 0].astype(float) - counts[:, :, 1]) @ weight

    if isinstance(parameters, FlipParameters):
        sides = [_flipped(parameters, bit, trials, seed + bit) for bit in (0, 1)]
        what, delta = "likelihood ratio of a pixel's flipped bits", 0.0
    else:
        side = 28
        count = -(-trials // (side * side))
        dtype = np.uint8 if parameters.depth <= 8 else np.uint16
        sides = []
        for value in (0, top):
            images = np.full((count, side, side), value, dtype)
            sketcher = NegativeSketcher(parameters, random_state=seed + value).fit(images[:1])
            # (images, bits, 2, pixels) to one row a pixel.
            counts = sketcher.sketch(images).counts[:, 0].reshape(count, parameters.depth, 2, -1)
            sides.append(np.moveaxis(counts, 3, 1).reshape(-1, parameters.depth, 2)[:trials])
        what, delta = "likelihood ratio of a pixel's counts", leak_of(parameters).delta
    return attack_outcomes(Outcomes(sides[0], sides[1]), what=what, delta=delta, statistic=statistic)


def sketch_card(parameters: Any, shape: tuple[int, int, int]) -> tuple[Disclosure, float]:
    """The disclosure of sketches with these parameters, and the epsilon per pixel that they imply."""
    from blindsight.sketching import leak_of
    from blindsight.sketching.paper import disclosure_of

    leak = leak_of(parameters)
    return disclosure_of(parameters, leak, shape), leak.epsilon_pixel


def _flipped(parameters: Any, bit: int, trials: int, seed: int) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    given = np.full(trials, bit, np.uint8)
    ones = np.stack([BitFlip(beta=beta).release(given, rng=rng) for beta in parameters.beta], axis=1)
    return np.stack([1 - ones, ones], axis=2)
