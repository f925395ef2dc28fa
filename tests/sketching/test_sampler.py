"""The direct sampler has the law of Algorithms 1 and 2.

False alarms: every test below is at level 1e-6 in all.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from blindsight.sketching.negative_database import hide, qk_hidden, sketch_of
from blindsight.sketching.parameters import QKParameters, to_bits
from blindsight.sketching.sampler import Dice, draw_sketches, fill, fresh_key

LEVEL = 1e-6


def chacha(rounds, state):
    """ChaCha as RFC 8439 describes it, in plain Python."""
    x, mask = list(state), 0xFFFFFFFF

    def quarter(a, b, c, d):
        for i, j, k, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[i] = (x[i] + x[j]) & mask
            x[k] ^= x[i]
            x[k] = ((x[k] << turn) | (x[k] >> (32 - turn))) & mask

    for _ in range(rounds // 2):
        for column in range(4):
            quarter(column, column + 4, column + 8, column + 12)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return [(a + b) & mask for a, b in zip(x, state, strict=True)]


CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)


def test_the_oracle_passes_rfc_8439():
    key = [int.from_bytes(bytes(range(4 * i, 4 * i + 4)), "little") for i in range(8)]
    block = chacha(20, [*CONSTANTS, *key, 1, 0x09000000, 0x4A000000, 0])
    assert block[:4] == [0xE4E7F110, 0x15593BD1, 0x1FDD0F50, 0xC47120A3]


def test_the_keystream_is_chacha8():
    key = fresh_key()
    out = np.empty((16, 37), np.uint32)
    fill(key, 0x1234567890, 1, 5, out)
    for block in (0, 11, 36):
        state = [*CONSTANTS, *map(int, key), 5 + block, 1, 0x34567890, 0x12]
        assert out[:, block].tolist() == chacha(8, state)


def by_records(bits, parameters, trials):
    """Sketches from vectorised records, flat: (trials, planes, 2, attributes)."""
    return np.stack(
        [
            hide(bits, parameters, random_state=seed).sketch(parameters.depth)
            for seed in range(trials)
        ]
    )


def by_python(bits, parameters, trials):
    rng = random.Random(7)
    rows = [sketch_of(qk_hidden(bits, parameters, rng=rng), len(bits)) for _ in range(trials)]
    return np.array(rows).reshape(trials, -1, parameters.depth, 2).transpose(0, 2, 3, 1)


def p_values(one, other):
    """Two-sample tests: the histogram of every cell, and of products of neighbouring cells (their
    dependence).
    """
    flat_one, flat_other = (
        one.reshape(len(one), -1).astype(int),
        other.reshape(len(other), -1).astype(int),
    )
    both = np.concatenate([flat_one, flat_other])
    centred = both - both.mean(axis=0)
    products = centred * np.roll(centred, 1, axis=1)
    for values in (*both.T, *products.T):
        edges = np.unique(np.quantile(values, np.linspace(0, 1, 9)[1:-1]))
        bins = np.searchsorted(edges, values, side="right")
        table = np.zeros((2, bins.max() + 1))
        np.add.at(table, (np.repeat([0, 1], [len(one), len(other)]), bins), 1)
        yield chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue


SMALL = QKParameters(q=(0.6, 0.3, 0.1), p=(0.3, 0.4, 0.3), r=2.0)
PIXELS = np.array([[5, 0, 3, 6]], np.uint8)


def smallest(one, other):
    values = list(p_values(one, other))
    return min(values) * len(values)  # Bonferroni


def sampled(parameters, trials, pixels=PIXELS):
    return draw_sketches(
        np.repeat(pixels, trials, axis=0), parameters, dice=Dice.throw(3), n_jobs=2
    )


@pytest.mark.parametrize(
    "q", [(0.6, 0.3, 0.1), (0.0, 1.0, 0.0), (1 / 3, 1 / 3, 1 / 3), (0.0, 0.5, 0.5)]
)
def test_counts_have_the_law_of_the_records(q):
    parameters = QKParameters(q=q, p=SMALL.p, r=SMALL.r)
    bits = to_bits(PIXELS[0], 3).ravel()
    assert smallest(sampled(parameters, 20000), by_records(bits, parameters, 1500)) > LEVEL


def test_counts_have_the_law_of_algorithm_1_in_plain_python():
    bits = to_bits(PIXELS[0], 3).ravel().tolist()
    assert smallest(sampled(SMALL, 20000), by_python(bits, SMALL, 1500)) > LEVEL


def test_the_test_would_see_repeats_ignored():
    # Multinomial counts without the care for repeats: what the sampler would give without its
    # redraws.
    rng, n, M = np.random.default_rng(0), 20000, 4
    types = rng.multinomial(SMALL.n_records(M), SMALL.p, size=n)
    differing = types @ np.arange(1, 4)
    d = rng.multinomial(differing, np.repeat(SMALL.q, M) / M)
    s = rng.multinomial(3 * SMALL.n_records(M) - differing, np.full(3 * M, 1 / (3 * M)))
    bits = to_bits(PIXELS[0], 3).T.ravel()
    loose = (
        np.where(bits, [d, s], [s, d]).transpose(1, 0, 2).reshape(n, 2, 3, M).transpose(0, 2, 1, 3)
    )
    assert smallest(loose, by_records(to_bits(PIXELS[0], 3).ravel(), SMALL, 1500)) < LEVEL


@pytest.mark.parametrize(
    ("depth", "M", "K"), [(1, 5, 1), (1, 30, 4), (5, 3, 2), (8, 49, 3), (16, 10, 5)]
)
def test_every_record_is_counted_once_a_specified_bit(depth, M, K):
    parameters = QKParameters(q=(1 / depth,) * depth, p=(1 / K,) * K, r=6.5)
    pixels = np.random.default_rng(0).integers(0, 2**depth, size=(20, M)).astype(np.uint16)
    counts = draw_sketches(pixels, parameters, dice=Dice.throw(0))
    assert counts.shape == (20, depth, 2, M)
    assert (counts.sum(axis=(1, 2, 3), dtype=np.int64) == K * parameters.n_records(M)).all()


def test_a_bit_with_q_zero_shows_only_its_true_value():
    parameters = QKParameters.paper("Q12")
    pixels = np.random.default_rng(0).integers(0, 256, size=(10, 49)).astype(np.uint8)
    counts = draw_sketches(pixels, parameters, dice=Dice.throw())
    wrong = np.where(to_bits(pixels, 8).transpose(0, 2, 1) == 1, counts[:, :, 0], counts[:, :, 1])
    assert (wrong[:, 1:7] == 0).all()
    assert (wrong[:, 0] > 0).all()


def test_fresh_dice_differ_and_seeded_dice_repeat():
    def draw(dice):
        return draw_sketches(PIXELS, SMALL, dice=dice)

    assert (draw(Dice.throw(5)) == draw(Dice.throw(5))).all()
    several = {draw(Dice.throw()).tobytes() for _ in range(20)}
    assert len(several) == 20
    assert Dice.throw().simulation is False and Dice.throw(5).simulation is True


def test_strings_under_one_key_have_their_own_dice():
    pixels = np.zeros((50, 49), np.uint8)
    counts = draw_sketches(pixels, QKParameters.paper("Q3"), dice=Dice.throw(0))
    assert len({row.tobytes() for row in counts}) == 50


def test_the_number_of_threads_changes_nothing():
    pixels = np.random.default_rng(0).integers(0, 256, size=(40, 49)).astype(np.uint8)
    one, two = (
        draw_sketches(pixels, QKParameters.paper("Q6"), dice=Dice.throw(1), n_jobs=jobs)
        for jobs in (1, 2)
    )
    assert (one == two).all()


def test_dice_keep_their_key_out_of_sight():
    dice = Dice.throw()
    assert str(dice.key[0]) not in repr(dice)
