"""Audit code of other libraries: any Python callable, an OpenDP measurement, an Opacus training.

    audit_callable(noisy_mean, data, neighbour, epsilon=1.0)
    audit_measurement(opendp_measurement, data, neighbour, d_in=1)

A callable is run on two neighbours many times, and the audit measures how well the answers can be
distinguished. Neither library is imported here.

    def train(dataset):         # your training, unchanged, as a function of its data set
        ...
        return engine, model    # the PrivacyEngine (or an accountant), and the trained module

    audit_training(train, dataset, delta=1e-5)   # REFUTED: records take turns: not Poisson sampling

While a training runs, every step is examined: which records it read, how far one record changed
the summed gradient, and how much noise was added. All three must agree with what the accountant was
told. A random half of the canaries is in the training set; how well the model's answers reveal
which half gives a lower bound on epsilon (Steinke, Nasr and Jagielski 2023).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from scipy import stats

from blindsight.audit.engine.blackbox import CONFIDENCE, Outcomes, attack_outcomes, audit_scores
from blindsight.audit.report.verdict import Verdict
from blindsight.audit.target import Audit
from blindsight.core import checks
from blindsight.core.arrays import Array, Bools, Floats
from blindsight.core.errors import InvalidData
from blindsight.privacy import Assumption, Audited, Guarantee

__all__ = [
    "Statistic",
    "TrainingAudit",
    "audit_callable",
    "audit_measurement",
    "audit_training",
    "measurement_loss",
]

Statistic = Callable[[Array], Floats]
_USUAL = 64  # the most frequent answers, which are distinguished from each other
_THEIRS = Assumption(
    "somebody else's word", "what is stated for this code was not derived here, only attacked"
)


def audit_callable(
    run: Callable[[Any], Any],
    data: object,
    neighbour: object,
    *,
    epsilon: float,
    delta: float = 0.0,
    unit: str = "record",
    trials: int = 5000,
    statistic: Statistic | None = None,
    name: str | None = None,
    confidence: float = CONFIDENCE,
) -> Audit:
    """Compare the stated epsilon of `run(data)` with a measured lower bound.

    The function draws its own noise. Numbers are compared as they are; any other result (text,
    lists of varying length, an exception) by its frequency.

    Parameters:
        run: the code under attack, a function of the data.
        data: an input that differs from `neighbour` by one unit, as much as one unit may: extreme
            records reveal most.
        neighbour: the other input.
        epsilon: the stated epsilon.
        delta: the stated delta.
        unit: the unit of privacy.
        trials: runs on each input.
        statistic: maps answers (one row each) to numbers that are larger for `data`; by default a
            linear discriminant is learned.
        name: the name in reports.
        confidence: the probability with which the measured bound holds.

    Returns:
        The stated guarantee with the measured bound, and the verdict.
    """
    trials = checks.whole("trials", trials, least=100)
    label = name or str(getattr(run, "__name__", type(run).__name__))
    answers = _numbers(
        [_asked(run, side) for side in (data, neighbour) for _ in range(trials)], label
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
    data: object,
    neighbour: object,
    *,
    d_in: object = 1,
    delta: float = 1e-6,
    unit: str = "record",
    trials: int = 5000,
    statistic: Statistic | None = None,
) -> Audit:
    """Compare an OpenDP measurement's own privacy map at `d_in` with a measured lower bound.

    A map to (epsilon, delta) is used directly; a map to rho (zero-concentrated) is converted at
    `delta`. The other parameters are those of `audit_callable`.
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


def measurement_loss(measurement: Any, d_in: object, delta: float) -> tuple[float, float]:
    """Return (epsilon, delta) that an OpenDP measurement states for inputs at a distance `d_in`.

    Parameters:
        measurement: the measurement with its privacy map.
        d_in: the distance of two inputs.
        delta: the delta at which a map to rho (zero-concentrated) is converted.
    """
    loss = measurement.map(d_in)
    if isinstance(loss, tuple):
        return float(loss[0]), float(loss[1])
    if "ZeroConcentrated" in str(measurement.output_measure):
        # Bun and Steinke 2016, Proposition 1.3.
        return float(loss) + 2 * math.sqrt(float(loss) * math.log(1 / delta)), delta
    return float(loss), 0.0


def _asked(run: Callable[[Any], Any], data: object) -> Any:
    try:
        return run(data)
    except Exception as error:  # an exception is an answer too
        return error


