"""What a file says about its codes: length, kind of ids, structure, guarantee, decoding."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from blindsight.core.codes import n_bytes
from blindsight.core.decoding import MatchModel
from blindsight.core.errors import BlindsightError, HostileFile, InvalidData
from blindsight.index import structure as structures
from blindsight.index.journal import reading
from blindsight.index.structure import Flat, Structure
from blindsight.privacy import Guarantee

__all__ = ["Header"]

_MAX_BITS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Header:
    """The facts of an index that do not change; JSON in the file's head."""

    n_bits: int
    names: bool = False
    guarantee: Guarantee | None = None
    decoding: MatchModel | None = None
    structure: Structure = field(default_factory=Flat)

    def to_fields(self) -> dict[str, Any]:
        """Plain values for JSON."""
        model = self.decoding
        return {
            "format": "blindsight index 1",
            "n_bits": self.n_bits,
            "names": self.names,
            "structure": structures.to_fields(self.structure),
            "guarantee": None if self.guarantee is None else json.loads(self.guarantee.to_json()),
            "decoding": None
            if model is None
            else {
                "beta": model.beta,
                "prior": model.prior,
                "match": model.match.tolist(),
                "other": model.other.tolist(),
            },
        }

    @classmethod
    def of(cls, path: str | PathLike[str]) -> Header:
        """The header of a file, without reading its codes."""
        with reading(Path(path)) as (fields, _):
            return cls.from_fields(fields)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Header:
        """Read back what `to_fields` wrote; `HostileFile` on anything else."""
        try:
            if fields.get("format") != "blindsight index 1":
                raise InvalidData("the format is not one this version reads")
            n_bits, names = fields["n_bits"], fields["names"]
            if type(n_bits) is not int or not 1 <= n_bits <= _MAX_BITS or type(names) is not bool:
                raise InvalidData("n_bits or names is not what it should be")
            n_bytes(n_bits)
            guarantee, model = fields["guarantee"], fields["decoding"]
            return cls(
                n_bits=n_bits,
                names=names,
                guarantee=None if guarantee is None else Guarantee.from_json(json.dumps(guarantee)),
                decoding=None if model is None else MatchModel(n_bits=n_bits, **model),
                structure=structures.from_fields(fields["structure"]),
            )
        except (BlindsightError, KeyError, TypeError, ValueError) as error:
            raise HostileFile(
                f"the header of the index is not what it should be: {error}."
            ) from error
