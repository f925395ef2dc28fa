"""The aggregator: opens rounds, adds padded vectors, asks the holders for the summed key, and shows
the sum to the users.

It cannot read single vectors or keys. It learns the sum of the keys, and with it the sum of the
vectors, over one admissible set of users per round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from blindsight.core import checks
from blindsight.core.errors import InvalidData, ProtocolError
from blindsight.federated.sums.enrolment import Enrolment, Role
from blindsight.federated.sums.labels import (
    Labels,
    admissible,
    largest_admissible,
    split,
    unopened,
)
from blindsight.federated.sums.messages import (
    HEADER_BYTES,
    Code,
    Collect,
    Contribution,
    Header,
    HolderKey,
    Kind,
    Message,
    Outgoing,
    Part,
    Refusal,
    Refused,
    RoundSum,
    ShownSum,
    contribution_bytes,
    holder,
    is_holder,
    labels_digest,
    pack_members,
    sum_id,
    unpack_members,
)
from blindsight.federated.sums.pad import PadSum, bits
from blindsight.federated.sums.party import Party
from blindsight.federated.sums.store import ContributionStore, FileStore, MemoryStore
from blindsight.federated.sums.user import MOST_RESULTS, checked_sum
from blindsight.federated.sums.wire import Reader, Writer, seal, unseal

__all__ = ["Aggregator"]

Phase = Literal["idle", "open", "closed", "done"]
_PHASES: tuple[Phase, ...] = ("idle", "open", "closed", "done")


class Aggregator(Party):
    """The aggregator of one federation.

    A round is: `open_round`, `receive` contributions, `close`, `receive` the holders' parts, read
    `result`, send `results`. Users who drop out are missing from the sum; the round continues
    without them as long as the set of those present is admissible.

    Parameters:
        enrolment: keys and roster.
        store: where contributions are stored; by default in memory.
    """

    role = Role.AGGREGATOR

    def __init__(self, enrolment: Enrolment, *, store: ContributionStore | None = None) -> None:
        super().__init__(enrolment)
        self.store: ContributionStore = MemoryStore() if store is None else store
        settings, roster = self.settings, enrolment.roster
        self.largest_message = max(
            65_536 + contribution_bytes(settings, settings.dimension),
            65_536 + 8 * settings.sharing(settings.dimension).elements + 4 * settings.users,
        )
        self.now, self.ever = unopened(settings.users), unopened(settings.users)
        self._keys = {
            j: HolderKey(j, 0, request.public, bytes(64)) for j, request in roster.holders.items()
        }
        self._seeds: dict[int, bytes] = {}
        self._parent, self._parent_round = bytes(32), 0
        self._ended: list[tuple[int, int]] = []  # rounds with a sum, and where their results are
        self._before: tuple[bytes, int, Labels] | None = None  # restored if users refuse the sum
        self.withdrawn = False  # whether users refused the last sum; reset by the caller
        self.blamed: dict[int, set[int]] = {}  # users, and the holders that could not read them
        self._begin(self._next_header(0, bytes(32), 1))
        self.phase: Phase = "idle"

    def _next_header(self, number: int, model: bytes, length: int) -> Header:
        return Header(
            kind=Kind.OPEN,
            agreement=self.agreement,
            round=number,
            length=length,
            model=model,
            parent=self._parent,
            parent_round=self._parent_round,
            labels=labels_digest(self.now, self.ever),
            holder_keys=HolderKey.digest(list(self._keys.values())),
        )

    def _begin(self, header: Header) -> None:
        self._header = header
        self._opening = b"".join(key.encode() for key in self._keys.values())
        self._total = PadSum(self.settings.pad(header.length), header.length)
        self._invited: tuple[int, ...] = ()
        self._present = np.zeros(self.settings.users + 1, dtype=bool)
        self._members = b""
        self._parts: dict[int, Part] = {}
        self.declined: set[int] = set()  # users who will not contribute to this round
        self._refusing: set[int] = set()
        self._shown: set[bytes] = set()  # bodies of results that users were shown
        self.result: RoundSum | None = None
        self.spoilt = False

    @property
    def round(self) -> int:
        """The current round's number; 0 before the first."""
        return self._header.round

    @property
    def header(self) -> Header:
        """The header to which the current round is bound."""
        return self._header

    @property
    def contributors(self) -> tuple[int, ...]:
        """Users whose contribution has arrived."""
        return tuple(np.flatnonzero(self._present).tolist())

    @property
    def members(self) -> tuple[int, ...]:
        """The users of the closed round's sum; empty before the round is closed."""
        return unpack_members(self._members, self.settings.users) if self._members else ()

    @property
    def _floors(self) -> list[tuple[Labels, int]]:
        settings = self.settings
        floors = [(self.now, settings.floor_now), (self.ever, settings.floor_ever)]
        return [(labels, floor) for labels, floor in floors if floor]

    def admissible_set(self, wanted: Collection[int] | None = None) -> tuple[int, ...]:
        """Return a large set of contributors that holders will open now; empty if there is none."""
        users = [u for u in self.contributors if wanted is None or u in wanted]
        chosen = largest_admissible(self._floors, users, most=self.settings.largest_round)
        if not self._floors:
            chosen = tuple(users[: self.settings.largest_round])
        return chosen if len(chosen) >= self.settings.fewest else ()

    def could_open(self, users: Collection[int]) -> bool:
        """Whether holders would open the sum over exactly these users now."""
        fits = self.settings.fewest <= len(users) <= self.settings.largest_round
        return fits and all(admissible(labels, users, floor) for labels, floor in self._floors)

    def open_round(
        self,
        number: int,
        model: bytes,
        *,
        length: int | None = None,
        users: Collection[int] | None = None,
    ) -> list[Outgoing]:
        """Start a round; the same opening goes to every invited user.

        Parameters:
            number: above all earlier round numbers.
            model: a digest of 32 bytes of the model that updates start from.
            length: how many weights are summed; by default all.
            users: the users to invite; by default all users of the group whose sum is next.
        """
        if checks.whole("number", number) <= self.round:
            raise InvalidData(f"rounds must go up: {number} is not after {self.round}.")
        if len(model) != 32:
            raise InvalidData(f"a model digest must have 32 bytes, got {len(model)}.")
        size = self.settings.dimension if length is None else checks.whole("length", length)
        self.store.erase()
        self._begin(self._next_header(number, bytes(model), size))
        self._invited = self.group_due if users is None else tuple(sorted(set(users)))
        self.phase = "open"
        return self.reopen()

    def reopen(self, *users: int) -> list[Outgoing]:
        """Repeat the opening for invited users whose contribution is missing."""
        if self.phase != "open":
            raise ProtocolError("there is no open round.")
        data = self._send(0, Kind.OPEN, self._opening, self._header).data
        wanted = [u for u in users or self._invited if u in self._invited]
        # User 1 answers with the tag seeds again, in case a restart has lost some.
        repeated = {1} if self._parent_round == 0 and self.seeds_missing else set()
        return [
            Outgoing(user, data) for user in wanted if not self._present[user] or user in repeated
        ]

    @property
    def group_due(self) -> tuple[int, ...]:
        """The users of the group whose sum is next; all users if there is one group."""
        settings, due = self.settings, len(self._ended) % self.settings.groups
        return tuple(u for u in range(1, settings.users + 1) if settings.group(u) == due)

    @property
    def seeds_missing(self) -> int:
        """The number of users whose sealed tag seeds have not arrived yet."""
        return self.settings.users - 1 - len(self._seeds)

    def _handle(self, message: Message) -> list[Outgoing]:
        kind = message.header.kind
        if kind is Kind.SEED:
            return self._take_seed(message)
        if kind not in (Kind.CONTRIBUTION, Kind.PART):
            raise Refused(Code.TURN, f"nobody asked for {kind.name}.")
        if kind is Kind.PART:
            return self._take_part(message)
        message.require_context(self._header)
        return self._take_contribution(message)

    def _take_seed(self, message: Message) -> list[Outgoing]:
        """Forward a sealed tag seed of user 1, and keep it for users who connect later."""
        user = int.from_bytes(message.body[:4], "little")
        if message.header.sender != 1 or not 1 < user <= self.settings.users:
            raise Refused(Code.TURN, "only user 1 hands out the tag seed.")
        self._seeds[user] = message.encode()
        again = self.reopen(user) if self.phase == "open" and user in self._invited else []
        return [Outgoing(user, self._seeds[user]), *again]

    def _take_contribution(self, message: Message) -> list[Outgoing]:
        user = message.header.sender
        if self.phase != "open":
            raise Refused(Code.TURN, "too late: the round is closed.")
        if user not in self._invited:
            raise Refused(Code.COHORT, "only invited users contribute.")
        if self._present[user]:
            raise Refused(Code.ROUND, f"user {user} has contributed to round {self.round} already.")
        residues = self._checked(message)
        self.store.add(user, message.encode())
        self._total.add_residues(residues)
        self._present[user] = True
        return []

    def _checked(self, message: Message) -> NDArray[np.uint32]:
        """Return the residues of a contribution after checking its form and signatures."""
        body = Contribution.decode(message.body, self.settings, self._header.length)
        user = message.header.sender
        signed = Contribution.signed(self._header.context, user, body.ephemeral, body.digests)
        if not self.verifiers[user].verify(signed, body.signature):
            raise Refused(Code.SIGNATURE, "the digests of the shares were not signed.")
        return self._total.check(body.padded)

    def close(self, users: Collection[int] | None = None) -> list[Outgoing]:
        """End the round with the largest admissible set of contributors, and ask the holders.

        A repeated call returns the requests that are still unanswered.

        Parameters:
            users: take only these contributors; by default all that can be included.
        """
        if self.phase == "open":
            self.seal(users)
        if self.phase != "closed":
            raise ProtocolError("there is no open round to close.")
        return self.ask(*self.awaited())

    def seal(self, users: Collection[int] | None = None) -> None:
        """Fix the set of the round's sum."""
        if self.phase != "open":
            raise ProtocolError("there is no open round to close.")
        chosen = self.admissible_set(users)
        if not chosen:
            raise Refused(
                Code.SET,
                f"{self.settings.fewest} users in an admissible set are needed, and of "
                f"{len(self.contributors)} contributors no such set can be taken. Wait for more "
                "users.",
            )
        self._members = pack_members(chosen, self.settings.users)
        if len(chosen) < len(self.contributors):
            self._total = PadSum(self.settings.pad(self._header.length), self._header.length)
            for user in chosen:
                self._total.add(self._stored(user).padded)
        self.phase = "closed"

    def _stored(self, user: int) -> Contribution:
        data = self.store.get(user)
        message = Message.decode(data, largest=len(data))
        return Contribution.decode(message.body, self.settings, self._header.length)

    def awaited(self) -> list[int]:
        """Return the addresses of holders whose part is missing."""
        return [holder(j) for j in self._keys if j not in self._parts]

    def ask(self, *addresses: int) -> list[Outgoing]:
        """Return the requests to these holders, each with one share of every user."""
        entries: list[list[tuple[bytes, bytes, bytes, bytes]]] = [[] for _ in addresses]
        for user in self.members:
            body = self._stored(user)
            digests = body.digests
            for address, rows in zip(addresses, entries, strict=True):
                share = body.shares[address - holder(1)]
                rows.append((body.ephemeral, digests, body.signature, share))
        questions = []
        for address, rows in zip(addresses, entries, strict=True):
            collect = Collect(self._members, self.now, self.ever, tuple(rows)).encode()
            questions.append(self._send(address, Kind.COLLECT, collect, self._header))
        return questions

    def _take_part(self, message: Message) -> list[Outgoing]:
        header = message.header
        if not is_holder(header.sender) or not 1 <= header.length <= self.settings.dimension:
            raise Refused(Code.TURN, "no part was asked for.")
        index, verifier = header.sender - holder(0), self.verifiers[header.sender]
        part = Part.decode(message.body, self.settings, header.length, index)
        if not part.next_key.holds(self.agreement, verifier):
            raise Refused(Code.SIGNATURE, "a key was not signed by its holder.")
        # Also accept the key of an earlier round: the holder no longer has another one.
        if part.next_key.sequence > self._keys[index].sequence:
            self._keys[index] = part.next_key
        if header.round < self.round:
            return []
        message.require_context(self._header)
        if self.phase not in ("closed", "done") or not self._members:
            raise Refused(Code.TURN, "no part was asked for.")
        if not part.head.holds(sum_id(header.context, self._members), verifier):
            raise Refused(Code.SIGNATURE, "a head was not signed by its holder for this sum.")
        for user in part.unread:
            self.blamed.setdefault(user, set()).add(index)
            self._note(f"SHARES: holder {index} could not read the share of user {user}.")
        self._parts[index] = part
        if self.phase == "closed" and len(self._parts) >= self.settings.needed:
            self._try_to_open()
        return []

    @property
    def excluded(self) -> tuple[int, ...]:
        """Users whose shares more than f holders could not read, at least one of them honest."""
        faulty = self.settings.faulty_holders
        return tuple(sorted(u for u, holders in self.blamed.items() if len(holders) > faulty))

    def _try_to_open(self) -> None:
        first = next(self._openings(), None)
        if first is not None:
            self._end(first)
        elif len(self._parts) == self.settings.n_holders:
            self.spoil()

    def _openings(self) -> Iterator[bytes]:
        """Yield a RESULT message for every key from t holders' parts that opens the sum."""
        users, header = self.members, self._header
        layout, size = self.settings.sharing(header.length), self.settings.pad(header.length)
        total = self._total
        sums = {
            j: np.append(part.shares, np.uint64(part.head.tag_share))
            for j, part in self._parts.items()
        }
        opened: dict[bytes, NDArray[np.int64]] = {}
        for secret, chosen in layout.candidates(sums, len(users)):
            name = secret.tobytes()
            if name not in opened:
                opened[name] = total.open(header.context, secret)
            raw = opened[name]
            try:
                values = checked_sum(self.settings, raw, len(users))
            except Refused as error:
                self._note(str(error))
                continue
            liars = sorted(set(self._parts) - set(chosen))
            if len(self._parts) > self.settings.needed and liars:
                self._note(f"opened by the parts of holders {chosen}.")
            self.result = RoundSum(users, values)
            heads = tuple(self._parts[j].head for j in sorted(self._parts))
            packed = bits.pack(raw.astype(np.uint64), size.slot_bits)
            body = ShownSum(self._members, heads, packed).encode()
            if body not in self._shown:
                self._shown.add(body)
                yield self._send(0, Kind.RESULT, body, header).data

    def _end(self, message: bytes) -> None:
        """End the round with an opened sum, which becomes the parent of the next round."""
        self._split()
        self._before = (self._parent, self._parent_round, self.now)
        self._parent = sum_id(self._header.context, self._members)
        self._parent_round, self.phase = self.round, "done"
        self.now = unopened(self.settings.users)
        self._ended.append((self.round, self.store.add_result(message)))
        self.store.end()

    def _split(self) -> None:
        if self.settings.floor_now:
            self.now = split(self.now, self.members)
        if self.settings.floor_ever:
            self.ever = split(self.ever, self.members)

    def spoil(self) -> None:
        """Abandon the round, because the requested parts gave no sum.

        The next round starts from the same parent; the labels count the set as opened.
        """
        if self.phase != "closed":
            raise ProtocolError("there is no closed round to give up.")
        self._split()
        self.result, self.spoilt, self.phase = None, True, "done"
        self.store.end()

    def erase_ended(self) -> None:
        """Delete the contributions of a round that has ended; call it after the state was saved.

        An earlier state, in which the round is closed, needs them to ask the holders again.
        """
        if self.phase not in ("open", "closed"):
            self.store.erase()

    def results(self, *users: int, after: int | None = None) -> list[Outgoing]:
        """Return the last result for every user, or all results after a round for given users."""
        since = self._ended[-1:] if after is None else [e for e in self._ended if e[0] > after]
        messages = [self.store.result(position) for _, position in since]
        everybody = range(1, self.settings.users + 1)
        return [Outgoing(user, data) for user in (users or everybody) for data in messages]

    def _refused_by(self, message: Message) -> list[Outgoing]:
        """Send a user the results that it lacks; withdraw a sum that too many users refuse."""
        super()._refused_by(message)
        user, refusal = message.header.sender, Refusal.decode(message.body)
        if not 1 <= user <= self.settings.users:
            return []
        if refusal.code is Code.SEED and user in self._seeds:
            again = self.reopen(user) if self.phase == "open" else []
            return [Outgoing(user, self._seeds[user]), *again]
        if refusal.code is Code.CHAIN and any(number > refusal.at for number, _ in self._ended):
            again = self.reopen(user) if self.phase == "open" else []
            return [*self.results(user, after=refusal.at), *again]
        if refusal.code is Code.ROUND and message.header.context == self._header.context:
            if self.phase == "open" and not self._present[user]:
                self.declined.add(user)
            return []
        if (
            refusal.code in (Code.SUM, Code.RANGE)
            and self._ended
            and message.header.round == self._ended[-1][0]
        ):
            return self._doubted(user)
        return []

    def _doubted(self, user: int) -> list[Outgoing]:
        """Show the next candidate or withdraw the sum if more users refuse it than may lie."""
        self._refusing.add(user)
        if len(self._refusing) <= self.settings.colluders or self._before is None:
            return []
        self._refusing = set()
        number = self._ended.pop()[0]
        if number == self.round and len(self._shown) < MOST_RESULTS:
            following = next(self._openings(), None)
            if following is not None:
                self._ended.append((number, self.store.add_result(following)))
                return self.results()
        self._parent, self._parent_round, self.now = self._before
        self.result, self.spoilt, self.phase, self._before = None, True, "done", None
        self.withdrawn = True
        return []

    def dump(self) -> bytes:
        """Return the state for a restart, sealed; contributions in files are not part of it."""
        writer = Writer().field(self.enrolment.dump())
        writer.number("B", _PHASES.index(self.phase)).number("B", self.spoilt).number(
            "B", self.withdrawn
        )
        writer.field(self._header.encode(0) + bytes(64)).field(self._members)
        writer.raw(self._parent).number("Q", self._parent_round)
        for labels in (self.now, self.ever):
            writer.field(labels.astype("<u2").tobytes())
        writer.field(b"".join(key.encode() for key in self._keys.values())).field(self._opening)
        writer.field(np.array(self._invited, dtype="<u4").tobytes())
        writer.number("I", len(self._parts))
        for index, part in self._parts.items():
            writer.number("B", index).field(part.encode())
        writer.number("I", len(self._seeds))
        for user, data in self._seeds.items():
            writer.number("I", user).field(data)
        writer.number("I", len(self._ended))
        for number, position in self._ended:
            writer.number("Q", number).number("Q", position)
        writer.number("I", len(self.blamed))
        for user, holders in self.blamed.items():
            writer.number("I", user).field(bytes(sorted(holders)))
        writer.field(b"" if self.result is None else self.result.encode())
        before = self._before
        writer.number("B", before is not None)
        if before is not None:
            writer.raw(before[0]).number("Q", before[1]).field(before[2].astype("<u2").tobytes())
        return seal(b"AGS3", bytes(writer.field(self.store.dump())))

    @classmethod
    def load(cls, data: bytes, *, store: FileStore | None = None) -> Aggregator:
        """Continue from the state that `dump` returned, with the contributions in the store."""
        reader = unseal(b"AGS3", data)
        role = cls(Enrolment.load(reader.field()), store=store)
        phase, spoilt = _PHASES[reader.number("B")], bool(reader.number("B"))
        role.withdrawn = bool(reader.number("B"))
        header = Message.decode(reader.field(), largest=HEADER_BYTES + 64).header
        members = reader.field()
        role._parent, role._parent_round = reader.raw(32), reader.number("Q")
        role.now, role.ever = (_read_labels(reader.field()) for _ in range(2))
        keys = Reader(reader.field())
        role._keys = {j: HolderKey.read(keys, j) for j in role._keys}
        role._begin(header)
        role._opening = reader.field()
        role._invited = tuple(np.frombuffer(reader.field(), dtype="<u4").tolist())
        role._members, role.phase, role.spoilt = members, phase, spoilt
        for _ in range(reader.number("I")):
            index = reader.number("B")
            role._parts[index] = Part.decode(reader.field(), role.settings, header.length, index)
        role._seeds = {reader.number("I"): reader.field() for _ in range(reader.number("I"))}
        role._ended = [(reader.number("Q"), reader.number("Q")) for _ in range(reader.number("I"))]
        role.blamed = {reader.number("I"): set(reader.field()) for _ in range(reader.number("I"))}
        result = reader.field()
        role.result = RoundSum.decode(result, users=role.settings.users) if result else None
        if reader.number("B"):
            role._before = (reader.raw(32), reader.number("Q"), _read_labels(reader.field()))
        stored = reader.field()
        reader.end()
        if store is None:
            role.store = MemoryStore(stored)
        role._restore()
        return role

    def _restore(self) -> None:
        """Compute the sum of the stored contributions again."""
        self.erase_ended()  # if a kill came between the save and this
        if self.phase not in ("open", "closed"):
            return
        for position, data in self.store.messages():
            message = Message.decode(data, largest=self.largest_message)
            if message.header.context == self._header.context:
                self.store.place(message.header.sender, position)
                self._present[message.header.sender] = True
                if self.phase == "open" or message.header.sender in self.members:
                    self._total.add_residues(self._checked(message))


def _read_labels(data: bytes) -> Labels:
    return np.frombuffer(data, dtype="<u2").astype(np.uint16)
