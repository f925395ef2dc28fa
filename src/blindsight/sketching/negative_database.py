"""Negative databases and the QK-hidden algorithm (Algorithms 1 and 2).

A negative database stores what the hidden set is *not*, in records with unspecified bits. A string
belongs to the hidden database exactly when no record matches it. Records are stored sparsely
(offsets, positions, values), so a record with 3 specified bits takes 3 entries for any length of
the string.

The records must not leave their owner: belief propagation recovers the hidden string from them (see
`blindsight.audit.methods.sketching`), despite the hardness of the general problem. Only
sketches are sent; `save` therefore requires `unsafe_records=True`.

`hide` makes all records of a string at once. `qk_hidden` and `sketch_of` are Algorithms 1 and 2
line by line in plain Python; the tests compare the fast versions with them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from blindsight.core import checks, storage
from blindsight.core.arrays import Array, Bools, Bytes, Ints
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter
from blindsight.privacy.entropy import RandomState, training_rng
from blindsight.sketching.parameters import QKParameters, to_bits

__all__ = ["NegativeDatabase", "hide", "hide_image", "qk_hidden", "sketch_of"]


class NegativeDatabase:
    """A negative database: records over {0, 1, *} of one length, with its defining operations.

    Insert, delete and update refer to the *hidden* database: after a string is inserted, no record
    matches it. They are exact: the set of matched strings changes by that string only.

    Parameters:
        length: bits of a string.
        offsets: (records + 1,) where the entries of each record start.
        positions: the specified positions of all records.
        values: the specified bits, 0 or 1.

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

    def _owners(self) -> Ints:
        """Return the record to which each entry belongs."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    @classmethod
    def empty_hidden(cls, length: int) -> NegativeDatabase:
        """Make the negative database of the empty set.

        It has one record without specified bits, which matches everything.
        """
        return cls(length, [0, 0], [], [])

    @classmethod
    def complement(cls, strings: Iterable[ArrayLike | str]) -> NegativeDatabase:
        """Make an exact negative database of these strings.

        Its records match every other string and none of these.
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
        """Return some records as text, to inspect them."""
        rows = []
        for k in range(*slice(start, stop).indices(len(self))):
            row = ["*"] * self.length
            for at in range(self.offsets[k], self.offsets[k + 1]):
                row[self.positions[at]] = str(self.values[at])
            rows.append("".join(row))
        return rows

    def matches(self, string: ArrayLike | str) -> Bools:
        """Return which records match the string, that is, agree with all their specified bits."""
        wrong = _bits(string, self.length)[self.positions] != self.values
        cumulated = np.concatenate([[0], np.cumsum(wrong)])
        return np.asarray(cumulated[self.offsets[1:]] == cumulated[self.offsets[:-1]])

    def contains(self, string: ArrayLike | str) -> bool:
        """Whether the hidden database contains the string, which is when no record matches it."""
        return not self.matches(string).any()

    def select(self, strings: Iterable[ArrayLike | str]) -> list[bool]:
        """Return `contains` for each of several strings."""
        return [self.contains(string) for string in strings]

    def insert(self, string: ArrayLike | str) -> NegativeDatabase:
        """Insert a string into the hidden database: each record that matches it is split.

        A record with free bits b_1, b_2, ... becomes one record for each free bit, which equals the
        string on the earlier free bits and differs on this one. Together they match what the record
        matched, except the string.
        """
        bits = _bits(string, self.length)
        matching = self.matches(bits)
        if not matching.any():
            return self
        unchanged = np.repeat(~matching, np.diff(self.offsets))
        sizes = [np.diff(self.offsets)[~matching]]
        positions, values = [self.positions[unchanged]], [self.values[unchanged]]
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
        """Delete a string from the hidden database: add a record that matches only this string."""
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

    def sketch(self, depth: int) -> Ints:
        """Run Algorithm 2: return counts (depth, 2, attributes).

        [.., 0, .] counts zeros and [.., 1, .] ones.
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
        """Write the records, if `unsafe_records`: an attacker can recover the image from them."""
        if not unsafe_records:
            raise InvalidParameter(
                "the records of a negative database reveal the hidden string (belief propagation "
                "reverses them), so they are not written. Send the sketch instead, or pass "
                "unsafe_records=True to study them."
            )
        arrays: dict[str, Array] = {
            "offsets": self.offsets,
            "positions": self.positions,
            "values": self.values,
        }
        storage.save(path, kind="negative-database", arrays=arrays, fields={"length": self.length})

    @classmethod
    def load(cls, path: str | Path) -> NegativeDatabase:
        """Read what `save` wrote."""
        arrays, fields = storage.load(path, kind="negative-database")
        try:
            return cls(fields["length"], arrays["offsets"], arrays["positions"], arrays["values"])
        except (KeyError, InvalidData, InvalidParameter, TypeError) as error:
            raise HostileFile(f"{path} is not a negative database: {error}") from error


def _bits(string: ArrayLike, length: int | None = None) -> Bytes:
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


def hide(
    string: ArrayLike,
    parameters: QKParameters,
    *,
    distinct: bool = False,
    random_state: RandomState = None,
) -> NegativeDatabase:
    """Make the negative database of a bit string: N = m r records of K specified bits.

    With `distinct=True` no record occurs twice, as the union in the algorithm implies. By default
    records may repeat, as Equations 4 and 5 assume. For long strings the two hardly differ.
    """
    bits = np.asarray(string)
    if bits.ndim != 1 or bits.dtype.kind not in "iub" or not np.isin(bits, (0, 1)).all():
        raise InvalidData("string must be one row of bits, 0 or 1.")
    bits = bits.astype(np.uint8)
    if bits.size == 0 or bits.size % parameters.depth:
        raise InvalidParameter(
            f"L (the length of q) must divide the string's {bits.size} bits, got "
            f"{parameters.depth}."
        )
    parameters.check_string(bits.size // parameters.depth)
    rng, _ = training_rng(random_state)
    N = parameters.n_records(bits.size // parameters.depth)
    positions, values = _records(bits, parameters, N, rng)
    if distinct:
        positions, values = _distinct(bits, parameters, N, rng, positions, values)
    offsets = np.arange(N + 1) * parameters.specified
    return NegativeDatabase(bits.size, offsets, positions.ravel(), values.ravel())


def hide_image(
    channel: ArrayLike,
    parameters: QKParameters,
    *,
    random_state: RandomState = None,
    distinct: bool = False,
) -> NegativeDatabase:
    """Make the negative database of one channel of an image.

    The channel may have any shape and holds whole numbers below 2^depth.
    """
    pixels = np.asarray(channel)
    top = 2**parameters.depth - 1
    if pixels.dtype.kind not in "iu" or pixels.size == 0 or pixels.min() < 0 or pixels.max() > top:
        raise InvalidData(
            f"a channel must hold whole numbers from 0 to {top} at depth {parameters.depth}."
        )
    bits = to_bits(pixels.ravel(), parameters.depth).ravel()
    return hide(bits, parameters, distinct=distinct, random_state=random_state)


def _records(
    bits: Array, parameters: QKParameters, n: int, rng: np.random.Generator
) -> tuple[Any, Any]:
    """Draw n records: positions (n, K), the differing ones first, and their values."""
    K = parameters.specified
    types = rng.choice(K, size=n, p=parameters.p) + 1  # steps 6 and 7
    differing = np.arange(K) < types[:, None]
    positions = _positions(differing, bits.size, parameters, rng)
    while True:  # positions that repeat an earlier one of their record are drawn again
        repeats = np.zeros_like(differing)
        for t in range(1, K):
            repeats[:, t] = (positions[:, :t] == positions[:, t : t + 1]).any(axis=1)
        rows = np.flatnonzero(repeats.any(axis=1))
        if not rows.size:
            return positions, bits[positions] ^ differing
        # Only the first repeat of a record is drawn again; later ones are checked after it.
        first = repeats[rows].argmax(axis=1)
        again = _positions(differing[rows, first][:, None], bits.size, parameters, rng)
        positions[rows, first] = again[:, 0]


def _positions(
    differing: Array, m: int, parameters: QKParameters, rng: np.random.Generator
) -> Array:
    """Draw positions (steps 8 and 9).

    Where the record differs, it is bit j of a random attribute, j drawn by Q; where it agrees, it
    is any bit.
    """
    L = parameters.depth
    by_q = rng.choice(L, size=differing.shape, p=parameters.q) + L * rng.integers(
        0, m // L, size=differing.shape
    )
    return np.where(differing, by_q, rng.integers(0, m, size=differing.shape))


def _distinct(
    bits: Array,
    parameters: QKParameters,
    N: int,
    rng: np.random.Generator,
    positions: Any,
    values: Array,
) -> tuple[Any, Any]:
    """Draw records until there are N different ones."""
    for _ in range(1000):
        order = np.argsort(positions, axis=1)
        cells = np.take_along_axis(positions * 2 + values, order, axis=1)
        _, first = np.unique(cells, axis=0, return_index=True)
        if first.size >= N:
            rows = np.sort(first)[:N]
            return positions[rows], values[rows]
        more = _records(bits, parameters, checks.whole("missing", max(N - first.size, 16)), rng)
        rows = np.sort(first)
        positions = np.concatenate([positions[rows], more[0]])
        values = np.concatenate([values[rows], more[1]])
    raise InvalidParameter(
        f"r must be small enough for {N:,} different records of this string to exist."
    )


ZERO, ONE = ord("0"), ord("1")


def qk_hidden(s: Sequence[int], parameters: QKParameters, *, rng: random.Random) -> list[bytearray]:
    """Algorithm 1: the negative database of the bit string `s`, records of b"0", b"1" and b"*".

    The records form a list, not a set: repeats, which are rare for long strings, remain, as
    Equations 4 and 5 assume.
    """
    L, K = parameters.depth, parameters.specified
    m = len(s)
    N = parameters.n_records(m // L)
    P = [0.0]
    for p in parameters.p:
        P.append(P[-1] + p)  # step 3
    ndb: list[bytearray] = []
    while len(ndb) < N:  # step 4
        record = bytearray(b"*") * m
        mdp = rng.random()
        i = 1
        while i < K and not P[i - 1] <= mdp < P[i]:  # step 7
            i += 1
        chosen: set[int] = set()
        while len(chosen) < i:  # step 8: bit j by Q, of an attribute chosen at random
            j = rng.choices(range(L), weights=parameters.q)[0]
            position = rng.randrange(m // L) * L + j
            if position not in chosen:
                chosen.add(position)
                record[position] = ONE if s[position] == 0 else ZERO
        while len(chosen) < K:  # step 9
            position = rng.randrange(m)
            if position not in chosen:
                chosen.add(position)
                record[position] = ONE if s[position] == 1 else ZERO
        ndb.append(record)
    return ndb


def sketch_of(ndb: Sequence[bytearray], m: int) -> list[list[int]]:
    """Algorithm 2: for each bit, how many records show a 0 and how many a 1."""
    S = [[0, 0] for _ in range(m)]
    for record in ndb:
        for specified in re.finditer(rb"[01]", record):
            j = specified.start()
            if record[j] == ONE:
                S[j][1] += 1
            else:
                S[j][0] += 1
    return S
