"""The algorithms of Wang, Lu and Zhang (2020): PHashing (Algorithm 2) and PITQ (Algorithm 3).

Each is implemented as printed and in a version whose guarantee is proven.

Algorithm 2 as printed is `PHashing(base, calibration="paper").fit_transform(Y, S)`: learn h and U,
flip every bit of U with beta = e^-eps (Theorems 4 and 6). For ADSH, whose database codes are
learned rather than computed, U are the learned codes.

Lemma 5 is exact for the squared norm, E|U' - U|_F^2 = 4 beta n c. Lemma 7 holds but is loose: a
flipped bit changes a distance by one, so E|d - d'|_1 <= n c beta, which the lemma's n^(3/2) c
sqrt(beta) exceeds by the factor sqrt(n / beta). For n >= 1 / beta the lemma's bound is larger than
n c, the largest possible difference.

Algorithm 3 (PITQ) as printed is `algorithm_3`, with its line numbers. Each iteration flips the
codes with beta = e^(-epsilon/E), which for E = 50 is 0.92 to 0.995: the codes are negated, the
rotation follows the negation, and the result is plain ITQ. The projection W and the final codes
sign(YWR) are released without any noise. So the paper claims an epsilon, and no finite epsilon is
proven.

The proven version of PITQ releases W, R and the codes. W is computed from a noisy mean and second
moment of clipped rows, and R from a noisy U'(YW) in each iteration; all noise is Gaussian and
composed exactly. The bits of the codes are flipped before release. If the images are public, W and
R cost nothing, and the whole budget is spent on the codes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted, validate_data

from blindsight.core import checks, codes
from blindsight.core.arrays import Array, Bytes
from blindsight.core.errors import InvalidParameter, NotProven
from blindsight.hashing.base import (
    hasher_from_parts,
    hasher_to_parts,
    new_hasher,
    plain_parameters,
    require,
)
from blindsight.hashing.guarantee import (
    ONCE,
    PUBLIC_NUMBER,
    NoNoise,
    ReleasesCodes,
    Share,
    Source,
    Sums,
    fact,
    flip_guarantee,
    plan_for,
    private_cross_moment,
    private_mean,
    private_second_moment,
)
from blindsight.hashing.plain import (
    ITQ,
    principal_axes,
    procrustes,
    random_rotation,
    second_moment,
)
from blindsight.privacy import Assumption, Cost, Door, Guarantee
from blindsight.privacy.door import clip_norm, finite_rows
from blindsight.privacy.entropy import RandomState, training_rng
from blindsight.privacy.mechanisms import BitFlip

if TYPE_CHECKING:
    from blindsight.privacy import Ledger

__all__ = ["PITQ", "BaseHasher", "CodeUnit", "PHashing", "algorithm_3", "flip_mechanism", "seeded"]


def algorithm_3(
    X: Array, n_bits: int, flips: BitFlip, steps: int, *, printed: bool, rng: np.random.Generator
) -> tuple[Array, Array, Array, list[float]]:
    """Run Algorithm 3 of the paper (PITQ).

    Parameters:
        X: features (n, d).
        n_bits: the number c of bits of a code.
        flips: the mechanism that flips the codes in every iteration.
        steps: the number of iterations.
        printed: whether line 5 is taken as printed, R = N N', which is the identity; otherwise it
            is the Procrustes solution R = M N'.
        rng: generator of the first rotation and of the flips.

    Returns:
        The mean, W, R, and for each iteration trace(R_t' R_t+1) / c, which is near -1 where R only
        follows negated codes.
    """
    mean = X.mean(axis=0, dtype=np.float64)
    axes = min(n_bits, X.shape[1])
    W = principal_axes(second_moment(X, mean), axes)  # line 1
    V = (X - mean) @ W
    R = random_rotation(axes, n_bits, rng)
    turns: list[float] = []
    for _ in range(steps):
        U = np.where(V @ R >= 0, 1, -1)  # line 3
        U = flips.release(U, rng=rng)  # line 4
        before, R = R, _line_5(U.T @ V, printed=printed)
        turns.append(float(np.sum(before * R) / axes))
    return mean, W, R, turns


def _line_5(cross: Array, *, printed: bool) -> Array:
    if not printed:
        return procrustes(cross)
    # "R <- N N'" with U'(YW) = N Omega N': N is orthogonal, so this is the identity.
    n, _, _ = np.linalg.svd(cross)
    return np.asarray((n @ n.T)[: cross.shape[1]])


CodeUnit = Literal["bit", "record"]


class BaseHasher(Protocol):
    """The interface of a hasher whose codes `PHashing` can release."""

    n_bits: int

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Any:
        """Learn the hash function from features and, if it needs them, labels."""

    def transform(self, X: ArrayLike) -> Bytes:
        """Return packed codes (n, ceil(n_bits / 8))."""


class PHashing(ReleasesCodes):
    """Learn a hash function with `base`, then release its codes with randomly flipped bits.

    This is Algorithm 2 of the paper. `fit` learns and releases nothing. `transform` flips and
    releases, and charges a ledger if one is given. `query` returns the plain code of a query,
    which stays with the person who searches. `fit_transform` is Algorithm 2 itself: it flips U,
    the codes of the images that were learned from. ADSH learns U separately from the hash
    function, and U is little more than the labels (10 to 17 distinct codes on ten classes):
    releasing it, even flipped, releases labels.

    Parameters:
        base: one of the nine hashers, or your own with `fit`, `transform` to packed codes and
            `n_bits`; None uses `ITQ()`.
        epsilon: the budget per `unit`.
        calibration: "proven" (beta = 1/(1+e^epsilon) per bit, 1/(1+e^(epsilon/c)) per record) or
            "paper" (beta = e^-epsilon, Theorem 4, for either unit).
        unit: "record" (the whole code) or "bit" (one bit of it: the paper's Definition 1).
        beta: the flip probability itself, instead of the one from epsilon; above 1/2 only with
            "paper".
        learned_from: "public" if `fit` sees images that need no protection; "private" if it sees
            those whose codes are released. Then each image changes the hash function and through
            it every code, and no finite epsilon per record is proven (unless the base does not
            depend on the images: `LSH(center=False)`).
        random_state: None for the operating system's entropy; a seed makes a simulation.

    Guarantee:
        Local model, pure epsilon: |ln((1-beta)/beta)| per bit, c times that per record.
        `guarantee_` states both units, the claim of the paper (-ln beta) and the assumptions. The
        hash function itself is not protected.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> hasher = PHashing(ITQ(8), epsilon=8.0, learned_from="public", random_state=0)
        >>> hasher.fit(rng.normal(size=(100, 16))).transform(rng.normal(size=(3, 16))).shape
        (3, 1)
    """

    def __init__(
        self,
        base: BaseHasher | None = None,
        *,
        epsilon: float = 8.0,
        calibration: Literal["proven", "paper"] = "proven",
        unit: CodeUnit = "record",
        beta: float | None = None,
        learned_from: Source = "private",
        random_state: RandomState = None,
    ) -> None:
        self.base = base
        self.epsilon = epsilon
        self.calibration = calibration
        self.unit = unit
        self.beta = beta
        self.learned_from = learned_from
        self.random_state = random_state

    def promise(self, **public: object) -> Guarantee:
        """Return the guarantee of released codes, given the public number `n_bits`."""
        return flip_guarantee(
            self._mechanism(fact(public, "n_bits")),
            calibration=self.calibration,
            entropy=self.entropy_,
            independent=self._independent,
        )

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Train: learn the hash function h (step 1 of Algorithm 2)."""
        base = ITQ() if self.base is None else self.base
        checks.one_of("learned_from", self.learned_from, ("public", "private"))
        # Invalid parameters are refused here, before learning, which may take minutes.
        self.guarantee_ = self.promise(n_bits=base.n_bits)
        rows = X if self.learned_from == "public" else finite_rows(X)
        self.base_ = seeded(clone(base), self.random_state).fit(rows, y)
        if hasattr(self.base_, "feature_names_in_"):
            self.feature_names_in_ = self.base_.feature_names_in_
        self.public_, self.released_ = {"n_bits": int(base.n_bits)}, {}
        if hasattr(self.base_, "state"):  # one of Blindsight's hashers, which can be saved
            arrays, fields = hasher_to_parts(self.base_)
            part = self.public_ if self._independent else self.released_
            part |= {"base": fields, **{f"base.{name}": value for name, value in arrays.items()}}
        return self._settle_in()

    def fit_transform(
        self, X: ArrayLike, y: ArrayLike | None = None, *, ledger: Ledger | None = None
    ) -> Array:
        """Run Algorithm 2: learn, then release the codes U of the training images."""
        learned = getattr(self.fit(X, y).base_, "database_codes_", None)
        return self._flipped(
            self.query(finite_rows(X)) if learned is None else learned, ledger, None
        )

    def transform(
        self, X: ArrayLike, *, ledger: Ledger | None = None, names: Sequence[str] | None = None
    ) -> Bytes:
        """Perturb: release flipped packed codes (step 2 of Algorithm 2), charging `ledger` first.

        With `names`, a record's noise depends only on its name and on `random_state`, which is then
        a vault's source or a seed.
        """
        return self._flipped(self.query(finite_rows(X)), ledger, names)

    def _flipped(self, plain: Array, ledger: Ledger | None, names: Sequence[str] | None) -> Bytes:
        bits = codes.unpack(plain, self.n_bits_)
        what = f"{len(bits)} flipped codes of {self.n_bits_} bits"
        return codes.pack(
            self._send(bits, what=what, ledger=ledger, names=names, promised=self.guarantee_)
        )

    def query(self, X: ArrayLike) -> Bytes:
        """Return the packed codes of queries without noise. They must stay private."""
        check_is_fitted(self)
        return codes.check_codes(self.base_.transform(X), self.n_bits_, name="the base's codes")

    def decision_function(self, X: ArrayLike) -> Array:
        """Return the base's real values for queries, for soft decoding. They are not protected."""
        check_is_fitted(self)
        if not hasattr(self.base_, "decision_function"):
            raise InvalidParameter(
                f"{type(self.base_).__name__} has no decision_function; rank by query() instead."
            )
        values: Array = self.base_.decision_function(X)
        return values

    def save(self, path: str | Path) -> None:
        """Write parameters, guarantee and the hash function to one file without pickle."""
        check_is_fitted(self)
        hasher_to_parts(self.base_)  # raises an error for a class that is not Blindsight's
        super().save(path)

    @property
    def n_features_in_(self) -> int:
        check_is_fitted(self)
        return int(self.base_.n_features_in_)

    @property
    def _n_features_out(self) -> int:
        return codes.n_bytes(self.n_bits_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = getattr(self.base, "supervised", False)
        tags.target_tags.multi_output = tags.target_tags.required
        return tags

    @property
    def _independent(self) -> bool:
        """Whether the hash function does not depend on the released records."""
        return self.learned_from == "public" or bool(getattr(self.base, "data_free", False))

    def _mechanism(self, n_bits: int) -> BitFlip:
        return flip_mechanism(self, n_bits)

    def _settle(self) -> None:
        self.n_bits_ = checks.whole("n_bits", self.public_["n_bits"])
        self.mechanism_ = self._mechanism(self.n_bits_)
        if not hasattr(self, "base_"):  # read from a file
            part = self.public_ if self._independent else self.released_
            arrays = {
                key.removeprefix("base."): part[key] for key in part if key.startswith("base.")
            }
            self.base_ = hasher_from_parts(arrays, part["base"])
            require(self.base_.n_bits == self.n_bits_, "its codes have another number of bits")

    def _saved_parameters(self) -> dict[str, Any]:
        base = {"class": type(self.base_).__name__, "params": plain_parameters(self.base_)}
        return {**super()._saved_parameters(), "base": base}

    @classmethod
    def _read_parameters(cls, fields: dict[str, Any]) -> dict[str, Any]:
        parameters = dict(fields)
        base = parameters.pop("base")
        return {
            **super()._read_parameters(parameters),
            "base": new_hasher(base["class"], base["params"]),
        }


def seeded(estimator: Any, random_state: RandomState) -> Any:
    """Seed an inner estimator that has no seed, if the outer estimator has one."""
    if (
        random_state is not None
        and "random_state" in estimator.get_params(deep=False)
        and estimator.random_state is None
    ):
        rng, _ = training_rng(random_state)
        estimator.set_params(random_state=int(rng.integers(2**31)))
    return estimator


def flip_mechanism(parameters: PHashing, n_bits: int) -> BitFlip:
    """Make the flip mechanism for an estimator's epsilon, beta, unit and calibration."""
    calibration = checks.one_of("calibration", parameters.calibration, ("paper", "proven"))
    unit: CodeUnit = checks.one_of("unit", parameters.unit, ("bit", "record"))
    if parameters.beta is not None:
        beta = checks.probability("beta", parameters.beta)
        if calibration == "proven" and beta > 0.5:
            raise NotProven(
                f"beta is {beta:.4g}: flipping more than half of the bits releases their "
                "complement, and a larger beta protects less. Use beta of at most "
                "0.5, or calibration='paper' to study the paper's setting."
            )
        return BitFlip(beta=beta, n_bits=n_bits, unit=unit)
    make = BitFlip.paper if calibration == "paper" else BitFlip.proven
    return make(checks.positive("epsilon", parameters.epsilon), n_bits=n_bits, unit=unit)


class PITQ(ReleasesCodes):
    """Private iterative quantisation: Algorithm 3, and a version with a proof.

    Parameters:
        n_bits: the number c of bits of a code.
        epsilon: the whole budget per record.
        delta: spent on learning W and R.
        calibration: "proven", or "paper" for Algorithm 3.
        procrustes: "correct" (R = M N' from U'(YW) = N Omega M') or "printed" (R = N N', which is
            the identity; with "paper" only).
        learned_from: "private" if `fit` sees the protected images, "public" if it sees others.
        learning_share: the share of epsilon for learning W and R, if learning is private.
        clip: rows are scaled into the ball of this radius.
        n_iterations: the number E of iterations; by default 50 with "paper" and 5 with "proven",
            where each iteration spends budget.
        random_state: None for the operating system's entropy; a seed makes a simulation.

    Guarantee:
        With "proven": (epsilon, delta) per record, where neighbours replace one record, for W, R
        and the codes together. `fit` charges the ledger for learning, `transform` for the codes.
        Released sums have discrete Gaussian noise, so the low bits of floating-point numbers reveal
        nothing. With "paper": epsilon is claimed, and no finite epsilon is proven.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> hasher = PITQ(8, epsilon=8.0, random_state=0).fit(rng.normal(size=(200, 16)))
        >>> hasher.transform(rng.normal(size=(3, 16))).shape, hasher.guarantee_.delta
        ((3, 1), 1e-05)
    """

    def __init__(
        self,
        n_bits: int = 32,
        *,
        epsilon: float = 8.0,
        delta: float = 1e-5,
        calibration: Literal["proven", "paper"] = "proven",
        procrustes: Literal["correct", "printed"] = "correct",
        learned_from: Source = "private",
        learning_share: float = 0.25,
        clip: float = 1.0,
        n_iterations: int | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.n_bits = n_bits
        self.epsilon = epsilon
        self.delta = delta
        self.calibration = calibration
        self.procrustes = procrustes
        self.learned_from = learned_from
        self.learning_share = learning_share
        self.clip = clip
        self.n_iterations = n_iterations
        self.random_state = random_state

    def fit(
        self, X: ArrayLike, y: ArrayLike | None = None, *, ledger: Ledger | None = None
    ) -> Self:
        """Learn W and R, charging `ledger` first for what learning from private images costs."""
        self._check()
        rows: Array = validate_data(
            self,
            finite_rows(X) if self._private else X,
            dtype=(np.float64, np.float32),
            ensure_min_samples=2,
        )
        self.public_ = {"n_features": rows.shape[1]}
        self.guarantee_ = self.promise(**self.public_)
        rng, _ = training_rng(self.random_state if self.entropy_ == "seed" else None)
        if self.calibration == "paper":
            Door(
                self.guarantee_,
                what="Algorithm 3's rotation",
                ledger=ledger,
                random_state=self.random_state,
            )
            *learned, turns = algorithm_3(
                rows,
                self.n_bits,
                self.mechanism_,
                self._steps,
                printed=self.procrustes == "printed",
                rng=rng,
            )
            self.turns_ = turns
        else:
            learned = self._rotate(
                clip_norm(rows, self.clip), self._door(rows.shape[1], ledger), rng
            )
        arrays = dict(zip(("mean", "projection", "rotation"), learned, strict=True))
        self.released_ = arrays if self._private else {}
        self.public_ |= {} if self._private else arrays
        return self._settle_in()

    def transform(
        self,
        X: ArrayLike,
        *,
        signs: bool = False,
        ledger: Ledger | None = None,
        names: Sequence[str] | None = None,
    ) -> Array:
        """Release codes with flipped bits.

        With "paper", release the exact sign(YWR) of Algorithm 3's last line.
        """
        bits = (self.decision_function(finite_rows(X)) >= 0).astype(np.uint8)
        if self.calibration == "paper":  # a ledger refuses the charge: no epsilon is proven
            Door(
                self.guarantee_,
                what="Algorithm 3's codes",
                ledger=ledger,
                random_state=self.random_state,
            )
        else:
            what = f"{len(bits)} flipped codes of {self.n_bits} bits"
            bits = self._send(bits, what=what, ledger=ledger, names=names, promised=self._codes())
        return 2 * bits.astype(np.int8) - 1 if signs else codes.pack(bits)

    def fit_transform(
        self, X: ArrayLike, y: ArrayLike | None = None, *, ledger: Ledger | None = None
    ) -> Array:
        """Learn from images and release their codes."""
        return self.fit(X, y, ledger=ledger).transform(X, ledger=ledger)

    def query(self, X: ArrayLike) -> Bytes:
        """Return the packed codes of queries without noise. They must stay private."""
        return codes.pack(self.decision_function(X) >= 0)

    def decision_function(self, X: ArrayLike) -> Array:
        """Return the rotated values (n, c) whose signs are the bits. They are not protected."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        rows = rows if self.calibration == "paper" else clip_norm(rows, self.clip)
        return np.asarray((rows - self.mean_) @ self.projection_ @ self.rotation_)

    @property
    def mechanism_(self) -> BitFlip:
        """The mechanism that flips codes: on release (proven), or in each iteration (paper).

        With "paper", beta = e^(-epsilon/E).
        """
        if self.calibration == "paper":
            return BitFlip.paper(self.epsilon / self._steps, n_bits=self.n_bits)
        return BitFlip.proven(self.epsilon * (1 - self._share), n_bits=self.n_bits)

    def promise(self, **public: object) -> Guarantee:
        """Return the guarantee of W, R and the codes together, given the public `n_features`."""
        self._check()
        if self.calibration == "paper":
            return Guarantee(
                unproven=(_NO_NOISE,),
                mechanism=f"PITQ, {self._steps} iterations flipping with beta = "
                f"{self.mechanism_.beta:.4g}",
                unit="record",
                model="central",
                claimed=self.epsilon,
                calibration="paper",
                assumptions=(_NO_NOISE,),
                sampler="exact",
                entropy=self.entropy_,
                also=(Cost(epsilon=math.inf, unit="bit"),),
            )
        if self.learned_from == "public":
            return self._codes()
        return Guarantee(
            releases=(
                *self._learning(fact(public, "n_features")).releases,
                *self._codes().releases,
            ),
            delta=self.delta,
            model="central",
            assumptions=(PUBLIC_NUMBER, ONCE),
            entropy=self.entropy_,
        )

    @property
    def _n_features_out(self) -> int:
        return codes.n_bytes(self.n_bits)

    @property
    def _private(self) -> bool:
        """Whether W and R are released (through a door, or unprotected with "paper")."""
        return self.calibration == "paper" or self.learned_from == "private"

    @property
    def _steps(self) -> int:
        return (
            (50 if self.calibration == "paper" else 5)
            if self.n_iterations is None
            else self.n_iterations
        )

    @property
    def _share(self) -> float:
        return self.learning_share if self.learned_from == "private" else 0.0

    def _check(self) -> None:
        checks.whole("n_bits", self.n_bits)
        checks.positive("epsilon", self.epsilon)
        checks.one_of("calibration", self.calibration, ("paper", "proven"))
        checks.one_of("learned_from", self.learned_from, ("private", "public"))
        checks.one_of("procrustes", self.procrustes, ("correct", "printed"))
        checks.whole("n_iterations", self._steps)
        checks.positive("clip", self.clip)
        if self.procrustes == "printed" and self.calibration != "paper":
            raise InvalidParameter(
                "procrustes='printed' undoes the rotation; it needs calibration='paper'."
            )
        if not 0 < checks.number("learning_share", self.learning_share) < 1:
            raise InvalidParameter(
                f"learning_share must lie strictly between 0 and 1, got {self.learning_share!r}."
            )

    def _door(self, d: int, ledger: Ledger | None) -> Sums:
        if self.learned_from == "public":
            return NoNoise()
        what = f"projection and rotation for {self.n_bits} bits"
        return Door(self._learning(d), what=what, ledger=ledger, random_state=self.random_state)

    def _rotate(self, X: Array, door: Sums, rng: np.random.Generator) -> list[Array]:
        mean = private_mean(X, door)
        centred = clip_norm(X - mean, self.clip)
        axes = min(self.n_bits, X.shape[1])
        projection = principal_axes(private_second_moment(centred, door), axes)
        V = centred @ projection
        R = random_rotation(axes, self.n_bits, rng)
        for _ in range(self._steps):
            U = np.where(V @ R >= 0, 1.0, -1.0)
            R = procrustes(private_cross_moment(U, V, door))
        return [mean, projection, R]

    def _settle(self) -> None:
        part = self.released_ if self._private else self.public_
        self.mean_, self.projection_, self.rotation_ = (
            np.asarray(part[name], dtype=np.float64) for name in ("mean", "projection", "rotation")
        )
        d = self.n_features_in_ = checks.whole("n_features", self.public_["n_features"])
        wanted = ((d,), (d, *self.rotation_.shape[:1]), (*self.projection_.shape[1:], self.n_bits))
        shapes = (self.mean_.shape, self.projection_.shape, self.rotation_.shape)
        require(shapes == wanted, "the learned arrays do not fit the number of bits")

    def _learning(self, d: int) -> Guarantee:
        """Plan the learning: a tenth of its budget for the mean, half for W, the rest for R."""
        axes = min(self.n_bits, d)
        shares = (
            Share("mean", 0.1, 2 * self.clip, d),
            Share("second moment", 0.5, math.sqrt(2) * self.clip**2, d * (d + 1) // 2),
            # |u| = sqrt(c), |v| <= clip
            Share(
                "cross moment",
                0.4,
                2 * math.sqrt(self.n_bits) * self.clip,
                axes * self.n_bits,
                self._steps,
            ),
        )
        plan = plan_for(shares, epsilon=self.epsilon * self._share, delta=self.delta)
        return Guarantee(
            releases=plan,
            delta=self.delta,
            model="central",
            assumptions=(PUBLIC_NUMBER,),
            entropy=self.entropy_,
        )

    def _codes(self) -> Guarantee:
        return flip_guarantee(
            self.mechanism_, calibration="proven", entropy=self.entropy_, independent=True
        )


_NO_NOISE = Assumption(
    "no noise", "the final codes and the projection are released without noise: nothing is proven"
)
