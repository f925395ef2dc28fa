"""Encoders of one's own: folders of ONNX files, hostile ones among them, and the checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from blindsight.app.encoders import check_encoder, export_encoder
from blindsight.core.errors import (
    BlindsightError,
    HostileFile,
    InvalidData,
    InvalidParameter,
    MissingData,
)
from blindsight.encoders import OnnxEncoder, open_encoder, require_same_encoder
from blindsight.encoders.base import Encoder
from blindsight.encoders.network import Graph
from blindsight.encoders.public_pictures import flower

SIDE, WIDTH = 16, 6
CLIP = {
    "do_resize": True,
    "size": {"shortest_edge": SIDE},
    "do_center_crop": True,
    "crop_size": {"height": SIDE, "width": SIDE},
    "resample": 3,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.48, 0.46, 0.41],
    "image_std": [0.27, 0.26, 0.28],
}


def tower(path: Path, *, side: int | str = SIDE, tokens: bool = False) -> Path:
    """A tiny image tower: average colours of four quarters, mixed at random."""
    graph = Graph({"pixel_values": (np.float32, ("batch", 3, side, side))})
    x = graph.node("AveragePool", "pixel_values", kernel_shape=[8, 8], strides=[8, 8])
    x = graph.node("Flatten", x, axis=1)
    mix = np.random.default_rng(0).normal(size=(12, WIDTH)).astype(np.float32)
    x = graph.node("MatMul", x, graph.constant("mix", mix))
    shape: tuple[int | str, ...] = ("batch", WIDTH)
    if tokens:
        x = graph.node("Unsqueeze", x, graph.constant("axis", np.array([1])))
        shape = ("batch", 1, WIDTH)
    name = graph.renamed(x, "last_hidden_state" if tokens else "image_embeds")
    path.write_bytes(graph.model({name: (np.float32, shape)}))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "clip"
    made.mkdir()
    tower(made / "vision_model.onnx")
    (made / "preprocessor_config.json").write_text(json.dumps(CLIP))
    return made


def test_onnxruntime_writes_nothing_into_the_user_s_home(folder: Path, tmp_path: Path) -> None:
    """Its telemetry would store an identifier and events there, and send them."""
    code = (
        "import sys, pathlib; from blindsight.encoders.onnx_folder import open_session; "
        "open_session(pathlib.Path(sys.argv[1]))"
    )
    ours = {"ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"}
    environment = {key: value for key, value in os.environ.items() if key not in ours}
    home = tmp_path / "home"
    home.mkdir()
    subprocess.run(
        [sys.executable, "-c", code, str(folder / "vision_model.onnx")],
        env=environment | {"HOME": str(home)},
        check=True,
    )
    assert list(home.rglob("*")) == []


def configured(folder: Path, **changes: object) -> Path:
    config = {key: value for key, value in {**CLIP, **changes}.items() if value != "absent"}
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return folder


def test_a_folder_in_hugging_face_s_layout_is_an_encoder(folder: Path) -> None:
    encoder = OnnxEncoder(folder)
    assert isinstance(encoder, Encoder)
    pixels = np.stack([encoder.prepare(flower()), encoder.prepare(flower()[:, ::-1])])
    vectors = encoder.images(pixels)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert vectors.shape == (2, WIDTH) == (2, encoder.dimensions)
    assert encoder.texts(["a dog"]) is None and encoder.classes() is None
    assert encoder.images(pixels[:0]).shape == (0, WIDTH)
    with pytest.raises(InvalidData, match="shape"):
        encoder.images(np.zeros((1, 8, 8, 3), np.uint8))


def test_files_may_lie_in_the_subfolder_onnx(folder: Path) -> None:
    (folder / "onnx").mkdir()
    (folder / "vision_model.onnx").rename(folder / "onnx" / "vision_model.onnx")
    assert OnnxEncoder(folder).dimensions == WIDTH


def test_pixels_are_normalised_as_the_file_says(folder: Path) -> None:
    encoder = OnnxEncoder(folder)
    pixels = encoder.prepare(flower())[None]
    expected = (pixels / 255 - np.array(CLIP["image_mean"])) / np.array(CLIP["image_std"])
    np.testing.assert_allclose(encoder.preparation.numbers(pixels), expected, atol=1e-5)


WRONG = {
    "no preparation file": (None, "does not say how images are prepared"),
    "no mean": ({"image_mean": "absent"}, "image_mean"),
    "a deviation of zero": ({"image_std": [0.2, 0, 0.2]}, "above 0"),
    "a mean in bytes with scaled pixels": ({"image_mean": [123.7, 116.3, 103.5]}, "one unit"),
    "pixels that are never scaled": ({"do_rescale": False}, "Check scale"),
    "a deviation in bytes with scaled pixels": ({"image_std": [58.4, 57.1, 57.4]}, "Check scale"),
    "another size than the network's": (
        {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}},
        "prepared at 32",
    ),
    "a crop larger than the picture": (
        {"size": {"shortest_edge": 8}},
        "larger than the shortest side",
    ),
    "an unknown filter": ({"resample": 9}, "resampling"),
    "colours in another order": ({"do_flip_channel_order": True}, "do_flip_channel_order"),
    "padding instead of cropping": ({"do_pad": True}, "do_pad"),
    "no crop of an oblong picture": ({"do_center_crop": False}, "not be square"),
    "a mean that is not a number": ({"image_mean": [0.5, float("nan"), 0.5]}, "finite"),
}


@pytest.mark.parametrize("way", WRONG)
def test_a_wrong_preparation_is_refused(folder: Path, way: str) -> None:
    changes, message = WRONG[way]
    if changes is None:
        (folder / "preprocessor_config.json").unlink()
    else:
        configured(folder, **changes)
    with pytest.raises(BlindsightError, match=message):
        OnnxEncoder(folder)
    report = check_encoder(folder)
    assert not report.good and message in " ".join(report.problems)


@pytest.mark.parametrize(
    "changes",
    [
        {"image_mean": [0.41, 0.46, 0.48], "image_std": [0.28, 0.26, 0.27]},  # colours swapped
        {"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0]},  # not normalised
        {"size": {"height": SIDE, "width": SIDE}, "do_center_crop": False, "crop_size": "absent"},
    ],
    ids=["colours swapped", "not normalised", "squashed instead of cropped"],
)
def test_a_silently_wrong_preparation_is_seen_by_the_known_picture(
    folder: Path, changes: dict[str, object]
) -> None:
    right = OnnxEncoder(folder)
    vector = right.images(right.prepare(flower())[None])[0].tolist()
    (folder / "encoder.json").write_text(json.dumps({"reference": {"vector": vector}}))
    assert check_encoder(folder).good
    configured(folder, **changes)
    assert "known picture" in " ".join(check_encoder(folder).problems)


def test_without_a_known_picture_the_check_says_what_it_cannot_see(folder: Path) -> None:
    report = check_encoder(folder)
    assert report.good and "cannot be detected" in " ".join(report.notes)
    assert report.milliseconds["image"] > 0


def test_vectors_per_token_need_a_stated_pooling(folder: Path) -> None:
    tower(folder / "vision_model.onnx", tokens=True)
    with pytest.raises(HostileFile, match="image_pooling"):
        OnnxEncoder(folder)
    (folder / "encoder.json").write_text(json.dumps({"image_pooling": "cls"}))
    assert OnnxEncoder(folder).dimensions == WIDTH


def test_the_identity_covers_files_and_preparation_and_another_is_refused(folder: Path) -> None:
    before = OnnxEncoder(folder).identity()
    assert before == OnnxEncoder(folder).identity() and json.loads(json.dumps(before)) == before
    configured(folder, image_mean=[0.5, 0.5, 0.5])
    after = OnnxEncoder(folder)
    with pytest.raises(InvalidParameter, match=r"the index here was made with .* preparation"):
        require_same_encoder(before, after, what="the index here")
    configured(folder)
    require_same_encoder(before, OnnxEncoder(folder), what="the index here")


def external(folder: Path, location: str, length: int = 12 * WIDTH * 4) -> None:
    """Move the tower's weights to a file beside it."""
    import onnx

    path = folder / "vision_model.onnx"
    model = onnx.load(str(path))
    (tensor,) = model.graph.initializer
    content = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(length))):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    path.write_bytes(model.SerializeToString())
    if location == "weights.bin":
        (folder / location).write_bytes(content)


