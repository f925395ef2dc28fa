"""The product of a round's ciphertexts, place by place, and whose they are.

The aggregator keeps one, and so does each key holder.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from blindsight.core.errors import ProtocolError
from blindsight.federated.messages import Contribution, Message, Proof, SumRequest
from blindsight.federated.paillier import PublicKey
from blindsight.federated.permutation import inverse
from blindsight.federated.protocol import block, paper
from blindsight.federated.protocol.settings import Settings
from blindsight.federated.signatures import Verifier
from blindsight.federated.wire import Reader, Writer

__all__ = ["Accumulator"]


class Accumulator:
    """Takes contributions of one round, each user's once, and multiplies."""

    def __init__(
        self,
        settings: Settings,
        public: PublicKey,
        *,
        seeds: Mapping[int, bytes],
        verifiers: Mapping[int, Verifier],
        context: bytes,
    ) -> None:
        self.settings, self.public = settings, public
        self._seeds, self._verifiers, self._context = seeds, verifiers, context
        self._products: dict[int, mpz] = {}  # by φ-permuted place
        self._members: dict[int, NDArray[np.uint8]] = {}  # by user: a packed bit for every place
        self._counts = np.zeros(settings.places(public), dtype=np.int64)
        self._proofs: dict[int, list[Proof]] = {}  # one a shard
        self._shards: dict[int, tuple[int, list[int]]] = {}

    @property
    def contributors(self) -> tuple[int, ...]:
        """Users whose whole contribution is in."""
        return tuple(sorted(u for u, (total, seen) in self._shards.items() if len(seen) == total))

    @property
    def pending(self) -> tuple[int, ...]:
        """Users of whom some shards are missing (`paper` mode)."""
        return tuple(sorted(u for u, (total, seen) in self._shards.items() if len(seen) < total))

    @property
    def messages(self) -> int:
        """Contributions received; in `paper` mode every shard is one."""
        return sum(len(seen) for _, seen in self._shards.values())

    def add(self, message: Message) -> None:
        """Check a contribution whole, then multiply it in; a refused one changes nothing."""
        user = message.header.sender
        if user not in self._seeds:
            raise ProtocolError("unknown sender: nobody of that number is enrolled.")
        message.require_signature(self._verifiers.get(user))
        size = self.settings.places(self.public)
        body = Contribution.decode(message.body, width=self.public.ciphertext_bytes, size=size)
        self._require_shape(body)
        total, seen = self._shards.get(user, (body.shards, []))
        if body.shards != total or body.shard in seen:
            raise ProtocolError(f"replay: user {user} has contributed to round {message.header.round} already.")
        ciphertexts = self.public.from_bytes(body.ciphertexts)
        places = np.arange(size) if body.places is None else body.places.astype(np.intp)
        permuted = inverse(self._own_places(user))[places]  # Equation 8: φK = φ^(n)^T Φ(K)
        for place, ciphertext in zip(permuted.tolist(), ciphertexts, strict=True):
            previous = self._products.get(place)
            self._products[place] = ciphertext if previous is None else previous * ciphertext % self.public.modulus
        self._counts[permuted] += 1
        mine = np.zeros(size, dtype=bool)
        mine[permuted] = True
        self._members[user] = np.packbits(mine) | self._members.get(user, np.uint8(0))
        self._shards[user] = (total, [*seen, body.shard])
        self._proofs.setdefault(user, []).append(Proof.of(message))

    def _require_shape(self, body: Contribution) -> None:
        settings = self.settings
        if settings.mode == "paper":
            if body.count != settings.m or body.shards > -(-settings.dimension // settings.m):
                raise ProtocolError(f"malformed: a shard has exactly {settings.m} values.")
            return
        if body.shards != 1:
            raise ProtocolError("malformed: block mode has one message a user.")
        if settings.support == "hidden" and body.places is not None:
            raise ProtocolError("malformed: with a hidden support every block is sent.")

    def _own_places(self, user: int) -> NDArray[np.intp]:
        seed = self._seeds[user]
        if self.settings.mode == "paper":
            return paper.user_places(self.settings, seed)
        return block.user_places(self.settings, self.public, seed, self._context)

    def request(self) -> SumRequest:
        """What to ask for: the products, and in `block` mode the proofs of who is in them."""
        users = self.contributors
        if self.pending:
            raise ProtocolError(f"user {self.pending[0]}'s shards are not all in yet: wait for them.")
        if len(users) < self.settings.least_users:
            raise ProtocolError(
                f"too few contributors: {self.settings.least_users} are needed, {len(users)} are in. "
                "Wait for more users."
            )
        if self.settings.mode == "paper":
            total = paper.combine(self.settings, self.public, self._products, self._counts, self.messages)
            places = np.arange(self.settings.dimension, dtype=np.uint32)
            nobody = np.zeros((len(places), 0), dtype=bool)
            return SumRequest(len(users), (), places, nobody, self.public.to_bytes(total))
        order = sorted(self._products)
        places = np.array(order, dtype=np.uint32)
        members = np.column_stack([np.unpackbits(self._members[u])[places] for u in users]).astype(bool)
        data = self.public.to_bytes([self._products[p] for p in order])
        proofs = tuple(self._proofs[u][0] for u in users)
        return SumRequest(len(users), proofs, places, members, data)

    def ciphertexts(self) -> dict[int, mpz]:
        """The products so far, by φ-permuted place."""
        return dict(self._products)

    def write(self, writer: Writer) -> None:
        """Append the state."""
        writer.raw(self._counts.astype("<i8").tobytes()).number("I", len(self._shards))
        for user, (total, seen) in self._shards.items():
            writer.number("I", user).raw(self._members[user].tobytes()).number("H", total).number("H", len(seen))
            for shard, proof in zip(seen, self._proofs[user], strict=True):
                writer.number("H", shard).raw(proof.encode())
        writer.number("I", len(self._products))
        for place, product in self._products.items():
            writer.number("I", place).raw(product.to_bytes(self.public.ciphertext_bytes, "little"))

    def read(self, reader: Reader) -> None:
        """Restore what `write` appended."""
        self._counts = np.frombuffer(reader.raw(8 * len(self._counts)), dtype="<i8").astype(np.int64)
        for _ in range(reader.number("I")):
            user = reader.number("I")
            self._members[user] = np.frombuffer(reader.raw(-(-len(self._counts) // 8)), dtype=np.uint8)
            total, count = reader.number("H"), reader.number("H")
            pairs = [(reader.number("H"), Proof.read(reader)) for _ in range(count)]
            self._shards[user] = (total, [shard for shard, _ in pairs])
            self._proofs[user] = [proof for _, proof in pairs]
        for _ in range(reader.number("I")):
            place = reader.number("I")
            self._products[place] = mpz.from_bytes(reader.raw(self.public.ciphertext_bytes), "little")
