"""The audit at the door leaves sound estimators alone and catches each bug planted in them, by its
kind.
"""

from __future__ import annotations

import ast
import functools
import os
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from blindsight.audit.engine import (
    DoorAudit,
    audit_door,
    independent_checks,
    neighbours_of,
    unrelated_datasets,
)
from blindsight.audit.engine.independent_checks import Gauss, Pure, epsilon_of
from blindsight.privacy import Guarantee, Planned
from blindsight.privacy.accounting import price
from blindsight.privacy.entropy import SystemSource, aes_generator
from blindsight.privacy.mechanisms import (
    BitFlip,
    DiscreteGaussian,
    DiscreteLaplace,
    Duchi,
    Gaussian,
    KaryResponse,
    Laplace,
    PrivUnit,
    Staircase,
)
from contracts.toys import CENTRAL, LOCAL, Counted, Descent, Local, Summed

X = np.random.default_rng(0).normal(size=(14, 3))
Y = np.random.default_rng(1).permutation(np.arange(14) % 3)
FLOATS = ("sum", "answers", "gradient")
# Enough draws where it is not the distribution of the noise that is wrong: sound noise is rejected
# with the same small probability whatever their number.
FEW_ROLLS = 6000


def _run(make: Any) -> Any:
    def run(data: Any, folder: Path) -> Any:
        fitted = make().fit(*(data if isinstance(data, tuple) else (data,)))
        fitted.save(folder / "model")
        return {name: value for name, value in vars(fitted).items() if name != "owner_only_"}

    return run


