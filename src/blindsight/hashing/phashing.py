"""PHashing (Wang, Lu and Zhang 2020): the codes of any hasher, randomly flipped before they are
stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from blindsight.core import checks, codes
from blindsight.core.errors import InvalidParameter, NotProven
from blindsight.hashing.base import (
    hasher_from_parts,
    hasher_to_parts,
    new_hasher,
    plain_parameters,
    require,
)
from blindsight.hashing.guarantee import ReleasesCodes, Source, fact, flip_guarantee
from blindsight.hashing.unsupervised import ITQ
from blindsight.privacy import Guarantee
from blindsight.privacy.clipping import finite_rows
from blindsight.privacy.entropy import RandomState, training_rng
from blindsight.privacy.mechanisms import BitFlip

if TYPE_CHECKING:
    from blindsight.privacy import Ledger

__all__ = ["CodeUnit", "PHashing", "flip_mechanism", "seeded"]

Array = NDArray[Any]
CodeUnit = Literal["bit", "record"]


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
            `n_bits`; None takes `ITQ()`.
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
        base: Any = None,
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

    def promise(self, **public: Any) -> Guarantee:
        """What codes of `n_bits` promise; nothing else matters."""
        return flip_guarantee(
            self._mechanism(fact(public, "n_bits")),
            calibration=self.calibration,
            entropy=self.entropy_,
            independent=self._independent,
        )

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train: learn the hash function h (step 1 of Algorithm 2)."""
        base = ITQ() if self.base is None else self.base
        checks.one_of("learned_from", self.learned_from, ("public", "private"))
        self.guarantee_ = self.promise(
            n_bits=base.n_bits
        )  # refuses bad parameters before learning for minutes
        rows = X if self.learned_from == "public" else finite_rows(X)
        self.base_ = seeded(clone(base), self.random_state).fit(rows, y)
        if hasattr(self.base_, "feature_names_in_"):
            self.feature_names_in_ = self.base_.feature_names_in_
        self.public_, self.released_ = {"n_bits": int(base.n_bits)}, {}
        if hasattr(self.base_, "state"):  # one of ours: can be saved
            arrays, fields = hasher_to_parts(self.base_)
            part = self.public_ if self._independent else self.released_
            part |= {"base": fields, **{f"base.{name}": value for name, value in arrays.items()}}
        return self._settle_in()

    def fit_transform(
        self, X: ArrayLike, y: ArrayLike | None = None, *, ledger: Ledger | None = None
    ) -> Array:
        """Algorithm 2: learn, then release the codes U of the very images that were learned
        from.
        """
        learned = getattr(self.fit(X, y).base_, "database_codes_", None)
        return self._flipped(
            self.query(finite_rows(X)) if learned is None else learned, ledger, None
        )

    def transform(
        self, X: ArrayLike, *, ledger: Ledger | None = None, names: Sequence[str] | None = None
    ) -> NDArray[np.uint8]:
        """Perturb: release flipped packed codes (step 2 of Algorithm 2), charging `ledger` first.

        With `names`, a record's noise depends on its name and the source alone: a vault's key, or a
        seed.
        """
        return self._flipped(self.query(finite_rows(X)), ledger, names)

    def _flipped(
        self, plain: Array, ledger: Ledger | None, names: Sequence[str] | None
    ) -> NDArray[np.uint8]:
        bits = codes.unpack(plain, self.n_bits_)
        what = f"{len(bits)} flipped codes of {self.n_bits_} bits"
        return codes.pack(
            self._send(bits, what=what, ledger=ledger, names=names, promised=self.guarantee_)
        )

    def query(self, X: ArrayLike) -> NDArray[np.uint8]:
        """The plain packed codes of queries, without noise: keep them to yourself."""
        check_is_fitted(self)
        return codes.check_codes(self.base_.transform(X), self.n_bits_, name="the base's codes")

    def decision_function(self, X: ArrayLike) -> Array:
        """The base's real values for queries, for soft decoding; not protected."""
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
        hasher_to_parts(self.base_)  # a hasher of the user's own is refused here
        super().save(path)

    @property
    def n_features_in_(self) -> int:
        """Features seen in fit."""
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
        given = dict(fields)
        base = given.pop("base")
        return {
            **super()._read_parameters(given),
            "base": new_hasher(base["class"], base["params"]),
        }


def seeded(estimator: Any, random_state: RandomState) -> Any:
    """Give an unseeded inner estimator a seed of its own, if the outer one has a seed."""
    if (
        random_state is not None
        and "random_state" in estimator.get_params(deep=False)
        and estimator.random_state is None
    ):
        rng, _ = training_rng(random_state)
        estimator.set_params(random_state=int(rng.integers(2**31)))
    return estimator


def flip_mechanism(parameters: Any, n_bits: int) -> BitFlip:
    """The flips for an estimator's epsilon, beta, unit and calibration."""
    calibration = checks.one_of("calibration", parameters.calibration, ("paper", "proven"))
    unit: CodeUnit = checks.one_of("unit", parameters.unit, ("bit", "record"))
    if parameters.beta is not None:
        beta = checks.probability("beta", parameters.beta)
        if calibration == "proven" and beta > 0.5:
            raise NotProven(
                f"beta is {beta:.4g}: flipping more than half of the bits releases their "
                "complement and protects less "
                "the further it goes. Use beta of at most 0.5, or calibration='paper' to study the "
                "paper's setting."
            )
        return BitFlip(beta=beta, n_bits=n_bits, unit=unit)
    make = BitFlip.paper if calibration == "paper" else BitFlip.proven
    return make(checks.positive("epsilon", parameters.epsilon), n_bits=n_bits, unit=unit)
