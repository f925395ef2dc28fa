"""Folders as people have them: sizes and colours mixed, others' photos of another size, photos of
12 megapixels.
"""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from blindsight.cli.main import app
from blindsight.core.errors import InvalidData
from blindsight.data import ImageSet
from blindsight.data.listing import load_folder
from blindsight.evaluation.scores import exact_pixels, psnr, ssim
from blindsight.privacy import Cost, Ledger
from blindsight.sketching import SketchSet
from blindsight.sketching.attackers import quietest_needed
from blindsight.sketching.calibration import ImageStatistics
from blindsight.sketching.paper import draw_gallery
from blindsight.sketching.parameters import ImagePreparation, QKParameters, read_like

RNG = np.random.default_rng(0)


def run(*args):
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def folder(root, *shapes):
    root.mkdir()
    for k, shape in enumerate(shapes):
        Image.fromarray(RNG.integers(0, 256, shape).astype(np.uint8)).save(root / f"{k}.png")
    return root


def test_photos_of_several_sizes_are_refused_before_anything_is_charged(tmp_path):
    mixed = folder(tmp_path / "mixed", (20, 30, 3), (20, 31, 3))
    ledger = tmp_path / "ledger.db"
    Ledger(ledger, dataset="images").grant(Cost(epsilon=100, unit="pixel"))
    with pytest.raises(InvalidData, match=r"2 sizes, from 30 x 20 to 31 x 20.*--size"):
        run("sketch", mixed, tmp_path / "s", "--flip-epsilon", 4, "--ledger", ledger)
    assert Ledger(ledger, dataset="images").balance("pixel").spent.epsilon == 0
    assert not list(tmp_path.glob("s*"))
    run("sketch", mixed, tmp_path / "s", "--flip-epsilon", 4, "--ledger", ledger, "--size", 16)
    assert SketchSet.open(tmp_path / "s").image_shape == (3, 16, 16)


def test_a_grey_photo_among_coloured_ones_is_sketched_like_them(tmp_path):
    run("sketch", folder(tmp_path / "both", (9, 8), (9, 8, 3), (9, 8)), tmp_path / "s", "--json")
    assert SketchSet.open(tmp_path / "s").image_shape == (3, 9, 8)


def test_grey_photos_stay_grey_when_resized(tmp_path):
    """Three equal channels have three noises: who averages them sees more than the card says."""
    run("sketch", folder(tmp_path / "grey", (9, 8), (7, 8)), tmp_path / "s", "--size", 6, "--json")
    assert SketchSet.open(tmp_path / "s").image_shape == (1, 6, 6)
    digits = ImageSet(RNG.integers(0, 256, (2, 8, 8)).astype(np.uint8))
    assert ImagePreparation.of(digits, size=5)(digits).shape == (2, 5, 5)


def test_a_setting_is_chosen_by_images_of_the_size_that_is_sketched(tmp_path, monkeypatch):
    seen = {}

    def calibrate(**goal):
        seen.update(goal)
        return QKParameters.paper("Q3")

    monkeypatch.setattr("blindsight.sketching.calibration.calibrate", calibrate)
    own = folder(tmp_path / "own", (20, 30))
    others = folder(tmp_path / "others", *[(40, 40, 3), (12, 9)] * 5)
    run("sketch", own, tmp_path / "s", "--max-psnr", 20, "--reference", others, "--json")
    assert seen["reference"].shape == (10, 20, 30)


def test_public_photos_are_brought_to_the_sketches_shape(tmp_path):
    own = folder(tmp_path / "own", (20, 30, 3))
    run("sketch", own, tmp_path / "s", "--json")
    others = folder(tmp_path / "others", (40, 40), (12, 9, 3), (20, 30, 3))
    told = json.loads(
        run("sketch", "recover", tmp_path / "s", "--public", others, "--steps", 1, "--json").stdout
    )
    assert told["not_tried"] is None


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        ([(20, 30, 3)], "1 of 30 x 20 in colour"),
        ([(20, 30)] * 2, "2 of 30 x 20 grey"),
        ([(20, 31, 3)] * 2, "31 x 20"),
    ],
)
def test_originals_that_are_not_behind_the_sketches_are_refused(tmp_path, shapes, found):
    run("sketch", folder(tmp_path / "own", (20, 30, 3), (20, 30, 3)), tmp_path / "s", "--json")
    with pytest.raises(InvalidData, match=rf"2 of 30 x 20 pixels in colour, got.*{found}"):
        run("sketch", "recover", tmp_path / "s", "--originals", folder(tmp_path / "other", *shapes))


def test_of_large_public_photos_only_a_window_is_read(tmp_path):
    large = folder(tmp_path / "large", *[(700, 900, 3)] * 3)
    assert read_like(load_folder(large), (3, 3000, 4000), most=2).shape == (2, 512, 512, 3)


def peak_of(work):
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_measuring_and_drawing_a_large_photo_take_little_memory(tmp_path):
    truth = RNG.integers(0, 256, (1, 1500, 2000, 3)).astype(np.uint8)
    guess = truth.astype(np.float32)
    for measure in (psnr, ssim, exact_pixels):
        assert peak_of(lambda measure=measure: measure(truth, guess)) < 20 * (8 << 20)
    assert peak_of(lambda: draw_gallery(tmp_path / "g.png", [("guess", guess)])) < 64 << 20


def test_moments_of_many_photos_take_little_memory():
    many = RNG.integers(0, 256, (60, 512, 512)).astype(np.uint8)
    assert peak_of(lambda: ImageStatistics.of(many, 8)) < 1 << 30


def test_calibration_attacks_a_window_of_large_photos(monkeypatch):
    sizes = []

    def best(suite, images, *, rng):
        sizes.append(images.shape[1:])
        return np.zeros(len(images))

    monkeypatch.setattr("blindsight.sketching.attackers.best_psnr", best)
    large = np.zeros((8, 600, 700), np.uint8)
    quietest_needed(lambda at: QKParameters.paper("Q3"), large, 20.0, steps=1)
    assert set(sizes) == {(512, 512)}


def test_strips_give_the_whole_images_similarity(monkeypatch):
    truth = RNG.integers(0, 256, (2, 40, 30, 3)).astype(np.uint8)
    guess = np.clip(truth + RNG.normal(0, 30, truth.shape), 0, 255)
    whole = [measure(truth, guess) for measure in (psnr, ssim, exact_pixels)]
    monkeypatch.setattr("blindsight.evaluation.scores._VALUES_PER_STRIP", 7 * 90)
    for measure, expected in zip((psnr, ssim, exact_pixels), whole, strict=True):
        np.testing.assert_allclose(measure(truth, guess), expected, rtol=1e-12)