def _audited(make: Any, data: Any = X, *, seed: int = 0, **options: Any) -> DoorAudit:
    removed = make().plan()[0].mechanism.neighbours == "add or remove one"
    records = range(14) if removed else (0, 7)
    neighbours = neighbours_of(data, records=records, removed=removed)
    if removed:  # a few of each record
        neighbours = [
            one
            for one in neighbours
            if "far" in one.name or "absent" in one.name or "record 0" in one.name
        ]
    return audit_door(
        _run(make),
        data,
        neighbours=neighbours,
        unrelated=unrelated_datasets(data),
        seed=seed,
        **{"floats": FLOATS, **options},
    )


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the draws by which the scale of noise is measured, for sound noise and for bugs
    that are not in the scale. What is measured is an upper bound with any number of draws.
    """
    scale = functools.partial(independent_checks.measured_scale, rolls=20_000)
    monkeypatch.setattr(independent_checks, "measured_scale", scale)


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", CENTRAL)
def test_sound_central_releases_are_not_refuted(kind: str, seed: int) -> None:
    found = _audited(lambda: Summed(kind), seed=seed, rolls=FEW_ROLLS)
    assert not found.refuted, str(found)
    assert found.reached[0].share > 0.2


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("kind", LOCAL)
def test_sound_local_releases_are_not_refuted(kind: str) -> None:
    found = _audited(lambda: Local(kind), rolls=FEW_ROLLS)
    assert not found.refuted, str(found)
    assert found.reached[0].share == 1


@pytest.mark.usefixtures("few_draws")
def test_sound_counts_are_not_refuted() -> None:
    found = _audited(Counted, (X, Y), rolls=FEW_ROLLS)
    assert not found.refuted, str(found)


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("seed", [0, 1])
def test_a_sound_descent_is_not_refuted(seed: int) -> None:
    found = _audited(Descent, seed=seed, rolls=FEW_ROLLS)
    assert not found.refuted, str(found)
    assert found.reached[0].share > 0.9


# Planted bugs: each is the sound estimator with one thing wrong, and the kind of finding that names
# it.


class OwnSum(Summed):
    """Sums the rows itself and forgets to clip."""

    def through(self, door: Any, X: Any) -> Any:
        return door.release("sum", np.sum(X, axis=0))


class ClippedAfterAveraging(Summed):
    """Clips the sum, not the rows."""

    def through(self, door: Any, X: Any) -> Any:
        total = np.sum(X, axis=0)
        return door.release("sum", total / max(1.0, np.linalg.norm(total) / len(X)))


class SensitivityOffByTwo(Summed):
    """Clips rows to the sensitivity itself: replacing one moves the sum by twice that."""

    def through(self, door: Any, X: Any) -> Any:
        norms = np.linalg.norm(X, axis=1, keepdims=True)
        return door.release("sum", (X / np.maximum(1, norms / 2)).sum(axis=0))


class SavesTheSpread(Summed):
    """An un-noised statistic in the file."""

    def _settle_in(self) -> Any:
        self.public_["spread"] = float(np.std(self._kept))
        return super()._settle_in()

    def through(self, door: Any, X: Any) -> Any:
        self._kept = X
        return super().through(door, X)


class Refuses(Summed):
    """Refuses by looking at private values."""

    def through(self, door: Any, X: Any) -> Any:
        if np.ptp(X) == 0:
            raise ValueError("all records are equal")
        return super().through(door, X)


class ReleasesTwiceWhenLarge(Summed):
    """How much is released depends on the data."""

    def promise(self, **public: Any) -> Guarantee:
        plan = (Planned(what="sum", mechanism=self.mechanism(), count=2),)
        return Guarantee(releases=plan, delta=1e-5, model="central", entropy=self.entropy_)

    def through(self, door: Any, X: Any) -> Any:
        first = super().through(door, X)
        return super().through(door, X) if np.abs(X).max() > 10 else first


class ScaleFromTheData(Summed):
    """Noise calibrated to the largest row."""

    def fit(self, X: Any, ledger: Any = None) -> Any:
        self._bound = 2 * float(np.linalg.norm(X, axis=1).max())
        return super().fit(X, ledger)

    def mechanism(self) -> Any:
        bound = getattr(self, "_bound", 2.0)
        return DiscreteGaussian.calibrate(
            1.0, delta=1e-5, sensitivity=bound, dimensions=3, unit="record"
        )


class WritesALog(Summed):
    """Another file, somewhere else."""

    log: Path

    def through(self, door: Any, X: Any) -> Any:
        self.log.write_text(f"{np.mean(X)}")
        return super().through(door, X)


class KeepsAClock(Summed):
    """A time stamp in the file."""

    def _settle_in(self) -> Any:
        self.public_["seconds"] = time.perf_counter()
        return super()._settle_in()


class Seeded(Summed):
    """Draws from a seed whatever the user said."""

    def fit(self, X: Any, ledger: Any = None) -> Any:
        self.random_state = 0
        return super().fit(X, ledger)


class FloatNoise(Summed):
    """Floating-point noise on what leaves."""

    def mechanism(self) -> Any:
        return Gaussian.calibrate(1.0, delta=1e-5, sensitivity=2.0, unit="record")


class ClassesFromTheData(Counted):
    """The file lists the classes that were seen."""

    def facts(self, y: Any) -> dict[str, Any]:
        return {"classes": [int(label) for label in np.unique(y)]}


class CountsOfReplacement(Counted):
    """A replaced label moves two counts, not one."""

    def promise(self, **public: Any) -> Guarantee:
        noise = DiscreteLaplace.calibrate(
            1.0, sensitivity=1.0, grid=1.0, dimensions=0, unit="record"
        )
        return Guarantee(
            releases=(Planned(what="counts", mechanism=noise),),
            model="central",
            entropy=self.entropy_,
        )


class PerBit(Local):
    """The epsilon of a bit stated for a whole record."""

    def mechanism(self) -> Any:
        return BitFlip(beta=LOCAL["flip"].beta, n_bits=1, unit="record")


class NeighboursMixed(Local):
    """One record changes the answer of the next one too."""

    def asked(self, X: Any) -> Any:
        cells = super().asked(X)
        return (cells + np.roll(cells, 1)) % 5


class TrueSize(Descent):
    """Divides by the number of records that count, which is private under add or remove one."""

    def size(self, X: Any) -> float:
        return float((np.abs(X) > 0).any(axis=1).sum()) + 1


class MoreSteps(Descent):
    """One more step than was accounted."""

    def promise(self, **public: Any) -> Guarantee:
        made = super().promise(**public)
        with mock.patch(
            "blindsight.privacy.guarantee.price", lambda plan, *, delta: _cheaper(plan, delta)
        ):
            return Guarantee(
                releases=made.releases, delta=1e-5, model="central", entropy=self.entropy_
            )


def _cheaper(plan: Any, delta: float) -> Any:
    from blindsight.privacy.accounting import price

    (item,) = plan
    return price(
        (Planned(what="x", mechanism=item.mechanism, count=item.count // 2),),
        delta=delta,
    )


@pytest.mark.parametrize(
    ("make", "kind", "data"),
    [
        (OwnSum, "sensitivity", X),
        (ClippedAfterAveraging, "sensitivity", X),
        (SensitivityOffByTwo, "sensitivity", X),
        (SavesTheSpread, "output", X),
        (Refuses, "refusal", X),
        (ReleasesTwiceWhenLarge, "sequence", X),
        (ScaleFromTheData, "sequence", X),
        (WritesALog, "output", X),
        (KeepsAClock, "output", X),
        (Seeded, "entropy", X),
        (FloatNoise, "sampler", X),
        (ClassesFromTheData, "output", (X, Y)),
        (CountsOfReplacement, "sensitivity", (X, Y)),
        (lambda: PerBit("flip"), "sensitivity", X),
        (NeighboursMixed, "sensitivity", X),
        (TrueSize, "output", X),
        (MoreSteps, "price", X),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.usefixtures("few_draws")
def test_planted_bugs_are_caught_by_their_kind(
    make: Any, kind: str, data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WritesALog, "log", tmp_path / "log", raising=False)
    found = _audited(make, data, floats=("answers", "gradient"), rolls=2000)
    assert kind in {finding.kind for finding in found.findings}, str(found)


def _too_kind(real: Any) -> Any:
    return lambda self, x, *, rng: real(KaryResponse(epsilon=2.3, k=5, unit="record"), x, rng=rng)


def _shrunk(real: Any) -> Any:
    return lambda self, x, *, rng: (real(self, x, rng=rng) - x) * 0.97 + x


def _elsewhere(real: Any) -> Any:
    return lambda self, x, *, rng: real(self, x, rng=np.random.default_rng())


def _fixed(real: Any) -> Any:
    return lambda self, x, *, rng: real(self, x, rng=np.random.default_rng(7))


def _rowwise(real: Any) -> Any:
    return lambda self, x, *, rng: x + (real(self, np.zeros((*np.shape(x)[:-1], 1)), rng=rng))


def _stuck(real: Any) -> Any:
    def release(self: Any, x: Any, *, rng: Any) -> Any:
        released = real(self, x, rng=rng)
        released[..., 3] = np.asarray(x)[..., 3]
        return released

    return release


@pytest.mark.parametrize(
    ("make", "mechanism", "bug"),
    [
        (Local, KaryResponse, _too_kind),
        (Summed, DiscreteGaussian, _shrunk),
        (Summed, DiscreteGaussian, _elsewhere),
        (Summed, DiscreteGaussian, _fixed),
        (Summed, DiscreteGaussian, _rowwise),
        (lambda: Summed("laplace"), Laplace, _shrunk),
        (lambda: Summed("discrete laplace"), DiscreteLaplace, _shrunk),
        (lambda: Summed("staircase"), Staircase, _shrunk),
        (lambda: Local("flip"), BitFlip, _stuck),
        (lambda: Local("privunit"), PrivUnit, _elsewhere),
        (lambda: Local("duchi"), Duchi, _fixed),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_noise_that_is_not_what_it_states_is_caught(make: Any, mechanism: Any, bug: Any) -> None:
    # A wrong stream and equal noise in a row show at once; a scale that is 3% off takes many draws.
    rolls = FEW_ROLLS if bug in (_elsewhere, _fixed, _rowwise) else 200_000
    with mock.patch.object(mechanism, "release", bug(mechanism.release)):
        found = _audited(make, rolls=rolls)
    assert {finding.kind for finding in found.findings} & {"noise", "price"}, str(found)


@pytest.mark.parametrize(
    "stream",
    [
        lambda self, label, *, exact: np.random.default_rng(),
        lambda self, label, *, exact: aes_generator(bytes(32)),
        lambda self, label, *, exact: aes_generator(os.urandom(4) * 8),
        lambda self, label, *, exact: np.random.Generator(
            np.random.PCG64(int.from_bytes(os.urandom(32), "big"))
        ),
    ],
    ids=["numpy's", "one key", "32 bits", "seeded well"],
)
@pytest.mark.usefixtures("few_draws")
def test_a_weak_source_is_caught(stream: Any) -> None:
    with mock.patch.object(SystemSource, "stream", stream):
        found = _audited(Summed, rolls=2000)
    assert "entropy" in {finding.kind for finding in found.findings}, str(found)


class SilentUnlessHeard(Summed):
    """Adds the noise only while somebody listens at the door."""

    def through(self, door: Any, X: Any) -> Any:
        if type(door._listener).__name__ == "_NullListener":
            return np.sum(X, axis=0)
        return super().through(door, X)


@pytest.mark.usefixtures("few_draws")
def test_an_estimator_that_drops_its_noise_when_nobody_listens_is_caught() -> None:
    found = _audited(SilentUnlessHeard, rolls=FEW_ROLLS)
    assert {finding.kind for finding in found.findings} == {"listener"}, str(found)


def test_no_code_asks_who_listens() -> None:
    """The door uses its listener's methods only; nothing else in the package touches it."""
    source = Path(__file__).parents[2] / "src" / "blindsight"
    users = [path for path in source.rglob("*.py") if "_listener" in path.read_text()]
    assert users == [source / "privacy" / "door.py"]
    tree = ast.parse(users[0].read_text())
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    uses = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "_listener"
    ]
    assert len(uses) >= 5
    for use in uses:
        parent = parents[use]
        assigned = isinstance(use.ctx, ast.Store)
        called = isinstance(parent, ast.Attribute) and isinstance(parents[parent], ast.Call)
        assert assigned or called, f"line {use.lineno} of door.py does more than call its listener"


