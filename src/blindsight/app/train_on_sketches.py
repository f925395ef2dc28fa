"""Train a network on a file of sketches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from blindsight.app.defaults import SKETCH_EPOCHS, no_progress
from blindsight.app.result import JobResult, Progress
from blindsight.core.errors import InvalidData

__all__ = [
    "FEW_SKETCHES_PER_CLASS",
    "TEST_ONE_IN",
    "TrainedOnSketches",
    "train_on_sketches",
]

#: One in this number of sketches is held out for the test.
TEST_ONE_IN = 10
#: With fewer training sketches per class than this, a network learns little from sketches.
FEW_SKETCHES_PER_CLASS = 300
# An accuracy is above chance if guessing reaches it with a smaller probability.
_GUESSED_AT_MOST = 0.01


@dataclass(frozen=True)
class TrainedOnSketches(JobResult):
    """A network that was trained on sketches.

    Parameters:
        accuracy: share of test sketches classified correctly.
        chance: accuracy of naming the most frequent class of the test sketches.
        n_classes: number of classes.
        n_training: sketches that were trained on.
        n_test: sketches that were tested on.
        parameters: the name of the sketches' parameters.
        network: the name of the network.
        losses: the training loss of each epoch.
        model: the file of the network, if it was saved.
        onnx: the file of the network as ONNX, if it was exported.

    Examples:
        >>> print(
        ...     TrainedOnSketches(
        ...         accuracy=0.93, chance=0.1, n_classes=10, n_training=9000, n_test=1000,
        ...         parameters="Q3", network="lenet5", losses=(1.8, 0.7, 0.4),
        ...     )
        ... )
        accuracy 93.00% (chance: 10.00%) on 1,000 sketches (Q3), trained on 9,000
          network  lenet5
    """

    accuracy: float
    chance: float
    n_classes: int
    n_training: int
    n_test: int
    parameters: str
    network: str
    losses: tuple[float, ...]
    model: Path | None = None
    onnx: Path | None = None

    @property
    def title(self) -> str:
        return (
            f"accuracy {self.accuracy:.2%} (chance: {self.chance:.2%}) on {self.n_test:,} sketches "
            f"({self.parameters}), trained on {self.n_training:,}"
        )

    @property
    def above_chance(self) -> bool:
        """Whether guessing would reach this accuracy with a probability below 0.01."""
        from scipy.stats import binom

        right = round(self.accuracy * self.n_test)
        return bool(binom.sf(right - 1, self.n_test, self.chance) < _GUESSED_AT_MOST)

    def warnings(self) -> list[str]:
        """Return sentences on what limits this result."""
        sentences = []
        each = self.n_training / self.n_classes
        if each < FEW_SKETCHES_PER_CLASS:
            sentences.append(
                f"There is too little to learn from: {each:,.0f} sketches per class, and about "
                f"{FEW_SKETCHES_PER_CLASS} are needed."
            )
        if not self.above_chance:
            sentences.append("The network is no better than chance: it has learned nothing.")
        return sentences

    def facts(self) -> list[tuple[str, str]]:
        facts = [("note", sentence) for sentence in self.warnings()]
        facts.append(("network", self.network))
        if self.model is not None:
            facts.append(("model", str(self.model)))
        if self.onnx is not None:
            facts.append(("ONNX", f"{self.onnx}, for other programs"))
        return facts

    def to_dict(self) -> dict[str, object]:
        """The fields of `blindsight train --json`."""
        return {
            "accuracy": self.accuracy,
            "chance": self.chance,
            "notes": self.warnings(),
            "trained_on": self.n_training,
            "tested_on": self.n_test,
            "parameters": self.parameters,
            "network": self.network,
            "loss": list(self.losses),
            "model": None if self.model is None else str(self.model),
            "onnx": None if self.onnx is None else str(self.onnx),
        }


def train_on_sketches(
    sketches: str | Path,
    *,
    out: str | Path | None = None,
    test: str | Path | None = None,
    network: str = "auto",
    inputs: str | None = None,
    optimizer: str | None = None,
    learning_rate: float | None = None,
    epochs: int = SKETCH_EPOCHS,
    batch_size: int | None = None,
    augment: bool | None = None,
    onnx: str | Path | None = None,
    random_state: int | None = None,
    progress: Progress = no_progress,
) -> TrainedOnSketches:
    """Train a network on a file of sketches, as the server of Algorithm 3 does.

    Parameters:
        sketches: a file of sketches with labels.
        out: the file of the network, if it is to be saved.
        test: a file of sketches to test on; by default one in ten sketches is held out.
        network: "auto" (by the shape of the images), "lenet5", "whitened", "whitened-wide",
            "resnet" or "resnet50".
        inputs: "both", "bits" or "mean"; by default those of the network.
        optimizer: "adam", "sgd" or "nesterov"; by default that of the network.
        learning_rate: the learning rate; by default that of the network.
        epochs: number of passes over the sketches.
        batch_size: number of sketches per step; by default that of the network.
        augment: whether to use random crops and flips; by default as for the network.
        onnx: a file to which the network is also exported as ONNX.
        random_state: a seed; None draws from the operating system.
        progress: called with (stage, done, total).

    Returns:
        The accuracy and the files.

    Raises:
        InvalidData: if the sketches have no labels.

    Examples:
        >>> import tempfile
        >>> from blindsight import sketch
        >>> made = sketch("digits", f"{tempfile.mkdtemp()}/digits.sketches", random_state=0)
        >>> trained = train_on_sketches(made.file, epochs=1, random_state=0)
        >>> trained.n_training, trained.n_test, trained.network
        (1618, 179, 'lenet5')
        >>> trained.warnings()[0].split(":")[0]
        'There is too little to learn from'
    """
    from blindsight.core.checks import optional_module
    from blindsight.sketching import SketchSet

    optional_module("torch", extra="torch")
    from blindsight.sketching.trainer import NegDL

    stored = SketchSet.open(Path(sketches))
    if stored.labels is None:
        raise InvalidData(
            f"{sketches} has no labels. Sketch a folder with a subfolder per class, or a labelled "
            "set."
        )
    if test is not None:
        training, testing = stored, SketchSet.open(Path(test))
    else:
        order = np.random.default_rng(0).permutation(len(stored))
        cut = max(1, len(stored) // TEST_ONE_IN)
        training, testing = stored[np.sort(order[cut:])], stored[np.sort(order[:cut])]
    model = NegDL(
        network,
        inputs=inputs,
        optimizer=optimizer,
        learning_rate=learning_rate,
        epochs=epochs,
        batch_size=batch_size,
        augment=augment,
        random_state=random_state,
    )
    model.fit(training, progress=lambda done, total: progress("training", done, total))
    accuracy = model.score(testing)
    truth = np.asarray(testing.labels)
    if out is not None:
        model.save(Path(out))
    if onnx is not None:
        model.export_onnx(Path(onnx))
    return TrainedOnSketches(
        accuracy=float(accuracy),
        chance=float(np.bincount(truth).max() / len(truth)),
        n_classes=len(np.unique(np.concatenate([np.asarray(training.labels), truth]))),
        n_training=len(training),
        n_test=len(testing),
        parameters=stored.parameters.name,
        network=str(model.network_),
        losses=tuple(float(loss) for loss in model.losses_),
        model=None if out is None else Path(out),
        onnx=None if onnx is None else Path(onnx),
    )
