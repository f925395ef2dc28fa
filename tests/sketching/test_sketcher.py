from __future__ import annotations

import json
import struct
import tracemalloc

import numpy as np
import pytest

from blindsight import data
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter, UncheckedFile
from blindsight.data import ImageSet
from blindsight.evaluation.scores import mean_psnr, mean_ssim
from blindsight.index.bulk import sketch_to
from blindsight.sketching import NegativeSketcher, QKParameters, SketchSet
from blindsight.sketching.sketches import SketchWriter

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, size=(30, 7, 5)).astype(np.uint8)
COLOUR = RNG.integers(0, 256, size=(6, 7, 5, 3)).astype(np.uint8)


@pytest.mark.parametrize(
    ("images", "q", "shape"),
    [
        (GREY, "Q6", (30, 1, 8, 2, 7, 5)),
        (COLOUR, "Q6", (6, 3, 8, 2, 7, 5)),
        (GREY // 16, (0.4, 0.3, 0.2, 0.1), (30, 1, 4, 2, 7, 5)),
        (GREY // 128, (1.0,), (30, 1, 1, 2, 7, 5)),
        (GREY.astype(np.uint16) * 256, (1 / 16,) * 16, (30, 1, 16, 2, 7, 5)),
        (GREY.reshape(30, 35), "Q6", (30, 1, 8, 2, 1, 35)),
    ],
)
def test_any_depth_and_any_channels_are_sketched(images, q, shape):
    counts = NegativeSketcher(q).fit_transform(images)
    assert counts.shape == shape
    assert counts.dtype == np.uint8


def test_channels_are_strings_of_their_own():
    sketches = NegativeSketcher("Q12", random_state=0).fit(COLOUR).sketch(COLOUR)
    assert mean_psnr(COLOUR, sketches.pictures()) > 50
    per_channel = sketches.counts.sum(axis=(2, 3, 4, 5), dtype=np.int64)
    assert (per_channel == 3 * sketches.parameters.n_records(35)).all()


# Table 3 of the paper, measured here on 500 digits.
@pytest.mark.parametrize(
    ("name", "psnr", "ssim"),
    [
        ("Q1", 15.04, 0.63),
        ("Q2", 10.50, 0.44),
        ("Q3", 7.48, 0.165),
        ("Q6", 26.59, 0.85),
        ("Q9", 33.46, 0.92),
    ],
)
def test_the_papers_attacker_sees_table_3(name, psnr, ssim):
    images = data.load("mnist5k").array()[::10]
    sketches = NegativeSketcher(name, random_state=0).fit(images).sketch(images)
    assert mean_psnr(images, sketches.pictures()) == pytest.approx(psnr, abs=0.1)
    assert mean_ssim(images, sketches.pictures()) == pytest.approx(ssim, abs=0.015)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (GREY.astype(int) + 1, "values from 0 to 255 at depth 8"),
        (GREY.astype(int) - 1, "values from 0 to 255"),
        (GREY + 0.5, "whole numbers"),
        (np.full((2, 3, 3), np.nan), "finite"),
        (GREY[:0], "must not be empty"),
        (GREY[0, 0], "shape"),
        (np.full((2, 3, 3), "a"), "whole numbers"),
    ],
)
def test_bad_images_are_refused_in_words(images, message):
    with pytest.raises(InvalidData, match=message):
        NegativeSketcher("Q6").fit(images)


def test_a_wrong_l_for_the_image_is_refused():
    with pytest.raises(InvalidData, match="at depth 4"):
        NegativeSketcher((0.25,) * 4).fit(GREY)


def test_a_string_shorter_than_k_is_refused():
    with pytest.raises(InvalidParameter, match="K"):
        NegativeSketcher((1.0,)).fit(np.ones((3, 1, 1), np.uint8))


def test_images_of_another_shape_than_fitted_are_refused():
    with pytest.raises(InvalidData, match="as in fit"):
        NegativeSketcher("Q6").fit(GREY).transform(GREY[:, :5])


def test_records_come_only_behind_the_unsafe_option():
    sketcher = NegativeSketcher("Q6", random_state=0).fit(COLOUR)
    with pytest.raises(InvalidParameter, match="unsafe_records"):
        sketcher.records(COLOUR[0])
    assert len(sketcher.records(COLOUR[0], unsafe_records=True)) == 3


def test_the_card_claims_no_epsilon_and_gives_a_verdict():
    card = NegativeSketcher("Q12").fit(GREY).disclosure_.card()
    assert "none claimed" in card and "At Q12: The image is handed over" in card
    assert "local epsilon per pixel" in card


