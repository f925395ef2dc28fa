"""Anything that can be called: run it on two neighbours many times and see how well the answers are
told apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from blindsight.audit.engine.blackbox import Outcomes
from blindsight.audit.engine.worst_inputs import CONFIDENCE, attack_outcomes
from blindsight.audit.report.verdict import Verdict
from blindsight.audit.target import Audit
from blindsight.core import checks
from blindsight.core.arrays import Array, Floats
from blindsight.core.errors import InvalidData
from blindsight.privacy import Assumption, Guarantee

__all__ = ["Statistic", "audit_callable", "audit_measurement", "measurement_loss"]

Statistic = Callable[[Array], Floats]
_USUAL = 64  # different answers that are told apart
_THEIRS = Assumption(
    "somebody else's word", "what is stated for this code was not derived here, only attacked"
)


def audit_callable(
    run: Callable[[Any], Any],
    data: Any,
    neighbour: Any,
    *,
    epsilon: float,
    delta: float = 0.0,
    unit: str = "record",
    trials: int = 5000,
    statistic: Statistic | None = None,
    name: str | None = None,
    confidence: float = CONFIDENCE,
) -> Audit:
    """A lower bound on the epsilon of `run(data)`, which draws its own noise, against what is
    stated for it.

    Whatever it gives is looked at: numbers as they are, anything else (text, lists of changing
    length, an exception) by how often it comes.

    Parameters:
        run: the code under attack, a function of the data.
        data: an input that differs from `neighbour` by one unit, as far as one unit may: extremes
            show most.
        neighbour: the other input.
        epsilon: what is stated.
        delta: what is stated beside it.
        unit: what one unit of the data is.
        trials: runs on each input.
        statistic: answers (one row each) to numbers, larger for `data`; by default a linear
            discriminant is learned.
        name: what reports call it.
        confidence: of the measured bound.

    Returns:
        The stated guarantee with what was measured, and the verdict.
    """
    trials = checks.whole("trials", trials, least=100)
    label = name or str(getattr(run, "__name__", type(run).__name__))
    answers = _numbers(
        [_asked(run, given) for given in (data, neighbour) for _ in range(trials)], label
    )
    attack = attack_outcomes(
        Outcomes(answers[:trials], answers[trials:]),
        what=f"{label} on two neighbours",
        delta=delta,
        statistic=statistic,
        confidence=confidence,
    )
    stated = Guarantee(
        mechanism=label,
        unit=unit,  # type: ignore[arg-type]  # the guarantee checks it
        claimed=checks.non_negative("epsilon", epsilon, infinite=True),
        calibration="paper",
        unproven=(_THEIRS,),
        delta=delta,
        neighbours="replace one",
        model="central",
        sampler="float",
    )
    verdict = Verdict.of(
        stated, attack.audited, room="privacy", method=label, setting="on the two inputs given"
    )
    return Audit(
        name=label,
        room="privacy",
        subject=run,
        card=stated.with_audit(attack.audited),
        verdict=verdict,
        attacks=(attack,),
        notes=(
            "The callable was run as it is on the two inputs given; other inputs may show more.",
        ),
    )


def audit_measurement(
    measurement: Any,
    data: Any,
    neighbour: Any,
    *,
    d_in: Any = 1,
    delta: float = 1e-6,
    unit: str = "record",
    trials: int = 5000,
    statistic: Statistic | None = None,
) -> Audit:
    """The same for an OpenDP measurement, held to its own privacy map at `d_in`.

    A map to (epsilon, delta) is taken as it is; a map to rho (zero-concentrated) is converted at
    `delta`.
    """
    epsilon, delta = measurement_loss(measurement, d_in, delta)
    return audit_callable(
        measurement,
        data,
        neighbour,
        epsilon=epsilon,
        delta=delta,
        unit=unit,
        trials=trials,
        statistic=statistic,
        name="OpenDP measurement",
    )


def measurement_loss(measurement: Any, d_in: Any, delta: float) -> tuple[float, float]:
    """(epsilon, delta) that an OpenDP measurement states for inputs at a distance `d_in`.

    Parameters:
        measurement: the measurement with its privacy map.
        d_in: the distance of two inputs.
        delta: at which a map to rho (zero-concentrated) is converted.
    """
    told = measurement.map(d_in)
    if isinstance(told, tuple):
        return float(told[0]), float(told[1])
    if "ZeroConcentrated" in str(measurement.output_measure):
        # Bun and Steinke 2016, Proposition 1.3.
        return float(told) + 2 * math.sqrt(float(told) * math.log(1 / delta)), delta
    return float(told), 0.0


def _asked(run: Callable[[Any], Any], given: Any) -> Any:
    try:
        return run(given)
    except Exception as error:  # that it refuses is an answer too
        return error


def _numbers(answers: list[Any], name: str) -> Floats:
    """One row of numbers per answer: the answer itself, or which of the usual ones it is."""
    if all(isinstance(answer, Exception) for answer in answers):
        raise InvalidData(
            f"{name} refused every time ({answers[0]}): it takes one argument, the data."
        )
    try:
        found = np.asarray(answers, np.float64).reshape(len(answers), -1)
        if np.isfinite(found).all():
            return found
    except (TypeError, ValueError):
        pass
    kinds = [_kind(answer) for answer in answers]
    usual = [kind for kind, _ in Counter(kinds).most_common(_USUAL)]
    return np.array([[float(kind == one) for one in usual] for kind in kinds])


def _kind(answer: Any) -> str:
    """What is told apart: numbers by how many they are, the rest by what it says."""
    if isinstance(answer, Exception):
        return f"raised {type(answer).__name__}"
    try:
        numbers = np.asarray(answer, np.float64)
    except (TypeError, ValueError):
        return repr(answer)
    return (
        repr(numbers.shape)
        if numbers.size != 1 or np.isfinite(numbers).all()
        else repr(float(numbers.ravel()[0]))
    )
