"""Attacks on the secure sum: by a cheating aggregator, user or holder, a rollback or a seizure.

Each attack plays one party with real messages; the other parties run unchanged code. It returns the
rule that stopped it, or an empty string if it obtained what an honest round would not reveal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindsight.core.errors import ProtocolError
from blindsight.federated.sums import Aggregator, KeyHolder, Settings, Simulation, User, field
from blindsight.federated.sums.labels import Labels, split, unopened
from blindsight.federated.sums.messages import (
    AGGREGATOR,
    Collect,
    Contribution,
    Header,
    HolderKey,
    Kind,
    Message,
    Outgoing,
    Part,
    Refusal,
    ShownSum,
    TagHead,
    holder,
    pack_members,
    sum_id,
)
from blindsight.federated.sums.pad import bits
from blindsight.federated.sums.sealing import HybridKey
from blindsight.federated.sums.user import SHARE_LABEL, share_binding

__all__ = ["CHEATS", "stopped_by"]

_WEIGHTS = 60
_SIX = (1, 2, 3, 4, 5, 6)


def _read(data: bytes) -> Message:
    return Message.decode(data, largest=len(data))


def _code(answers: list[Outgoing]) -> str:
    """Return the rule that refused, or an empty string if the attack succeeded."""
    if not answers:
        return ""
    message = _read(answers[0].data)
    return Refusal.decode(message.body).code.name if message.header.kind is Kind.REFUSED else ""


class Stage:
    """A federation whose aggregator cheats with the contributions of a round."""

    def __init__(self, users: int = 6, *, shift: float = 0.0, **options: Any) -> None:
        self.settings = Settings(dimension=_WEIGHTS, users=users, **options)
        self.simulation = Simulation(self.settings)
        self.everybody = tuple(range(1, users + 1))
        self.updates = shift + np.random.default_rng(0).uniform(-0.4, 0.4, (users, _WEIGHTS))
        self.open(1)

    @property
    def header(self) -> Header:
        return self.simulation.aggregator.header

    def open(self, number: int, model: bytes = bytes(32)) -> None:
        """Open a round and collect every user's contribution without delivering it."""
        self.sent: dict[int, bytes] = {}
        for opening in self.simulation.aggregator.open_round(number, model):
            user = self.simulation.users[opening.to]
            user.receive(opening.data)
            if user.waiting:
                self.sent[opening.to] = user.contribute(self.updates[opening.to - 1])[0].data

    def deliver(self) -> None:
        """Hand all contributions to the aggregator."""
        for data in self.sent.values():
            self.simulation.aggregator.receive(data)

    def finish(self) -> None:
        """Deliver all contributions and end the round as an honest aggregator does."""
        self.deliver()
        self.simulation._deliver(self.simulation.aggregator.close(), self.simulation.users)
        self.simulation._deliver(self.simulation.aggregator.results(), self.simulation.users)

    def spoil(self, users: tuple[int, ...] | None = None) -> None:
        """Have the holders open the round, and claim that it gave no sum."""
        self.deliver()
        aggregator = self.simulation.aggregator
        aggregator.seal(users)
        for address in aggregator.awaited():
            for question in aggregator.ask(address):
                answers = self.simulation.holders[address].receive(question.data)
                aggregator._keys[address - holder(0)] = _next_key(answers[0].data, self.settings)
        aggregator.spoil()

    def collect(
        self,
        users: tuple[int, ...],
        index: int,
        *,
        now: Labels | None = None,
        ever: Labels | None = None,
        change: Callable[[list[Any]], list[Any]] | None = None,
        header: Header | None = None,
    ) -> bytes:
        """Return a request to one holder for the sum over any set, with any labels and entries."""
        aggregator = self.simulation.aggregator
        entries: list[Any] = []
        for user in users:
            own = self.contribution(user)
            entries.append((own.ephemeral, own.digests, own.signature, own.shares[index - 1]))
        if change is not None:
            entries = change(entries)
        body = Collect(
            pack_members(users, self.settings.users),
            aggregator.now if now is None else now,
            aggregator.ever if ever is None else ever,
            tuple(entries),
        )
        used = self.header if header is None else header
        return aggregator._send(0, Kind.COLLECT, body.encode(), used).data

    def contribution(self, user: int) -> Contribution:
        body = _read(self.sent[user]).body
        return Contribution.decode(body, self.settings, self.header.length)

    def ask(self, users: tuple[int, ...], index: int = 1, **options: Any) -> str:
        """Return the rule by which one holder refuses such a request."""
        role = self.simulation.holders[holder(index)]
        return _code(role.receive(self.collect(users, index, **options)))

    def result(self) -> tuple[Message, ShownSum]:
        """Return the last result as user 1 receives it."""
        [sent] = self.simulation.aggregator.results(1)
        message = _read(sent.data)
        return message, ShownSum.decode(message.body, self.settings)

    def show(self, message: Message, body: ShownSum, user: User) -> str:
        """Return the rule by which a user refuses a result."""
        identity = self.simulation.aggregator.identity
        return _code(user.receive(Message.make(message.header, body.encode(), identity).encode()))


