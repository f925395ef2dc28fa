"""Negative databases: what is stored is what the hidden set is *not*, in records with don't-care
bits.

A string belongs to the hidden database exactly when no record matches it. Records are kept sparsely
(offsets, positions, values), so a record of 3 specified bits costs 3 entries however long the
string is.

The records themselves must not leave their owner: belief propagation reads the hidden string out of
them (see `blindsight.audit.methods.sketching.attacks`), whatever the hardness of the general
problem. Only sketches are sent; `save` therefore asks for `unsafe_records=True`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blindsight.core import checks, storage
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter

__all__ = ["NegativeDatabase"]


class NegativeDatabase:
    """Records over {0, 1, *} of one length, with the operations a negative database is defined
    with.

    Insert, delete and update speak of the *hidden* database: inserting a string takes it out of
    what the records match. They are exact: the set of matched strings changes by that string and
    nothing else.

    Examples:
        >>> db = NegativeDatabase.complement(["000", "101", "010"])
        >>> db.contains("101"), db.contains("111")
        (True, False)
        >>> db.delete("101").contains("101")
        False
    """

    def __init__(
        self, length: int, offsets: ArrayLike, positions: ArrayLike, values: ArrayLike
    ) -> None:
        self.length = checks.whole("length", length)
        self.offsets = np.asarray(offsets, np.int64)
        self.positions = np.asarray(positions, np.int32)
        self.values = np.asarray(values, np.uint8)
        self._check()

    def _check(self) -> None:
        offsets, positions = self.offsets, self.positions
        if (
            offsets.ndim != 1
            or offsets.size == 0
            or offsets[0] != 0
            or offsets[-1] != positions.size
        ):
            raise InvalidData(
                "a negative database's offsets must start at 0 and end at its number of entries."
            )
        if (
            (np.diff(offsets) < 0).any()
            or positions.shape != self.values.shape
            or positions.ndim != 1
        ):
            raise InvalidData(
                "a negative database's offsets, positions and values must fit together."
            )
        if positions.size and (positions.min() < 0 or positions.max() >= self.length):
            raise InvalidData(
                f"a record's positions must lie below the string's length, {self.length}."
            )
        if positions.size and self.values.max() > 1:
            raise InvalidData("a record's specified bits must be 0 or 1.")
        cells = self._owners().astype(np.int64) * self.length + positions
        if np.unique(cells).size != cells.size:
            raise InvalidData("a record must specify each of its bits once.")

    def _owners(self) -> NDArray[np.int64]:
        """The record that each entry belongs to."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    @classmethod
    def from_records(cls, records: Iterable[str], *, length: int | None = None) -> NegativeDatabase:
        """From written records such as "0*1"."""
        rows = list(records)
        if length is None:
            if not rows:
                raise InvalidParameter(
                    "length must be given for a negative database without records."
                )
            length = len(rows[0])
        offsets, positions, values = [0], [], []
        for row in rows:
            if len(row) != length or set(row) - set("01*"):
                raise InvalidData(f"a record must be {length} characters of 0, 1 and *.")
            specified = [(at, int(bit)) for at, bit in enumerate(row) if bit != "*"]
            positions += [at for at, _ in specified]
            values += [bit for _, bit in specified]
            offsets.append(len(positions))
        return cls(length, offsets, positions, values)

    @classmethod
    def empty_hidden(cls, length: int) -> NegativeDatabase:
        """The negative database of the empty set: one record of don't-cares, which matches
        everything.
        """
        return cls(length, [0, 0], [], [])

    @classmethod
    def complement(cls, strings: Iterable[ArrayLike | str]) -> NegativeDatabase:
        """An exact negative database of these strings: it matches every other string and none of
        them.
        """
        rows = [_bits(string) for string in strings]
        if not rows:
            raise InvalidParameter(
                "complement needs at least one string; see empty_hidden for none."
            )
        database = cls.empty_hidden(rows[0].size)
        for row in rows:
            database.insert(row)
        return database

    def __len__(self) -> int:
        return self.offsets.size - 1

    def __repr__(self) -> str:
        return f"NegativeDatabase({len(self):,} records of {self.length:,} bits)"

    def records(self, start: int = 0, stop: int | None = None) -> list[str]:
        """Some records as text, to inspect them."""
        rows = []
        for k in range(*slice(start, stop).indices(len(self))):
            row = ["*"] * self.length
            for at in range(self.offsets[k], self.offsets[k + 1]):
                row[self.positions[at]] = str(self.values[at])
            rows.append("".join(row))
        return rows

    def matches(self, string: ArrayLike | str) -> NDArray[np.bool_]:
        """Which records match the string: agree with it on all their specified bits."""
        wrong = _bits(string, self.length)[self.positions] != self.values
        cumulated = np.concatenate([[0], np.cumsum(wrong)])
        return np.asarray(cumulated[self.offsets[1:]] == cumulated[self.offsets[:-1]])

    def contains(self, string: ArrayLike | str) -> bool:
        """Select by membership: whether the hidden database holds the string (no record matches
        it).
        """
        return not self.matches(string).any()

    def select(self, strings: Iterable[ArrayLike | str]) -> list[bool]:
        """`contains` for several strings."""
        return [self.contains(string) for string in strings]

    def insert(self, string: ArrayLike | str) -> NegativeDatabase:
        """Put a string into the hidden database: each record that matches it is split around it.

        A record with free bits b_1, b_2, ... becomes one record a free bit: equal to the string on
        the free bits before, different on this one. Together they match what the record matched,
        but for the string.
        """
        bits = _bits(string, self.length)
        matching = self.matches(bits)
        if not matching.any():
            return self
        kept = np.repeat(~matching, np.diff(self.offsets))
        sizes = [np.diff(self.offsets)[~matching]]
        positions, values = [self.positions[kept]], [self.values[kept]]
        for k in np.flatnonzero(matching):
            own = slice(self.offsets[k], self.offsets[k + 1])
            free = np.setdiff1d(np.arange(self.length), self.positions[own])
            for n, position in enumerate(free):
                positions += [self.positions[own], free[:n], np.array([position])]
                values += [self.values[own], bits[free[:n]], np.array([1 - bits[position]])]
            sizes.append(own.stop - own.start + 1 + np.arange(free.size))
        self.offsets = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]).astype(np.int64)
        self.positions = np.concatenate(positions).astype(np.int32)
        self.values = np.concatenate(values).astype(np.uint8)
        return self

    def delete(self, string: ArrayLike | str) -> NegativeDatabase:
        """Take a string out of the hidden database: a record that matches it alone is added."""
        bits = _bits(string, self.length)
        if self.contains(bits):
            self.positions = np.concatenate(
                [self.positions, np.arange(self.length, dtype=np.int32)]
            )
            self.values = np.concatenate([self.values, bits])
            self.offsets = np.append(self.offsets, self.positions.size)
        return self

    def update(self, old: ArrayLike | str, new: ArrayLike | str) -> NegativeDatabase:
        """Replace a string of the hidden database by another."""
        if not self.contains(old):
            raise InvalidData("update needs a string that the hidden database contains.")
        old, new = _bits(old, self.length), _bits(new, self.length)
        return self if (old == new).all() else self.delete(old).insert(new)

    def sketch(self, depth: int) -> NDArray[np.int64]:
        """Algorithm 2, by planes: counts (depth, 2, attributes), [.., 0, .] of the zeros, [.., 1,
        .] of the ones.
        """
        if self.length % checks.whole("depth", depth):
            raise InvalidParameter(
                f"depth must divide the string's {self.length} bits, got {depth}."
            )
        counts = np.bincount(
            self.positions.astype(np.int64) * 2 + self.values, minlength=2 * self.length
        )
        return counts.reshape(self.length // depth, depth, 2).transpose(1, 2, 0)

    def save(self, path: str | Path, *, unsafe_records: bool = False) -> None:
        """Write the records. Only on request: an attacker who has them has the image."""
        if not unsafe_records:
            raise InvalidParameter(
                "the records of a negative database give the hidden string away (belief "
                "propagation reverses them), "
                "so they are not written. Send the sketch instead, or pass unsafe_records=True to "
                "study them."
            )
        arrays: dict[str, NDArray[Any]] = {
            "offsets": self.offsets,
            "positions": self.positions,
            "values": self.values,
        }
        storage.save(path, kind="negative-database", arrays=arrays, fields={"length": self.length})

    @classmethod
    def load(cls, path: str | Path) -> NegativeDatabase:
        """Read back what `save` wrote."""
        arrays, fields = storage.load(path, kind="negative-database")
        try:
            return cls(fields["length"], arrays["offsets"], arrays["positions"], arrays["values"])
        except (KeyError, InvalidData, InvalidParameter, TypeError) as error:
            raise HostileFile(f"{path} is not a negative database: {error}") from error


def _bits(string: Any, length: int | None = None) -> NDArray[np.uint8]:
    row = np.array([*string]) if isinstance(string, str) else np.asarray(string)
    if row.dtype.kind == "U":
        row = np.where(row == "1", 1, np.where(row == "0", 0, 2))
    if (
        row.ndim != 1
        or row.dtype.kind not in "iub"
        or (row.size and (row.min() < 0 or row.max() > 1))
    ):
        raise InvalidData("a string must be a sequence of bits, 0 or 1.")
    if length is not None and row.size != length:
        raise InvalidData(f"a string of this database must have {length} bits, got {row.size}.")
    return row.astype(np.uint8)
