"""`block` mode: packed blocks, fresh permutations each round, tags, and what may be revealed.

The permutations are those of Sections 2.3 and 2.4, over blocks instead of coordinates: φ is known to the users and to
who opens the sum, φ^(n) to user n and the aggregator. Both are drawn anew each round from a seed, the round and the
model's hash, so that activity seen in one round says nothing about another's.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from blindsight.federated.messages import Contribution, Sum
from blindsight.federated.packing import TAG_BITS
from blindsight.federated.paillier import PublicKey
from blindsight.federated.permutation import inverse, permutation, stream
from blindsight.federated.protocol.enrolment import KeygenEnrolment, UserEnrolment
from blindsight.federated.protocol.settings import Settings
from blindsight.federated.randomisers import RandomiserPool

__all__ = ["chosen_blocks", "contribution", "expected_sum", "open_sum", "round_context", "shared_places", "user_places"]


def round_context(number: int, model: bytes) -> bytes:
    """What a round's secrets are derived for."""
    return number.to_bytes(8, "little") + model


def shared_places(settings: Settings, public: PublicKey, seed: bytes, context: bytes) -> NDArray[np.intp]:
    """φ of this round."""
    return permutation(seed, "user-shared permutation", context, settings.places(public))


def user_places(settings: Settings, public: PublicKey, seed: bytes, context: bytes) -> NDArray[np.intp]:
    """φ^(n) of this round."""
    return permutation(seed, "user-aggregator permutation", context, settings.places(public))


def _tags(key: bytes, context: bytes, blocks: int) -> NDArray[np.uint64]:
    data = np.frombuffer(stream(key, "tags", context, blocks * (TAG_BITS // 8)), dtype=np.uint8)
    padded = np.zeros((blocks, 8), dtype=np.uint8)
    padded[:, : TAG_BITS // 8] = data.reshape(blocks, -1)
    return padded.view("<u8")[:, 0].astype(np.uint64)


def chosen_blocks(settings: Settings, public: PublicKey, support: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The blocks to send: the non-empty ones, or all where that is cheaper or the support must stay hidden."""
    packing = settings.packing(public)
    blocks = packing.blocks(settings.dimension)
    if settings.support == "hidden":
        return np.arange(blocks)
    starts = np.arange(0, settings.dimension, packing.slots)
    filled = np.flatnonzero(np.logical_or.reduceat(support, starts))
    if filled.size == 0:  # an empty update still takes part: one block of zeros, anywhere
        return np.array([secrets.randbelow(blocks)])
    width = public.ciphertext_bytes
    return np.arange(blocks) if filled.size * (width + 4) >= blocks * width else filled


def contribution(
    enrolment: UserEnrolment,
    context: bytes,
    numbers: NDArray[np.int64],
    support: NDArray[np.bool_],
    *,
    pool: RandomiserPool | None,
    workers: int,
) -> Contribution:
    """Pack, tag, encrypt, permute twice. The order sent is that of the permuted places, which tells nothing."""
    settings, public = enrolment.settings, enrolment.public
    packing = settings.packing(public)
    blocks = packing.blocks(settings.dimension)
    which = chosen_blocks(settings, public, support)
    tags = _tags(enrolment.tag_key, context, blocks)[which]
    ciphertexts = public.encrypt_many(packing.pack(numbers, support, tags, which), pool=pool, workers=workers)
    shared = shared_places(settings, public, enrolment.shared_seed, context)
    own = user_places(settings, public, enrolment.own_seed, context)
    places = own[shared[which]]  # φ^(n) φ K (Equation 7)
    order = np.argsort(places)
    data = public.to_bytes([ciphertexts[i] for i in order])
    dense = len(which) == blocks
    return Contribution(None if dense else places[order].astype(np.uint32), data, len(which))


def open_sum(
    enrolment: KeygenEnrolment,
    context: bytes,
    contributors: Sequence[int],
    places: NDArray[np.uint32],
    members: NDArray[np.bool_],
    plaintexts: list[mpz],
) -> Sum:
    """Undo φ, check each block's tags and ranges, and reveal what enough users contributed to.

    A block whose tags don't add up to those of its claimed contributors is not the product of exactly their
    ciphertexts, once each: it is refused whole, and the round is spent all the same.
    """
    settings, public = enrolment.settings, enrolment.public
    packing, blocks = settings.packing(public), settings.places(public)
    found = packing.unpack(plaintexts)
    natural = inverse(shared_places(settings, public, enrolment.shared_seed, context))[places]
    tags = np.stack([_tags(enrolment.tag_keys[user], context, blocks) for user in contributors], axis=1)
    expected = np.where(members, tags[natural], np.uint64(0)).sum(axis=1, dtype=np.uint64)  # modulo 2^64, as unpacked
    count = members.sum(axis=1)[:, None]
    good = found.clean & (found.tags == expected)
    # A carry out of a slot shows as a value no honest set of users could add up to.
    top = (1 << settings.bits) - 1
    good &= ((found.values >= count) & (found.values <= count * top) & (found.counts <= count)).all(axis=1)
    held = found.counts if settings.count == "coordinate" else np.broadcast_to(count, found.counts.shape)
    shown = good[:, None] & (held >= settings.least_per_coordinate)
    values = np.zeros((blocks, packing.slots), dtype=np.int64)
    revealed = np.zeros((blocks, packing.slots), dtype=bool)
    values[natural] = np.where(shown, found.values - count * (1 << (settings.bits - 1)), 0)
    revealed[natural] = shown
    dimension = settings.dimension
    return Sum(tuple(contributors), int((~good).sum()), revealed.ravel()[:dimension], values.ravel()[:dimension])


def expected_sum(
    settings: Settings,
    public: PublicKey,
    numbers: Mapping[int, NDArray[np.int64]],
    supports: Mapping[int, NDArray[np.bool_]],
) -> Sum:
    """What `open_sum` must return, in plain integers without any cryptography: the oracle, and the fast simulation."""
    packing = settings.packing(public)
    held = np.zeros(settings.dimension, dtype=np.int64)
    total = np.zeros(settings.dimension, dtype=np.int64)
    for user, values in numbers.items():
        support = supports[user]
        total += np.where(support, values, 0)
        if settings.count == "coordinate":
            held += support
        else:
            sent = np.zeros(packing.blocks(settings.dimension), dtype=bool)
            sent[chosen_blocks(settings, public, support)] = True
            held += np.repeat(sent, packing.slots)[: settings.dimension]
    revealed = held >= settings.least_per_coordinate
    return Sum(tuple(sorted(numbers)), 0, revealed, np.where(revealed, total, 0))
