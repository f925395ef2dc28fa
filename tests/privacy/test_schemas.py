"""Other tools can read our cards: every card that we write fits the schema that we ship."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given

from blindsight.privacy import Disclosure, Guarantee, Recovery
from blindsight.privacy.schemas import schema
from privacy.test_guarantee import guarantees

CARD, DISCLOSURE = schema("privacy card"), schema("disclosure card")
# `jsonschema.validate` would check the schema itself again at every card.
CARDS = jsonschema.validators.validator_for(CARD)(CARD)


def test_the_schemas_are_schemas() -> None:
    for each in (CARD, DISCLOSURE):
        jsonschema.validators.validator_for(each).check_schema(each)


@given(guarantees)
def test_every_card_fits_its_schema(guarantee: Guarantee) -> None:
    CARDS.validate(json.loads(guarantee.to_json()))


def test_every_disclosure_fits_its_schema() -> None:
    recovery = Recovery(attack="a", measure="PSNR", value=1.0)
    disclosure = Disclosure(
        method="m", sees=(("server", "counts"),), recovered=(recovery,), verdict="leaks"
    )
    jsonschema.validate(json.loads(disclosure.to_json()), DISCLOSURE)


@pytest.mark.parametrize(
    "change",
    [
        {"unit": "house"},
        {"epsilon": -1},
        {"evil": 1},
        {"format": "x"},
        {"releases": [{}]},
        {"entropy": "dice"},
    ],
)
def test_the_schema_refuses_what_is_no_card(change: dict[str, Any]) -> None:
    from blindsight.privacy import Planned
    from blindsight.privacy.mechanisms import KaryResponse

    planned = Planned(what="cells", mechanism=KaryResponse(epsilon=1.0, k=4, unit="record"))
    card = json.loads(Guarantee(releases=(planned,), model="local").to_json())
    jsonschema.validate(card, CARD)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**card, **change}, CARD)
