"""The replay contract of the verbs `tag` and `send` and of the pages Tags, Publish, Compare and
Send: from photos and what their owner says about them to the files that leave.

The page Protect is in `test_replay_index`. The page Train together charges, and its sums are in
`test_replay_federated`. The page Send also tries out sketches, which carry no guarantee and stay
here.
"""

from __future__ import annotations

import inspect
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from blindsight.app.library import pairs, photos, sending, tags
from blindsight.app.library.datasets import DataSet, DataSets
from blindsight.audit.engine import Neighbour
from blindsight.cli import send, tag
from blindsight.index import encoder
from blindsight.privacy import Cost, Ledger
from blindsight.privacy.vault import Vault
from blindsight.tagging import CodebookAnswers, Prior, PrivateTagger
from blindsight.tagging.guarantee import AnswerCodebook
from blindsight.workbench.infra.settings import WorkbenchSettings
from contracts.replay import ReplayContract
from contracts.test_replay_commands import INPUT, LEDGER, OWNER, SEED
from contracts.test_replay_index import _numbered

SIDE = 2
WORDS = ("dark", "bright")
RNG = np.random.default_rng(4)
PHOTOS = RNG.integers(0, 256, (12, SIDE, SIDE, 3), dtype=np.uint8)
LABELS = (np.arange(12) % 2).astype(np.uint8)
MANY = RNG.integers(0, 256, (30, SIDE, SIDE, 3), dtype=np.uint8)
MANY_LABELS = (np.arange(30) % 2).astype(np.uint8)
# Each photo is in few pairs, and who is in which pair is public.
PAIRS = [(i, (i + step) % 12) for step in (1, 2, 3, 4) for i in range(12)]
SAME = RNG.integers(0, 2, len(PAIRS))
UNITS = (
    ("record", "replace one"),
    ("record", "add or remove one"),
    ("pair", "replace one"),
)


def _write(images: Any, folder: Path) -> None:
    folder.mkdir()
    for number, pixels in enumerate(images):
        Image.fromarray(pixels).save(folder / f"{number:02}.png")


def _model() -> PrivateTagger:
    """A tagger from public knowledge, so that the answers are the only release."""
    prior = Prior(np.random.default_rng(5).normal(size=(2, 3 * SIDE**2)), np.zeros(2))
    tagger = PrivateTagger.from_public(list(WORDS), prior)
    tagger.public_["extractor"] = {"kind": "pixels", "size": SIDE}
    return tagger


class _Photos(ReplayContract):
    """Photos with one label each; that they differ is public."""

    def data(self) -> Any:
        return PHOTOS, LABELS

    def neighbours(self) -> list[Neighbour]:
        return [each for each in super().neighbours() if "copy" not in each.name]

    def unrelated(self) -> list[Any]:
        rng = np.random.default_rng(6)
        return [
            (rng.integers(0, 256, PHOTOS.shape, dtype=np.uint8), rng.integers(0, 2, 12)),
            (PHOTOS[::-1].copy(), LABELS[::-1].copy()),
        ]


class TestTagTrain(_Photos):
    """The model of `tag train`; the figures that it prints are for the owner."""

    asked: ClassVar[dict[str, Any]] = {
        "epsilon": 2.0,
        "vocabulary": "dark,bright",
        "features": "pixels",
        "size": SIDE,
    }

    def run(self, data: Any, folder: Path) -> Any:
        images, labels = data
        with tempfile.TemporaryDirectory() as kept, _for_the_owner(), _all_used():
            _write(images, Path(kept) / "photos")
            table = Path(kept) / "labels.csv"
            lines = [f"{n:02}.png,{WORDS[int(label)]}" for n, label in enumerate(labels)]
            table.write_text("\n".join(["image,labels", *lines]))
            tag.train(
                str(Path(kept) / "photos"),
                labels=str(table),
                out=folder / "tagger.safetensors",
                **self.asked,
            )


class TestTagApply(_Photos):
    """The tags that `tag apply` prints for sharing: answers with noise, under random ids."""

    asked: ClassVar[dict[str, Any]] = {"as_csv": True, "ids": True}

    def data(self) -> Any:
        return PHOTOS

    def unrelated(self) -> list[Any]:
        return [photos for photos, _ in super().unrelated()]

    def run(self, data: Any, folder: Path) -> Any:
        words = AnswerCodebook(np.eye(2), np.ones(2))
        with (
            tempfile.TemporaryDirectory() as kept,
            _numbered(),
            redirect_stdout(StringIO()) as said,
            redirect_stderr(StringIO()),
        ):
            _write(data, Path(kept) / "photos")
            model = Path(kept) / "model.safetensors"
            _model().with_answers(CodebookAnswers(2.0, words=words)).save(model)
            for _ in range(2):  # asked again: the same answers, and nothing is charged
                tag.apply(model, [Path(kept) / "photos"], vault=Path(kept) / "vault", **self.asked)
        return said.getvalue()


