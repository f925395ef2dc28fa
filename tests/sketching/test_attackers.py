from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from sklearn.datasets import load_sample_images

from blindsight import data
from blindsight.core.errors import InvalidData
from blindsight.sketching import FlipParameters, FlippedBits, NegativeSketcher, QKParameters
from blindsight.sketching.attackers import (
    ATTACKS,
    WIDTHS,
    Suite,
    _filtered,
    denoise,
    measure,
    read,
    read_again,
    smooth,
)
from blindsight.sketching.leak import bit_moments
from blindsight.sketching.networks import rehearse


@pytest.fixture(scope="module")
def photos():
    """Colour photos of 96 x 96 pixels: parts of those that come with scikit-learn."""
    china, flower = (image[::2, ::2] for image in load_sample_images().images)
    return np.stack(
        [part[:96, left : left + 96] for part in (china[60:], flower[60:]) for left in (40, 150)]
    )


@pytest.fixture(scope="module")
def digits():
    images = data.load("mnist5k").array()[:, 4:24, 4:24]
    return images[::50], images[1::5]  # private, public


def attacked(parameters, images, **options):
    sketches = rehearse(images, parameters, rng=np.random.default_rng(0))
    return {
        result.attack: result for result in Suite(parameters, **options).attack(sketches, images)
    }


LAWS = [QKParameters.paper(name) for name in ("Q1", "Q3", "Q5", "Q6", "Q12")] + [
    FlipParameters.proven(6.0)
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_unbiased_values_are_unbiased_and_their_noise_is_as_stated(law):
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (6, 64, 64)).astype(np.uint8)
    reading = read(rehearse(images, law, rng=rng))
    values, noise = reading.values, reading.noise
    error = (values[:, 0] - images).ravel()
    # 24,576 pixels; trailing bits are shrunk, which is a small bias within a pixel and none on
    # average
    assert abs(error.mean()) < 5 * max(noise, 1) / np.sqrt(error.size)
    assert error.std() == pytest.approx(noise, rel=0.08, abs=0.3)
    leading = np.corrcoef(values[:, 0].ravel(), images.ravel() >= 128)[0, 1]
    assert leading > 0.1


def test_flips_have_the_moments_of_randomised_response():
    mean, variance = bit_moments(FlipParameters(beta=(0.25,)))
    assert mean[0] == pytest.approx(0.75**2 + 0.25**2)
    assert variance[0] == pytest.approx(0.75 * 0.25 * 0.5**2)


def test_the_width_of_smoothing_is_nearly_the_best_though_no_original_is_seen(photos):
    rng = np.random.default_rng(2)
    truth = np.moveaxis(photos[0], -1, 0).astype(np.float32)
    for noise in (10.0, 60.0, 180.0):
        noisy = (truth + rng.normal(0, noise, truth.shape)).astype(np.float32)
        found, _ = smooth(noisy, noise)
        best = min(np.mean((_filtered(noisy, width) - truth) ** 2) for width in WIDTHS)
        assert np.mean((found - truth) ** 2) < 1.1 * best


def test_denoising_beats_smoothing_and_knows_about_how_wrong_it_is(photos):
    rng = np.random.default_rng(3)
    truth = np.moveaxis(photos[2], -1, 0).astype(np.float32)
    noisy = (truth + rng.normal(0, 40, truth.shape)).astype(np.float32)
    clean, doubt = denoise(noisy, 40.0)
    error = np.mean((clean - truth) ** 2)
    assert error < 0.85 * np.mean((smooth(noisy, 40.0)[0] - truth) ** 2)
    assert 0.2 * error < np.mean(doubt**2) < 3 * error


def test_a_second_reading_is_bayes_rule_over_all_values():
    posteriors = np.array([0.9, 0.2, 0.7], np.float32).reshape(1, 3, 1, 1)
    prior, deviation = np.full((1, 1, 1), 2.0, np.float32), np.full((1, 1, 1), 1.5, np.float32)
    weights = []
    for value in range(8):
        bits = [(value >> shift) & 1 for shift in (2, 1, 0)]
        likelihood = np.prod(
            [p if bit else 1 - p for bit, p in zip(bits, (0.9, 0.2, 0.7), strict=True)]
        )
        weights.append(likelihood * np.exp(-((value - 2) ** 2) / (2 * (1.2 * 1.5) ** 2)))
    expected = np.average(np.arange(8), weights=weights)
    spread = np.sqrt(np.average((np.arange(8) - expected) ** 2, weights=weights))
    mean, doubt = read_again(posteriors, prior, deviation)
    assert (mean.item(), doubt.item()) == pytest.approx((expected, spread), rel=1e-4)


@pytest.mark.parametrize("name", ["Q2", "Q3"])
def test_photos_are_undone_without_any_public_image(photos, name):
    found = attacked(QKParameters.paper(name), photos[::2])
    mean, best = found["posterior mean"], next(iter(found.values()))
    # measured: 5 to 9 dB more, SSIM from 0.2 to 0.5 and above
    assert best.psnr > mean.psnr + 4 and best.ssim > mean.ssim + 0.15
    assert found["smoothing"].psnr > mean.psnr + 2.5


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_the_best_attacker_is_never_below_the_posterior_mean(photos, law):
    found = attacked(law, photos[:2, :64, :64])
    results = list(found.values())
    assert results[0].psnr == max(result.psnr for result in results) >= found["posterior mean"].psnr