def test_sets_survive_bytes_and_files(tmp_path):
    sketches = (
        NegativeSketcher("Q6")
        .fit(GREY)
        .sketch(GREY, np.arange(30) % 4, classes=("a", "b", "c", "d"))
    )
    sketches.save(tmp_path / "s")
    for again in (SketchSet.from_bytes(sketches.to_bytes()), SketchSet.open(tmp_path / "s")):
        assert (again.counts == sketches.counts).all()
        assert (again.labels == sketches.labels).all()
        assert again.parameters == sketches.parameters
        assert again.classes == sketches.classes
    assert isinstance(SketchSet.open(tmp_path / "s").counts, np.memmap)


def test_a_file_of_sketches_is_plain_safetensors(tmp_path):
    from safetensors.numpy import load_file

    sketches = NegativeSketcher("Q6").fit(GREY).sketch(GREY)
    sketches.save(tmp_path / "s")
    assert (load_file(tmp_path / "s")["counts"] == sketches.counts).all()


@pytest.mark.parametrize("keep", [0, 4, 60, 200, 0.5, 0.99])
def test_truncated_files_are_refused(tmp_path, keep):
    whole = NegativeSketcher("Q6").fit(GREY).sketch(GREY).to_bytes()
    cut = whole[: int(keep * len(whole)) if isinstance(keep, float) else keep]
    (tmp_path / "s").write_bytes(cut)
    with pytest.raises(HostileFile):
        SketchSet.open(tmp_path / "s")
    with pytest.raises(HostileFile):
        SketchSet.from_bytes(cut)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"shape": [30,', b'"shape": [99,'),
        (b'"dtype": "U8"', b'"dtype": "U9"'),
        (b'\\"kind\\": \\"sketches\\"', b'\\"kind\\": \\"sketchez\\"'),
        (b'\\"r\\": 6.5', b'\\"r\\": -.5'),
        (b'"counts"', b'"kounts"'),
    ],
)
def test_tampered_headers_are_refused(old, new):
    whole = NegativeSketcher("Q6").fit(GREY).sketch(GREY).to_bytes()
    assert old in whole
    with pytest.raises(HostileFile):
        SketchSet.from_bytes(whole.replace(old, new))


def test_sketching_to_a_file_equals_sketching_in_memory(tmp_path):
    sketcher = NegativeSketcher("Q6", random_state=3).fit(GREY)
    calls = []
    stored = sketch_to(tmp_path / "s", GREY, sketcher, block=7, progress=lambda *a: calls.append(a))
    assert stored.counts.shape == (30, 1, 8, 2, 7, 5)
    assert (stored.counts.sum(axis=(1, 2, 3, 4, 5)) == 3 * sketcher.parameters_.n_records(35)).all()
    assert calls == [(7, 30), (14, 30), (21, 30), (28, 30), (30, 30)]
    assert not (tmp_path / "s.part").exists()


class Crash(Exception):
    pass