def _next_key(data: bytes, settings: Settings) -> HolderKey:
    message = _read(data)
    index = message.header.sender - holder(0)
    return Part.decode(message.body, settings, message.header.length, index).next_key


def _two_rounds_on_one_model() -> str:
    """The aggregator requests a second sum on a model from which the users have moved on."""
    stage = Stage()
    stage.finish()
    for user in stage.simulation.users.values():
        user.expect(b"1" * 32)
    [opening, *_] = stage.simulation.aggregator.open_round(2, bytes(32))
    return _code(stage.simulation.users[1].receive(opening.data))


def _two_sets_in_one_round() -> str:
    stage = Stage()
    stage.ask(stage.everybody)
    return stage.ask((1, 2, 3))


def _all_but_one_on_one_model() -> str:
    """The aggregator calls everybody's sum spoilt; a sum without user 6 would reveal user 6."""
    stage = Stage()
    stage.spoil()
    stage.open(2)
    return stage.ask(stage.everybody[:-1])


def _groups_one_by_one() -> str:
    """The aggregator opens 30 users three at a time, calling each round spoilt."""
    stage = Stage(users=30, holders=5)
    stage.spoil()
    stage.open(2)
    return stage.ask((1, 2, 3))


def _a_set_with_too_few_users() -> str:
    return Stage().ask((1, 2))


def _four_sets_that_isolate_one_user() -> str:
    """Four sets differ pairwise by the floor in both directions, and A + B - C - D = user 13.

    The fourth must be refused.
    """
    stage = Stage(users=13, holders=3, most_users=9, across_rounds=False)
    first = ((1, 2, 3, 4, 5, 6, 13), (7, 8, 9, 10, 11, 12), (1, 2, 3, 7, 8, 9))
    for number, users in enumerate(first, start=1):
        if number > 1:
            stage.open(number)
        stage.spoil(users)
    stage.open(4)
    return stage.ask((4, 5, 6, 10, 11, 12))


def _all_but_one_in_the_next_round() -> str:
    """If the model hardly moves, the difference of two rounds is nearly user 6's update."""
    stage = Stage()
    stage.finish()
    stage.open(2)
    return stage.ask(stage.everybody[:-1])


def _labels_that_forget_a_sum() -> str:
    stage = Stage()
    stage.spoil()
    forgotten = unopened(stage.settings.users)
    stage.simulation.aggregator.now = forgotten
    stage.simulation.aggregator.ever = forgotten
    stage.open(2)
    return stage.ask(stage.everybody[:-1])


def _an_aggregator_restored_from_a_backup() -> str:
    """The aggregator forgets an opened sum and requests all users but one on the same model."""
    stage = Stage()
    copy = stage.simulation.aggregator.dump()
    stage.spoil()
    keys = stage.simulation.aggregator._keys
    stage.simulation.aggregator = Aggregator.load(copy)
    stage.simulation.aggregator._keys = keys
    stage.open(2)
    return stage.ask(stage.everybody[:-1])


def _two_models_in_one_round() -> str:
    """Half of the users get another model, and the aggregator sums all under the first one."""
    stage = Stage()
    first = Aggregator.load(stage.simulation.aggregator.dump())
    stage.open(2)
    own = {user: data for user, data in stage.sent.items() if user <= 3}
    for opening in first.open_round(2, b"another model".ljust(32)):
        fresh = User(stage.simulation.users[opening.to].enrolment)
        fresh.receive(opening.data)
        if opening.to > 3:
            own[opening.to] = fresh.contribute(stage.updates[opening.to - 1])[0].data
    stage.sent = own
    return stage.ask(stage.everybody)