def _numbers(answers: list[Any], name: str) -> Floats:
    """Return one row of numbers per answer: the answer, or which of the frequent ones it is."""
    if all(isinstance(answer, Exception) for answer in answers):
        raise InvalidData(
            f"{name} refused every time ({answers[0]}): it takes one argument, the data."
        )
    try:
        numbers = np.asarray(answers, np.float64).reshape(len(answers), -1)
        if np.isfinite(numbers).all():
            return numbers
    except (TypeError, ValueError):
        pass
    kinds = [_kind(answer) for answer in answers]
    usual = [kind for kind, _ in Counter(kinds).most_common(_USUAL)]
    return np.array([[float(kind == common) for common in usual] for kind in kinds])


def _kind(answer: object) -> str:
    """Return the category of an answer: numbers by their count, anything else by its content."""
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


Train = Callable[[Any], tuple[Any, Any]]
_SIGMAS = 6.2
_TOLERANCE = 1.01  # for single precision, and for gradients that are nearly parallel
_APART = 1e-3  # the smallest eigenvalue of unit gradients that can be separated


@dataclass(frozen=True)
class TrainingAudit:
    """The claimed epsilon at this delta, the bound measured by canaries, and the findings."""

    claimed: float
    delta: float
    audited: Audited
    findings: tuple[str, ...]
    steps: int

    @property
    def refuted(self) -> bool:
        """Whether anything contradicts the accountant."""
        return bool(self.findings) or self.audited.epsilon > self.claimed

    def __str__(self) -> str:
        numbers = (
            f"ε = {self.claimed:.3g} claimed, ε ≥ {self.audited.epsilon:.3g} measured in "
            f"{self.steps} steps"
        )
        if not self.refuted:
            return f"not refuted: {numbers}"
        return f"REFUTED: {'; '.join((*self.findings, numbers))}"


def audit_training(
    train: Train,
    dataset: Any,
    *,
    delta: float,
    canaries: int = 64,
    seed: int = 0,
    confidence: float = 0.99,
) -> TrainingAudit:
    """Run the training once on the data set with canaries, and check its accountant.

    Parameters:
        train: takes a data set of (input, class) tensors, trains, and returns the engine or
            accountant, and the module.
        dataset: the data set of (input, class) tensors.
        delta: the delta at which the accountant states its epsilon.
        canaries: how many inputs unlike any record, with random classes, are made; each is in the
            training set with probability one half.
        seed: of the canaries.
        confidence: the probability with which the measured bound holds.

    Returns:
        The claimed epsilon, the measured bound and the findings.
    """
    rng = np.random.default_rng(seed)
    inputs, classes = _canaries(dataset, checks.whole("canaries", canaries, least=8), rng)
    included = rng.random(canaries) < 0.5
    watched = _Watched(dataset, inputs[included], classes[included])
    with _watching(watched) as steps:
        engine, model = train(watched)
    accountant: Any = getattr(engine, "accountant", engine)
    history = [tuple(map(float, entry)) for entry in accountant.history]
    if not steps or not history:
        raise InvalidData(
            "no step of an Opacus optimizer was seen, or its accountant was told of none."
        )
    scores = _scores(model, inputs, classes)
    return TrainingAudit(
        claimed=float(accountant.get_epsilon(delta=delta)),
        delta=delta,
        audited=audit_scores(scores, included, confidence=confidence, delta=delta),
        findings=tuple(dict.fromkeys(_findings(steps, history, len(watched)))),
        steps=len(steps),
    )


class _Watched:
    """The data set with canaries at its end; records which rows are read."""

    def __init__(self, dataset: Any, inputs: Any, classes: Any) -> None:
        self.dataset, self.inputs, self.classes = dataset, inputs, classes
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.dataset) + len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        self.read.append(int(index))
        own = int(index) - len(self.dataset)
        return self.dataset[index] if own < 0 else (self.inputs[own], self.classes[own])


@dataclass
class _Step:
    """One step: the records read, each record's change of the sum (if known), and the noise."""

    read: list[int]
    moved: Floats | None
    noise: Floats


@contextmanager
def _watching(dataset: _Watched) -> Iterator[list[_Step]]:
    from opacus.optimizers import DPOptimizer

    steps: list[_Step] = []
    add_noise = DPOptimizer.add_noise

    def heard(optimizer: Any) -> None:
        total = _flat([p.summed_grad for p in optimizer.params])
        rows = np.concatenate([_rows(gradients) for gradients in optimizer.grad_samples], axis=1)
        add_noise(optimizer)
        noise = _flat([p.grad for p in optimizer.params]) - total
        steps.append(_Step(dataset.read.copy(), _contributions(rows, total), noise))
        dataset.read.clear()

    with mock.patch.object(DPOptimizer, "add_noise", heard):
        yield steps