def test_where_bits_are_certain_the_second_reading_keeps_them(photos):
    found = attacked(QKParameters.paper("Q12"), photos[:1])
    assert found["second reading"].psnr > found["posterior mean"].psnr - 1 > 50


def test_one_who_knows_digits_sees_far_more_of_them_than_the_papers_attacker(digits):
    private, public = digits
    found = attacked(QKParameters.paper("Q3"), private[:40], public=public, steps=20, width=8)
    assert found["network"].psnr > found["posterior mean"].psnr + 3


@pytest.mark.parametrize("name", ["Q6", "Q12"])
def test_the_network_starts_as_the_best_estimate_without_learning_and_does_not_fall_below(
    digits, name
):
    private, public = digits[0][:40], digits[1][:300]
    found = attacked(QKParameters.paper(name), private, public=public, steps=8, width=8)
    others = max(found[other].psnr for other in ("posterior mean", "second reading"))
    assert found["network"].psnr > others - 0.3


@pytest.mark.parametrize("name", ["Q3", "Q6"])
def test_on_photos_the_network_is_not_below_those_who_learned_nothing(photos, name):
    known, private = photos[1:, :64, :64], photos[:1, :64, :64]
    found = attacked(QKParameters.paper(name), private, public=known, steps=10, width=8)
    assert found["network"].psnr > found["second reading"].psnr - 0.3


def test_a_network_that_does_not_help_is_shut(digits):
    torch = pytest.importorskip("torch")
    from blindsight.sketching.networks import LearnedPrior, _Tiles

    parameters = QKParameters.paper("Q6")
    learner = LearnedPrior(steps=1, width=4).fit(digits[1][:20], parameters)
    with torch.no_grad():
        learner.module_.last.bias.fill_(30.0)  # it now says: brighter, everywhere
    gate = learner._best_gate(
        _Tiles(255 - digits[1][:20, None] // 8, parameters, np.random.default_rng(0))
    )
    assert 0 <= gate < 0.5


@pytest.mark.parametrize(
    "shape",
    [(2, 8, 8), (2, 5, 40, 3), (1, 1, 30), (1, 3, 3), (1, 530, 20), (2, 20, 20, 2)],
    ids=str,
)
def test_images_of_any_shape_are_attacked(shape):
    images = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    parameters = QKParameters.paper("Q5")
    guesses = Suite(parameters).recover(rehearse(images, parameters, rng=np.random.default_rng(0)))
    assert tuple(guesses) == ATTACKS[:-1]
    for guess in guesses.values():
        assert guess.shape == shape and guess.min() >= 0 and guess.max() <= 255


def test_tiles_do_not_show(photos):
    from blindsight.sketching import attackers as module

    parameters = QKParameters.paper("Q5")
    sketches = rehearse(photos[:1], parameters, rng=np.random.default_rng(0))
    whole = Suite(parameters).recover(sketches)
    side, module.SIDE = module.SIDE, 64
    try:
        parts = Suite(parameters).recover(sketches)
    finally:
        module.SIDE = side
    assert np.array_equal(whole["posterior mean"], parts["posterior mean"])
    assert np.abs(whole["denoising"] - parts["denoising"]).mean() < 3
    truth = photos[:1]
    for name in ("smoothing", "denoising", "second reading"):
        whole_psnr, parts_psnr = (
            measure(name, truth, guess[name]).psnr for guess in (whole, parts)
        )
        assert parts_psnr == pytest.approx(whole_psnr, abs=0.3)


def test_other_depths_are_attacked():
    images = np.random.default_rng(0).integers(0, 4096, (1, 20, 20)).astype(np.uint16)
    parameters = QKParameters.k_hidden(12)
    found = attacked(parameters, images)
    assert all(np.isfinite(result.psnr) for result in found.values())


def test_flipped_bits_are_attacked_too(digits):
    private, public = digits[0][:20], digits[1][:100]
    flipper = FlippedBits(8.0, random_state=0).fit(private)
    suite = Suite(flipper.parameters_, public=public, steps=2, width=8)
    assert suite.recover(flipper.sketch(private))["network"].shape == private.shape


def test_a_suite_attacks_only_the_setting_it_rehearsed(digits):
    sketches = NegativeSketcher("Q3", random_state=0).fit(digits[0][:2]).sketch(digits[0][:2])
    with pytest.raises(InvalidData, match="attacks Q6, got Q3"):
        Suite(QKParameters.paper("Q6")).recover(sketches)


def test_without_torch_the_suite_says_what_it_cannot_try(digits, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    suite = Suite(QKParameters.paper("Q6"), public=digits[1][:4])
    assert suite.attacks == ATTACKS[:-1] and "PyTorch" in suite.missing


def test_small_images_are_measured_without_ssim():
    images = np.zeros((2, 4, 4), np.uint8)
    assert measure("none", images, images).ssim is None
