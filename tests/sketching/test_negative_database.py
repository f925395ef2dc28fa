from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.sketching.negative_database import NegativeDatabase, hide, hide_image
from blindsight.sketching.parameters import QKParameters

UNIVERSE = ["".join(bits) for bits in itertools.product("01", repeat=5)]
strings = st.sampled_from(UNIVERSE)


def hidden(database):
    return {string for string in UNIVERSE if database.contains(string)}


@given(st.sets(strings, min_size=1, max_size=10))
def test_complement_hides_exactly_its_strings(members):
    assert hidden(NegativeDatabase.complement(sorted(members))) == members


@given(st.sets(strings, min_size=1, max_size=6), strings, strings)
def test_operations_change_the_hidden_set_by_exactly_one_string(members, old, new):
    database = NegativeDatabase.complement(sorted(members))
    assert hidden(database.insert(new)) == members | {new}
    assert hidden(database.delete(old)) == (members | {new}) - {old}
    database.insert(old)
    assert hidden(database.update(old, new)) == (members | {new}) - {old} | {new}


def test_the_empty_set_is_negated_by_dont_cares():
    database = NegativeDatabase.empty_hidden(5)
    assert database.records() == ["*****"]
    assert hidden(database) == set()


def test_table_1s_first_database_leaves_111_out():
    # The paper's NDB_1 = {0*1, 1*0} matches none of DB = {000, 101, 010}, but misses 111 of U - DB.
    database = NegativeDatabase(3, [0, 2, 4], [0, 2, 0, 2], [0, 1, 1, 0])
    assert database.records() == ["0*1", "1*0"]
    universe = ["".join(bits) for bits in itertools.product("01", repeat=3)]
    assert [s for s in universe if database.contains(s)] == ["000", "010", "101", "111"]


def test_select_asks_for_several_strings():
    database = NegativeDatabase.complement(["00", "11"])
    assert database.select(["00", "01", "10", "11"]) == [True, False, False, True]


def test_updating_a_string_that_is_not_there_is_refused():
    with pytest.raises(InvalidData, match="contains"):
        NegativeDatabase.complement(["00"]).update("01", "11")


@given(st.integers(0, 2**32))
def test_no_record_of_the_qk_hidden_algorithm_matches_its_string(seed):
    rng = np.random.default_rng(seed)
    parameters = QKParameters(
        q=tuple(rng.dirichlet(np.ones(4))), p=tuple(rng.dirichlet(np.ones(3))), r=3
    )
    bits = rng.integers(0, 2, size=24)
    database = hide(bits, parameters, random_state=seed)
    assert len(database) == 72
    assert database.contains(bits)
    assert (np.diff(database.offsets) == 3).all()


def test_distinct_records_are_distinct():
    parameters = QKParameters(q=(0.5, 0.5), p=(0.5, 0.5), r=2)
    database = hide([0, 1, 1, 0], parameters, distinct=True, random_state=0)
    assert len(set(database.records())) == len(database) == 8


def test_more_distinct_records_than_exist_are_refused():
    with pytest.raises(InvalidParameter, match="different records"):
        hide([0, 1], QKParameters(q=(0.5, 0.5), p=(1.0,), r=50), distinct=True, random_state=0)


def test_sketch_counts_the_specified_bits():
    # Algorithm 2 by hand: bits of two pixels at depth 2.
    database = NegativeDatabase(4, [0, 2, 4, 5], [0, 2, 0, 1, 0], [0, 1, 0, 1, 1])
    assert database.records() == ["0*1*", "01**", "1***"]
    counts = database.sketch(2)
    assert counts.shape == (2, 2, 2)
    assert counts[0].tolist() == [[2, 0], [1, 1]]  # first bits: zeros of pixels 1, 2; ones
    assert counts[1].tolist() == [[0, 0], [1, 0]]


def test_records_are_written_only_on_request(tmp_path):
    database = hide_image(np.arange(9).reshape(3, 3), QKParameters.paper("Q6"), random_state=0)
    with pytest.raises(InvalidParameter, match="belief propagation"):
        database.save(tmp_path / "records")
    assert not (tmp_path / "records").exists()
    database.save(tmp_path / "records", unsafe_records=True)
    again = NegativeDatabase.load(tmp_path / "records")
    assert again.records(0, 5) == database.records(0, 5)
    assert (again.sketch(8) == database.sketch(8)).all()


def test_a_damaged_file_is_refused(tmp_path):
    from blindsight.core import storage

    arrays = {
        "offsets": np.array([0, 2]),
        "positions": np.array([0, 9]),
        "values": np.array([0, 1]),
    }
    storage.save(tmp_path / "bad", kind="negative-database", arrays=arrays, fields={"length": 4})
    with pytest.raises(HostileFile, match="below the string's length"):
        NegativeDatabase.load(tmp_path / "bad")


@pytest.mark.parametrize("string", ["012", "0*1", [0, 2], [0.5, 1.0], [[0, 1]]])
def test_what_is_not_a_bit_string_is_refused(string):
    with pytest.raises(InvalidData):
        NegativeDatabase.complement(["000"]).contains(string)


def test_length_that_l_does_not_divide_is_refused():
    with pytest.raises(InvalidParameter, match="must divide the string's 9 bits"):
        hide(np.zeros(9, int), QKParameters.paper("Q6"))


def test_values_outside_the_depth_are_refused():
    with pytest.raises(InvalidData, match="from 0 to 15 at depth 4"):
        hide_image(np.array([[16]]), QKParameters.k_hidden(4))
