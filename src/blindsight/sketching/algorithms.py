"""Algorithms 1 and 2 of the paper, line by line in plain Python: the oracle that everything faster
is held against.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from blindsight.sketching.parameters import QKParameters

__all__ = ["qk_hidden", "sketch_of"]

ZERO, ONE = ord("0"), ord("1")


def qk_hidden(s: Sequence[int], parameters: QKParameters, *, rng: random.Random) -> list[bytearray]:
    """Algorithm 1: the negative database of the bit string `s`, records of b"0", b"1" and b"*".

    The records form a list, not a set: repeats, rare beyond toy strings, are kept, as Equations 4
    and 5 assume.
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