def test_an_interrupted_job_resumes_where_it_stopped(tmp_path):
    sketcher = NegativeSketcher("Q6").fit(GREY)

    def crash(done, total):
        if done >= 14:
            raise Crash

    with pytest.raises(Crash):
        sketch_to(tmp_path / "s", GREY, sketcher, np.arange(30), block=7, progress=crash)
    assert not (tmp_path / "s").exists()
    with pytest.raises(InvalidData, match="not finished"):
        SketchSet.open(tmp_path / "s.part")
    size = (tmp_path / "s.part").stat().st_size
    with (tmp_path / "s.part").open("rb") as file:
        before = file.read()[: size // 3]
    calls = []
    done = sketch_to(
        tmp_path / "s", GREY, sketcher, np.arange(30), block=7, progress=lambda *a: calls.append(a)
    )
    assert calls[0] == (21, 30)
    assert (tmp_path / "s").read_bytes()[: size // 3] == before
    assert (done.labels == np.arange(30)).all()
    assert mean_psnr(GREY, done.pictures()) > 20


def test_a_job_begun_otherwise_is_not_continued(tmp_path):
    SketchWriter(tmp_path / "s", n=30, image_shape=(1, 7, 5), parameters=QKParameters.paper("Q6"))
    with pytest.raises(InvalidData, match="other parameters"):
        sketch_to(tmp_path / "s", GREY, NegativeSketcher("Q3").fit(GREY))


def test_a_finished_file_tells_nothing_of_the_names_of_its_images(tmp_path):
    """Who guesses the names ("IMG_0001.jpg", a patient's number) could test a digest of them."""
    sketcher = NegativeSketcher("Q6", random_state=3).fit(GREY)
    for target, first in (("a", "IMG_"), ("b", "Jane Doe ")):
        names = np.array([f"{first}{k:04d}.png" for k in range(len(GREY))])
        sketch_to(tmp_path / target, ImageSet(GREY, names=names), sketcher, block=7)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_job_on_other_images_is_not_continued_by_their_like(tmp_path):
    sketcher = NegativeSketcher("Q6").fit(GREY)
    sets = [ImageSet(GREY, names=np.array([f"{k}{end}" for k in range(len(GREY))])) for end in "ab"]

    def crash(done, total):
        raise Crash

    with pytest.raises(Crash):
        sketch_to(tmp_path / "s", sets[0], sketcher, block=7, progress=crash)
    with pytest.raises(InvalidData, match="other images"):
        sketch_to(tmp_path / "s", sets[1], sketcher, block=7)
    assert len(sketch_to(tmp_path / "s", sets[0], sketcher, block=7)) == len(GREY)
    with pytest.raises(InvalidData, match="second release"):
        sketch_to(tmp_path / "s", sets[0], sketcher, block=7)


def test_a_job_that_died_before_its_file_got_its_name_is_finished(tmp_path, monkeypatch):
    sketcher = NegativeSketcher("Q6").fit(GREY)
    images = ImageSet(GREY, names=np.arange(len(GREY)).astype(str))

    def die(*args):
        raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr("blindsight.core.durable.rename", die)
        sketch_to(tmp_path / "s", images, sketcher, block=7)
    whole = (tmp_path / "s.part").read_bytes()
    assert len(sketch_to(tmp_path / "s", images, sketcher, block=7)) == len(GREY)
    assert (tmp_path / "s").read_bytes() == whole


def test_memory_of_sketching_is_bounded_by_a_block(tmp_path):
    n = 3000
    pixels = np.memmap(tmp_path / "pixels", np.uint8, "w+", shape=(n, 14, 14))
    sketcher = NegativeSketcher("Q3").fit(pixels[:2])
    sketch_to(tmp_path / "warm", pixels[:200], sketcher, block=100)
    tracemalloc.start()
    sketch_to(tmp_path / "s", pixels, sketcher, block=100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    whole = n * 2 * 8 * 14 * 14
    assert (tmp_path / "s").stat().st_size > whole
    assert peak < whole / 5


def test_sets_made_otherwise_do_not_mix():
    one = NegativeSketcher("Q6").fit(GREY).sketch(GREY)
    other = NegativeSketcher("Q3").fit(GREY).sketch(GREY)
    with pytest.raises(InvalidData, match=r"parameters Q6 .* got Q3"):
        SketchSet.concatenate([one, other])


def test_sets_are_sliced_and_batched():
    sketches = NegativeSketcher("Q6").fit(GREY).sketch(GREY, np.arange(30))
    assert [len(part) for part in sketches.batches(8)] == [8, 8, 8, 6]
    assert sketches[3].labels.tolist() == [3] and sketches[-1].labels.tolist() == [29]
    assert sketches[[4, 1]].labels.tolist() == [4, 1]


def test_sketches_of_an_earlier_version_are_read_with_a_warning():
    """Version 1 had no digests."""
    sketches = NegativeSketcher("Q6", random_state=0).fit(GREY).sketch(GREY)
    message = sketches.to_bytes()
    (length,) = struct.unpack("<Q", message[:8])
    header = json.loads(message[8 : 8 + length])
    start, end = header.pop("digests")["data_offsets"]
    metadata = json.loads(header["__metadata__"]["blindsight"])
    header["__metadata__"]["blindsight"] = json.dumps({**metadata, "version": 1})
    text = json.dumps(header).encode()
    earlier = struct.pack("<Q", len(text)) + text + message[8 + length : 8 + length + start]
    assert len(message) == 8 + length + end
    with pytest.warns(UncheckedFile, match="without digests"):
        assert (SketchSet.from_bytes(earlier).counts == sketches.counts).all()
    claimed = json.dumps({**metadata, "version": 2})
    header["__metadata__"]["blindsight"] = claimed
    text = json.dumps(header).encode()
    with pytest.raises(HostileFile, match="digests are missing"):
        SketchSet.from_bytes(struct.pack("<Q", len(text)) + text + message[8 + length :])
