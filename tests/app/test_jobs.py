"""The jobs as Python functions: what they return, beside what the commands print."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import blindsight
from blindsight.app import defaults
from blindsight.cli.main import app
from blindsight.core.errors import InvalidParameter
from blindsight.encoders import feature_recipe
from blindsight.index.encoder import FEATURES


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A release of six photos in two colours, with little noise, and the photos."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "photos").mkdir()
    rng = np.random.default_rng(0)
    for number in range(6):
        base = np.array([200, 40, 40] if number % 2 else [40, 40, 200])
        pixels = np.clip(base + rng.integers(-20, 20, (32, 32, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{number}.png")
    made = blindsight.protect(
        folder / "photos", folder / "release", epsilon=20, encoder="pixels", seed=1
    )
    return made, folder / "photos"


def test_protect_returns_what_the_command_prints_as_json(release, tmp_path):
    made, photos = release
    words = ["protect", photos, "--out", tmp_path / "other", "--encoder", "pixels", "--json"]
    words += ["--epsilon", 20, "--seed", 1]
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    printed = json.loads(done.stdout)
    returned = json.loads(json.dumps(made.to_dict()))
    for where in ("index", "vault"):
        del printed[where], returned[where]
    assert printed == returned
    assert returned["stored"] == 6 and made.created


def test_results_print_and_render(release):
    made, photos = release
    result = blindsight.search(made.release, photos / "0.png", k=3)
    for value in (made, result, blindsight.find_duplicates(made.release)):
        assert str(value).startswith(value.title)
        assert "<table" in value._repr_html_()
        json.dumps(value.to_dict(), allow_nan=False)


def test_a_vector_finds_what_its_photo_finds(release):
    made, photos = release
    recipe = feature_recipe("pixels")
    vector = recipe.rows(recipe.read(photos / "3.png")[None])[0]
    by_vector = blindsight.search(made.release, vector=vector, k=6)
    by_photo = blindsight.search(made.release, photos / "3.png", k=6)
    assert by_vector.hits == by_photo.hits and len(by_vector) == 1
    with pytest.raises(InvalidParameter, match="768 numbers"):
        blindsight.search(made.release, vector=vector[:5])
    with pytest.raises(InvalidParameter, match="one of them"):
        blindsight.search(made.release, photos / "3.png", vector=vector)


def test_files_and_people_can_be_given_as_values(release, tmp_path):
    _, photos = release
    names = [f"{number}.png" for number in range(4)]
    people = {name: str(number % 2) for number, name in enumerate(names)}
    made = blindsight.protect(
        photos, tmp_path / "release", encoder="pixels", files=names, people=people, max_per_person=1
    )
    assert (made.counts.released, made.counts.left_out) == (2, 2)
    assert {cost.unit for cost in made.guarantee.costs} == {"record", "person"}


def test_progress_names_each_stage(release, tmp_path):
    _, photos = release
    stages: list[str] = []
    blindsight.protect(
        photos,
        tmp_path / "release",
        encoder="pixels",
        progress=lambda stage, done, total: stages.append(stage),
    )
    named = [stage for stage in dict.fromkeys(stages) if not stage.startswith("expected: ")]
    assert len(named) == len(set(stages)) - 1  # one stage says what to expect
    assert named == [
        "learning from public data",
        "recognising photos",
        "releasing codes",
        "writing what is shared",
    ]


def test_every_job_offers_the_same_encoders():
    assert set(FEATURES) >= {"efficientnet", "pixels"}
    assert defaults.default_encoder() in FEATURES
