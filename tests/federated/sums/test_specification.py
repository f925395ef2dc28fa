"""The product against an implementation that was written from the specification alone, and both
against known-answer vectors.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from blindsight.federated.sums import KeyHolder, Settings, Simulation, field
from blindsight.federated.sums import Roster as ProductRoster
from blindsight.federated.sums.messages import Contribution, Kind, Message, Part, ShownSum, holder
from blindsight.federated.sums.pad import PadSum
from federated.sums import specification

VECTORS = Path(__file__).with_name("vectors.json")
LENGTH = 7


def record() -> dict[str, object]:
    """One round of three sites, with the secrets that an implementer needs to follow it."""
    simulation = Simulation(Settings(dimension=LENGTH, users=3))
    privates = [h.enrolment.keys.private.dump() for h in simulation.holders.values()]
    updates = [[0.5, -0.25, 1.0, -1.0, 0.0, 0.125, 0.001], [0.1] * LENGTH, [-0.9] * LENGTH]
    result = simulation.round(updates, model=b"a model")
    messages: dict[str, list[str]] = {}
    for _, _, data in result.transcript.messages:
        name = Kind(data[5]).name
        encoded = base64.b64encode(data).decode()
        if encoded not in messages.setdefault(name, []):
            messages[name].append(encoded)
    roster = simulation.aggregator.enrolment.roster
    return {
        "roster": base64.b64encode(roster.encode()).decode(),
        "agreement": roster.agreement.hex(),
        "fingerprint": roster.fingerprint,
        "context": simulation.aggregator.header.context.hex(),
        "tag_seed": simulation.users[1]._seed.hex(),
        "holder_keys": [private.hex() for private in privates],
        "sum": [int(x) for x in np.rint(result.total / simulation.settings.code.grid)],
        "messages": messages,
    }


@pytest.fixture(scope="module")
def vectors() -> dict:
    return json.loads(VECTORS.read_text(encoding="utf-8"))


def decoded(vectors: dict, kind: str) -> list[bytes]:
    return [base64.b64decode(data) for data in vectors["messages"][kind]]


def test_both_implementations_open_the_recorded_round(vectors: dict) -> None:
    roster = specification.Roster.read(base64.b64decode(vectors["roster"]))
    assert roster.agreement.hex() == vectors["agreement"]
    assert roster.fingerprint == vectors["fingerprint"]
    sums = {}
    for index, (data, key) in enumerate(
        zip(decoded(vectors, "COLLECT"), vectors["holder_keys"], strict=True), start=1
    ):
        assert specification.Message.read(data, roster).context.hex() == vectors["context"]
        sums[index] = specification.summed_shares(data, roster, index, bytes.fromhex(key))
    raw, tag = specification.open_sum(roster, decoded(vectors, "CONTRIBUTION"), sums)
    half = 3 << (roster.settings.bits - 1)
    assert [x - half for x in raw] == vectors["sum"]
    seed = bytes.fromhex(vectors["tag_seed"])
    assert specification.tag_of(seed, bytes.fromhex(vectors["context"]), raw, 3) == tag
    for data in decoded(vectors, "RESULT"):
        assert specification.accepts(data, roster, seed) == raw
    # And the product: parts, sums of shares, heads and the sum.
    product = ProductRoster.decode(base64.b64decode(vectors["roster"]))
    assert product.fingerprint == vectors["fingerprint"]
    settings = product.settings
    parts = {}
    for data in decoded(vectors, "PART"):
        message = Message.decode(data, largest=len(data))
        message.require_signature(product.verifiers)
        index = message.header.sender - holder(0)
        part = Part.decode(message.body, settings, LENGTH, index)
        parts[index] = np.append(part.shares, np.uint64(part.head.tag_share))
        assert parts[index].tolist() == sums[index]
    [(secret, chosen)] = settings.sharing(LENGTH).candidates(parts, 3)
    assert chosen == (1, 2, 3)
    total = PadSum(settings.pad(LENGTH), LENGTH)
    for data in decoded(vectors, "CONTRIBUTION"):
        message = Message.decode(data, largest=len(data))
        total.add(Contribution.decode(message.body, settings, LENGTH).padded)
    opened = total.open(bytes.fromhex(vectors["context"]), secret)
    assert opened.tolist() == raw
    assert field.tag(seed, bytes.fromhex(vectors["context"]), opened.astype(np.uint64), 3) == tag


@pytest.mark.parametrize("users", [3, 4])
def test_an_independent_user_takes_part_in_a_real_round(users: int) -> None:
    """User 1 is the specification's; everybody else is the product's. Both open the sum."""
    simulation = Simulation(Settings(dimension=LENGTH, users=users))
    aggregator = simulation.aggregator
    roster = specification.Roster.read(aggregator.enrolment.roster.encode())
    half = 1 << (simulation.settings.bits - 1)
    own = [half + x for x in (5, -7, 0, 32767, -32767, 1, 2)]
    identity = Ed25519PrivateKey.from_private_bytes(simulation.users[1].identity.dump())
    sent = []
    for opening in aggregator.open_round(1, bytes(32)):
        if opening.to == 1:
            seed = simulation.users[1]._seed
            data = specification.contribution(opening.data, roster, 1, identity, seed, own)
        else:
            simulation.users[opening.to].receive(opening.data)
            [out] = simulation.users[opening.to].contribute(np.zeros(LENGTH))
            data = out.data
        sent.append(data)
        assert aggregator.receive(data) == []
    collects = {message.to: message.data for message in aggregator.close()}
    sums = {}
    for address, data in collects.items():
        role = simulation.holders[address]
        assert isinstance(role, KeyHolder) and role._private is not None
        index = address - holder(0)
        sums[index] = specification.summed_shares(data, roster, index, role._private.dump())
        for answer in role.receive(data):
            aggregator.receive(answer.data)
    assert aggregator.result is not None, aggregator.refusals
    expected = [x - half for x in own]
    assert aggregator.result.values.tolist() == expected
    raw, _ = specification.open_sum(roster, sent, sums)
    assert [x - users * half for x in raw] == expected
    for message in aggregator.results():
        simulation.users[message.to].receive(message.data)
        assert simulation.users[message.to].ended == 1
        accepted = specification.accepts(message.data, roster, simulation.users[1]._seed)
        assert accepted == raw
        changed = Message.decode(message.data, largest=len(message.data))
        body = ShownSum.decode(changed.body, simulation.settings)
        flipped = ShownSum(body.members, body.heads, bytes([body.packed[0] ^ 1]) + body.packed[1:])
        forged = Message.make(changed.header, flipped.encode(), aggregator.identity).encode()
        assert specification.accepts(forged, roster, simulation.users[1]._seed) is None
