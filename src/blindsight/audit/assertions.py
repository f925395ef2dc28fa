"""Assertions for tests: attack a mechanism or a training, and fail where its promise is refuted.

    def test_the_noisy_sum_is_private():
        assert_private(noisy_sum, np.zeros(20), np.eye(20)[0], epsilon=1.0)

A test that passes has not proven the promise: the attack found nothing against it on the two inputs
given. A test that fails has refuted it, up to the stated rate of false alarms. The pytest plugin
that comes with the package (`blindsight.pytest_plugin`) prints what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from blindsight.audit.others import (
    Statistic,
    Train,
    TrainingAudit,
    audit_callable,
    audit_training,
    measurement_loss,
)
from blindsight.core import checks
from blindsight.core.arrays import Floats
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.privacy import Audited

__all__ = ["FALSE_ALARM", "PrivacyViolation", "assert_private", "assert_private_training"]

FALSE_ALARM = 1e-6
_MOST_TRIALS = 10_000_000


class PrivacyViolation(AssertionError):
    """A stated epsilon that an attack refuted.

    Parameters:
        message: what was stated and what was measured.
        audited: the lower bound on epsilon that the attack measured.
    """

    def __init__(self, message: str, audited: Audited) -> None:
        super().__init__(message)
        self.audited = audited


def assert_private(
    subject: Any,
    data: object,
    neighbour: object,
    *,
    epsilon: float | None = None,
    delta: float = 0.0,
    d_in: object = 1,
    trials: int = 5000,
    false_alarm: float = FALSE_ALARM,
    statistic: Statistic | None = None,
    name: str | None = None,
) -> Audited:
    """Fail unless the stated epsilon survives an attack on two neighbouring inputs.

    The subject runs `trials` times on each input. Half of the answers choose how to tell the two
    inputs apart, the other half measure how often that succeeds.

    Parameters:
        subject: what releases something about its data and draws its own noise: a function of the
            data; a scikit-learn estimator, whose learned attributes (names that end in `_`) are
            what it releases; or an OpenDP measurement.
        data: an input that differs from `neighbour` by one unit, as far as one unit may: extreme
            records show most. For an estimator, X or the tuple (X, y).
        neighbour: the other input.
        epsilon: the stated epsilon. An OpenDP measurement states it by its own privacy map.
        delta: the stated delta; for a measurement in rho, the delta of the conversion.
        d_in: for a measurement, the distance of the two inputs.
        trials: runs on each input. More trials see smaller violations, and a larger epsilon needs
            more of them; too few to refute anything are refused.
        false_alarm: the highest probability that a subject which keeps its promise fails here.
        statistic: maps answers (one row each) to numbers that are larger for `data`. By default a
            linear discriminant is learned.
        name: the subject's name in messages.

    Returns:
        The lower bound on epsilon that was measured.

    Raises:
        PrivacyViolation: the measured bound is above the stated epsilon. It is an AssertionError.
        InvalidParameter: so few trials cannot refute this epsilon; the message says how many can.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> data, neighbour = np.zeros(10), np.eye(10)[0]
        >>> measured = assert_private(
        ...     lambda rows: rows.sum() + rng.laplace(scale=1.0), data, neighbour, epsilon=1.0
        ... )
        >>> measured.epsilon <= 1.0
        True
        >>> try:
        ...     assert_private(lambda rows: rows.sum(), data, neighbour, epsilon=1, name="bare sum")
        ... except PrivacyViolation as violation:
        ...     print(str(violation).split(",")[0])
        bare sum: epsilon = 1 is stated
    """
    label = name or str(getattr(subject, "__name__", type(subject).__name__))
    if hasattr(subject, "map") and hasattr(subject, "output_measure"):
        stated, delta = measurement_loss(subject, d_in, delta or 1e-6)
        epsilon = stated if epsilon is None else epsilon
        label = name or "OpenDP measurement"
    if epsilon is None:
        raise InvalidParameter(f"{label}: say which epsilon is stated for it, as in epsilon=1.0.")
    limit = checks.non_negative("epsilon", epsilon)
    false_alarm = checks.probability("false_alarm", false_alarm)
    _require_power(checks.whole("trials", trials, least=100), limit, delta, false_alarm)
    result = audit_callable(
        _fitted(subject) if hasattr(subject, "fit") else subject,
        data,
        neighbour,
        epsilon=limit,
        delta=delta,
        trials=trials,
        statistic=statistic,
        name=label,
        confidence=1 - false_alarm,
    )
    measured = result.attacks[0].audited
    if measured.epsilon > limit:
        raise PrivacyViolation(
            f"{label}: epsilon = {limit:g} is stated, and the two inputs are told apart with "
            f"epsilon at least {measured.epsilon:.3g} ({2 * trials:,} runs; a subject that keeps "
            f"its promise fails with probability at most {false_alarm:g}). Look for too little "
            "noise, a sensitivity that is too small, or something that is released beside the "
            "noise.",
            measured,
        )
    return measured


def assert_private_training(
    train: Train,
    dataset: Any,
    *,
    epsilon: float,
    delta: float,
    canaries: int = 64,
    seed: int = 0,
    false_alarm: float = FALSE_ALARM,
) -> TrainingAudit:
    """Fail unless an Opacus training does what its accountant says, within the stated epsilon.

    Parameters:
        train: the training as a function of its data set; returns the privacy engine (or an
            accountant) and the trained module.
        dataset: (input, class) tensors.
        epsilon: the stated epsilon at this delta.
        delta: the delta of the statement.
        canaries: inserted inputs, of which a random half is trained on.
        seed: draws the canaries.
        false_alarm: the highest probability that the canaries alone refute a sound training.

    Returns:
        The claimed epsilon, the measured bound and the findings.

    Raises:
        PrivacyViolation: the accountant says more than `epsilon`, a step does not do what the
            accountant was told, or the canaries are told apart too well.

    Examples:
        >>> import warnings
        >>> import torch
        >>> from opacus import PrivacyEngine
        >>> def train(dataset):
        ...     engine = PrivacyEngine()
        ...     module = torch.nn.Linear(4, 2)
        ...     module, optimizer, loader = engine.make_private(
        ...         module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        ...         data_loader=torch.utils.data.DataLoader(dataset, batch_size=16),
        ...         noise_multiplier=4.0, max_grad_norm=1.0,
        ...     )
        ...     for rows, labels in loader:
        ...         optimizer.zero_grad()
        ...         torch.nn.functional.cross_entropy(module(rows), labels).backward()
        ...         optimizer.step()
        ...     return engine, module
        >>> labels = torch.zeros(64, dtype=torch.long)
        >>> rows = torch.utils.data.TensorDataset(torch.zeros(64, 4), labels)
        >>> with warnings.catch_warnings(action="ignore"):  # those of Opacus and PyTorch
        ...     found = assert_private_training(train, rows, epsilon=2, delta=1e-5)
        >>> round(found.claimed, 2), found.findings
        (0.42, ())
    """
    confidence = 1 - checks.probability("false_alarm", false_alarm)
    result = audit_training(
        train, dataset, delta=delta, canaries=canaries, seed=seed, confidence=confidence
    )
    if result.refuted:
        raise PrivacyViolation(f"training: {result}", result.audited)
    if result.claimed > checks.non_negative("epsilon", epsilon):
        raise PrivacyViolation(
            f"training: epsilon = {epsilon:g} is stated, and its own accountant says "
            f"{result.claimed:.3g} at delta = {delta:g}.",
            result.audited,
        )
    return result


def _require_power(trials: int, epsilon: float, delta: float, false_alarm: float) -> None:
    """Refuse a check that could not fail even if every answer revealed its input."""

    def largest(count: int) -> float:
        # Clopper-Pearson for all of half the runs, with a quarter of the error each: two candidate
        # events, and two rates in each.
        sure = (false_alarm / 4) ** (1 / (count - count // 2))
        return math.log((sure - delta) / (1 - sure)) if sure > delta else -math.inf

    if largest(trials) > epsilon:
        return
    needed = trials
    while largest(needed) <= epsilon and needed <= _MOST_TRIALS:
        needed = math.ceil(1.2 * needed)
    advice = (
        f"give trials={needed} or more"
        if needed <= _MOST_TRIALS
        else "an epsilon this large cannot be refuted by running it; test a smaller one"
    )
    raise InvalidParameter(
        f"{trials} trials cannot refute epsilon = {epsilon:g} at a false-alarm rate of "
        f"{false_alarm:g}, whatever the subject does: {advice}."
    )


def _fitted(estimator: object) -> Callable[[Any], Floats]:
    """Return a function of the data that fits a copy of the estimator and returns its numbers."""
    from sklearn.base import clone

    def run(data: object) -> Floats:
        arguments = data if isinstance(data, tuple) else (data,)
        return _learned(vars(clone(estimator).fit(*arguments)))

    return run


def _learned(attributes: Mapping[str, Any]) -> Floats:
    """Return all numbers in the learned attributes, in the order of their names."""
    parts = []
    for name in sorted(attributes):
        if name.endswith("_") and not name.startswith("_"):
            try:
                parts.append(np.asarray(attributes[name], np.float64).ravel())
            except (TypeError, ValueError):
                continue
    if not parts:
        raise InvalidData(
            "the fitted estimator has no learned numbers (attributes whose names end in '_'): pass "
            "a function that fits it and returns what it releases."
        )
    return np.concatenate(parts)
