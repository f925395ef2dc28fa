"""The replay contract of the private taggers: what training releases, and what answers do."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from blindsight.audit.engine import Neighbour
from blindsight.audit.engine.listeners import RecordingListener
from blindsight.privacy.door import listening
from blindsight.privacy.vault import Vault
from blindsight.tagging import (
    CodebookAnswers,
    DPTraining,
    LabelGraph,
    LaplaceAnswers,
    Prior,
    PrivateTagger,
)
from blindsight.tagging.photos import publish
from contracts.replay import ReplayContract

RNG = np.random.default_rng(3)
X = RNG.normal(size=(12, 4)).astype(np.float32)
Y = (RNG.random((12, 3)) < 0.4).astype(np.uint8)
PUBLIC = RNG.normal(size=(30, 4)).astype(np.float32)
CLASSES = ("cat", "dog", "tree")
PRIOR = Prior(
    RNG.normal(size=(3, 4)), np.zeros(3), RNG.normal(size=(4, 2)), np.eye(5, 4), np.eye(3, 5)
)


class _Training(ReplayContract):
    params: ClassVar[dict[str, Any]] = {}

    def make(self) -> Any:
        return PrivateTagger(DPTraining(epsilon=2.0, steps=3), classes=CLASSES, **self.params)

    def data(self) -> Any:
        return (X, Y)

    def removed(self) -> bool:
        return True

    def answers(self, fitted: Any) -> Any:
        return fitted.logits(PUBLIC[:5])


class TestTraining(_Training):
    """Counts, centre and gradients; a record that is not finite counts as zero, and that it is
    there shows nowhere.
    """

    def neighbours(self) -> list[Neighbour]:
        spoilt = X.copy()
        spoilt[0] = np.nan
        return [*super().neighbours(), Neighbour("not finite, record 0", (spoilt, Y), record=0)]


class TestTrainingOnPublicDirections(_Training):
    """With public images."""

    params: ClassVar[dict[str, Any]] = {"public": PUBLIC}


class TestTrainingWithAPrior(_Training):
    """With public scores and directions: the centre is released, noise is told from learning."""

    params: ClassVar[dict[str, Any]] = {"prior": PRIOR}


class TestTrainingOfWordsFromScenes(_Training):
    """With code words of made scenes, for which nothing more is released."""

    params: ClassVar[dict[str, Any]] = {
        "prior": PRIOR,
        "answers": CodebookAnswers(epsilon=3.0, k=4),
    }


class TestTrainingWithAPublicNumber(_Training):
    """How many rows there are is private where the public number of records is another one."""

    def run(self, data: Any, folder: Path) -> Any:
        fitted = self.make().fit(*data, n_records=12)
        fitted.save(folder / "model")
        return fitted.logits(PUBLIC[:5])


class TestTrainingOfWords(_Training):
    """With a codebook of answers, fitted within the budget."""

    params: ClassVar[dict[str, Any]] = {"answers": CodebookAnswers(epsilon=3.0, k=4)}


class TestLabelGraph(ReplayContract):
    """The released label graph."""

    def data(self) -> Any:
        return Y

    def removed(self) -> bool:
        return True

    def run(self, data: Any, folder: Path) -> Any:
        graph = LabelGraph.released(data, epsilon=2.0, delta=1e-5, max_labels=2)
        return graph, graph.adjacency


class _Answers(ReplayContract):
    """Answers about private images by a model that knows none of them; that they are distinct is
    public.
    """

    way: Any

    def data(self) -> Any:
        return PUBLIC[:6].astype(np.float64)

    def neighbours(self) -> list[Neighbour]:
        return [one for one in super().neighbours() if "copy" not in one.name]

    def unrelated(self) -> list[Any]:
        return [
            other for other in super().unrelated() if len(np.unique(other, axis=0)) == len(other)
        ]

    def run(self, data: Any, folder: Path) -> Any:
        found = _model(self.way).answer(data)
        return found.tags, found.scores


@cache
def _model(way: Any) -> Any:
    """Trained before the audit listens; its answers are drawn as in production."""
    with listening(RecordingListener()):
        model = PrivateTagger(
            DPTraining(steps=2), way, classes=CLASSES, public=PUBLIC, random_state=5
        ).fit(X, Y)
    model.random_state = None
    # Weights that say much, so that logits go from one end of their bound to the other.
    model.released_["weights"] = 50 * np.random.default_rng(0).normal(
        size=model.released_["weights"].shape
    )
    model._settle()
    return model


class TestCodebookAnswers(_Answers):
    """One of k words."""

    way = CodebookAnswers(epsilon=3.0, k=4)


class TestPublishing(_Answers):
    """One answer per photo by the noise of a vault's key; the vault itself is kept, and its ids are
    random.
    """

    way = CodebookAnswers(epsilon=3.0, k=4)

    def neighbours(self) -> list[Neighbour]:
        return ReplayContract.neighbours(
            self
        )  # ids tell the photos apart, whether they are equal or not

    def unrelated(self) -> list[Any]:
        return ReplayContract.unrelated(self)

    def run(self, data: Any, folder: Path) -> Any:
        records = [f"{number:032x}" for number in range(len(data))]
        with tempfile.TemporaryDirectory() as kept:
            vault = Vault.create(Path(kept) / "vault")
            first = publish(_model(self.way), records, lambda places: data[places], vault=vault)
            again = publish(_model(self.way), records, lambda places: data[places], vault=vault)
        return first.tags, first.scores, again.scores


class TestPublishingByLaplace(TestPublishing):
    """Noise on logits, permanent."""

    way = LaplaceAnswers(epsilon=3.0)


class TestLaplaceAnswers(_Answers):
    """Noise on logits."""

    floats = ("answer",)
    way = LaplaceAnswers(epsilon=3.0)
