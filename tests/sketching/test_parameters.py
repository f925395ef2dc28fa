from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.sketching.parameters import PAPER_Q, QKParameters, resolve

# Table 2's last two columns.
TABLE_2 = {
    "Q1": (0.25, 0.70), "Q2": (0.40, 0.67), "Q3": (0.45, 0.45), "Q4": (0.57, 0.57), "Q5": (0.67, 0.40),  # noqa: E501
    "Q6": (0.73, 0.67), "Q7": (0.77, 0.57), "Q8": (0.80, 0.40), "Q9": (0.82, 0.25), "Q10": (0.84, 0.25),  # noqa: E501
    "Q11": (0.85, 0.25), "Q12": (0.86, 0.25),
}  # fmt: skip


@pytest.mark.parametrize("name", PAPER_Q)
def test_p_diff_reproduces_table_2(name):
    p_diff = QKParameters.paper(name).p_diff
    assert p_diff[[0, 7]] == pytest.approx(
        TABLE_2[name], abs=0.0101
    )  # the paper cuts 0.857 to 0.85


def test_p_diff_is_equation_4_as_printed():
    parameters = QKParameters(q=(0.5, 0.3, 0.2), p=(0.1, 0.2, 0.3, 0.4), r=2)
    K, L, p = 4, 3, parameters.p
    for i, q in enumerate(parameters.q):
        above = sum(j * p[j - 1] * q for j in range(1, K + 1))
        below = above + sum((K - j) * p[j - 1] / L for j in range(1, K + 1))
        assert parameters.p_diff[i] == pytest.approx(above / below)


def test_k_hidden_is_the_uniform_special_case():
    assert QKParameters.k_hidden(8) == QKParameters.paper("Q3")


def test_parameters_survive_json():
    for name in PAPER_Q:
        parameters = QKParameters.paper(name, r=3)
        assert QKParameters.from_dict(parameters.to_dict()) == parameters
        assert parameters.name == name


def test_fingerprints_differ_where_parameters_do():
    assert len({QKParameters.paper(name).fingerprint for name in PAPER_Q}) == 12
    assert QKParameters.paper("Q1").fingerprint != QKParameters.paper("Q1", r=6).fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"q": (0.5, 0.4)}, "q must sum to 1"),
        ({"q": (1.5, -0.5)}, r"q\[0\] must be in"),
        ({"q": (0.5, 0.5), "p": (0.5, 0.6)}, "p must sum to 1"),
        ({"q": (0.5, 0.5), "r": 0}, "r must be"),
        ({"q": (0.5, 0.5), "r": float("nan")}, "r must be"),
        ({"q": ()}, "q must sum to 1"),
        ({"q": "0.5"}, "sequence of probabilities"),
        ({"q": 0.5}, "sequence of probabilities"),
        ({"q": (1 / 17,) * 17}, "at most 16"),
    ],
)
def test_wrong_parameters_are_refused_in_words(options, message):
    with pytest.raises(InvalidParameter, match=message):
        QKParameters(**options)


def test_k_larger_than_the_string_is_refused():
    with pytest.raises(InvalidParameter, match=r"K .* must be at most the string's 2 bits, got 3"):
        QKParameters(q=(0.5, 0.5)).check_string(1)


def test_q_without_room_for_the_differing_bits_is_refused():
    with pytest.raises(InvalidParameter, match="allow 3 differing bits"):
        QKParameters.paper("Q12").check_string(1)


@pytest.mark.parametrize(
    "fields", [None, {}, {"q": [1.0]}, {"q": [1.0], "p": [1.0], "r": 1, "x": 2}]
)
def test_malformed_fields_are_refused(fields):
    with pytest.raises(InvalidData):
        QKParameters.from_dict(fields)


def test_unknown_name_is_refused():
    with pytest.raises(InvalidParameter, match="one of 'Q1'"):
        resolve("Q13", p=(1.0,), r=1)


@given(st.integers(1, 16), st.integers(1, 6), st.floats(0.1, 60))
def test_counts_fit_their_dtype_with_room(depth, K, r):
    parameters = QKParameters(q=(1.0, *(0.0,) * (depth - 1)), p=(*(0.0,) * (K - 1), 1.0), r=r)
    rate = max(parameters.differing_rate.max(), parameters.agreeing_rate)
    assert parameters.top_count > rate + 5 * np.sqrt(rate)
    assert parameters.top_count <= np.iinfo(parameters.dtype).max


def test_bytes_suffice_for_the_papers_settings_up_to_r_20():
    for name in ("Q1", "Q2", "Q3", "Q4", "Q5"):
        assert QKParameters.paper(name, r=19).dtype == np.uint8
    assert QKParameters.paper("Q12").dtype == np.uint8
