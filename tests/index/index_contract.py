"""What every index promises, whichever engine holds the codes.

Engines subclass `IndexContract` and bring `make`.
"""

from __future__ import annotations

import numpy as np
import pytest

from blindsight.core.codes import MatchModel, asymmetric_scores, hamming, pack, unpack
from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.index import HammingIndex
from blindsight.privacy import Guarantee
from blindsight.privacy.accounting import Planned
from blindsight.privacy.mechanisms import KaryResponse

FLIPS = Planned(what="code", mechanism=KaryResponse(epsilon=4.0, k=2, unit="record"))
GUARANTEE = Guarantee(releases=(FLIPS,), model="local")


def random_codes(n: int, n_bits: int, seed: int = 0) -> np.ndarray:
    return pack(np.random.default_rng(seed).integers(0, 2, (n, n_bits)))


class IndexContract:
    """Subclasses define the fixture `make(n_bits, **options) -> CodeIndex`."""

    @pytest.mark.parametrize("n_bits", [12, 32, 64])
    def test_nearest_distances_equal_brute_force(self, make, n_bits):
        codes, queries = random_codes(300, n_bits), random_codes(7, n_bits, seed=1)
        index = make(n_bits)
        index.add(codes)
        hits = index.search(queries, k=20)
        truth = hamming(queries, codes)
        for query, found in enumerate(hits):
            assert [hit.distance for hit in found] == np.sort(truth[query])[:20].tolist()
            assert all(truth[query, hit.id] == hit.distance for hit in found)
            assert len({hit.id for hit in found}) == 20

    def test_a_radius_finds_all_codes_within_and_no_others(self, make):
        codes, queries = random_codes(400, 16), random_codes(5, 16, seed=1)
        index = make(16)
        index.add(codes)
        truth = hamming(queries, codes)
        for radius in (0, 4, 6, 16):
            for query, found in enumerate(index.within(queries, radius)):
                assert {hit.id for hit in found} == set(
                    np.flatnonzero(truth[query] <= radius).tolist()
                )
                distances = [hit.distance for hit in found]
                assert distances == sorted(distances)
                assert all(truth[query, hit.id] == hit.distance for hit in found)

    def test_soft_ranking_equals_the_debiased_inner_product(self, make):
        codes = random_codes(200, 12)
        z = np.random.default_rng(3).normal(size=(4, 12))
        index = make(12, decoding=MatchModel.independent_bits(12, 0.2, prior=0.01))
        index.add(codes)
        scores = asymmetric_scores(z, codes, beta=0.2)
        for query, found in enumerate(index.search_soft(z, k=10)):
            expected = np.sort(scores[query])[::-1][:10]
            np.testing.assert_allclose([hit.score for hit in found], expected, rtol=1e-4, atol=1e-4)
            for hit in found:
                assert scores[query, hit.id] == pytest.approx(hit.score, abs=1e-4)
                assert (
                    hit.distance == hamming(pack((z > 0)[query : query + 1]), codes[[hit.id]])[0, 0]
                )

    def test_an_id_added_again_takes_the_new_code(self, make):
        codes = random_codes(3, 24)
        index = make(24)
        index.add(codes[:2], ids=[5, 6])
        index.add(codes[1:], ids=[6, 5])
        assert len(index) == 2
        np.testing.assert_array_equal(index.codes_of([5, 6]), codes[[2, 1]])

    def test_removed_codes_are_not_found(self, make):
        codes = random_codes(50, 24)
        index = make(24)
        index.add(codes)
        assert index.remove([3, 49, 7, 1000]) == 3
        assert len(index) == 47
        assert 3 not in index and 4 in index
        found = {hit.id for hit in index.search(codes[3:4], k=50)[0]}
        assert found == set(range(50)) - {3, 7, 49}
        assert index.remove([3]) == 0

    def test_ids_are_counted_on(self, make):
        index = make(8)
        assert index.add(random_codes(3, 8)).tolist() == [0, 1, 2]
        index.add(random_codes(1, 8), ids=[10])
        assert index.add(random_codes(2, 8)).tolist() == [11, 12]

    def test_ids_span_64_bits(self, make):
        codes = random_codes(2, 8)
        index = make(8)
        index.add(codes, ids=[-(2**63), 2**63 - 1])
        assert {hit.id for hit in index.search(codes[:1], k=2)[0]} == {-(2**63), 2**63 - 1}

    def test_names_go_in_and_come_out(self, make):
        codes = random_codes(4, 32)
        names = ["a.jpg", "Fotos/Käse 'alt' \"neu\".png", "c\\d.jpg", "e\nf"]
        index = make(32, names=True)
        index.add(codes, ids=names)
        for code, name in zip(codes, names, strict=True):
            best = index.search(code[None], k=1)[0][0]
            assert (best.id, best.distance) == (name, 0)
        np.testing.assert_array_equal(index.codes_of(names), codes)
        assert index.remove([names[1], "missing"]) == 1
        assert names[1] not in index and names[0] in index and 3 not in index

    def test_fewer_codes_than_k_give_fewer_hits(self, make):
        index = make(16)
        assert [len(found) for found in index.search(random_codes(2, 16), k=5)] == [0, 0]
        assert [len(found) for found in index.within(random_codes(2, 16), 16)] == [0, 0]
        assert [len(found) for found in index.rank(np.ones((2, 16)), k=5)] == [0, 0]
        index.add(random_codes(3, 16))
        assert [len(found) for found in index.search(random_codes(2, 16), k=5)] == [3, 3]
        assert len(index.search(np.empty((0, 2), np.uint8), k=5)) == 0

    def test_hits_carry_the_posterior_of_the_match_model(self, make):
        model = MatchModel.independent_bits(32, 0.1, prior=0.05)
        codes = random_codes(100, 32)
        index = make(32, decoding=model)
        index.add(codes)
        found = index.search(codes[:1], k=100)[0]
        np.testing.assert_allclose(
            [hit.probability for hit in found],
            model.posterior(np.array([hit.distance for hit in found])),
        )
        kept = index.search(codes[:1], k=100, min_probability=0.5)[0]
        assert kept == [hit for hit in found if hit.probability >= 0.5]
        assert 1 <= len(kept) < 100

    def test_without_a_model_no_probability_is_made_up(self, make):
        index = make(8)
        index.add(random_codes(3, 8))
        assert all(hit.probability is None for hit in index.search(random_codes(1, 8), k=3)[0])
        with pytest.raises(InvalidParameter, match="no probabilities"):
            index.search(random_codes(1, 8), min_probability=0.5)

    def test_a_saved_file_brings_everything_back(self, make, tmp_path):
        model = MatchModel.independent_bits(20, 0.1, prior=0.05)
        codes = random_codes(60, 20)
        index = make(20, names=True, guarantee=GUARANTEE, decoding=model)
        names = [f"photo {i}" for i in range(60)]
        index.add(codes, ids=names)
        index.remove(names[:10])
        index.save(tmp_path / "saved.index")
        back = HammingIndex.load(tmp_path / "saved.index")
        assert (len(back), back.guarantee, back.n_bits) == (50, GUARANTEE, 20)
        np.testing.assert_array_equal(back.codes_of(names[10:]), codes[10:])
        np.testing.assert_allclose(back.decoding.curve(), model.curve(), rtol=1e-12)
        again = make(20, names=True, source=tmp_path / "saved.index")
        assert (len(again), again.guarantee) == (50, GUARANTEE)
        np.testing.assert_array_equal(again.codes_of(names[10:]), codes[10:])

    def test_walking_through_gives_every_code_once(self, make):
        codes = random_codes(70, 16)
        index = make(16)
        index.add(codes, ids=np.arange(100, 170))
        seen = {
            key: code.tobytes()
            for ids, rows in index.items()
            for key, code in zip(ids, rows, strict=True)
        }
        assert seen == {100 + row: code.tobytes() for row, code in enumerate(codes)}

    @pytest.mark.parametrize(
        ("codes", "ids", "message"),
        [
            (np.zeros((2, 3), np.uint8), None, "2 bytes wide"),
            (np.full((1, 2), 255, np.uint8), None, "padding must be 0"),
            (np.zeros((2, 2)), None, "packed uint8"),
            (np.zeros((2, 2), np.uint8), [1], "one each"),
            (np.zeros((2, 2), np.uint8), [1, 1], "distinct"),
            (np.zeros((2, 2), np.uint8), ["a", "b"], "whole numbers"),
            (np.zeros((1, 2), np.uint8), np.array([2**63], np.uint64), "64-bit"),
        ],
    )
    def test_what_does_not_fit_is_refused_and_nothing_changes(self, make, codes, ids, message):
        index = make(12)
        index.add(random_codes(2, 12))
        with pytest.raises(InvalidData, match=message):
            index.add(codes, ids=ids)
        assert len(index) == 2

    def test_names_need_names(self, make):
        index = make(8, names=True)
        with pytest.raises(InvalidParameter, match="goes by names"):
            index.add(random_codes(1, 8))
        with pytest.raises(InvalidData, match="names"):
            index.add(random_codes(1, 8), ids=[3])

    def test_queries_are_checked(self, make):
        index = make(12)
        index.add(random_codes(5, 12))
        with pytest.raises(InvalidData):
            index.search(random_codes(1, 24))
        with pytest.raises(InvalidParameter):
            index.search(random_codes(1, 12), k=0)
        with pytest.raises(InvalidParameter):
            index.within(random_codes(1, 12), -1)
        with pytest.raises(InvalidData):
            index.rank(np.zeros((1, 11)))

    def test_bits_come_back_as_they_went_in(self, make):
        bits = np.random.default_rng(0).integers(0, 2, (9, 13)).astype(np.uint8)
        index = make(13)
        ids = index.add(pack(bits))
        np.testing.assert_array_equal(unpack(index.codes_of(ids), 13), bits)
