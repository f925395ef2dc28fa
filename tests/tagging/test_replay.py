"""At the door: what leaves depends on the records only through what passed, and moves no more than
is stated.
"""

from __future__ import annotations

import numpy as np
import pytest

from blindsight.privacy.door import listening
from blindsight.tagging import CodebookAnswers, DPTraining, Exact, Prior, PrivateTagger

pytestmark = pytest.mark.filterwarnings("ignore::blindsight.core.errors.UnchargedRelease")


class Recorder:
    """Keeps what passes, or hands out what passed before and measures how far the values behind it
    moved.
    """

    def __init__(self, known=None):
        self.values, self.released, self.known, self.reached = [], [], known, []

    def opened(self, door):
        return None

    def absent(self, n):
        return None

    def passing(self, passage):
        if self.known is None:
            return None
        before = self.known.values[len(self.reached)]
        domain = passage.planned.mechanism.domain
        self.reached.append(domain.distance(passage.value, before) / domain.reach)
        return self.known.released[len(self.reached) - 1]

    def passed(self, passage, released):
        self.values.append(np.array(passage.value))
        self.released.append(released)


def records(seed):
    rng = np.random.default_rng(seed)
    x = np.abs(rng.normal(size=(60, 12)))
    return x, (rng.random((60, 5)) < 0.4).astype(float)


def neighbours():
    """One record made extreme in every way; adding or removing it is at most half of replacing
    it.
    """
    for change in ("huge", "zero", "all labels", "no number"):
        x, y = records(0)
        if change == "huge":
            x[7] = 1e200 * np.eye(12)[3]
        elif change == "zero":
            x[7], y[7] = 0.0, 0.0
        elif change == "all labels":
            y[7] = 1.0
        else:
            x[7], y[7] = np.nan, np.nan
        yield change, x, y


@pytest.mark.parametrize("answers", [Exact(), CodebookAnswers(4.0, k=4)], ids=["exact", "codebook"])
@pytest.mark.parametrize("public", [True, False], ids=["public images", "no public images"])
def test_a_neighbour_moves_each_release_within_its_bound_and_nothing_else(
    tmp_path, answers, public
):
    asked, _ = records(9)
    settings = {
        "public": records(5)[0] if public else None,
        "prior": Prior(np.eye(5, 12), np.zeros(5)),
    }

    def run(x, y, name):
        tagger = PrivateTagger(
            DPTraining(steps=3, max_labels=2), answers, classes=list("abcde"), **settings
        )
        tagger.fit(x, y).save(tmp_path / name)
        return tagger.logits(asked)

    first = Recorder()
    with listening(first):
        expected = run(*records(0), "first")
    for change, x, y in neighbours():
        replay = Recorder(first)
        with listening(replay), np.errstate(all="ignore"):
            found = run(x, y, "second")
        # Replacing is removing one and adding another: twice what adding or removing may do.
        assert max(replay.reached) <= 2 + 1e-6, change
        assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes(), change
        np.testing.assert_array_equal(found, expected)


def test_wholly_different_records_leave_the_same_file_if_the_same_was_released(tmp_path):
    first = Recorder()
    for number, listener in enumerate((first, None)):
        with listening(listener or Recorder(first)):
            tagger = PrivateTagger(DPTraining(steps=3), CodebookAnswers(4.0, k=4), classes=5)
            tagger.fit(*records(number)).save(tmp_path / str(number))
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()


def test_training_noise_is_the_operating_system_s_and_never_torch_s():
    first, second = Recorder(), Recorder()
    for listener in (first, second):
        with listening(listener):
            PrivateTagger(DPTraining(steps=2), classes=5).fit(*records(0))
    for item in PrivateTagger(DPTraining(steps=2), classes=5).fit(*records(0)).guarantee_.releases:
        assert item.mechanism.sampler == "exact"
    assert not any(
        np.array_equal(a, b) for a, b in zip(first.released, second.released, strict=True)
    )