def test_weights_beside_the_model_are_part_of_the_identity(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = OnnxEncoder(folder)
    pixels = plain.prepare(flower())[None]
    expected = plain.images(pixels)
    external(folder, "weights.bin")
    monkeypatch.chdir(tmp_path)  # weights are found beside the model, not in the working folder
    before = OnnxEncoder(folder)
    np.testing.assert_allclose(before.images(pixels), expected, atol=1e-6)
    changed = bytearray((folder / "weights.bin").read_bytes())
    changed[3] ^= 1
    (folder / "weights.bin").write_bytes(changed)
    with pytest.raises(InvalidParameter, match="files differs"):
        require_same_encoder(before.identity(), OnnxEncoder(folder), what="it")


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname", ""])
def test_weights_from_outside_of_the_folder_are_refused(folder: Path, location: str) -> None:
    (folder.parent / "weights.bin").write_bytes(bytes(12 * WIDTH * 4))
    external(folder, location)
    with pytest.raises(HostileFile):
        OnnxEncoder(folder)


def test_a_link_out_of_the_folder_is_refused(folder: Path) -> None:
    external(folder, "weights.bin")
    (folder.parent / "secret").write_bytes((folder / "weights.bin").read_bytes())
    (folder / "weights.bin").unlink()
    os.symlink(folder.parent / "secret", folder / "weights.bin")
    with pytest.raises(HostileFile):
        OnnxEncoder(folder)


def test_weights_that_are_too_short_are_refused(folder: Path) -> None:
    external(folder, "weights.bin", length=10**9)
    with pytest.raises(HostileFile, match="shorter"):
        OnnxEncoder(folder)


@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "json"])
def test_a_damaged_model_is_refused(folder: Path, damage: str) -> None:
    path = folder / "vision_model.onnx"
    content = path.read_bytes()
    path.write_bytes(
        {
            "cut": content[: len(content) // 2],
            "noise": np.random.default_rng(0).bytes(len(content)),
            "empty": b"",
            "json": b"{}",
        }[damage]
    )
    with pytest.raises(HostileFile):
        OnnxEncoder(folder)


def test_a_folder_without_a_tower_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(CLIP))
    with pytest.raises(MissingData, match=r"image\.onnx"):
        OnnxEncoder(tmp_path)
    with pytest.raises(MissingData, match="does not exist"):
        open_encoder(tmp_path / "nowhere")


