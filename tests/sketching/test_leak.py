from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from blindsight.sketching.leak import (
    bit_distribution,
    bit_epsilon,
    bit_posteriors,
    leak_of,
    pixel_epsilon_rdp,
)
from blindsight.sketching.parameters import PAPER_Q, QKParameters, to_bits
from blindsight.sketching.sampler import Dice, draw_sketches

# Table 5 of the paper.
G_MNIST = dict(
    zip(PAPER_Q, (1670, 1936, 3890, 2295, 1933, 252, 546, 484, 212, 141, 71, 36), strict=True)
)
G_CIFAR = dict(
    zip(PAPER_Q, (2177, 2523, 5082, 2992, 2526, 331, 716, 631, 278, 183, 91, 47), strict=True)
)


@pytest.mark.parametrize("name", PAPER_Q)
def test_g_reproduces_table_5(name):
    leak = leak_of(QKParameters.paper(name))
    assert leak.G(784) == pytest.approx(G_MNIST[name], rel=0.01, abs=2)
    assert leak.G(1024) == pytest.approx(G_CIFAR[name], rel=0.01, abs=2)


@pytest.mark.parametrize(
    ("name", "epsilon"),
    [("Q3", 12), ("Q4", 30), ("Q2", 43), ("Q5", 43), ("Q1", 62), ("Q6", 126), ("Q8", 155)],
)
def test_epsilon_per_pixel(name, epsilon):
    leak = leak_of(QKParameters.paper(name))
    assert leak.epsilon_pixel == pytest.approx(epsilon, abs=0.6)
    assert leak.epsilon_pixel <= leak.epsilon_pixel_rdp <= 1.1 * leak.epsilon_pixel


def test_a_bit_that_never_lies_has_no_finite_epsilon():
    leak = leak_of(QKParameters.paper("Q12"))
    assert leak.epsilon_bit[0] == pytest.approx(176.4, abs=0.1)
    assert all(math.isinf(epsilon) for epsilon in leak.epsilon_bit[1:7])
    assert math.isinf(leak.epsilon_pixel) and math.isinf(leak.epsilon_pixel_rdp)


def test_equal_rates_leak_nothing():
    parameters = QKParameters(q=(0.25,) * 4, p=(0.5, 0.0, 0.5, 0.0), r=3)  # mu = K / 2
    leak = leak_of(parameters)
    assert leak.epsilon_pixel == 0
    assert leak.bits_right == pytest.approx((0.5,) * 4)
    assert leak.information == pytest.approx(0, abs=1e-12)


def test_bit_epsilon_agrees_with_mpmath():
    differing, agreeing, delta = 11.0, 8.0, 1e-5
    epsilon = bit_epsilon(differing, agreeing, delta=delta)
    rho = mpmath.log(mpmath.mpf(agreeing) / differing)

    def excess(epsilon):
        total = mpmath.mpf(0)
        for k in range(-90, 91):
            p = mpmath.exp(-(differing + agreeing)) * mpmath.power(
                agreeing / differing, mpmath.mpf(k) / 2
            )
            p *= mpmath.besseli(abs(k), 2 * mpmath.sqrt(differing * agreeing))
            total += p * max(mpmath.mpf(0), 1 - mpmath.exp(epsilon - k * rho))
        return total

    assert excess(epsilon) <= delta < excess(epsilon - 0.02)  # rounded up, by at most the grid


def test_renyi_orders_bound_the_tight_value_from_above():
    for name in ("Q1", "Q3", "Q6"):
        parameters = QKParameters.paper(name)
        rate = float(parameters.differing_rate[0])
        assert pixel_epsilon_rdp([rate], parameters.agreeing_rate) >= bit_epsilon(
            rate, parameters.agreeing_rate
        )


@pytest.mark.parametrize("name", ["Q2", "Q3", "Q9"])
def test_the_law_of_a_bit_is_what_sketches_show(name):
    parameters = QKParameters.paper(name)
    pixels = np.random.default_rng(0).integers(0, 256, size=(30, 784)).astype(np.uint8)
    posteriors = bit_posteriors(draw_sketches(pixels, parameters, dice=Dice.throw(0)), parameters)
    bits = to_bits(pixels, 8).transpose(0, 2, 1)
    truth = np.where(bits == 1, posteriors, 1 - posteriors)
    for j, rate in enumerate(parameters.differing_rate):
        law = bit_distribution(float(rate), parameters.agreeing_rate)
        # 23,520 samples: the standard error is below 0.0033, five of them
        assert truth[:, j].mean() == pytest.approx(law.mean, abs=0.017)
        assert ((truth[:, j] > 0.5) + 0.5 * (truth[:, j] == 0.5)).mean() == pytest.approx(
            law.right, abs=0.017
        )


def test_verdicts_rank_the_settings():
    verdicts = {name: leak_of(QKParameters.paper(name)).verdict for name in PAPER_Q}
    assert "handed over" in verdicts["Q12"] and "handed over" in verdicts["Q6"]
    assert "similar images" in verdicts["Q3"]


def test_the_verdict_depends_on_resolution_and_never_reassures():
    leak = leak_of(QKParameters.paper("Q3"))
    assert "recovers the picture" in leak.verdict_at((3, 256, 256))
    assert "coarse shapes" in leak.verdict_at((3, 96, 96))
    assert "similar images" in leak.verdict_at((1, 28, 28))
    for side in (8, 28, 64, 256, 1024):
        assert "faint" not in leak.verdict_at((1, side, side)).lower()