class _Page(_Photos):
    """What a page releases, from a data set that was read, to the folder that is given away."""

    def act(self, datasets: DataSets, data_set: DataSet, ids: list[str], said: Any) -> None:
        raise AssertionError("say what the page does")

    def run(self, data: Any, folder: Path) -> Any:
        images, said = data
        with tempfile.TemporaryDirectory() as kept, _numbered(), _counted(), _all_used():
            _write(images, Path(kept) / "photos")
            datasets = DataSets(WorkbenchSettings(state=Path(kept) / "state"))
            with mock.patch.object(encoder, "default_features", lambda **_: "pixels"):
                one = photos.scan(datasets, datasets.add("holidays", Path(kept) / "photos"))
            with Ledger(datasets.settings.ledger_place, dataset=one.account) as ledger:
                for unit, neighbours in UNITS:
                    budget: Any = {"unit": unit, "neighbours": neighbours}
                    ledger.grant(Cost(epsilon=1e4, delta=0.1, **budget))
            self.act(datasets, one, [f"{n:032x}" for n in range(len(images))], said)
            for release in datasets.get(one.id).releases:
                shutil.copytree(datasets.folder(release), folder / release.kind)


class TestTagsPage(_Page):
    """The model that the page Tags learns."""

    def act(self, datasets: DataSets, data_set: DataSet, ids: list[str], said: Any) -> None:
        given = {each: [WORDS[int(label)]] for each, label in zip(ids, said, strict=True)}
        tags.keep_labels(datasets, data_set, {"names": list(WORDS), "given": given})
        tags.learn_tags(datasets, data_set)


class TestPublishPage(_Page):
    """The table of tags that the page Tags publishes."""

    def act(self, datasets: DataSets, data_set: DataSet, ids: list[str], said: Any) -> None:
        rows = photos.rows_of(datasets, data_set)
        prior = Prior(np.random.default_rng(5).normal(size=(2, rows.shape[1])), np.zeros(2))
        model = PrivateTagger.from_public(list(WORDS), prior)
        model.save(datasets.vault(data_set) / "tagger.safetensors")
        tags.publish_data_set_tags(datasets, data_set)


class TestComparePage(_Page):
    """The distance that the page Compare learns from answers about pairs."""

    def data(self) -> Any:
        return PHOTOS, SAME

    def neighbours(self) -> list[Neighbour]:
        """One answer is the unit; how an answer is given is private, that it is given is not."""
        changed = np.where(np.arange(len(SAME)) == 0, 1 - SAME, SAME)
        return [Neighbour("the other answer, pair 0", (PHOTOS, changed), 0)]

    def unrelated(self) -> list[Any]:
        rng = np.random.default_rng(6)
        return [
            (rng.integers(0, 256, PHOTOS.shape, dtype=np.uint8), rng.integers(0, 2, len(PAIRS))),
            (PHOTOS[::-1].copy(), 1 - SAME),
        ]

    def act(self, datasets: DataSets, data_set: DataSet, ids: list[str], said: Any) -> None:
        words = ("different", "same")
        answers = [
            [ids[a], ids[b], words[int(word)]]
            for (a, b), word in zip(PAIRS, said, strict=False)
            if max(a, b) < len(ids)
        ]
        pairs.keep_answers(datasets, data_set, answers)
        pairs.learn_to_compare(datasets, data_set)


class _Labelled(ReplayContract):
    """Photos whose label may be missing or may be two: that, too, belongs to the record.

    That the table has any labels at all is public.
    """

    given: ClassVar[Any] = (["dark"], ["bright"], [], ["dark", "bright"])

    def data(self) -> Any:
        return MANY, MANY_LABELS

    def neighbours(self) -> list[Neighbour]:
        made = []
        for name, pixels, label in (
            ("black", 0, 0),
            ("white, the other class", 255, 1),
            ("white, no class", 255, 2),
            ("black, two classes", 0, 3),
        ):
            images, labels = MANY.copy(), MANY_LABELS.copy()
            images[0], labels[0] = pixels, label
            made.append(Neighbour(name, (images, labels), record=0))
        return made

    def unrelated(self) -> list[Any]:
        rng = np.random.default_rng(6)
        other = rng.integers(0, 256, MANY.shape, dtype=np.uint8)
        labels = np.where(np.arange(len(MANY)) == 5, 0, 2)  # one photo has a label, at least
        return [(other, rng.integers(0, 4, len(MANY))), (MANY[::-1].copy(), labels)]


class TestSend(_Labelled):
    """The statistics of `send`; what it prints is for the owner."""

    asked: ClassVar[dict[str, Any]] = {
        "epsilon": 8.0,
        "classes": "dark,bright",
        "encoder": "pixels",
        "all_images": len(MANY),
    }

    def run(self, data: Any, folder: Path) -> Any:
        images, labels = data
        with tempfile.TemporaryDirectory() as kept, _numbered(), _counted(), _for_the_owner():
            _write(images, Path(kept) / "photos")
            table = Path(kept) / "labels.csv"
            people = Path(kept) / "people.csv"
            names = [f"{n:02}.png,Person {n}" for n in range(len(images))]
            people.write_text("\n".join(["image,person", *names]))
            lines = [
                f"{n:02}.png,{word}"
                for n, label in enumerate(labels)
                for word in self.given[int(label)] or [""]
            ]
            table.write_text("\n".join(["image,labels", *lines]))
            with _few_public_pictures():
                send.make(
                    str(Path(kept) / "photos"),
                    folder / "sent.statistics",
                    labels=str(table),
                    vault=Path(kept) / "vault",
                    person=f"{people}:person" if "most" in self.asked else None,
                    **self.asked,
                )


