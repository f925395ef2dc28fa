"""The door: charged first, planned only, projected always, and the same object is drawn and
accounted.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindsight.core.errors import BudgetExceeded, InvalidParameter, NotPlanned, UnchargedRelease
from blindsight.privacy import Cost, Door, Guarantee, Ledger, Planned
from blindsight.privacy.door import Outer, Passage, added, listening
from blindsight.privacy.entropy import SeededSource
from blindsight.privacy.mechanisms import DiscreteGaussian, Gaussian, KaryResponse
from blindsight.privacy.vault import RecordSource

SUM = DiscreteGaussian.calibrate(1.0, delta=1e-5, sensitivity=2.0, dimensions=3, unit="record")
ADDED = Gaussian(
    sigma=2.0, sensitivity=1.5, delta=1e-5, unit="record", neighbours="add or remove one"
)
CELLS = KaryResponse(epsilon=2.0, k=8, unit="record")


def _guarantee(*planned: Planned, entropy: Any = "seed") -> Guarantee:
    return Guarantee(releases=planned, delta=1e-5, model="central", entropy=entropy)


def _door(*planned: Planned, **options: Any) -> Door:
    return Door(_guarantee(*planned), what="a test", **{"random_state": 3, **options})


class Ear:
    """A listener that notes what it hears."""

    def __init__(self, forced: list[Any] | None = None, missing: int | None = None) -> None:
        self.values: list[np.ndarray] = []
        self.released: list[np.ndarray] = []
        self.order: list[str] = []
        self.forced, self.missing = forced, missing

    def opened(self, door: Door) -> None:
        self.order.append("opened")

    def passing(self, passage: Passage) -> Any:
        self.values.append(np.array(passage.value))
        self.order.append(passage.planned.what)
        return None if self.forced is None else self.forced[len(self.values) - 1]

    def passed(self, passage: Passage, released: np.ndarray) -> None:
        self.released.append(released)

    def absent(self, n: int) -> Any:
        return None if self.missing is None else np.arange(n) == self.missing


class Books:
    """A ledger that notes when it is charged."""

    def __init__(self, order: list[str], refuse: bool = False) -> None:
        self.order, self.refuse = order, refuse

    def charge(self, cost: Any, *, what: str, **_: Any) -> None:
        if self.refuse:
            raise BudgetExceeded("too little is left")
        self.order.append("charged")


def test_the_ledger_is_charged_before_anything_passes() -> None:
    ear = Ear()
    with listening(ear):
        door = _door(Planned(what="sum", mechanism=SUM), ledger=Books(ear.order))
        door.release("sum", np.zeros(3))
    assert ear.order == ["charged", "opened", "sum"]


def test_a_refused_charge_opens_no_door() -> None:
    ear = Ear()
    with listening(ear), pytest.raises(BudgetExceeded):
        _door(Planned(what="sum", mechanism=SUM), ledger=Books(ear.order, refuse=True))
    assert ear.order == []


def test_a_real_ledger_is_charged_with_the_price_of_the_plan(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db", dataset="d")
    ledger.grant(Cost(epsilon=5, delta=1e-4, unit="record"))
    planned = (Planned(what="sum", mechanism=SUM), Planned(what="cells", mechanism=CELLS))
    door = _door(*planned, ledger=ledger)
    assert ledger.balance("record").spent.epsilon == pytest.approx(door.guarantee.epsilon, abs=1e-6)
    assert door.guarantee.epsilon == pytest.approx(3.0, rel=1e-3)


@pytest.mark.parametrize("ledger", ["ledger.db", 7, {}], ids=str)
def test_what_is_no_ledger_gets_a_sentence(ledger: Any) -> None:
    with pytest.raises(InvalidParameter, match=r"ledger must be a blindsight\.Ledger"):
        _door(Planned(what="sum", mechanism=SUM), ledger=ledger)


def test_what_the_plan_does_not_name_or_names_less_often_is_refused() -> None:
    door = _door(Planned(what="sum", mechanism=SUM, count=2))
    with pytest.raises(NotPlanned, match="'mean' is not in the plan"):
        door.release("mean", np.zeros(3))
    door.release("sum", np.zeros(3))
    door.release("sum", np.zeros(3))
    with pytest.raises(NotPlanned, match="planned 2 times"):
        door.release("sum", np.zeros(3))


def test_the_guarantee_must_speak_of_the_entropy_that_is_drawn() -> None:
    with pytest.raises(InvalidParameter, match="entropy"):
        Door(
            _guarantee(Planned(what="sum", mechanism=SUM), entropy="system"),
            what="x",
            random_state=3,
        )


def test_without_a_ledger_it_is_said_once_that_nothing_was_charged() -> None:
    guarantee = _guarantee(Planned(what="sum", mechanism=SUM), entropy="system")
    with pytest.warns(UnchargedRelease, match="nothing was charged"):
        Door(guarantee, what="a release nobody else makes, part 1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Door(guarantee, what="a release nobody else makes, part 2")  # the same kind: said already


@given(st.integers(1, 30), st.floats(0.01, 1e6), st.integers(0, 2**31))
def test_no_row_adds_more_than_the_plan_allows(n: int, scale: float, seed: int) -> None:
    """Whatever one row is, the sum moves by at most the sensitivity: replaced, or taken away."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, 3)) * scale
    other = rows.copy()
    other[rng.integers(n)] = rng.normal(size=3) * 10.0 ** rng.integers(-3, 200)
    for mechanism, changed in ((SUM, other), (ADDED, rows[1:])):
        ear = Ear()
        with listening(ear):
            for data in (rows, changed):
                _door(Planned(what="sum", mechanism=mechanism)).total("sum", data)
        assert mechanism.domain.distance(*ear.values) <= mechanism.sensitivity * (1 + 1e-9)


