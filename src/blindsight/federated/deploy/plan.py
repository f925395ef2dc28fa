"""What a federation learns and how: the part of the agreement that every party may read.

One safetensors file: initial weights, the features' scale, and plain settings of learner and
sending.
"""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks, storage
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter, MissingData
from blindsight.federated.agreement import Agreement
from blindsight.federated.estimator import FederatedClassifier
from blindsight.federated.learning import SGD, LocalTrainer, Proximal, Sending, linear
from blindsight.federated.learning.sending import from_name
from blindsight.federated.options import Pad, SumNoise
from blindsight.federated.sums.settings import Settings
from blindsight.privacy.clipping import finite_rows

__all__ = ["Plan", "read_rows"]

_KIND = "federation plan"
_LEARNERS: dict[str, type[Proximal] | type[SGD]] = {"proximal": Proximal, "sgd": SGD}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A classifier's shape, where it starts, and what a user does in a round.

    patience: once enough users are in, a round ends when nobody new has come for that many seconds.
    mask_seed: of a common mask.
    """

    initial: NDArray[np.float64] = field(repr=False)
    scale: NDArray[np.float64] = field(repr=False)
    classes: int
    rounds: int = 3
    learner: str = "proximal"
    options: dict[str, Any] = field(default_factory=dict)
    send: str = "change"
    sparsity: float | None = None
    mask_seed: int = 0
    patience: float = 60.0

    def __post_init__(self) -> None:
        checks.whole("classes", self.classes, least=2)
        checks.whole("rounds", self.rounds)
        checks.non_negative("patience", self.patience)
        checks.one_of("learner", self.learner, tuple(_LEARNERS))
        if self.scale.shape != (2, self.features) or not (self.scale[1] > 0).all():
            raise InvalidParameter(
                "scale must have a mean and a deviation above 0 for each feature."
            )
        if len(self.initial) != linear.rows_of(self.classes) * (self.features + 1):
            raise InvalidParameter("initial weights must fit classes and features.")
        _ = self.local_learner
        if self.sending.sparse:
            raise InvalidParameter(
                f"send must be change or mask, got {self.send!r}: sparse updates need the paper's "
                "protocol, which runs in one process only."
            )

    @property
    def features(self) -> int:
        """How many features a row has."""
        return int(self.scale.shape[1])

    @property
    def local_learner(self) -> Proximal | SGD:
        """The learner with its settings."""
        try:
            return _LEARNERS[self.learner](**self.options)
        except TypeError as error:
            raise InvalidParameter(
                f"options do not fit the learner {self.learner!r}: {error}."
            ) from error

    @property
    def sending(self) -> Sending:
        """What users send."""
        return from_name(self.send, sparsity=self.sparsity, seed=self.mask_seed)

    def trainer(self, X: NDArray[Any], labels: NDArray[Any], *, user: int) -> LocalTrainer:
        """A user's local step over its own rows; labels are class numbers."""
        rows, given = finite_rows(checks.number_array("X", X, ndim=2)), np.asarray(labels)
        if (
            rows.shape[1] != self.features
            or given.shape != (len(rows),)
            or given.dtype.kind not in "iu"
        ):
            raise InvalidData(
                f"rows must have {self.features} features and a class number each, got "
                f"{rows.shape}."
            )
        if len(given) == 0 or given.min() < 0 or given.max() >= self.classes:
            raise InvalidData(f"class numbers must lie in [0, {self.classes - 1}].")
        seed = [self.mask_seed, user]
        return LocalTrainer(self.scaled(rows), given, self.classes, self.local_learner, None, seed)

    def scaled(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows in the units that the model knows."""
        return np.asarray((X - self.scale[0]) / self.scale[1])

    def accuracy(
        self, weights: NDArray[np.float64], X: NDArray[Any], labels: NDArray[Any]
    ) -> float:
        """Of a flat model on labelled rows."""
        found = linear.predicted(
            linear.shaped(weights, self.features), self.scaled(np.asarray(X, dtype=np.float64))
        )
        return float(np.mean(found == np.asarray(labels)))

    def classifier(self, weights: NDArray[np.float64], settings: Settings) -> FederatedClassifier:
        """What the parties learned, to use, to save and to audit; it promises what they agreed
        on.
        """
        noise = None
        if settings.noise is not None:
            epsilon = Agreement(settings).guarantee(self.rounds).epsilon
            noise = SumNoise(epsilon=epsilon, delta=settings.noise.delta, clip=settings.noise.clip)
        model = FederatedClassifier(
            classes=list(range(self.classes)),
            users=settings.users,
            rounds=self.rounds,
            learner=self.local_learner,
            send=self.sending,
            sums=Pad(
                colluders=settings.colluders,
                holders=settings.holders,
                clip=settings.clip,
                groups=settings.groups,
            ),
            noise=noise,
        )
        model.public_ = {
            "users": settings.users,
            "classes": list(range(self.classes)),
            "named": True,
            "features": self.features,
            "scale": self.scale,
            "agreed": settings.encode().hex(),
        }
        model.guarantee_ = model.promise(**model.public_)
        model.released_ = {"weights": linear.shaped(weights, self.features)}
        return model._settle_in()

    def save(self, path: str | Path) -> None:
        """Write the file."""
        fields = {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name not in ("initial", "scale")
        }
        storage.save(
            path, kind=_KIND, arrays={"initial": self.initial, "scale": self.scale}, fields=fields
        )

    def dump(self) -> bytes:
        """The file's bytes."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.safetensors"
            self.save(path)
            return path.read_bytes()

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read what `save` wrote; anything else is refused."""
        arrays, fields = storage.load(path, kind=_KIND)
        try:
            initial = checks.finite_array("initial", arrays["initial"], ndim=1)
            return cls(
                initial=initial,
                scale=checks.finite_array("scale", arrays["scale"], ndim=2),
                **fields,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise HostileFile(f"{path} does not hold a federation plan: {error}.") from error


def read_rows(path: str | Path) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """X and y of an .npz file, numbers only."""
    try:
        with np.load(path, allow_pickle=False) as file:
            X, y = file["X"], file["y"]
    except FileNotFoundError:
        raise MissingData(f"{path} does not exist. Check the path.") from None
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise HostileFile(
            f"{path} must be an .npz file with arrays X and y: {type(error).__name__}."
        ) from error
    if y.dtype.kind not in "iu" or y.ndim != 1:
        raise InvalidData(
            f"y in {path} must hold a whole class number per row, got dtype {y.dtype}."
        )
    return finite_rows(checks.number_array("X", X, ndim=2)), y.astype(np.int64)
