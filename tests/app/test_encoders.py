"""Encoders of one's own, own names and words through the jobs protect and search."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blindsight.app.encoders import export_encoder
from blindsight.app.protect import protect
from blindsight.app.search import search
from blindsight.core.errors import InvalidParameter, MissingData
from blindsight.encoders import OnnxEncoder, default_recipe
from blindsight.encoders.network import Graph
from blindsight.encoders.public_pictures import flower, temple

SIDE = 16


def tower(folder: Path, seed: int) -> Path:
    """A tiny image tower in Hugging Face's layout."""
    folder.mkdir()
    graph = Graph({"pixel_values": (np.float32, ("batch", 3, SIDE, SIDE))})
    x = graph.node("AveragePool", "pixel_values", kernel_shape=[4, 4], strides=[4, 4])
    mix = np.random.default_rng(seed).normal(size=(48, 12)).astype(np.float32)
    x = graph.node("MatMul", graph.node("Flatten", x, axis=1), graph.constant("mix", mix))
    name = graph.renamed(x, "image_embeds")
    (folder / "vision_model.onnx").write_bytes(graph.model({name: (np.float32, ("batch", 12))}))
    half = [0.5, 0.5, 0.5]
    config = {
        "size": {"height": SIDE, "width": SIDE},
        "resample": 3,
        "image_mean": half,
        "image_std": half,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return folder


def pictures(folder: Path, count: int, seed: int) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(seed)
    for number in range(count):
        corners = rng.integers(0, 256, (2, 2, 3), dtype=np.uint8)
        Image.fromarray(corners).resize((40, 32), Image.Resampling.BILINEAR).save(
            folder / f"{number}.png"
        )
    return folder


def test_an_encoder_of_one_s_own_goes_through_protect_and_search(tmp_path: Path) -> None:
    own, other = tower(tmp_path / "own", 0), tower(tmp_path / "other", 1)
    photos, public = pictures(tmp_path / "photos", 12, 0), pictures(tmp_path / "public", 110, 1)
    release = tmp_path / "release"
    made = protect(photos, release, epsilon=20, encoder=own, public=public, seed=1)
    assert made.counts.released == 12 and made.recipe.identity == OnnxEncoder(own).identity()
    result = search(release, photos / "3.png", encoder=own, vault=made.vault, k=3)
    assert any("3.png" in hit.names for hit in result.hits)
    vector = OnnxEncoder(own)
    row = vector.images(vector.read(photos / "3.png")[None])
    by_vector = search(release, vector=row, encoder=own, k=3)
    assert [hit.hit.id for hit in by_vector.hits] == [hit.hit.id for hit in result.hits]
    again = protect(photos, release, encoder=own, public=public, seed=1)
    assert again.counts.released == 0
    with pytest.raises(InvalidParameter, match="not built in"):
        search(release, photos / "3.png")
    with pytest.raises(InvalidParameter, match=r"was made with the encoder 'own'.*differs"):
        search(release, photos / "3.png", encoder=other)
    with pytest.raises(InvalidParameter):
        protect(photos, release, encoder=other, public=public, seed=1)


def test_vectors_without_public_pictures_are_refused_before_anything_is_charged(
    tmp_path: Path,
) -> None:
    own, photos = tower(tmp_path / "own", 0), pictures(tmp_path / "photos", 3, 0)
    with pytest.raises(InvalidParameter, match="public pictures"):
        protect(photos, tmp_path / "release", encoder=own, ledger=tmp_path / "budget.db")
    assert not (tmp_path / "release").exists()


def test_a_release_keeps_the_full_name_of_its_built_in_encoder(tmp_path: Path) -> None:
    photos = pictures(tmp_path / "photos", 3, 0)
    made = protect(photos, tmp_path / "release", encoder="pixels", seed=1)
    assert made.recipe.features == "pixels-16"
    assert len(search(tmp_path / "release", photos / "1.png", encoder="pixels", k=2).hits) == 2
    old = protect(photos, tmp_path / "old", encoder="efficientnet-reduced", seed=1)
    assert old.recipe.features == "efficientnet-reduced"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real image-text pair in CLIP's layout: ConSE over Lite0 and MiniLM."""
    try:
        return export_encoder("lite0", tmp_path_factory.mktemp("pair") / "conse", pair=True).folder
    except MissingData as error:
        pytest.skip(str(error))


def test_a_real_pair_is_searched_by_words(tmp_path: Path, pair: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(4):
        for name, image in (("flower", flower()), ("temple", temple())):
            crop = image[20 * number : 20 * number + 300, 30 * number : 30 * number + 400]
            Image.fromarray(crop).save(photos / f"{name}{number}.png")
    names = ("flower", "temple", "dog", "car", "beach")
    made = protect(photos, tmp_path / "release", epsilon=4.9, encoder=pair, own_names=names, seed=2)
    result = search(tmp_path / "release", text="flower", encoder=pair, vault=made.vault, k=3)
    assert sum(hit.names[0].startswith("flower") for hit in result.hits) >= 2


def test_words_that_say_nothing_have_no_hits(tmp_path: Path) -> None:
    if default_recipe().startswith("pixels"):
        pytest.skip("no pretrained network is installed")
    photos = pictures(tmp_path / "photos", 4, 0)
    made = protect(photos, tmp_path / "release", encoder="lite0", seed=1)
    try:
        nonsense = search(tmp_path / "release", text="xqzt blorf", vault=made.vault)
    except MissingData as error:
        pytest.skip(str(error))
    (query,) = nonsense.queries
    assert not query.hits and not query.present
    assert query.interpretation is not None and "no known word" in query.interpretation
    assert search(tmp_path / "release", text="a dog", vault=made.vault).hits


def test_own_names_come_as_text_or_file(tmp_path: Path) -> None:
    from blindsight.app.defaults import own_names

    (tmp_path / "names.txt").write_text("forest\nglacier\n\n sea \n")
    assert own_names("forest, glacier,sea") == ("forest", "glacier", "sea")
    assert own_names(str(tmp_path / "names.txt")) == ("forest", "glacier", "sea")


def test_photos_that_the_cells_cannot_tell_apart_are_refused_before_anything_is_charged(
    tmp_path: Path,
) -> None:
    alike = tmp_path / "alike"
    alike.mkdir()
    rng = np.random.default_rng(0)
    ramp = np.linspace(20, 220, 32)[:, None, None] * np.ones((1, 32, 3))
    for number in range(60):  # sixty nearly equal pictures, as X-rays are to the network
        noisy = (ramp + rng.integers(0, 3, ramp.shape)).astype(np.uint8)
        Image.fromarray(noisy).save(alike / f"{number}.png")
    release, ledger = tmp_path / "release", tmp_path / "budget.db"
    options = {"encoder": "pixels", "epsilon": 8.0, "seed": 1}
    with pytest.raises(InvalidParameter, match=r"little more than chance.*Nothing was charged"):
        protect(alike, release, check_first=True, ledger=ledger, **options)
    assert not release.exists() and not ledger.exists()
    assert protect(alike, release, **options).counts.released == 60
    apart = pictures(tmp_path / "apart", 60, 0)
    made = protect(apart, tmp_path / "other", check_first=True, **options)
    assert made.counts.released == 60
