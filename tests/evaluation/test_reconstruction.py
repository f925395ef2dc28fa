from __future__ import annotations

import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from blindsight.core.errors import InvalidData
from blindsight.evaluation import scores


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 256, size=(4, 28, 31)).astype(np.uint8)
    return truth, np.clip(
        truth + rng.normal(0, [[[5.0]], [[20.0]], [[80.0]], [[1.0]]], truth.shape), 0, 255
    )


def test_psnr_equals_scikit_image(images):
    truth, guess = images
    expected = [
        peak_signal_noise_ratio(a.astype(float), b, data_range=255)
        for a, b in zip(truth, guess, strict=True)
    ]
    np.testing.assert_allclose(scores.psnr(truth, guess), expected, rtol=1e-12)


def test_ssim_equals_scikit_image(images):
    truth, guess = images
    options = {
        "data_range": 255,
        "gaussian_weights": True,
        "sigma": 1.5,
        "use_sample_covariance": False,
    }
    expected = [
        structural_similarity(a.astype(float), b, **options)
        for a, b in zip(truth, guess, strict=True)
    ]
    np.testing.assert_allclose(scores.ssim(truth, guess), expected, rtol=1e-10)


def test_ssim_of_colour_images_equals_scikit_image():
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 256, size=(2, 32, 32, 3)).astype(float)
    guess = truth + rng.normal(0, 30, truth.shape)
    options = {
        "data_range": 255,
        "gaussian_weights": True,
        "sigma": 1.5,
        "use_sample_covariance": False,
    }
    expected = [
        structural_similarity(a, b, channel_axis=-1, **options)
        for a, b in zip(truth, guess, strict=True)
    ]
    np.testing.assert_allclose(scores.ssim(truth, guess), expected, rtol=1e-10)


def test_identical_images_are_recovered_wholly(images):
    truth, _ = images
    assert np.isinf(scores.psnr(truth, truth)).all()
    assert scores.mean_psnr(truth, truth) == 100
    np.testing.assert_allclose(scores.ssim(truth, truth), 1)
    assert scores.exact_pixels(truth, truth) == 1


def test_exact_pixels_counts_rounded_guesses():
    truth = np.array([[0, 1], [2, 3]])
    assert scores.exact_pixels(truth, truth + 0.4) == 1
    assert scores.exact_pixels(truth, truth + np.array([[0.6, 0], [0, 0]])) == 0.75


@pytest.mark.parametrize("measure", [scores.psnr, scores.ssim, scores.exact_pixels])
def test_images_of_different_shapes_are_refused(measure):
    with pytest.raises(InvalidData, match="one shape"):
        measure(np.zeros((2, 20, 20)), np.zeros((2, 20, 21)))


def test_images_smaller_than_the_window_are_refused():
    with pytest.raises(InvalidData, match="larger than the window"):
        scores.ssim(np.zeros((8, 8)), np.zeros((8, 8)))