def _labels_that_users_did_not_sign() -> str:
    stage = Stage()
    unsigned = split(unopened(stage.settings.users), (1, 2, 3))
    return stage.ask(stage.everybody, now=unsigned)


def _one_share_twice() -> str:
    """User 1's share replaces user 2's, so that the sum would hold user 1 twice."""
    return Stage().ask(_SIX, change=lambda entries: [entries[0], *entries[:1], *entries[2:]])


def _shares_of_another_round() -> str:
    stage = Stage()
    first = dict(stage.sent)
    stage.open(2)
    stage.sent = {**stage.sent, 1: first[1]}
    return stage.ask(stage.everybody)


def _a_changed_share() -> str:
    def flip(entries: list[Any]) -> list[Any]:
        ephemeral, digests, signature, share = entries[0]
        return [(ephemeral, digests, signature, bytes([share[0] ^ 1]) + share[1:]), *entries[1:]]

    return Stage().ask(_SIX, change=flip)


def _an_invented_member() -> str:
    """User 6 did not contribute; user 5's entry is used in its place."""
    return Stage().ask(_SIX, change=lambda entries: [*entries[:5], entries[4]])


def _a_user_asks_holders() -> str:
    stage = Stage()
    message = _read(stage.collect(stage.everybody, 1))
    own = stage.simulation.users[1]
    forged = Message.make(replace(message.header, sender=1), message.body, own.identity)
    return _code(stage.simulation.holders[holder(1)].receive(forged.encode()))


def _another_parent(**changes: Any) -> str:
    """A round on another history, signed by users who collude."""
    stage = Stage()
    stage.finish()
    stage.open(2)
    stage.finish()
    stage.open(3)
    header = replace(stage.header, **changes)
    return stage.ask(stage.everybody, header=header)


def _a_parent_that_goes_back() -> str:
    return _another_parent(parent=bytes(32), parent_round=0)


def _another_parent_of_the_same_round() -> str:
    stage = Stage()
    stage.finish()
    stage.open(2)
    stage.spoil()
    stage.open(3)
    return stage.ask(stage.everybody, header=replace(stage.header, parent=b"2" * 32))


def _answers_to_two_sets(stage: Stage, rolled_back: tuple[int, ...]) -> str:
    """Return the rule that keeps the number of parts for a second set below t."""
    before = {j: stage.simulation.holders[holder(j)].dump() for j in rolled_back}
    first, second = stage.everybody, stage.everybody[:-1]
    for j in range(1, stage.settings.n_holders + 1):
        stage.ask(first, j)
    for j, data in before.items():
        stage.simulation.holders[holder(j)] = KeyHolder.load(data)
    codes = [stage.ask(second, j) for j in range(1, stage.settings.n_holders + 1)]
    answered = sum(not code for code in codes)
    return "" if answered >= stage.settings.needed else next(code for code in codes if code)


def _holders_put_back_in_time() -> str:
    """After they answered, f holders are restored from an older copy."""
    stage = Stage(holders=5)
    return _answers_to_two_sets(stage, (1, 2))


def _two_faced_holder() -> str:
    """Holder 5 answers for two sets, and the aggregator divides the honest holders between them."""
    stage = Stage(holders=5)
    copy = KeyHolder.load(stage.simulation.holders[holder(5)].dump())
    for j in (1, 2, 5):
        stage.ask(stage.everybody, j)
    second = stage.everybody[:-1]
    stage.simulation.holders[holder(5)] = copy
    codes = [stage.ask(second, j) for j in (1, 2, 3, 4, 5)]
    answered = sum(not code for code in codes)
    return "" if answered >= stage.settings.needed else next(code for code in codes if code)


def _a_user_put_back_in_time() -> str:
    """A user that contributed to all agreed rounds is restored from a copy and asked again."""
    stage = Stage(rounds=1)
    fresh = User(stage.simulation.users[1].enrolment)
    stage.finish()
    [result] = stage.simulation.aggregator.results(1)
    fresh.receive(result.data)
    [opening, *_] = stage.simulation.aggregator.open_round(2, bytes(32))
    return _code(fresh.receive(opening.data))


def _raw(stage: Stage, body: ShownSum) -> tuple[NDArray[np.uint64], int]:
    width = stage.settings.pad(_WEIGHTS).slot_bits
    raw = np.empty(_WEIGHTS, dtype=np.uint64)
    bits.unpack(body.packed, width, raw)
    return raw, width