def test_the_hub_needs_a_commit_and_says_what_to_do_without_a_network(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0" * 40
    for name in ("hub:owner/model", "hub:owner/model@main", f"hub:../model@{commit}"):
        with pytest.raises(InvalidParameter, match="40 digits"):
            open_encoder(name)
    with pytest.raises(MissingData, match="switched off"):
        open_encoder(f"hub:owner/model@{commit}", offline=True)
    import huggingface_hub

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(MissingData, match="give its path"):
        open_encoder(f"hub:owner/model@{commit}")


def test_what_the_hub_brought_is_compared_with_its_first_checksums(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import huggingface_hub

    fetched = []

    def download(model: str, *, local_dir: Path, **_: object) -> None:
        assert "fetching owner/model (commit aaaaaaaaaaaa of the Hugging Face hub) to " in (
            capsys.readouterr().err
        )
        fetched.append(model)
        local_dir.mkdir(parents=True)
        tower(local_dir / "vision_model.onnx")
        (local_dir / "preprocessor_config.json").write_text(json.dumps(CLIP))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    name = f"hub:owner/model@{'a' * 40}"
    first = open_encoder(name)
    assert open_encoder(name, offline=True).identity() == first.identity()
    assert fetched == ["owner/model"] and first.name == name
    config = next(own_cache.rglob("preprocessor_config.json"))
    config.write_text(json.dumps({**CLIP, "resample": 2}))
    with pytest.raises(HostileFile, match="not what was fetched first"):
        open_encoder(name)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real image-text pair in CLIP's layout: ConSE over Lite0 and MiniLM."""
    try:
        return export_encoder("lite0", tmp_path_factory.mktemp("pair") / "conse", pair=True).folder
    except MissingData as error:
        pytest.skip(str(error))


def test_a_real_pair_passes_the_check_and_compares_words_with_pictures(pair: Path) -> None:
    report = check_encoder(pair)
    assert report.good, report.problems
    assert report.offers == ("384 numbers per image", "texts in the same space")
    encoder = OnnxEncoder(pair)
    image = encoder.images(encoder.prepare(flower())[None])
    texts = encoder.texts(["daisy flower", "truck", "violin"])
    assert texts is not None and (image @ texts.T).argmax() == 0
    together = encoder.texts(["dog", "a dog that sleeps on the old red sofa"])
    alone = encoder.texts(["dog"])
    assert together is not None and alone is not None
    np.testing.assert_allclose(together[:1], alone, atol=1e-5)  # no padding leaks in


def test_an_exported_network_is_the_built_in_one(tmp_path: Path) -> None:
    try:
        export_encoder("lite0", tmp_path / "lite0")
    except MissingData as error:
        pytest.skip(str(error))
    made, own = OnnxEncoder(tmp_path / "lite0"), open_encoder("lite0")
    pixels = np.stack([own.prepare(flower()), own.prepare(flower()[:, ::-1])])
    np.testing.assert_array_equal(made.prepare(flower()), pixels[0])
    np.testing.assert_allclose(made.images(pixels), own.images(pixels), atol=1e-6)
    classes = made.classes()
    assert classes is not None and len(classes.names) == 1000
    assert check_encoder(tmp_path / "lite0").good
    with pytest.raises(InvalidParameter, match="not empty"):
        export_encoder("lite0", tmp_path / "lite0")
