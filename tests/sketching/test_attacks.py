from __future__ import annotations

import numpy as np
import pytest

from blindsight import data
from blindsight.audit.methods.sketching import propagate_beliefs, reverse
from blindsight.core.errors import InvalidData
from blindsight.sketching import NegativeDatabase, QKParameters
from blindsight.sketching.negative_database import hide_image
from blindsight.sketching.parameters import to_bits


@pytest.fixture(scope="module")
def digits():
    images = data.load("mnist5k").array()[:, 4:24, 4:24]
    return images[::25], images[1::5]  # private, public


@pytest.mark.parametrize(
    ("name", "r", "least"), [("Q3", 6.5, 0.995), ("Q6", 6.5, 0.995), ("Q3", 3.0, 0.95)]
)
def test_records_are_reversed_by_belief_propagation(digits, name, r, least):
    parameters = QKParameters.paper(name, r=r)
    image = digits[0][3]
    database = hide_image(image, parameters, random_state=0)
    bits = to_bits(image.ravel(), 8).ravel()
    assert ((propagate_beliefs(database, parameters) > 0) == bits).mean() > least


def test_records_tell_more_than_their_sketch(digits):
    parameters = QKParameters.paper("Q3")
    image = digits[0][5]
    database = hide_image(image, parameters, random_state=1)
    exact = (reverse(database, parameters) == image.ravel()).mean()
    sketch = np.asarray(database.sketch(8), np.uint8)
    likelier = (sketch[:, 1] > sketch[:, 0]) == (parameters.p_diff[0] < 0.5)
    from_sketch = (to_bits(image.ravel(), 8) == likelier.T).all(axis=1).mean()
    assert exact > 0.95 and from_sketch < 0.2


def test_belief_propagation_wants_records_of_k_bits():
    with pytest.raises(InvalidData, match="3 specified bits"):
        propagate_beliefs(NegativeDatabase.complement(["00000000"]), QKParameters.paper("Q3"))