def _a_false_sum() -> str:
    stage = Stage()
    fresh = User(stage.simulation.users[1].enrolment)
    stage.finish()
    message, body = stage.result()
    raw, width = _raw(stage, body)
    raw[0] += np.uint64(1)
    return stage.show(message, replace(body, packed=bits.pack(raw, width)), fresh)


def _more_tries_at_a_false_sum() -> str:
    """A user must not check a fifth result of one round."""
    stage = Stage()
    fresh = User(stage.simulation.users[1].enrolment)
    stage.finish()
    message, body = stage.result()
    code = ""
    for step in range(1, 6):
        raw, width = _raw(stage, body)
        raw[0] += np.uint64(step)
        code = stage.show(message, replace(body, packed=bits.pack(raw, width)), fresh)
    return code if code == "ROUND" else ""


def _a_multiple_of_the_sum() -> str:
    """A lying holder doubles the opened tag, and the aggregator shows the doubled sum.

    The aggregator knows the tag of the true sum and, with one holder, can have any tag opened. All
    updates are negative, so that the doubled numbers stay in range.
    """
    stage = Stage(shift=-0.6, holders=5)
    fresh = User(stage.simulation.users[1].enrolment)
    stage.finish()
    message, body = stage.result()
    heads = {h.index: h for h in body.heads[: stage.settings.needed]}
    shares = {j: np.array([h.tag_share], dtype=np.uint64) for j, h in heads.items()}
    tag = int(field.interpolate(shares)[0])
    others = {j: share for j, share in shares.items() if j != 1}
    wanted = int(field.interpolate({0: np.array([2 * tag % field.P], np.uint64), **others}, 1)[0])
    sum_label = sum_id(message.header.context, body.members)
    identity = stage.simulation.holders[holder(1)].identity
    heads[1] = TagHead.make(sum_label, 1, wanted, heads[1].others, identity)
    raw, width = _raw(stage, body)
    doubled = bits.pack(2 * raw, width)
    return stage.show(message, ShownSum(body.members, tuple(heads.values()), doubled), fresh)


def _another_set_for_a_sum() -> str:
    stage = Stage()
    fresh = User(stage.simulation.users[1].enrolment)
    stage.finish()
    message, body = stage.result()
    fewer = pack_members(stage.everybody[:-1], stage.settings.users)
    return stage.show(message, replace(body, members=fewer), fresh)


def _one_head_instead_of_many() -> str:
    stage = Stage()
    fresh = User(stage.simulation.users[1].enrolment)
    stage.finish()
    message, body = stage.result()
    heads = (body.heads[0],) * len(body.heads)
    return stage.show(message, replace(body, heads=heads), fresh)


def _a_head_of_the_aggregator() -> str:
    """The aggregator signs a share of the tag itself, so that a false sum fits."""
    stage = Stage()
    fresh = User(stage.simulation.users[1].enrolment)
    stage.finish()
    message, body = stage.result()
    forged = TagHead.make(
        bytes(32), body.heads[0].index, 1, bytes(32), stage.simulation.aggregator.identity
    )
    return stage.show(message, replace(body, heads=(forged, *body.heads[1:])), fresh)


def _a_holder_key_of_the_aggregator() -> str:
    """The aggregator replaces a holder's public key by its own."""
    stage = Stage()
    stage.finish()
    aggregator = stage.simulation.aggregator
    own = HolderKey.make(aggregator.agreement, 1, 9, HybridKey().public, aggregator.identity)
    aggregator._keys[1] = own
    [opening, *_] = aggregator.open_round(2, bytes(32))
    return _code(stage.simulation.users[1].receive(opening.data))


def _a_first_holder_key_of_the_aggregator() -> str:
    """The aggregator replaces a key before the first round, in which keys are from the roster."""
    stage = Stage()
    aggregator = stage.simulation.aggregator
    aggregator._keys[1] = HolderKey(1, 0, HybridKey().public, bytes(64))
    [opening, *_] = aggregator.open_round(2, bytes(32))
    return _code(stage.simulation.users[1].receive(opening.data))


def _holders_restored_from_a_backup() -> str:
    """Every holder is restored to its state before the last round, and uses its old key again.

    The holders have forgotten the last sum, so they would open another one without user 6.
    """
    stage = Stage(across_rounds=False)
    copies = {j: role.dump() for j, role in stage.simulation.holders.items()}
    keys = dict(stage.simulation.aggregator._keys)
    stage.spoil()
    stage.open(2)
    stage.spoil()
    for j, data in copies.items():
        stage.simulation.holders[j] = KeyHolder.load(data)
    aggregator = stage.simulation.aggregator
    aggregator._keys, aggregator.now = keys, unopened(stage.settings.users)
    [opening, *_] = aggregator.open_round(3, bytes(32))
    return _code(stage.simulation.users[1].receive(opening.data))