@pytest.mark.parametrize("order", [1, -1])
def test_rounding_errors_of_a_long_sum_stay_within_the_sensitivity(order: int) -> None:
    """Not a hair above: a float sum of 300,000 rows moves by more than the bound where nothing is
    left for it.
    """
    rows = np.random.default_rng(4).uniform(0.3, 1.7, size=(300_000, 1))
    rows[0] = 5.0 * order
    ear = Ear()
    with listening(ear):
        for data in (rows, rows[1:], rows[::-1]):
            _door(Planned(what="sum", mechanism=ADDED)).total("sum", data)
    for other in ear.values[1:]:
        assert ADDED.domain.distance(ear.values[0], other) <= ADDED.sensitivity


def test_a_sum_in_blocks_is_as_good_as_an_exact_one() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5000, 2)) * 10.0 ** rng.integers(-8, 8, size=(5000, 1))
    weights = rng.integers(0, 2, size=5000) * rng.random(5000)
    values[weights == 0] = np.nan
    total = added(weights, lambda rows: weights[rows] @ values[rows])
    kept = weights > 0
    for column in range(2):
        exact = math.fsum(weights[kept] * values[kept, column])
        assert (
            abs(total[column] - exact)
            <= 2.0**-53 * 1032 * np.abs(weights[kept] * values[kept, column]).sum()
        )
    assert not added(np.zeros(3), lambda rows: values[rows].sum(axis=0)).any()


def test_rows_that_are_no_numbers_count_as_nothing() -> None:
    rows = np.ones((4, 3)) * 0.1
    ear = Ear()
    with listening(ear):
        for wild in (np.nan, np.inf, -np.inf):
            broken = rows.copy()
            broken[2, 1] = wild
            _door(Planned(what="sum", mechanism=SUM)).total("sum", broken)
            _door(Planned(what="sum", mechanism=SUM)).total("sum", Outer(broken, np.ones((4, 1))))
    for value in ear.values:
        np.testing.assert_allclose(value.ravel(), [0.3, 0.3, 0.3])
    with listening(ear):
        _door(Planned(what="sum", mechanism=SUM)).release("sum", np.array([np.nan, np.inf, 1.0]))
    assert np.isfinite(ear.values[-1]).all()


def test_outer_products_total_as_if_they_were_laid_out() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(50, 4)) * 3, rng.normal(size=(50, 6))
    wide = DiscreteGaussian.fine(
        sigma=5.0, sensitivity=2.0, dimensions=24, delta=1e-5, unit="record"
    )
    ear = Ear()
    with listening(ear):
        _door(Planned(what="sum", mechanism=wide)).total("sum", Outer(a, b))
        _door(Planned(what="sum", mechanism=wide)).total("sum", a[:, :, None] * b[:, None, :])
    np.testing.assert_allclose(ear.values[0], ear.values[1], rtol=1e-9)


def test_a_group_of_rows_stays_within_its_units_sensitivity() -> None:
    planned = Planned(what="sum", mechanism=ADDED, group=3)
    ear = Ear()
    rows = np.eye(3) * 100
    with listening(ear):
        _door(planned).total("sum", rows)
    assert np.linalg.norm(ear.values[0], 1) <= 1.5 * (1 + 1e-9)
    assert np.abs(ear.values[0]).max() <= 0.5 * (1 + 1e-9)


def test_streams_differ_between_releases_and_runs_but_not_for_a_key_or_a_seed() -> None:
    planned = Planned(what="sum", mechanism=SUM, count=2)
    door = _door(planned)
    first, second = (door.release("sum", np.zeros(3)) for _ in range(2))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(_door(planned).release("sum", np.zeros(3)), first)
    free = [
        Door(_guarantee(planned, entropy="system"), what="x").release("sum", np.zeros(3))
        for _ in range(2)
    ]
    assert not np.array_equal(*free)