class TestSendHead(TestSend):
    """The classifier of `send --head`."""

    asked: ClassVar[dict[str, Any]] = {
        "epsilon": 8.0,
        "classes": "dark,bright",
        "encoder": "pixels",
        "head": True,
    }


class TestSendOfPeople(TestSend):
    """Statistics that protect persons; each photo here is the only one of its person."""

    asked: ClassVar[dict[str, Any]] = {
        "epsilon": 8.0,
        "classes": "dark,bright",
        "encoder": "pixels",
        "most": 1,
    }


class TestSendPage(_Page, _Labelled):
    """The statistics that the page Send releases."""

    data = _Labelled.data
    neighbours = _Labelled.neighbours
    unrelated = _Labelled.unrelated

    def act(self, datasets: DataSets, data_set: DataSet, ids: list[str], said: Any) -> None:
        given = {each: self.given[int(label)] for each, label in zip(ids, said, strict=True)}
        tags.keep_labels(datasets, data_set, {"names": list(WORDS), "given": given})
        with mock.patch.object(sending, "SEND_EPSILON", 24.0), _few_public_pictures():
            sending.release_statistics(datasets, data_set)


@contextmanager
def _few_public_pictures() -> Iterator[None]:
    """A basis from 20 of the built-in pictures: they are public, whatever their number."""
    with mock.patch("blindsight.app.labelled_images.BUILT_IN_PICTURES", 5):
        yield


@contextmanager
def _for_the_owner() -> Iterator[None]:
    """What is printed meanwhile is not compared."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


@contextmanager
def _counted() -> Iterator[None]:
    """Releases have numbers in their order: under the vault's key their ids are pseudo-random
    functions of what is learned from, which differ with it.
    """
    seen: dict[str, str] = {}
    number = lambda self, law: seen.setdefault(law, f"{len(seen):032x}")  # noqa: E731
    with mock.patch.object(Vault, "release_of", number):
        yield


@contextmanager
def _all_used() -> Iterator[None]:
    """No photo is held out.

    Which ones are is decided by each photo's own content. A photo that changes sides is one that is
    added or removed; `tests/tagging` tests that for itself.
    """

    def split(rows: Any, **_: Any) -> tuple[Any, Any, int]:
        return np.arange(len(rows)), np.arange(0), len(rows)

    with (
        mock.patch("blindsight.tagging.photos.split", split),
        mock.patch("blindsight.app.library.tags.split", split),
    ):
        yield


WITHOUT_SCENE = {
    "train": {
        **dict.fromkeys(("source", "labels", "out", "vault"), INPUT),
        **dict.fromkeys(("ledger", "dataset", "actor", "purpose"), LEDGER),
        **dict.fromkeys(("card", "json"), OWNER),
        "delta": "a number in the plan",
        "public": "public photos",
        "encoder": "computes each photo's features by itself",
        "publish": "the answers of such a model are the scene of tag apply",
        "large_epsilon": "releases what would be refused; the mechanism is the same",
        "seed": SEED,
    },
    "apply": {
        **dict.fromkeys(("model", "images", "vault", "out"), INPUT),
        **dict.fromkeys(("ledger", "dataset", "actor", "purpose"), LEDGER),
        "encoder": "computes each photo's features by itself",
        **dict.fromkeys(("json", "format"), "the same answers in another format"),
    },
    "make": {
        **dict.fromkeys(("source", "labels", "out", "vault", "person"), INPUT),
        **dict.fromkeys(("ledger", "dataset", "actor", "purpose"), LEDGER),
        "json": OWNER,
        "delta": "a number in the plan",
        **dict.fromkeys(("public", "picture_size"), "public pictures"),
        "split": "chooses among public data sets",
        "force": "a whole release again, charged again",
        "large_epsilon": "releases what would be refused; the mechanism is the same",
        "seed": SEED,
    },
}


@pytest.mark.parametrize(
    ("verb", "scenes"),
    [
        (tag.train, (TestTagTrain,)),
        (tag.apply, (TestTagApply,)),
        (send.make, (TestSend, TestSendHead, TestSendOfPeople)),
    ],
)
def test_every_option_of_a_verb_has_a_scene_or_a_reason(verb: Any, scenes: tuple[Any, ...]) -> None:
    reasons = WITHOUT_SCENE[verb.__name__]
    options = set(inspect.signature(verb).parameters)
    assert not options - {name for scene in scenes for name in scene.asked} - set(reasons)
    assert not set(reasons) - options, "a reason for an option that is gone"