def _a_message_of_another_federation() -> str:
    stage, foreign = Stage(), Stage()
    return _code(stage.simulation.holders[holder(1)].receive(foreign.collect(foreign.everybody, 1)))


def _a_contribution_twice() -> str:
    stage = Stage()
    stage.deliver()
    return _code(stage.simulation.aggregator.receive(stage.sent[1]))


def _a_seed_of_another_user() -> str:
    """User 2 distributes a tag seed of its own."""
    stage = Stage()
    sender = stage.simulation.users[2]
    message = _read(stage.sent[2])
    header = replace(message.header, kind=Kind.SEED)
    forged = Message.make(header, bytes(1204), sender.identity)
    return _code(stage.simulation.users[3].receive(forged.encode()))


def _an_update_out_of_range() -> str:
    """User 1 sends the largest possible weights in place of its clipped update."""
    stage = Stage(clip=1.0)
    user = stage.simulation.users[1]
    stage.open(2)
    fresh = User(user.enrolment)
    [opening, *_] = [o for o in stage.simulation.aggregator.reopen() if o.to == 1]
    fresh.receive(opening.data)
    header = fresh.open_round
    if header is None:
        return ""
    values = np.full(_WEIGHTS, (1 << stage.settings.bits) - 1, dtype=np.uint64)
    body = fresh._padded(header, values).encode()
    stage.sent[1] = fresh._send(AGGREGATOR, Kind.CONTRIBUTION, body, header).data
    stage.deliver()
    stage.simulation._deliver(stage.simulation.aggregator.close(), stage.simulation.users)
    refused = any(note.startswith("RANGE") for note in stage.simulation.aggregator.refusals)
    return "RANGE" if stage.simulation.aggregator.result is None and refused else ""


def _guesses_from_the_opened_tag() -> str:
    """The aggregator distinguishes updates (m, m, m) from (m - d, m, m + d) by all opened values.

    The parts of t holders give the sum of the secrets, which is fresh randomness, and one field
    element. The attack succeeds if this element is not the tag of the sum.
    """
    stage = Stage(users=3)
    stage.finish()
    message, body = stage.result()
    raw, _ = _raw(stage, body)
    heads = {h.index: np.array([h.tag_share], dtype=np.uint64) for h in body.heads}
    seed = stage.simulation.users[1]._seed
    opened = int(field.interpolate(heads)[0])
    return "SUM ONLY" if opened == field.tag(seed, message.header.context, raw, 3) else ""


def _tries_old_shares(stage: Stage, sent: dict[int, bytes], context: bytes) -> str:
    """Try to open a share of a past round with the states of all seized holders."""
    for j in range(1, stage.settings.n_holders + 1):
        seized = KeyHolder.load(stage.simulation.holders[holder(j)].dump())
        own = seized._private
        first = stage.simulation.holders[holder(j)].enrolment.keys
        dumped = stage.simulation.holders[holder(j)].dump()
        if first.private is not None and first.private.dump() in dumped:
            return ""
        for user, data in sent.items():
            body = Contribution.decode(_read(data).body, stage.settings, _WEIGHTS)
            try:
                if own is not None:
                    bound = share_binding(context, user, j)
                    own.open(body.ephemeral, body.shares[j - 1], SHARE_LABEL, bound)
                    return ""
            except ProtocolError:
                continue
    return "ERASED"


def _all_holders_seized_later() -> str:
    """The attacker has the recorded traffic and every holder's machine after the round."""
    stage = Stage()
    sent, context = dict(stage.sent), stage.header.context
    stage.finish()
    return _tries_old_shares(stage, sent, context)


def _the_aggregator_seized_later() -> str:
    """The aggregator's state after the round must not contain any contribution."""
    stage = Stage()
    sent = dict(stage.sent)
    stage.finish()
    state = stage.simulation.aggregator.dump()
    held = [data for data in sent.values() if _read(data).body[:32] in state]
    return "" if held else "ERASED"


def _a_user_seized_later() -> str:
    """A user's state after the result must not contain its contribution."""
    stage = Stage()
    sent = stage.sent[1]
    stage.finish()
    return "" if _read(sent).body[:32] in stage.simulation.users[1].dump() else "ERASED"