def test_a_records_noise_depends_on_its_name_and_the_mechanism_only() -> None:
    names, values = ["a", "b", "c"], np.array([1, 2, 3])

    def release(
        order: list[int], key: bytes, mechanism: KaryResponse = CELLS, about: str = "f"
    ) -> dict[str, int]:
        guarantee = _guarantee(Planned(what="cells", mechanism=mechanism), entropy="keyed")
        source = RecordSource(
            {name: hashlib.sha256(key + name.encode()).digest() for name in names}
        )
        door = Door(guarantee, what=f"run {order}", random_state=source)
        out = door.release_each("cells", values[order], [names[i] for i in order], about=about)
        return {names[i]: int(v) for i, v in zip(order, out, strict=True)}

    whole = release([0, 1, 2], b"k" * 32)
    assert release([2, 0], b"k" * 32) == {name: whole[name] for name in ("c", "a")}
    others = [release([0, 1, 2], bytes([i]) * 32) for i in range(40)]
    assert len({tuple(found.values()) for found in others}) > 10
    wider = [
        release([0, 1, 2], bytes([i]) * 32, KaryResponse(epsilon=2.5, k=8, unit="record"))
        for i in range(40)
    ]
    assert wider != others
    # Another function of the same records has noise of its own: its difference to the first must
    # not show.
    assert [release([0, 1, 2], bytes([i]) * 32, about="g") for i in range(40)] != others


def _keyed_door(mechanism: KaryResponse) -> Door:
    guarantee = _guarantee(Planned(what="cells", mechanism=mechanism), entropy="keyed")
    keys = {str(i): hashlib.sha256(str(i).encode()).digest() for i in range(400)}
    return Door(guarantee, what="cells", random_state=RecordSource(keys))


def test_two_values_under_one_name_do_not_show_how_they_differ() -> None:
    """With the same noise on both, every pair of releases would differ exactly as the values do."""
    names, low = [str(i) for i in range(400)], KaryResponse(epsilon=0.5, k=8, unit="record")
    values = np.arange(400) % 8
    first = _keyed_door(low).release_each("cells", values, names, about="f")
    again = _keyed_door(low).release_each("cells", values, names, about="f")
    other = _keyed_door(low).release_each("cells", (values + 3) % 8, names, about="f")
    np.testing.assert_array_equal(first, again)
    shown = ((other - first) % 8 == 3).mean()
    # Independent noise shows the difference with probability p^2 + 7 q^2 + ... = 0.13; false alarm
    # below 1e-6.
    assert shown < 0.13 + 5 * math.sqrt(0.13 / 400)


@pytest.mark.parametrize("entropy", ["system", "keyed"])
def test_a_name_that_stands_twice_is_one_record_with_one_release(entropy: str) -> None:
    values, names = np.array([0, 5, 7, 5]), ["7", "8", "7", "9"]
    low = KaryResponse(epsilon=0.1, k=1000, unit="record")
    for _ in range(20):
        door = _keyed_door(low)
        if entropy == "system":
            door = Door(
                _guarantee(Planned(what="cells", mechanism=low), entropy="system"), what="cells"
            )
        released = door.release_each("cells", values, names, about="f")
        assert released.shape == (4,) and released[0] == released[2]


def test_an_auditor_can_hand_out_other_releases_and_take_records_away() -> None:
    ear = Ear(forced=[np.array([7.0, 7.0, 7.0])])
    with listening(ear):
        assert (_door(Planned(what="sum", mechanism=SUM)).release("sum", np.zeros(3)) == 7.0).all()
    gone = Ear(missing=0)
    with listening(gone):
        _door(Planned(what="sum", mechanism=ADDED)).total("sum", np.eye(2))
    np.testing.assert_allclose(gone.values[0], [0.0, 1.0])


def test_seeded_streams_hang_on_their_label_only() -> None:
    one, other = SeededSource(5), SeededSource(5)
    assert one.stream("a", exact=True).integers(1 << 60) == other.stream("a", exact=True).integers(
        1 << 60
    )
    assert one.stream("a", exact=True).integers(1 << 60) != one.stream("b", exact=True).integers(
        1 << 60
    )
    assert "kkkk" not in repr(RecordSource({"a": b"k" * 32}))


def test_a_key_never_gives_two_data_sets_the_same_noise() -> None:
    class Mine:
        """A source of the user's own, whose labels may be anything."""

        name = "keyed"

        def stream(self, label: str, *, exact: bool) -> np.random.Generator:
            return np.random.default_rng(len(label))

    planned = Planned(what="sum", mechanism=SUM, count=3)
    door = Door(_guarantee(planned, entropy="keyed"), what="sums", random_state=Mine())
    for leave in (
        lambda: door.release("sum", np.zeros(3)),
        lambda: door.total("sum", np.zeros((2, 3))),
    ):
        with pytest.raises(InvalidParameter, match="needs fresh noise"):
            leave()


def test_a_receipt_is_of_one_release_and_tells_nothing_about_it() -> None:
    keys = {name: hashlib.sha256(name.encode()).digest() for name in "abc"}
    source, values = RecordSource(keys), np.array([1, 2, 3])
    first = source.receipt(["a", "b", "c"], values, "f")
    assert source.receipt(["a", "b", "c"], values.copy(), "f") == first
    others = [
        source.receipt(["a", "b", "c"], values, "g"),
        source.receipt(["b", "a", "c"], values, "f"),
        source.receipt(["a", "b", "c"], np.array([1, 2, 4]), "f"),
        source.receipt(["a", "b"], values[:2], "f"),
        RecordSource(dict.fromkeys("abc", b"k" * 32)).receipt(["a", "b", "c"], values, "f"),
    ]
    assert len({first, *others}) == 6
