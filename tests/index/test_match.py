"""The number beside a hit of flipped codes: how likely the photo is the query itself, after small
edits.
"""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from blindsight.core.codes import hamming
from blindsight.hashing import PHashing
from blindsight.index.encoder import CodeRecipe, make_encoder
from blindsight.index.public_images import built_in_images, edited


@pytest.mark.parametrize("method", ["phashing-itq", "phashing-lsh"])
def test_the_probability_of_a_match_is_calibrated_on_photos_that_were_not_learned_from(
    tmp_path, method
):
    """400 queries, each the edited copy of one of 100 stored pictures; the error of the first ten
    hits, in ten bins. Everything is seeded, so that nothing is left to luck.
    """
    pictures = built_in_images(1200, 16)[600:]
    for number, pixels in enumerate(pictures[:200]):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    recipe = CodeRecipe(
        method=method,
        unit="bit",
        epsilon=4.0,
        bits=64,
        features="pixels",
        public=str(tmp_path),
        seed=1,
    )
    encoder = make_encoder(recipe)
    stored = pictures[200:]
    codes = encoder.hasher.transform(encoder.rows(stored))
    apart = hamming(encoder.hasher.query(encoder.rows(edited(stored, seed=7))), codes)
    curve, rng = encoder.decoding.curve(), np.random.default_rng(0)
    shown, right = [], []
    for query in range(400):
        others = rng.choice(np.setdiff1d(np.arange(400), [query]), 99, replace=False)
        rows = np.concatenate([[query], others])
        first = rows[np.argsort(apart[query, rows] + rng.random(100) / 2)[:10]]
        shown.append(curve[apart[query, first]])
        right.append(first == query)
    told, came = np.concatenate(shown), np.concatenate(right)
    place = np.minimum((10 * told).astype(int), 9)
    error = sum(
        abs((told - came)[place == b].mean()) * (place == b).mean() for b in np.unique(place)
    )
    assert came.mean() > 0.05 and error < 0.05


def test_no_picture_is_measured_by_a_function_that_learned_from_it(tmp_path, monkeypatch):
    """In 64 bits a function fits 100 pictures so closely that their edited copies seem three times
    nearer than a new photo's: the probability would be of the pictures, not of the photos.
    """
    for number, pixels in enumerate(built_in_images(120, 16)):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    learned, measured = [], []
    plain_fit, plain_query = PHashing.fit, PHashing.query

    def fit(self, X, y=None, **options):
        learned.append({row.tobytes() for row in X})
        return plain_fit(self, X, y, **options)

    def query(self, X):
        measured.append((len(learned) - 1, {row.tobytes() for row in X}))
        return plain_query(self, X)

    monkeypatch.setattr(PHashing, "fit", fit)
    monkeypatch.setattr(PHashing, "query", query)
    make_encoder(
        CodeRecipe(
            method="phashing-itq",
            unit="bit",
            bits=64,
            features="pixels",
            public=str(tmp_path),
            seed=1,
        )
    )
    assert len(measured) >= 4 and len(learned) == 3
    assert not any(learned[function] & rows for function, rows in measured)


def test_without_pictures_of_the_kind_no_probability_is_made_up():
    recipe = CodeRecipe(method="phashing-lsh", unit="bit", epsilon=4.0, bits=64, features="pixels")
    assert not recipe.own_pictures
    assert make_encoder(recipe).decoding.beta == pytest.approx(1 / (1 + np.exp(4.0)))
