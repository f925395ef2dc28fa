"""An aggregator's state as bytes and back; what it keeps in files stays there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blindsight.federated.enrolment import AggregatorEnrolment
from blindsight.federated.messages import Message, Proof
from blindsight.federated.opened import Opened
from blindsight.federated.protocol.bodies import Contribution, members_of, read_list, write_list
from blindsight.federated.protocol.kept import InFiles, InMemory
from blindsight.federated.wire import Reader, Writer, seal, unseal

if TYPE_CHECKING:
    from blindsight.federated.protocol.aggregator import Aggregator, Phase

__all__ = ["dump", "load"]

_PHASES: tuple[Phase, ...] = ("idle", "open", "closed", "done")
_MOST = 1 << 32


def dump(role: Aggregator) -> bytes:
    """Everything, sealed; of contributions and results on disk only where they are."""
    writer = (
        Writer()
        .field(role.enrolment.dump())
        .raw(role._header.encode(0) + bytes(64))
        .raw(role._parent)
    )
    writer.number("B", _PHASES.index(role.phase)).number("B", role.spoilt).field(role._members)
    write_list(writer, role._certificate)
    writer.number("I", len(role._ended))
    for number, place in role._ended:
        writer.number("Q", number).number("Q", place)
    writer.field(b"" if role.result is None else role.result.encode())
    writer.field(role._before).field(role._voters).field(role._last).field(role._no_sum).number(
        "B", role.withdrawn
    )
    write_list(writer, [user.to_bytes(4, "little") for user in sorted(role._doubts)])
    for kept in (role._confirmed, role._votes, role._parts):
        write_list(writer, [number.to_bytes(4, "little") + data for number, data in kept.items()])
    writer.field(role.kept.dump())
    if not role.kept.on_disk:
        write_list(writer, [proof.encode() for proof in role._proofs.values()])
        write_list(writer, [user.to_bytes(4, "little") for user in role._pending])
        writer.field(
            b"" if role.public is None or not role._product else role.public.to_bytes(role._product)
        )
        writer.field(role._total.write() if role.phase in ("open", "closed") else b"")
    return seal(b"AGST", bytes(writer))


def load(kind: type[Aggregator], data: bytes, kept: InFiles | None) -> Aggregator:
    """The inverse of `dump`, with the contributions that are in the files."""
    reader = unseal(b"AGST", data)
    role = kind(AggregatorEnrolment.load(reader.field()), kept=kept)
    role._begin(Message.decode(reader.raw(196), largest=196).header)
    role._parent = reader.raw(32)
    role.phase, role.spoilt, role._members = (
        _PHASES[reader.number("B")],
        bool(reader.number("B")),
        reader.field(),
    )
    role._certificate = read_list(reader, _MOST)
    role._ended = [(reader.number("Q"), reader.number("Q")) for _ in range(reader.number("I"))]
    opened = reader.field()
    role.result = Opened.decode(opened, users=role.settings.users) if opened else None
    role._before, role._voters = reader.field(), reader.field()
    role._last, role._no_sum, role.withdrawn = (
        reader.field(),
        reader.field(),
        bool(reader.number("B")),
    )
    role._doubts = {int.from_bytes(item, "little") for item in read_list(reader, _MOST)}
    for found in (role._confirmed, role._votes, role._parts):
        found.update(
            {int.from_bytes(item[:4], "little"): item[4:] for item in read_list(reader, _MOST)}
        )
    held = reader.field()
    if kept is not None:
        reader.end()
        _count_again(role, kept)
        return role
    role.kept = InMemory(held)
    proofs = [Proof.read(Reader(item)) for item in read_list(reader, _MOST)]
    role._proofs = {proof.user: proof for proof in proofs}
    role._pending = {int.from_bytes(item, "little") for item in read_list(reader, _MOST)}
    product, total = reader.field(), reader.field()
    reader.end()
    role._product = role.public.from_bytes(product) if role.public is not None and product else []
    if total:
        role._total.read(total)
    return role


def _count_again(role: Aggregator, kept: InFiles) -> None:
    """Contributions of this round from the file, as they were accepted."""
    if role.phase not in ("open", "closed"):
        return
    for place, data in kept.messages():
        message = Message.decode(data, largest=len(data))
        if (
            message.header.context == role._header.context
            and message.header.sender not in role._proofs
        ):
            body = Contribution.decode(
                message.body, most=max(1, (role.settings.holders or (0, 0))[1])
            )
            kept.found(message.header.sender, place, data, body)
            role._count_in(message, body)
    if role.phase == "closed" and role.groups_in != role.complete:
        role._sum_again(members_of(role._members, role.settings.users))
