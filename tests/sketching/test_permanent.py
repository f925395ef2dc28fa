"""Under one vault a photo has one sketch, and is charged once, however often it is sent."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

from blindsight.core.errors import InvalidData, InvalidParameter
from blindsight.data import ImageSet
from blindsight.index.bulk import sketch_to
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.vault import Vault
from blindsight.sketching import FlippedBits, NegativeSketcher, Permanent

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 8, 9, 3)).astype(np.uint8)


@pytest.fixture
def vault(tmp_path):
    return Vault.create(tmp_path / "vault")


def sketchers(vault, **changes):
    state = Permanent(vault)
    return NegativeSketcher("Q3", random_state=state, **changes), FlippedBits(
        4.0, random_state=state
    )


@pytest.mark.parametrize("kind", [0, 1], ids=["sketch", "flipped bits"])
def test_a_photo_has_the_same_sketch_alone_or_among_others_now_and_later(vault, kind):
    first = sketchers(vault)[kind].fit(IMAGES).transform(IMAGES)
    again = clone(sketchers(Vault(vault.path))[kind]).fit(IMAGES).transform(IMAGES[[3, 1, 3]])
    assert np.array_equal(again, first[[3, 1, 3]])


@pytest.mark.parametrize("kind", [0, 1], ids=["sketch", "flipped bits"])
def test_other_photos_other_settings_and_other_vaults_have_noise_of_their_own(
    vault, tmp_path, kind
):
    black = np.zeros((4, 16, 16), np.uint8)
    black[1, 0, 0] = black[2, 9, 5] = black[3, -1, -1] = 1
    here = sketchers(vault)[kind].fit(black).transform(black)
    there = sketchers(Vault.create(tmp_path / "other"))[kind].fit(black).transform(black)
    away = np.s_[..., 2:8, :]  # rows without a pixel in which they differ
    for other in here[1:]:
        assert not np.array_equal(here[0][away], other[away])
    assert not np.array_equal(here[0], there[0])
    wide = black.reshape(4, 32, 8)
    turned = sketchers(vault)[kind].fit(wide).transform(wide)
    assert not np.array_equal(here[0].ravel(), turned[0].ravel())


def test_two_files_of_the_same_photos_are_one_release_and_one_charge(vault, tmp_path):
    ledger = Ledger(tmp_path / "ledger.db", dataset="ward-7")
    ledger.grant(Cost(epsilon=5, unit="pixel"))
    flipper = sketchers(vault)[1].fit(IMAGES)
    held = [
        sketch_to(tmp_path / name, IMAGES, flipper, ledger=ledger, block=2) for name in ("a", "b")
    ]
    assert np.array_equal(*(one.counts for one in held))
    flipper.transform(IMAGES[1:3], ledger=ledger)
    assert ledger.balance("pixel").spent.epsilon == pytest.approx(4.0)


def test_under_a_vault_a_finished_file_is_known_again_and_its_names_are_not(vault, tmp_path):
    sketcher = sketchers(vault)[0].fit(IMAGES)
    named, other = (
        ImageSet(IMAGES, names=np.array([f"{k}{end}" for k in range(len(IMAGES))])) for end in "ab"
    )
    held = sketch_to(tmp_path / "a", named, sketcher, block=2)
    before = (tmp_path / "a").read_bytes()
    assert np.array_equal(sketch_to(tmp_path / "a", named, sketcher, block=2).counts, held.counts)
    with pytest.raises(InvalidData, match="second release"):
        sketch_to(tmp_path / "a", other, sketcher, block=2)
    assert (tmp_path / "a").read_bytes() == before
    elsewhere = sketchers(Vault.create(tmp_path / "elsewhere"))[0].fit(IMAGES)
    sketch_to(tmp_path / "b", named, elsewhere, block=2)
    marks = {(tmp_path / name).read_bytes().partition(b"mark")[2][:60] for name in "ab"}
    assert len(marks) == 2  # the key decides, so names cannot be tested by those who lack it


def test_a_sketch_in_a_file_is_the_one_in_memory(vault, tmp_path):
    sketcher = sketchers(vault)[0].fit(IMAGES)
    assert np.array_equal(
        sketch_to(tmp_path / "a", IMAGES, sketcher, block=2).counts, sketcher.transform(IMAGES)
    )


def test_a_guarantee_says_that_the_noise_is_keyed(vault):
    assert sketchers(vault)[1].fit(IMAGES).guarantee_.entropy == "keyed"


def test_a_vaults_key_is_not_sent_to_workers(vault, tmp_path):
    with pytest.raises(InvalidParameter, match="stays on this machine"):
        sketch_to(tmp_path / "a", IMAGES, sketchers(vault)[0].fit(IMAGES), pool=object())


@pytest.mark.filterwarnings("ignore::blindsight.core.errors.UnchargedRelease")
def test_who_forgot_the_ledger_pays_when_it_is_given(vault, tmp_path):
    ledger = Ledger(tmp_path / "ledger.db", dataset="ward-7")
    ledger.grant(Cost(epsilon=5, unit="pixel"))
    flipper = sketchers(vault)[1].fit(IMAGES)
    named = ImageSet(IMAGES, names=np.arange(len(IMAGES)).astype(str))
    sketch_to(tmp_path / "a", named, flipper)
    for _ in range(2):
        sketch_to(tmp_path / "a", named, flipper, ledger=ledger)
        assert ledger.balance("pixel").spent.epsilon == pytest.approx(4.0)
