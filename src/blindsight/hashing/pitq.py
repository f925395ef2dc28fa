"""PITQ (Algorithm 3 of Wang, Lu and Zhang 2020), to the letter, and a version whose promise can be proved.

To the letter, each iteration flips the codes with beta = e^(-epsilon/E), which for E = 50 is 0.92 to 0.995: the
codes are negated, the rotation follows the negation, and the result is plain ITQ. The projection W and the final
codes sign(YWR) are released without any noise. So the paper's epsilon is claimed and none is proven.

Proven: what leaves is W, R and the codes. W comes from a noisy mean and second moment of clipped rows, R from a
noisy U'(YW) in each iteration, all Gaussian and composed exactly, and the codes are flipped before release. With
images that are public, W and R cost nothing and the whole budget goes to the codes.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.core import checks
from blindsight.core.errors import InvalidParameter
from blindsight.hashing.base import Hasher
from blindsight.hashing.phashing import CodeUnit, flip_guarantee, flip_mechanism
from blindsight.hashing.private_moments import NoiseBudget, noisy_cross, noisy_mean, noisy_second
from blindsight.hashing.projection import principal_axes, procrustes, random_rotation, second_moment
from blindsight.hashing.saving import require
from blindsight.privacy import Cost, Guarantee
from blindsight.privacy.clipping import clip_norm
from blindsight.privacy.entropy import RandomState, release_rng, training_rng
from blindsight.privacy.mechanisms import BitFlip

__all__ = ["PITQ"]

Array = NDArray[Any]


class PITQ(Hasher):
    """Private iterative quantisation.

    Parameters
    ----------
    epsilon, delta: the whole budget per `unit`; delta is spent on learning W and R.
    calibration: "proven", or "paper" for Algorithm 3.
    unit: "record", or "bit": the codes' part of the budget is then per bit (and c times that per record).
    procrustes: "correct" (R = M N' from U'(YW) = N Omega M') or "printed" (R = N N', the identity; "paper" only).
    learned_from: "private" if `fit` sees the protected images, "public" if it sees others.
    learning_share: the share of epsilon that learning W and R may spend, when it is private.
    clip: rows are scaled into the ball of this radius; with clip below the rows' norms, onto it.
    n_iterations: E; by default 50 to the letter, 5 proven (each iteration has its price).

    Guarantee
    ---------
    Proven: (epsilon, delta) per record, replace one, for W, R and the codes together. `fit` charges the ledger for
    learning, `transform` for the codes. Paper: claimed epsilon, proven none.
    """

    _learned: ClassVar[tuple[str, ...]] = ("mean_", "projection_", "rotation_")
    guarantee_: Guarantee

    def __init__(
        self,
        n_bits: int = 32,
        *,
        epsilon: float = 8.0,
        delta: float = 1e-5,
        calibration: Literal["proven", "paper"] = "proven",
        unit: CodeUnit = "record",
        procrustes: Literal["correct", "printed"] = "correct",
        learned_from: Literal["private", "public"] = "private",
        learning_share: float = 0.25,
        clip: float = 1.0,
        n_iterations: int | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.n_bits = n_bits
        self.epsilon = epsilon
        self.delta = delta
        self.calibration = calibration
        self.unit = unit
        self.procrustes = procrustes
        self.learned_from = learned_from
        self.learning_share = learning_share
        self.clip = clip
        self.n_iterations = n_iterations
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, ledger: Any = None) -> Self:
        """Learn W and R, charging `ledger` first for what learning from private images costs."""
        self._check()
        X = validate_data(self, X, dtype=(np.float64, np.float32), ensure_min_samples=2)
        self.guarantee_ = self._guarantee()
        if ledger is not None and self.calibration == "paper":
            ledger.charge(self.guarantee_.cost, what="Algorithm 3's rotation and codes")  # refused: none is proven
        rng, _ = training_rng(self.random_state)
        if self.calibration == "paper":
            self._algorithm_3(X, rng)
        elif self.learned_from == "public":
            self._rotate(self._clipped(X), NoiseBudget(None), rng)
        else:
            cost = self._learning_cost()
            if ledger is not None:
                ledger.charge(cost, what=f"projection and rotation for {self.n_bits} bits")
            self._rotate(self._clipped(X), NoiseBudget(cost), rng)
        return self

    def transform(self, X: Any, *, signs: bool = False, ledger: Any = None) -> Array:
        """The codes that are released: flipped, or under "paper" the plain sign(YWR) of Algorithm 3's last line."""
        check_is_fitted(self)
        plain = super().transform(X)
        if self.calibration == "paper":
            released = plain
            if ledger is not None:
                ledger.charge(self.guarantee_.cost, what="Algorithm 3's codes")  # refused: none is proven
        else:
            mechanism = self.mechanism_
            if ledger is not None:
                ledger.charge(self._code_cost(mechanism), what=f"{len(plain)} flipped codes of {self.n_bits} bits")
            released = mechanism.release_packed(plain, rng=release_rng(self.random_state)[0])
        if not signs:
            return released
        bits = np.unpackbits(released, axis=1, count=self.n_bits, bitorder="little")
        return 2 * bits.astype(np.int8) - 1

    def fit_transform(self, X: Any, y: Any = None, *, ledger: Any = None) -> Array:
        """Learn, and release the same images' codes."""
        return self.fit(X, y, ledger=ledger).transform(X, ledger=ledger)

    def query(self, X: Any) -> NDArray[np.uint8]:
        """The plain packed codes of queries, without noise: keep them to yourself."""
        return super().transform(X)

    def decision_function(self, X: Any) -> Array:
        """The rotated values (n, c) whose signs are the plain bits; not protected."""
        return super().decision_function(X)

    @property
    def mechanism_(self) -> BitFlip:
        """How codes are flipped on release (proven), or in each iteration (paper: beta = e^(-epsilon/E))."""
        if self.calibration == "paper":
            return BitFlip.paper(self.epsilon / self._steps, n_bits=self.n_bits, unit=self.unit)
        spent = self.epsilon * (1 - self._share)
        return flip_mechanism(_Budget(spent, self.calibration, self.unit), self.n_bits)

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Learned arrays and JSON-able fields."""
        arrays, fields = super().state()
        return arrays, {**fields, "guarantee": self.guarantee_.to_json()}

    def restore(self, arrays: dict[str, Array], fields: dict[str, Any]) -> None:
        """Take the learned state from what `state` gave."""
        self._check()
        super().restore(arrays, fields)
        saved, due = Guarantee.from_json(fields["guarantee"]), self._guarantee()
        stated = dataclasses.replace(saved, audited=None, simulation=due.simulation)
        require(stated == due, "its guarantee is not that of its parameters")
        self.guarantee_ = saved

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags

    @property
    def _steps(self) -> int:
        return (50 if self.calibration == "paper" else 5) if self.n_iterations is None else self.n_iterations

    @property
    def _share(self) -> float:
        return self.learning_share if self.learned_from == "private" else 0.0

    def _check(self) -> None:
        checks.whole("n_bits", self.n_bits)
        checks.positive("epsilon", self.epsilon)
        checks.one_of("calibration", self.calibration, ("paper", "proven"))
        checks.one_of("unit", self.unit, ("bit", "record"))
        checks.one_of("learned_from", self.learned_from, ("private", "public"))
        checks.one_of("procrustes", self.procrustes, ("correct", "printed"))
        checks.whole("n_iterations", self._steps)
        checks.positive("clip", self.clip)
        if self.procrustes == "printed" and self.calibration != "paper":
            raise InvalidParameter("procrustes='printed' undoes the rotation; it is there for calibration='paper'.")
        if not 0 < checks.number("learning_share", self.learning_share) < 1:
            raise InvalidParameter(f"learning_share must lie strictly between 0 and 1, got {self.learning_share!r}.")

    def _clipped(self, X: Array) -> Array:
        return clip_norm(X, self.clip)

    def _algorithm_3(self, X: Array, rng: np.random.Generator) -> None:
        self.mean_ = X.mean(axis=0, dtype=np.float64)
        axes = min(self.n_bits, X.shape[1])
        self.projection_ = principal_axes(second_moment(X, self.mean_), axes)  # line 1
        V = (X - self.mean_) @ self.projection_
        R = random_rotation(axes, self.n_bits, rng)
        flips = self.mechanism_
        self.turns_: list[float] = []
        for _ in range(self._steps):
            U = np.where(V @ R >= 0, 1, -1)  # line 3
            U = flips.release(U, rng=rng)  # line 4
            before, R = R, self._line_5(U.T @ V)
            # How far R turned, trace(R_t' R_t+1) / c: near -1 where it only follows negated codes.
            self.turns_.append(float(np.sum(before * R) / axes))
        self.rotation_ = R

    def _line_5(self, cross: Array) -> Array:
        if self.procrustes == "correct":
            return procrustes(cross)
        # "R <- N N'" with U'(YW) = N Omega N': N is orthogonal, so this is the identity.
        n, _, _ = np.linalg.svd(cross)
        return (n @ n.T)[: cross.shape[1]]

    def _rotate(self, X: Array, budget: NoiseBudget, rng: np.random.Generator) -> None:
        # A tenth of the budget for the mean, half for W, the rest over the iterations of R.
        self.mean_ = noisy_mean(X, self.clip, budget.take(0.1), rng=rng)
        centred = clip_norm(X - self.mean_, self.clip)
        axes = min(self.n_bits, X.shape[1])
        self.projection_ = principal_axes(noisy_second(centred, self.clip, budget.take(0.5), rng=rng), axes)
        V = centred @ self.projection_
        R = random_rotation(axes, self.n_bits, rng)
        for _ in range(self._steps):
            U = np.where(V @ R >= 0, 1.0, -1.0)
            bound = math.sqrt(self.n_bits) * self.clip  # |u| = sqrt(c), |v| <= clip
            R = procrustes(noisy_cross(U, V, bound, budget.take(0.4 / self._steps), rng=rng))
        self.rotation_ = R

    def _project(self, X: Array) -> Array:
        rows = X if self.calibration == "paper" else self._clipped(X)
        return (rows - self.mean_) @ self.projection_ @ self.rotation_

    def _learning_cost(self) -> Cost:
        return Cost(epsilon=self.epsilon * self._share, delta=self.delta, unit="record")

    def _code_cost(self, mechanism: BitFlip) -> Cost:
        """What a code costs in the unit of the guarantee."""
        return dataclasses.replace(mechanism.cost, unit=self.unit)

    def _guarantee(self) -> Guarantee:
        simulation, mechanism = self.random_state is not None, self.mechanism_
        if self.calibration == "paper":
            return Guarantee(
                mechanism=f"PITQ, {self._steps} iterations flipping with beta = {mechanism.beta:.4g}",
                unit=self.unit,
                epsilon=math.inf,
                model="central",
                claimed=self.epsilon,
                calibration="paper",
                accountant="none: the final codes and the projection are released without noise",
                sampler=mechanism.sampler,
                simulation=simulation,
                also=(Cost(epsilon=math.inf, unit="bit" if self.unit == "record" else "record"),),
            )
        codes_only = flip_guarantee(mechanism, calibration="proven", simulation=simulation, independent=True)
        if self.learned_from == "public":
            return codes_only
        learning = self._learning_cost()
        # Replacing a record is at least as much as replacing one bit of it: learning costs either the same.
        (stated, other) = (
            dataclasses.replace(cost, epsilon=cost.epsilon + learning.epsilon, delta=learning.delta)
            for cost in (codes_only.cost, *codes_only.also)
        )
        return dataclasses.replace(
            codes_only,
            mechanism=f"PITQ: noisy projection and rotation, then {codes_only.mechanism}",
            epsilon=stated.epsilon,
            delta=stated.delta,
            also=(other,),
            model="central",
            claimed=None,
            accountant="Gaussian composition for learning, plus pure epsilon for the codes",
            assumptions=(
                "the number of images is public",
                "a record's code is released once; each further release adds to the cost",
            ),
            sampler="float",
        )


@dataclasses.dataclass(frozen=True)
class _Budget:
    """The part of the budget that codes get, in the form `flip_mechanism` reads."""

    epsilon: float
    calibration: str
    unit: CodeUnit
    beta: None = None