@pytest.mark.usefixtures("few_draws")
def test_the_report_says_how_much_of_the_allowance_was_reached() -> None:
    (reached,) = _audited(Summed, rolls=2000).reached
    assert reached.what == "sum"
    assert 0.9 < reached.share <= 1


@pytest.mark.parametrize(
    ("parts", "delta"),
    [
        ((Gauss(0.5),), 1e-5),
        ((Gauss(1.0, count=30),), 1e-5),
        ((Gauss(0.125, count=500), Gauss(0.4, count=3)), 1e-6),
    ],
)
def test_two_accountants_agree(parts: Any, delta: float) -> None:
    plan = tuple(
        Planned(
            what=f"x{number}",
            mechanism=Gaussian(
                sigma=1 / p.mu,
                sensitivity=1.0,
                delta=delta,
                unit="record",
                neighbours="add or remove one",
            ),
            count=p.count,
        )
        for number, p in enumerate(parts)
    )
    assert epsilon_of(parts, delta) == pytest.approx(price(plan, delta=delta).epsilon, rel=2e-3)


def test_the_second_accountant_agrees_with_mpmath() -> None:
    """A Gaussian release beside a pure one, integrated to thirty digits."""
    import mpmath as mp

    mp.mp.dps = 30
    mu, pure, epsilon = mp.mpf(1), mp.mpf("0.5"), mp.mpf("1.2")
    delta = mp.mpf(0)
    for sign in (1, -1):
        chance, left = 1 / (1 + mp.exp(-sign * pure)), epsilon - sign * pure
        tail = mp.ncdf(mu / 2 - left / mu) - mp.exp(left) * mp.ncdf(-mu / 2 - left / mu)
        delta += chance * tail
    found = epsilon_of((Gauss(1.0), Pure(0.5)), float(delta))
    assert found == pytest.approx(1.2, abs=2e-3)
