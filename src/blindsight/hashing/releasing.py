"""What the private hashers share: codes that leave through the door, and a file of public and
released values only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from blindsight.core import storage
from blindsight.core.errors import HostileFile, InvalidParameter
from blindsight.hashing import saving
from blindsight.hashing.promise import CODE
from blindsight.privacy import Door, Guarantee
from blindsight.privacy.estimator import Protected
from blindsight.privacy.vault import RecordSource

if TYPE_CHECKING:
    from blindsight.privacy import Ledger

__all__ = ["ReleasesCodes"]

Array = NDArray[Any]


class ReleasesCodes(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Protected):  # type: ignore[misc]
    """The base of hashers whose codes pass the door; a subclass says what it promises and how it
    computes a code.
    """

    _kind: ClassVar[str] = saving.KIND

    def fingerprint(self) -> str:
        """A digest of the hash function: noise by name must differ between two functions of one
        record.
        """
        parts = {**self.public_, **self.released_}
        if hasattr(self, "base_") and "base" not in parts:
            raise InvalidParameter(
                f"{type(self.base_).__name__} cannot be told from another hash function, and noise "
                "by name on two "
                "functions would show how they differ: leave names= out, or use one of "
                "Blindsight's hashers."
            )
        arrays = {key: value for key, value in parts.items() if isinstance(value, np.ndarray)}
        return storage.digest(type(self).__name__, arrays)

    def _send(
        self,
        values: Array,
        *,
        what: str,
        ledger: Ledger | None,
        names: Sequence[str] | None,
        promised: Guarantee,
    ) -> Array:
        """Charge `promised`, then release each record's value; with `names`, noise by name.

        Under a vault's key the same values of the same records are the same release, whenever it is
        made: it is paid once, and anything else is paid by itself.
        """
        source = self.random_state
        if names is None:
            return Door(promised, what=what, ledger=ledger, random_state=source).release(
                CODE, values
            )
        about, key = self.fingerprint(), None
        if isinstance(source, RecordSource):
            key = source.receipt(names, values, f"{about}/{promised.releases}")
        door = Door(promised, what=what, ledger=ledger, random_state=source, key=key)
        return door.release_each(CODE, values, names, about=about)

    def _saved_parameters(self) -> dict[str, Any]:
        return {"class": type(self).__name__, **super()._saved_parameters()}

    @classmethod
    def _read_parameters(cls, fields: dict[str, Any]) -> dict[str, Any]:
        given = dict(fields)
        name = given.pop("class")
        if name != cls.__name__:
            raise HostileFile(f"the file holds a {name}, not a {cls.__name__}.")
        return super()._read_parameters(given)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.transformer_tags.preserves_dtype = []
        return tags
