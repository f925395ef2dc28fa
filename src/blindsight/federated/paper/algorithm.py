"""The steps of Algorithm 1: decompose, permute twice, encrypt, multiply, reorder."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from blindsight.core.errors import ProtocolError
from blindsight.federated.enrolment import KeygenEnrolment, UserEnrolment
from blindsight.federated.opened import Opened
from blindsight.federated.paillier import PublicKey
from blindsight.federated.paper.bodies import Shard
from blindsight.federated.permutation import inverse, permutation
from blindsight.federated.randomisers import RandomiserPool
from blindsight.federated.settings import Settings

__all__ = [
    "combine",
    "contributions",
    "decompose",
    "expected_sum",
    "open_sum",
    "shards",
    "shared_places",
    "user_places",
]


def shared_places(settings: Settings, seed: bytes) -> NDArray[np.intp]:
    """φ: user-shared, one for all rounds (Section 2.3)."""
    return permutation(seed, "user-shared permutation", settings.dimension)


def user_places(settings: Settings, seed: bytes) -> NDArray[np.intp]:
    """φ^(n): user-aggregator, one for all rounds (Section 2.4)."""
    return permutation(seed, "user-aggregator permutation", settings.dimension)


def shards(support: NDArray[np.bool_], capacity: int) -> list[NDArray[np.intp]]:
    """Split the support into F parts of at most M indices (Section 2.3, choosing M)."""
    indices = np.flatnonzero(support)
    return np.array_split(indices, max(1, math.ceil(indices.size / capacity)))


def decompose(
    numbers: NDArray[np.int64], indices: NDArray[np.intp], capacity: int
) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """w = K v (Equation 3): v of exactly M values, and K as the index of each of them.

    Each column of K has one 1 and each row at most one, so what v lacks is filled up with other
    indices' zeros.
    """
    spare = np.setdiff1d(np.arange(len(numbers)), indices, assume_unique=True)[
        : capacity - len(indices)
    ]
    values = np.concatenate([numbers[indices], np.zeros(len(spare), dtype=np.int64)])
    return values, np.concatenate([indices, spare])


def contributions(
    enrolment: UserEnrolment,
    numbers: NDArray[np.int64],
    support: NDArray[np.bool_],
    *,
    pool: RandomiserPool | None,
    workers: int,
) -> list[Shard]:
    """Lines 3 and 4: ζ(v) and Φ(K) = φ^(n) φ K (Equation 7), one message a shard."""
    settings, public = enrolment.settings, enrolment.public
    if public is None:
        raise AssertionError("paper mode has one key generator")
    shared = shared_places(settings, enrolment.shared_seed)
    own = user_places(settings, enrolment.aggregator_seed)
    parts = shards(support, settings.m)
    result = []
    for f, part in enumerate(parts):
        values, indices = decompose(numbers, part, settings.m)
        # Footnote 2: a negative value is its residue modulo n.
        plain = [mpz(int(v)) % public.n for v in values]
        data = public.to_bytes(public.encrypt_many(plain, pool=pool, workers=workers))
        result.append(
            Shard(own[shared[indices]].astype(np.uint32), data, len(indices), f, len(parts))
        )
    return result


def combine(
    settings: Settings,
    public: PublicKey,
    products: Mapping[int, mpz],
    counts: NDArray[np.int64],
    messages: int,
) -> list[mpz]:
    """Line 5: φ ζ(w_sum) = ⊙ φ ζ(w^(n)) (Equations 2 and 4), with φ ζ(w^(n)) = Y^(n) + Enc0 · Z^(n)
    (Equation 5).

    `products` holds at each place the product of the Y^(n) of Equation 6; Z^(n) is 1 where message
    n has nothing, so over all messages a place takes Enc0 to the power (messages - counts). Enc0 is
    computed once.
    """
    enc0 = public.encrypt(0)
    powers = [mpz(1)]
    for _ in range(messages):
        powers.append(powers[-1] * enc0 % public.modulus)
    return [
        products.get(place, mpz(1)) * powers[messages - int(counts[place])] % public.modulus
        for place in range(settings.dimension)
    ]


def open_sum(
    enrolment: KeygenEnrolment, contributors: tuple[int, ...], plaintexts: list[mpz]
) -> Opened:
    """Line 6: reorder by φ^T and hand w_sum over, every coordinate of it."""
    settings, modulus = enrolment.settings, enrolment.private.public.n
    half = modulus // 2
    signed = [int(x - modulus if x > half else x) for x in plaintexts]
    if any(abs(x) > settings.users * settings.code.largest for x in signed):
        raise ProtocolError(
            "a sum is larger than all users together can add: one of them sent nonsense."
        )
    permuted = np.array(signed, dtype=np.int64)
    natural = inverse(shared_places(settings, enrolment.shared_seed))
    values = np.empty_like(permuted)
    values[natural] = permuted
    return Opened(contributors, values)


def expected_sum(settings: Settings, numbers: Mapping[int, NDArray[np.int64]]) -> Opened:
    """The plain-integer oracle of a round."""
    total = np.stack(list(numbers.values())).sum(axis=0)
    return Opened(tuple(sorted(numbers)), total)