def _findings(steps: list[_Step], history: list[tuple[float, ...]], n: int) -> Iterator[str]:
    accounted = int(sum(entry[2] for entry in history))
    if accounted < len(steps):
        yield f"{len(steps)} steps were taken, the accountant was told of {accounted}"
    multiplier, rate = min(entry[0] for entry in history), max(entry[1] for entry in history)
    inside = np.zeros((len(steps), n), bool)
    for row, step in zip(inside, steps, strict=True):
        row[step.read] = True
    if inside.any():
        yield from _inclusion_problems(inside, rate)
    noise = np.concatenate([step.noise for step in steps])
    spread = float(np.sqrt(np.mean(noise**2)))
    # An upper bound, so that sound noise is not reported as too small: the largest sensitivity
    # that this noise covers.
    allowed = spread * (1 + _SIGMAS / math.sqrt(2 * noise.size)) / multiplier
    moved = max(
        (float(step.moved.max(initial=0.0)) for step in steps if step.moved is not None),
        default=0.0,
    )
    if moved > _TOLERANCE * allowed:
        yield (
            f"a record moved the summed gradient by {moved:.3g}, and the noise (standard deviation "
            f"{spread:.3g}) hides "
            f"{allowed:.3g} at the multiplier {multiplier:g} that the accountant was told: too "
            "little noise, or no clip"
        )


def _contributions(rows: Floats, total: Floats) -> Floats | None:
    """Return the norm of each record's part of the sum, or None if it cannot be determined."""
    norms = np.linalg.norm(rows, axis=1)
    nonzero = norms > 1e-9
    units = rows[nonzero] / norms[nonzero, None]
    if not len(units) or np.linalg.eigvalsh(units @ units.T)[0] < _APART:
        return None
    weights = np.linalg.solve(units @ units.T, units @ total)
    # A sum that is no combination of the gradients was clipped layer by layer, so nothing follows.
    return (
        np.abs(weights)
        if np.linalg.norm(weights @ units - total) < 1e-2 * np.linalg.norm(total)
        else None
    )


def _flat(parts: list[Any]) -> Floats:
    return np.concatenate([part.detach().double().cpu().numpy().ravel() for part in parts])


def _rows(gradients: Any) -> Floats:
    rows: Floats = gradients.detach().double().cpu().numpy()
    return rows.reshape(len(rows), -1)


def _canaries(dataset: Any, count: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return inputs of three times the largest norm, in random directions, with random classes."""
    import torch

    pairs = [dataset[i] for i in range(len(dataset))]
    longest = max(float(x.double().norm()) for x, _ in pairs)
    labels = sorted({int(y) for _, y in pairs})
    shape = (count, *pairs[0][0].shape)
    directions = rng.standard_normal(shape)
    directions /= np.linalg.norm(directions.reshape(count, -1), axis=1).reshape(
        count, *[1] * (len(shape) - 1)
    )
    inputs = torch.as_tensor(3 * longest * directions, dtype=pairs[0][0].dtype)
    return inputs, torch.as_tensor(rng.choice(labels, count))


def _scores(model: Any, inputs: Any, classes: Any) -> Floats:
    """Return the model's score of each canary's class, minus the mean over the classes."""
    import torch

    model.eval()
    with torch.no_grad():
        logits = model(inputs).double()
    own = logits[torch.arange(len(logits)), classes]
    return np.asarray((own - logits.mean(dim=1)).cpu().numpy(), np.float64)


def _inclusion_problems(inside: Bools, rate: float) -> Iterator[str]:
    """Test whether records (columns) were in steps (rows) independently, with this probability."""
    steps, n = inside.shape
    count, total = int(inside.sum()), inside.size
    if min(stats.binom.cdf(count, total, rate), stats.binom.sf(count - 1, total, rate)) < 1e-9:
        yield f"records are in {count / total:.4g} of the batches, the plan says {rate:.4g}"
        return
    variance = rate * (1 - rate)
    even = 0.0
    for axis, words in ((1, "batches are too equal in size"), (0, "records take turns")):
        sums = inside.sum(axis=axis)
        score = float(
            ((sums - inside.shape[axis] * rate) ** 2).sum() / (inside.shape[axis] * variance)
        )
        if stats.chi2.cdf(score, len(sums)) < 1e-9:
            yield f"{words}: not Poisson sampling"
            return
        if stats.chi2.sf(score, len(sums)) < 1e-12:
            yield "records are drawn together: not Poisson sampling"
            return
        even += score
    if stats.chi2.cdf(even, steps + n - 1) < 1e-8:
        yield "batches are too even in size and in turns: not Poisson sampling"
        return
    centred = inside - rate
    for lag in range(1, min(4, steps - 1)):
        together = float((centred[lag:] * centred[:-lag]).sum()) / (
            variance * math.sqrt((steps - lag) * n)
        )
        if abs(together) > 7.5:
            yield f"batches {lag} steps apart share records: not Poisson sampling"
            return
