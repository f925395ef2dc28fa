"""What others built is audited as it is: callables, OpenDP measurements, and training runs by
Opacus.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from blindsight.audit.others import audit_callable, audit_measurement, audit_training
from blindsight.core.errors import InvalidData

DATA, NEIGHBOUR = np.zeros(20), np.append(np.zeros(19), 1.0)


def noisy_sum(scale: float) -> Any:
    rng = np.random.default_rng(0)
    return lambda rows: float(np.sum(rows)) + rng.laplace(scale=scale)


def test_a_callable_that_keeps_its_word_is_not_refuted() -> None:
    found = audit_callable(noisy_sum(1.0), DATA, NEIGHBOUR, epsilon=1.0)
    assert not found.verdict.refuted
    assert 0.5 < found.verdict.audited.epsilon <= 1.0


def test_a_callable_with_a_fourth_of_the_noise_is_refuted() -> None:
    assert audit_callable(noisy_sum(0.25), DATA, NEIGHBOUR, epsilon=1.0).verdict.refuted


def test_words_are_told_apart_by_how_often_they_come() -> None:
    def says(truth: float) -> Any:
        rng = np.random.default_rng(0)
        return lambda rows: ("yes", "no")[int((rng.random() < truth) == (rows.sum() > 0))]

    sound = audit_callable(says(0.73), DATA, NEIGHBOUR, epsilon=1.0)
    assert 0.5 < sound.verdict.audited.epsilon <= 1.0
    assert audit_callable(says(0.99), DATA, NEIGHBOUR, epsilon=1.0).verdict.refuted


def _refuses(rows: Any) -> float:
    if rows.sum() > 0:
        raise ValueError("no record may be positive")
    return 0.5


@pytest.mark.parametrize(
    "run",
    [
        _refuses,
        lambda rows: np.full(3 + int(rows.sum()), 0.5),
        lambda rows: np.nan if rows.sum() else 0.5,
        lambda rows: {"positive": bool(rows.sum())},
    ],
    ids=["a refusal", "a length", "no number", "a dict"],
)
def test_whatever_depends_on_the_data_refutes(run: Any) -> None:
    assert audit_callable(run, DATA, NEIGHBOUR, epsilon=1.0, trials=500).verdict.refuted


def test_what_cannot_be_called_with_the_data_is_said_to_be_so() -> None:
    with pytest.raises(InvalidData, match="one argument"):
        audit_callable(lambda: 0.0, DATA, NEIGHBOUR, epsilon=1.0, trials=200)


@pytest.fixture
def dp() -> Any:
    found = pytest.importorskip(
        "opendp.prelude", reason="opendp is not installed: its measurements are not audited"
    )
    found.enable_features("contrib", "honest-but-curious")
    return found


def test_an_opendp_measurement_is_held_to_its_own_map(dp: Any) -> None:
    """OpenDP draws from entropy of its own, so the inputs are a little nearer than the map allows.

    Told apart by the sign (half of the releases on one side), inputs at the full distance refute a
    sound measurement in 2e-4 of the runs; at 0.9 of it in 3e-9, and fewer than 1e-7 find less than
    0.5.
    """
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    sound = dp.m.make_laplace(*space, scale=1.0)
    found = audit_measurement(
        sound, 0.0, 0.9, d_in=1.0, statistic=lambda answers: -np.sign(answers[:, 0])
    )
    assert not found.verdict.refuted
    assert 0.5 < found.verdict.audited.epsilon <= found.verdict.claimed == pytest.approx(1.0)
    smooth = dp.m.make_gaussian(*space, scale=1.0)
    assert not audit_measurement(smooth, 0.0, 1.0, d_in=1.0).verdict.refuted


def test_an_opendp_measurement_whose_map_promises_too_much_is_refuted(dp: Any) -> None:
    inner = dp.m.make_laplace(
        dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float), scale=0.25
    )
    liar = dp.m.make_user_measurement(
        dp.atom_domain(T=float, nan=False),
        dp.absolute_distance(T=float),
        dp.max_divergence(),
        function=lambda value: inner(value),
        privacy_map=lambda d_in: d_in,
    )
    assert audit_measurement(liar, 0.0, 1.0, d_in=1.0).verdict.refuted


ROWS, STEPS = 240, 40


def training(**mistake: Any) -> Any:
    return audit_training(*training_of(**mistake), delta=1e-5)


def training_of(
    *, poisson: bool = True, clip: float | None = 1.0, told: float | None = None
) -> tuple[Any, Any]:
    """A small classifier trained by Opacus, with one mistake or none, from one seed; its data."""
    torch = pytest.importorskip("torch", reason="torch is not installed: no training is audited")
    pytest.importorskip("opacus", reason="opacus is not installed: no training is audited")
    from opacus import PrivacyEngine
    from opacus.accountants import RDPAccountant

    def train(dataset: Any) -> Any:
        model = torch.nn.Sequential(
            torch.nn.Linear(20, 24), torch.nn.Tanh(), torch.nn.Linear(24, 3)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            engine: Any = PrivacyEngine(accountant="rdp")
            model, optimizer, loader = engine.make_private(
                module=model,
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                data_loader=torch.utils.data.DataLoader(dataset, batch_size=16, shuffle=True),
                noise_multiplier=1.0 if told is None else 0.3,
                max_grad_norm=1e6 if clip is None else clip,
                poisson_sampling=poisson,
            )
            accountant: Any = engine.accountant
            if clip is None:  # noise for a clip of 1 that nobody does
                optimizer.noise_multiplier = 1e-6
            if told is not None or clip is None:
                accountant, rate = RDPAccountant(), 1 / len(loader)
                optimizer.attach_step_hook(
                    lambda _: accountant.step(noise_multiplier=told or 1.0, sample_rate=rate)
                )
            done = 0
            while done < STEPS:
                for inputs, classes in loader:
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(model(inputs), classes).backward()
                    optimizer.step()
                    done += 1
        return accountant, model

    rng = np.random.default_rng(1)
    inputs = torch.as_tensor(rng.standard_normal((ROWS, 20)), dtype=torch.float32)
    dataset = torch.utils.data.TensorDataset(inputs, torch.as_tensor(rng.integers(0, 3, ROWS)))

    def seeded(given: Any) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return train(given)

    return seeded, dataset


def test_a_sound_training_is_not_refuted() -> None:
    found = training()
    assert not found.refuted, str(found)
    assert found.steps >= STEPS
    assert str(found).startswith("not refuted")


def test_batches_that_are_shuffled_instead_of_drawn_are_found() -> None:
    found = training(poisson=False)
    assert any("not Poisson sampling" in finding for finding in found.findings), str(found)


def test_a_clip_that_nobody_does_is_found() -> None:
    found = training(clip=None)
    assert any("moved the summed gradient" in finding for finding in found.findings), str(found)


def test_a_noise_multiplier_that_the_accountant_was_not_given_is_found() -> None:
    found = training(told=1.0)
    assert any("moved the summed gradient" in finding for finding in found.findings), str(found)
