"""A guarantee is a value: frozen, whole, honest in print and through JSON."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindsight.core.errors import BlindsightError, InvalidData, InvalidParameter, UnitMismatch
from blindsight.privacy import Assumption, Audited, Cost, Disclosure, Guarantee, Planned, Recovery
from blindsight.privacy.mechanisms import BitFlip, DiscreteGaussian, KaryResponse

costs = st.builds(
    Cost,
    epsilon=st.one_of(st.floats(0, 1e6), st.just(math.inf)),
    delta=st.floats(0, 0.5),
    unit=st.sampled_from(["bit", "record", "pair", "kappa pairs", "pixel", "query", "user"]),
    neighbours=st.sampled_from(["replace one", "add or remove one"]),
)
audits = st.builds(
    Audited,
    epsilon=st.floats(0, 20),
    confidence=st.floats(0.5, 1),
    # Not "private", which no verdict may say: Hypothesis draws constants of the package's own
    # modules too, and drew this word in about one run of a hundred.
    attack=st.text(min_size=1, max_size=20).filter(lambda text: "private" not in text),
    trials=st.integers(1, 10**6),
)
words = st.text(min_size=1, max_size=20).filter(str.strip)
assumptions = st.lists(st.builds(Assumption, words, words), max_size=3).map(tuple)
mechanisms = st.one_of(
    st.builds(
        KaryResponse, epsilon=st.floats(0.01, 40), k=st.integers(2, 1000), unit=st.just("record")
    ),
    st.builds(
        BitFlip, beta=st.floats(0.001, 0.5), n_bits=st.integers(1, 64), unit=st.just("record")
    ),
    st.builds(
        DiscreteGaussian,
        sigma=st.floats(0.5, 50),
        sensitivity=st.floats(0.5, 2),
        dimensions=st.integers(0, 100),
        delta=st.just(1e-5),
        unit=st.just("record"),
    ),
)
plans = st.lists(mechanisms, min_size=1, max_size=3).flatmap(
    lambda chosen: st.just(
        tuple(Planned(what=f"part {i}", mechanism=m, count=1 + i) for i, m in enumerate(chosen))
    )
)
# In units that no record holds and that hold no record, so that any cost may stand beside the
# record's.
beside = costs.filter(lambda cost: cost.unit in {"kappa pairs", "query"})
guarantees = st.builds(
    Guarantee,
    releases=plans,
    unproven=assumptions.map(lambda found: found[:1]),
    mechanism=st.text(max_size=40),
    delta=st.sampled_from([1e-6, 1e-3]),
    model=st.sampled_from(["central", "local"]),
    claimed=st.none() | st.floats(0, 100),
    calibration=st.sampled_from(["paper", "proven"]),
    assumptions=assumptions,
    entropy=st.sampled_from(["system", "keyed", "seed"]),
    also=st.lists(beside, max_size=2).map(tuple),
    audited=st.none() | audits,
)


@given(guarantees)
def test_json_round_trip_gives_an_equal_value(guarantee: Guarantee) -> None:
    text = guarantee.to_json()
    assert Guarantee.from_json(text) == guarantee
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@given(guarantees)
def test_line_and_card_always_name_the_unit_and_the_neighbours(guarantee: Guarantee) -> None:
    assert f"per {guarantee.unit}" in guarantee.line()
    fields = [field for field, _ in guarantee.rows()]
    for needed in (
        "unit of privacy",
        "neighbours",
        "model",
        "epsilon",
        "delta",
        "accountant",
        "assumptions",
    ):
        assert needed in fields
    for needed in ("randomness", "claimed", "proven", "audited", "releases"):
        assert needed in fields
    assert "private" not in dict(guarantee.rows())["audited"]


@given(costs, costs)
def test_costs_add_in_one_unit_only(one: Cost, other: Cost) -> None:
    if (one.unit, one.neighbours) == (other.unit, other.neighbours):
        assert (one + other).epsilon == one.epsilon + other.epsilon
    else:
        with pytest.raises(UnitMismatch, match="per"):
            one + other


def test_group_privacy_multiplies_epsilon_and_sums_delta() -> None:
    whole = Cost(epsilon=0.5, delta=1e-6, unit="pair").per("record", times=3)
    assert whole.epsilon == 1.5
    assert whole.delta == pytest.approx(1e-6 * (1 + math.exp(0.5) + math.exp(1.0)))
    assert Cost(epsilon=9.0, delta=1e-6, unit="bit").per("record", times=500).delta < 1


def test_an_audit_refutes_the_claim_under_paper_and_the_proof_otherwise() -> None:
    flips = Planned(what="codes", mechanism=KaryResponse(epsilon=26.0, k=2, unit="record"))
    base = Guarantee(releases=(flips,), model="local", claimed=1.0, calibration="paper")
    measured = Audited(epsilon=7.9, confidence=0.95, attack="likelihood ratio", trials=1000)
    assert base.with_audit(measured).refuted
    assert "REFUTED" in base.with_audit(measured).line()
    proven = dataclasses.replace(base, calibration="proven", audited=measured)
    assert not proven.refuted
    assert "not refuted" in proven.card()
    assert base.audited is None


@pytest.mark.parametrize(
    "change",
    [
        {"releases": ()},
        {"epsilon": 0.5},
        {"epsilon": float("nan")},
        {"epsilon": True},
        {"epsilon": "1"},
        {"delta": 1.0},
        {"delta": -1e-9},
        {"unit": "house"},
        {"neighbours": "close"},
        {"model": "global"},
        {"mechanism": 3},
        {"mechanism": " ", "releases": (), "epsilon": float("inf")},
        {"claimed": -1.0},
        {"calibration": "guess"},
        {"sampler": "fast"},
        {"simulation": 1},
    ],
    ids=str,
)
def test_invalid_guarantees_cannot_be_born(change: dict) -> None:
    flip = Planned(what="bit", mechanism=KaryResponse(epsilon=1.0, k=2, unit="bit"))
    fields = {"releases": (flip,), "unit": "bit", "epsilon": 1.0, "model": "local"}
    Guarantee(**fields)
    with pytest.raises(BlindsightError):
        Guarantee(**{**fields, **change})


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"mechanism": "x", "evil": 1}', '{"also": 3}', '{"audited": 5}', "nul"],
)
def test_foreign_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidData):
        Guarantee.from_json(text)
    with pytest.raises(InvalidData):
        Disclosure.from_json(text)


def test_a_disclosure_says_who_sees_what_and_claims_no_epsilon() -> None:
    attacked = Disclosure(
        method="negative database sketch",
        sees=(("server", "counts per bit"),),
        recovered=(Recovery(attack="posterior mean", measure="PSNR", value=15.04),),
        verdict="leaks",
    )
    assert Disclosure.from_json(attacked.to_json()) == attacked
    assert "none claimed" in attacked.card()
    assert "15.04" in attacked.card()
    with pytest.raises(BlindsightError):
        Disclosure(method="x", sees=())


@given(guarantees)
def test_a_file_that_states_less_than_its_mechanisms_cost_is_refused(guarantee: Guarantee) -> None:
    fields = json.loads(guarantee.to_json())
    if guarantee.unproven or guarantee.epsilon < 1e-6:
        return
    for lie in (0.0, guarantee.epsilon * 0.99):
        with pytest.raises(InvalidData):
            Guarantee.from_json(json.dumps({**fields, "epsilon": lie}))
    # Stating more than is due is allowed: it promises less.
    assert (
        Guarantee.from_json(json.dumps({**fields, "epsilon": guarantee.epsilon * 2})).epsilon
        > guarantee.epsilon
    )


def test_assumptions_are_found_by_name_and_reasons_make_it_infinite() -> None:
    planned = Planned(what="cells", mechanism=KaryResponse(epsilon=2.0, k=8, unit="record"))
    public = Assumption("public cells", "the cells were learned from public images")
    finite = Guarantee(releases=(planned,), model="local", assumptions=(public,))
    assert finite.assumes("public cells") and not finite.assumes("public")
    assert (
        finite.epsilon == 2.0 and finite.sampler == "exact" and "cells: k-ary" in finite.mechanism
    )
    none = dataclasses.replace(
        finite, unproven=(Assumption("private cells", "the cells come from the images"),)
    )
    assert math.isinf(none.epsilon) and math.isinf(none.cost.epsilon)
    assert "the cells come from the images" in none.card()


def test_a_larger_unit_is_never_stated_as_cheaper_than_what_it_holds() -> None:
    flips = Planned(what="code", mechanism=KaryResponse(epsilon=8.0, k=8, unit="record"))
    with pytest.raises(InvalidParameter, match="a person holds a record"):
        Guarantee(releases=(flips,), model="local", also=(Cost(epsilon=0.5, unit="person"),))
    with pytest.raises(InvalidParameter, match="a record holds a bit"):
        Guarantee(releases=(flips,), model="local", also=(Cost(epsilon=9.0, unit="bit"),))
    honest = Guarantee(releases=(flips,), model="local", also=(Cost(epsilon=24.0, unit="person"),))
    forged = honest.to_json().replace("24.0", "2.0")
    with pytest.raises(InvalidData, match="cannot be right"):
        Guarantee.from_json(forged)
