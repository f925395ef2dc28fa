from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.growth import rows as growth
from benchmarks.growth import sizing
from blindsight.core.errors import InvalidData

RATES = {
    "growth.hashing.100000": 100.0,  # a millisecond a code
    "growth.sketching.10000": 10.0,
    "growth.search.1000000": 16e-3,  # a millisecond a query and a million codes
    "growth.encryption.100000": 1.0,
    "growth.rate.photo": 0.004,
    "growth.rate.features": 0.005,
    "growth.rate.code_bytes": 16.0,
    "growth.rate.sketch_bytes": 1000.0,
    "growth.rate.update_blocks": 5000.0,
    "growth.rate.update_bytes": 2.5e6,
    "growth.rate.holder_share": 0.0005,
    "growth.rate.add_block": 1e-5,
    "growth.rate.aggregator_bytes_block": 1e5,
    "growth.rate.aggregator_bytes_once": 5e6,
}


def test_the_plan_multiplies_rates_by_sizes():
    plan = {row.id.removeprefix("growth.plan."): row.value for row in sizing.plan(RATES)}
    assert plan["hash_core_hours"] == pytest.approx(1e9 * 0.010 / 3600)
    assert plan["hash_cores"] == pytest.approx(1e9 * 0.010 / 86400)
    assert plan["index_gigabytes"] == pytest.approx(16)
    assert plan["query_core_seconds"] == pytest.approx(1.0)
    assert plan["sketch_terabytes"] == pytest.approx(1.0)
    assert plan["update_megabytes"] == pytest.approx(2.5)
    assert plan["received_gigabytes"] == pytest.approx(25)
    assert plan["holder_seconds"] == pytest.approx(5.0)
    assert plan["aggregator_core_hours"] == pytest.approx(500 / 3600)
    assert plan["aggregator_gigabytes"] == pytest.approx(0.505)


def test_the_plan_is_linear_in_images_and_names_its_rates():
    one, two = ({row.id: row for row in sizing.plan(RATES, images=n)} for n in (10**6, 2 * 10**6))
    for name in ("hash_cores", "sketch_core_hours", "index_gigabytes", "query_core_seconds"):
        assert two[f"growth.plan.{name}"].value == pytest.approx(
            2 * one[f"growth.plan.{name}"].value
        )
    assert all(
        source in RATES
        for row in one.values()
        for source in row.note.removeprefix("from ").split(", ")
    )


def test_the_plan_does_without_the_network():
    rates = {name: value for name, value in RATES.items() if name != "growth.rate.features"}
    plan = {row.id: row.value for row in sizing.plan(rates)}
    assert plan["growth.plan.hash_core_hours"] == pytest.approx(1e9 * 0.005 / 3600)


def test_the_page_gets_the_plan_between_its_markers_and_nothing_else(tmp_path):
    rows = [
        {"id": row.id, "value": row.value, "unit": row.unit, "note": row.note}
        for row in sizing.plan(RATES)
    ]
    report, page = tmp_path / "growth.json", tmp_path / "cluster.md"
    report.write_text(json.dumps({"rows": rows}))
    page.write_text(f"before\n{sizing.BEGIN}\nwhat was there\n{sizing.END}\nafter\n")
    sizing.fill_page(report, page)
    once = page.read_text()
    sizing.fill_page(report, page)
    assert page.read_text() == once
    assert once.startswith("before\n") and once.endswith("\nafter\n")
    assert "what was there" not in once
    assert "| TB of sketches | 1 | growth.rate.sketch_bytes |" in once
    page.write_text("no markers")
    with pytest.raises(InvalidData, match="once each"):
        sizing.fill_page(report, page)


def test_the_exponent_of_a_power_is_found():
    sizes = (10, 100, 1000, 10_000)
    assert growth.exponent(sizes, [9.0, 1e-3, 1e-2, 1e-1]) == pytest.approx(1.0)
    assert growth.exponent(sizes, [float(n) ** 1.5 for n in sizes]) == pytest.approx(1.5)


def test_every_subject_spans_three_decades():
    assert [subject.name for subject in growth.SUBJECTS] == [
        "sketching", "hashing", "search", "kappa", "encryption", "audit",
    ]  # fmt: skip
    assert all(subject.sizes[-1] == 1000 * subject.sizes[0] for subject in growth.SUBJECTS)


@pytest.mark.parametrize(
    "subject", [*growth.SUBJECTS, growth.CONTROL], ids=lambda subject: subject.name
)
def test_the_work_of_each_subject_runs(subject):
    assert growth.cpu_seconds(subject.prepare(subject.sizes[0], 0), repeats=1) > 0


def test_a_federation_for_measuring_is_a_real_one():
    federation = sizing.federation(dimension=3)
    aggregator = federation.aggregator()
    messages = [federation.contribute(user, np.array([0.1, 0.2, -0.3])) for user in (1, 2)]
    for message in messages:
        aggregator.receive(message)
    assert aggregator.contributors == (1, 2)
    assert len(messages[0]) == federation.message_bytes


def test_the_six_panels_are_drawn(tmp_path):
    curves = [(subject, [1e-3, 1e-2, 1e-1, 1.0], 1.0) for subject in growth.SUBJECTS]
    growth._draw(curves, tmp_path)
    drawn = (tmp_path / "growth.svg").read_text()
    assert drawn.count('<g id="axes_') == 6
