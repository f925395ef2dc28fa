"""The releases that are more than one mechanism: a tagger's answers, and the counts or flipped bits of a pixel."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.audit.blackbox import Outcomes, collect_at_once
from blindsight.audit.mechanisms import Attack, attack_mechanism, attack_outcomes
from blindsight.privacy import Disclosure
from blindsight.privacy.mechanisms import BitFlip, Laplace

__all__ = ["attack_answers", "attack_pixel", "sketch_card"]

_RAW = 5.0  # what raw logits are within, for an attacker who asks about ordinary images


def attack_answers(release: Any, n_labels: int, *, trials: int, seed: int) -> list[Attack]:
    """One answer: the noise by its likelihood ratio on its worst inputs, and the answer itself on opposite logits."""
    attacks = []
    if hasattr(release, "noise"):
        attacks.append(attack_mechanism(release.noise, trials=trials, seed=seed))
    bound = float(getattr(release, "bound", None) or getattr(release, "clip", None) or _RAW)
    # Twice the bound: a clipping that is forgotten shows. Raw logits have none to forget.
    reach = 2 * bound if getattr(release, "bound", None) or getattr(release, "clip", None) else bound
    high, low = np.full(n_labels, reach), np.full(n_labels, -reach)
    statistic = None
    if hasattr(release, "codebook"):
        words = release.codebook.decode(release.codebook.encode(np.stack([high, low])))

        def statistic(scores: NDArray[Any]) -> NDArray[np.float64]:
            return (scores == words[0]).all(axis=1).astype(float) - (scores == words[1]).all(axis=1)

    elif not hasattr(release, "noise"):
        noise = Laplace(scale=release.scale, sensitivity=1.0, unit="query")
        ends = np.clip(high, -bound, bound), np.clip(low, -bound, bound)

        def statistic(scores: NDArray[Any]) -> NDArray[np.float64]:
            return (noise.log_prob(scores, ends[0]) - noise.log_prob(scores, ends[1])).sum(axis=1)

    # The paper's noise is cheap to draw and its claims are large: more runs lift the ceiling of what can be measured.
    sampled = type(getattr(release, "noise", None)).__name__
    count = 5 * trials if sampled == "NoneType" else trials // 50 if sampled == "DiscreteGaussian" else trials // 5
    outcomes = collect_at_once(
        lambda logits, rng: release.answer(logits, rng=rng).scores, high, low, trials=max(1000, count), seed=seed
    )
    attacks.append(
        attack_outcomes(
            outcomes, what="one answer about opposite images", delta=release.cost.delta, statistic=statistic
        )
    )
    return attacks


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
    from blindsight.sketching.sketcher import disclosure_of

    leak = leak_of(parameters)
    return disclosure_of(parameters, leak, shape), leak.epsilon_pixel


def _flipped(parameters: Any, bit: int, trials: int, seed: int) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    given = np.full(trials, bit, np.uint8)
    ones = np.stack([BitFlip(beta=beta).release(given, rng=rng) for beta in parameters.beta], axis=1)
    return np.stack([1 - ones, ones], axis=2)