def _a_holder_that_lies() -> str:
    """Holder 1 adds something to its part; the sum must be correct, or not opened at all."""
    stage = Stage(holders=5)
    role = stage.simulation.holders[holder(1)]
    honest = role._summed

    def lie(*arguments: Any) -> Any:
        shares, unread = honest(*arguments)
        shares[0] = field.add(int(shares[0]), 1)
        return shares, unread

    role._summed = lie  # type: ignore[assignment, method-assign]
    stage.finish()
    result, code = stage.simulation.aggregator.result, stage.settings.code
    expected = sum(code.encode(update) for update in stage.updates)
    return "OUTVOTED" if result is not None and (result.values == expected).all() else ""


def _shares_that_do_not_open() -> str:
    """User 6 seals invalid shares to every holder; user 6 must be named, and nobody else."""
    stage = Stage(holders=5)
    user = stage.simulation.users[6]
    [opening, *_] = [o for o in stage.simulation.aggregator.reopen() if o.to == 6]
    fresh = User(user.enrolment)
    fresh.receive(opening.data)
    fresh._holder_keys = [
        HolderKey(key.index, 0, HybridKey().public, bytes(64)) for key in fresh._holder_keys
    ]
    stage.sent[6] = fresh.contribute(stage.updates[5])[0].data
    stage.deliver()
    stage.simulation._deliver(stage.simulation.aggregator.close(), stage.simulation.users)
    return "NAMED" if stage.simulation.aggregator.excluded == (6,) else ""


#: Attacks by description; each returns the rule that stopped it, or "" if it succeeded.
CHEATS: dict[str, Callable[[], str]] = {
    "two rounds on one model": _two_rounds_on_one_model,
    "two sets in one round": _two_sets_in_one_round,
    "all users but one on one model, after a sum called spoilt": _all_but_one_on_one_model,
    "thirty users opened three by three": _groups_one_by_one,
    "a set with too few users": _a_set_with_too_few_users,
    "four sets whose combination isolates one user": _four_sets_that_isolate_one_user,
    "all users but one in the next round": _all_but_one_in_the_next_round,
    "labels that forget an opened sum": _labels_that_forget_a_sum,
    "an aggregator restored from a backup": _an_aggregator_restored_from_a_backup,
    "two models in one round": _two_models_in_one_round,
    "labels that users did not sign": _labels_that_users_did_not_sign,
    "one user's share twice": _one_share_twice,
    "shares of another round": _shares_of_another_round,
    "a changed share": _a_changed_share,
    "an invented member": _an_invented_member,
    "a user who asks the holders": _a_user_asks_holders,
    "a parent that goes back": _a_parent_that_goes_back,
    "another parent of the same round": _another_parent_of_the_same_round,
    "holders put back in time": _holders_put_back_in_time,
    "a two-faced holder": _two_faced_holder,
    "a user put back in time": _a_user_put_back_in_time,
    "a false sum shown to users": _a_false_sum,
    "a multiple of the true sum, with a lying holder": _a_multiple_of_the_sum,
    "more tries at a false sum": _more_tries_at_a_false_sum,
    "another set for a true sum": _another_set_for_a_sum,
    "one holder's head in place of many": _one_head_instead_of_many,
    "a head signed by the aggregator": _a_head_of_the_aggregator,
    "a holder's key exchanged by the aggregator": _a_holder_key_of_the_aggregator,
    "a first holder's key exchanged": _a_first_holder_key_of_the_aggregator,
    "holders restored from a backup, with their old keys": _holders_restored_from_a_backup,
    "a message of another federation": _a_message_of_another_federation,
    "a contribution sent twice": _a_contribution_twice,
    "a tag seed of another user": _a_seed_of_another_user,
    "an update beyond the clip": _an_update_out_of_range,
    "guesses from the opened tag": _guesses_from_the_opened_tag,
    "all holders seized after the round": _all_holders_seized_later,
    "the aggregator seized after the round": _the_aggregator_seized_later,
    "a user seized after the round": _a_user_seized_later,
    "a holder that lies": _a_holder_that_lies,
    "shares that do not open": _shares_that_do_not_open,
}


def stopped_by() -> dict[str, str]:
    """Return the rule that stopped each attack; an empty string if none did."""
    return {name: cheat() for name, cheat in CHEATS.items()}
