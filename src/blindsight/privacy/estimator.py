"""The base class of private estimators, whose files hold only what passed the door and what never
was private.

    class Mine(Protected):
        _kind = "mine"
        def promise(self, **public) -> Guarantee: ...  # before any data: the plan and its cost
        def fit(self, X, ledger=None):
            self.public_ = {"n_features": X.shape[1]}  # parameters, public domains, public counts
            door = self._open(ledger, what="...")  # charges the ledger
            self.released_ = {"mean": door.total("mean", X)}
            return self._settle_in()
        def _settle(self):
            self.mean_ = self.released_["mean"] / ...

`_settle` sets every learned attribute from `released_` and `public_` alone, in `fit` and in `load`
alike, so what a saved model does is a function of what its file may hold. Logs, clocks and scores
that `fit` may compute for the owner go to `owner_only_`, which no file reaches.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from blindsight.core import storage
from blindsight.core.errors import BlindsightError, HostileFile
from blindsight.privacy.accounting import Plan
from blindsight.privacy.door import Door
from blindsight.privacy.entropy import EntropyName, source_of
from blindsight.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Ledger

__all__ = ["Protected"]


class Protected(BaseEstimator):  # type: ignore[misc]
    """Base of estimators whose releases go through the door.

    Attributes:
        released_: what came through the door, and what was computed from it.
        public_: what never depended on private data: parameters, public domains, public counts.
        guarantee_: what is promised, known before the data.
        owner_only_: what stays with the owner; not saved.

    Examples:
        >>> from blindsight.privacy import Planned
        >>> from blindsight.privacy.mechanisms import Laplace
        >>> class NoisyMean(Protected):
        ...     def __init__(self, scale=0.1, random_state=None):
        ...         self.scale, self.random_state = scale, random_state
        ...     def promise(self, n_rows):
        ...         noise = Laplace(scale=self.scale, sensitivity=2 / n_rows, unit="record")
        ...         mean = Planned(what="mean", mechanism=noise)
        ...         return Guarantee(releases=(mean,), model="central", entropy=self.entropy_)
        ...     def fit(self, X, ledger=None):
        ...         self.public_ = {"n_rows": len(X)}
        ...         door = self._open(ledger, what="a mean")
        ...         self.released_ = {"mean": door.total("mean", X / len(X))}
        ...         return self._settle_in()
        ...     def _settle(self):
        ...         self.mean_ = self.released_["mean"]
        >>> fitted = NoisyMean(random_state=0).fit(np.full((1000, 1), 0.5))
        >>> fitted.guarantee_.epsilon, fitted.mean_.round(1)
        (0.02, array([0.4]))
    """

    _kind: ClassVar[str]
    random_state: Any
    released_: dict[str, Any]
    public_: dict[str, Any]
    owner_only_: dict[str, Any]
    guarantee_: Guarantee

    def promise(self, **public: Any) -> Guarantee:
        """Return the guarantee of a later `fit`, from parameters and public facts only."""
        raise AssertionError("a subclass must implement promise")

    def plan(self, **public: Any) -> Plan:
        """What will be released, before any private value is seen."""
        return self.promise(**public).releases

    @property
    def entropy_(self) -> EntropyName:
        """What the noise is made of: "system", "keyed" or "seed"."""
        return source_of(self.random_state).name

    def _settle(self) -> None:
        """Set what was learned, from `released_` and `public_` alone."""
        raise AssertionError("a subclass must implement _settle")

    def _open(self, ledger: Ledger | None, *, what: str) -> Door:
        """Promise, charge, and open the door; `public_` must be there."""
        self.guarantee_ = self.promise(**self.public_)
        return Door(self.guarantee_, what=what, ledger=ledger, random_state=self.random_state)

    def _settle_in(self) -> Self:
        self._settle()
        return self

    def save(self, path: str | Path) -> None:
        """Write parameters, `public_`, `released_` and the guarantee to one file without pickle;
        nothing else.
        """
        check_is_fitted(self, "released_")
        arrays: dict[str, NDArray[Any]] = {}
        fields: dict[str, Any] = {"parameters": self._saved_parameters()}
        for part, values in (("public", self.public_), ("released", self.released_)):
            fields[part] = {
                key: value for key, value in values.items() if not isinstance(value, np.ndarray)
            }
            arrays |= {
                f"{part}.{key}": value
                for key, value in values.items()
                if isinstance(value, np.ndarray)
            }
        fields["guarantee"] = json.loads(self.guarantee_.to_json())
        storage.save(path, kind=self._kind, arrays=arrays, fields=fields)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read back what `save` wrote; the guarantee is computed again, and anything that does not
        fit is refused.
        """
        arrays, fields = storage.load(path, kind=cls._kind)
        try:
            fitted = cls(**cls._read_parameters(fields["parameters"]))
            for part in ("public", "released"):
                values = dict(fields[part])
                values |= {
                    k.removeprefix(f"{part}."): v
                    for k, v in arrays.items()
                    if k.startswith(f"{part}.")
                }
                setattr(fitted, f"{part}_", values)
            if not all(
                np.isfinite(array).all() for array in arrays.values() if array.dtype.kind == "f"
            ):
                raise HostileFile(f"{path} holds numbers that are not finite.")
            saved = Guarantee.from_json(json.dumps(fields["guarantee"]))
            due = fitted.promise(**fitted.public_)
            stated = dataclasses.replace(
                saved, audited=None, entropy=due.entropy, simulation=due.simulation
            )
            if stated != due:
                raise HostileFile(
                    f"{path} states a guarantee that is not that of its parameters. Fit and save "
                    "it again."
                )
            fitted.guarantee_ = saved
            fitted._settle()
        except HostileFile:
            raise
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            IndexError,
            BlindsightError,
        ) as error:
            raise HostileFile(
                f"{path} does not hold a {cls._kind} that can be used: {type(error).__name__}."
            ) from error
        return fitted

    def _saved_parameters(self) -> dict[str, Any]:
        """Parameters that are plain values; a subclass with others says here how they are
        written.
        """
        return {key: value for key, value in self.get_params(deep=False).items() if _plain(value)}

    @classmethod
    def _read_parameters(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the constructor's arguments from what `_saved_parameters` wrote."""
        unknown = fields.keys() - set(cls._get_param_names())
        if unknown:
            raise KeyError(sorted(unknown)[0])
        return {
            key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
        }


def _plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))
