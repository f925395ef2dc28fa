"""Exports of a ledger: JSON that can be verified without the database, CSV for spreadsheets, a
whole copy, heads for a witness, and a statement for a regulator.

*A witness* is a file elsewhere that holds one line per recorded head, signed where there is a key.
A person who can write to a ledger's database can rewrite all of it, or put back an old copy. A
witness on another disk, in another folder or on another host, which that person cannot write to,
shows this: the chain must pass through every head that the witness holds. A signature (Ed25519: the
ledger's owner holds the private key, everyone may have the public one) shows that nobody else wrote
a line. It does not show that lines were removed.

*A statement* is one page about a data set's releases, for a regulator or an auditor: HTML and plain
values. The fields follow what NIST SP 800-226 asks of a claim of differential privacy: the unit of
privacy and the neighbour relation, the parameters, the accounting over all releases, the trust
model, who released what for which purpose, and what was done to test it. Everything but the audits
and the vault's state is read from the ledger's verified chain.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import html
import io
import json
import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from blindsight.core import durable
from blindsight.core.errors import HostileFile, InvalidData, InvalidParameter, LedgerTampered
from blindsight.privacy.ledger.book import Balance, Ledger, datasets
from blindsight.privacy.ledger.chain import FIELDS, Entry, Head, checked, widened

__all__ = [
    "AuditedRelease",
    "ReleaseLine",
    "SigningKey",
    "Statement",
    "backup",
    "check_json",
    "make_key",
    "read_witness",
    "restore",
    "statement",
    "to_csv",
    "to_json",
    "witness",
]

FORMATS = tuple(f"blindsight ledger export {number}" for number in (1, 2, 3))


def to_json(ledgers: Sequence[Ledger]) -> str:
    """Return all entries and heads as JSON; `check_json` verifies it without the database."""
    chains = []
    for ledger in ledgers:
        head = ledger.verify()
        entries = [entry.to_dict() for entry in ledger.entries() if entry.sequence <= head.sequence]
        chains.append({"dataset": ledger.dataset, "head": head._asdict(), "entries": entries})
    return json.dumps({"format": FORMATS[-1], "chains": chains}, ensure_ascii=False, indent=1)


def check_json(text: str) -> dict[str, Head]:
    """Verify an export and return each data set's head.

    Raises:
        InvalidData: the text is not a ledger export.
        LedgerTampered: the export was changed.
    """
    try:
        document = json.loads(text)
        if document["format"] not in FORMATS:
            raise InvalidData(
                f"a ledger export must be of format {' or '.join(map(repr, FORMATS))}."
            )
        chains = [
            (c["dataset"], Head(c["head"]["sequence"], c["head"]["hash"]), c["entries"])
            for c in document["chains"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InvalidData):
            raise
        raise InvalidData(
            "this is not a ledger export: expected the JSON that `ledger export` writes."
        ) from error
    heads: dict[str, Head] = {}
    for dataset, head, rows in chains:
        if dataset in heads:
            raise LedgerTampered(f"data set {dataset!r} occurs twice in the export.")
        if not all(isinstance(row, dict) for row in rows):
            raise InvalidData("this is not a ledger export: an entry is not an object.")
        for _ in checked(map(widened, rows), dataset=dataset, head=head):
            pass
        heads[dataset] = head
    return heads


def backup(where: str | os.PathLike[str], to: str | os.PathLike[str]) -> dict[str, Head]:
    """Copy a whole ledger, on SQLite or PostgreSQL, into a new SQLite file, verify the copy and
    return its heads.

    The copy is a snapshot: charges may go on meanwhile. It is for restoring, not for charging:
    charging both spends the budget twice, which a witness shows.
    """
    target = Path(to)
    if target.exists():
        raise InvalidParameter(f"{target} exists already. Choose another name for the backup.")
    from blindsight.privacy.ledger.location import Location
    from blindsight.privacy.ledger.store import Store

    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    source = Store(Location(where), create=False, timeout=60.0, readonly=True)
    try:
        copy = Store(Location(temporary), create=True, timeout=60.0)
        try:
            with source.read() as reading, copy.write("") as writing:
                reading.copy_to(writing)
        finally:
            copy.close()  # the last connection to close writes the log into the file
        heads = {name: _proven(temporary, name) for name in datasets(temporary)}
        durable.link_new(temporary, target)
    finally:
        source.close()
        for path in (temporary, Path(f"{temporary}-wal"), Path(f"{temporary}-shm")):
            durable.remove(path)
    return heads


def restore(copy: str | os.PathLike[str], where: str | os.PathLike[str]) -> dict[str, Head]:
    """Copy a backup into an empty ledger, on SQLite or PostgreSQL, and return its verified heads.

    Raises:
        InvalidParameter: the ledger has entries. It is never replaced by an older copy.
    """
    from blindsight.privacy.ledger.location import Location
    from blindsight.privacy.ledger.store import Store

    heads = {name: _proven(Path(copy), name) for name in datasets(copy)}
    source = Store(Location(copy), create=False, timeout=60.0, readonly=True)
    target = Store(Location(where), create=True, timeout=60.0)
    try:
        with source.read() as reading, target.write("") as writing:
            if writing.datasets():
                raise InvalidParameter(
                    f"the ledger {Location(where)} has entries, and a backup never replaces them."
                )
            reading.copy_to(writing)
    finally:
        source.close()
        target.close()
    return heads


def _proven(path: Path, dataset: str) -> Head:
    with Ledger(path, dataset=dataset, create=False) as ledger:
        return ledger.verify()


def to_csv(entries: Iterable[Entry]) -> str:
    """Entries as CSV, amounts both as exact decimals and in whole units."""
    out = io.StringIO()
    writer = csv.DictWriter(out, ["epsilon", "delta", *FIELDS], lineterminator="\n")
    writer.writeheader()
    for entry in entries:
        amounts = {"epsilon": entry.amount.epsilon, "delta": entry.amount.delta}
        writer.writerow({key: _cell(value) for key, value in (amounts | entry.to_dict()).items()})
    return out.getvalue()


def _cell(value: Any) -> Any:
    # A spreadsheet would run text that starts like a formula.
    return (
        "'" + value if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
    )


NAME = "ledger-witness.jsonl"
_PURPOSE = b"blindsight ledger head 1\n"
_FIELDS = {"dataset", "sequence", "hash", "time", "key", "signature"}
_LARGEST = 1 << 28


class SigningKey:
    """An Ed25519 key that signs heads, or only checks them where it is a public one.

    Its representation never contains the secret.
    """

    def __init__(
        self, secret: ed25519.Ed25519PrivateKey | None, public: ed25519.Ed25519PublicKey
    ) -> None:
        self._secret, self._public = secret, public

    @classmethod
    def read(cls, path: str | Path) -> SigningKey:
        """Read a key from a file that `make_key` wrote."""
        try:
            content = Path(path).read_bytes()[:4096]
        except OSError as error:
            raise InvalidParameter(f"the key {path} cannot be read: {error.strerror}.") from None
        try:
            if b"PRIVATE KEY" not in content:
                return cls(None, _ed25519(serialization.load_pem_public_key(content)))
            secret = serialization.load_pem_private_key(content, password=None)
            return cls(secret, _ed25519(secret.public_key()))  # type: ignore[arg-type]
        except (ValueError, TypeError):
            raise InvalidParameter(
                f"{path} is not a key that blindsight ledger key makes."
            ) from None

    @property
    def fingerprint(self) -> str:
        """The identifier of the key in the witness; it reveals nothing about the secret."""
        return f"ed25519:{hashlib.sha256(b'fingerprint' + self._public.public_bytes_raw()).hexdigest()[:16]}"  # noqa: E501

    def sign(self, message: bytes) -> str:
        """Sign a message and return the signature in hexadecimal digits."""
        if self._secret is None:
            raise InvalidParameter("this is a public key: it can check heads, not sign them.")
        return self._secret.sign(message).hex()

    def holds(self, message: bytes, signature: str) -> bool:
        """Whether the signature is this key's."""
        try:
            self._public.verify(bytes.fromhex(signature), message)
        except (InvalidSignature, ValueError):
            return False
        return True

    def __repr__(self) -> str:
        return f"SigningKey({self.fingerprint})"


def _ed25519(key: object) -> ed25519.Ed25519PublicKey:
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise TypeError("a key of another kind")
    return key


def make_key(path: str | Path) -> SigningKey:
    """Make a key in a new file that only its owner can read, and write the public key to
    PATH.pub.
    """
    target = Path(path)
    if target.exists():
        raise InvalidParameter(
            f"{target} exists already. Choose another name: a lost key cannot be made again."
        )
    key = ed25519.Ed25519PrivateKey.generate()
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    durable.write_file(
        target, key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain), replace=False
    )
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    durable.write_file(target.with_name(target.name + ".pub"), public, mode=0o644)
    return SigningKey.read(target)


def witness(
    ledgers: Iterable[Ledger], to: str | Path, *, key: SigningKey | None = None
) -> dict[str, Head]:
    """Verify ledgers against the witness and themselves, add their heads to it and return them.

    Parameters:
        ledgers: the ledgers of data sets.
        to: the witness file, or a folder that holds it.
        key: the key that signs each line.

    Raises:
        LedgerTampered: a ledger contradicts the witness; nothing is added.
    """
    path = _witness_file(Path(to))
    witnessed = read_witness(path, key=key) if path.exists() else {}
    heads = {
        ledger.dataset: ledger.verify(known=witnessed.get(ledger.dataset, ())) for ledger in ledgers
    }
    lines = []
    for dataset, head in heads.items():
        if head in witnessed.get(dataset, ()):
            continue
        fields = {
            "dataset": dataset,
            **head._asdict(),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        signed = {"key": "", "signature": ""}
        if key is not None:
            signed = {"key": key.fingerprint, "signature": key.sign(_message(fields))}
        lines.append(json.dumps(fields | signed, sort_keys=True) + "\n")
    if not path.exists():
        durable.write_file(path, b"", replace=False)
    file = durable.DurableFile(path, lock=True)
    try:
        file.cut(path.read_bytes().rfind(b"\n") + 1)  # drops an incomplete line after a crash
        if lines:
            file.append("".join(lines).encode())
    finally:
        file.close()
    return heads


def read_witness(path: str | Path, *, key: SigningKey | None = None) -> dict[str, list[Head]]:
    """Return the heads that a witness holds, for each data set; with a key, every line must bear
    its signature.
    """
    file = _witness_file(Path(path))
    try:
        if file.stat().st_size > _LARGEST:
            raise HostileFile(f"{file} is too large to be a witness.")
        content = file.read_bytes()
    except OSError as error:
        raise InvalidParameter(f"the witness {file} cannot be read: {error.strerror}.") from None
    heads: dict[str, list[Head]] = {}
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1):
        try:
            fields = json.loads(line)
            types = {name: int if name == "sequence" else str for name in _FIELDS}
            if {name: type(value) for name, value in fields.items()} != types:
                raise ValueError
        except (ValueError, AttributeError, RecursionError):
            raise HostileFile(f"line {number} of {file} is not a witnessed head.") from None
        if key is not None and not key.holds(_message(fields), fields["signature"]):
            raise LedgerTampered(
                f"line {number} of the witness {file} does not bear the signature of {key!r}."
            )
        heads.setdefault(fields["dataset"], []).append(Head(fields["sequence"], fields["hash"]))
    return heads


def _witness_file(path: Path) -> Path:
    return path / NAME if path.is_dir() else path


def _message(fields: dict[str, Any]) -> bytes:
    body = {name: fields[name] for name in ("dataset", "sequence", "hash", "time")}
    return _PURPOSE + json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True, kw_only=True)
class AuditedRelease:
    """What an audit measured of a release.

    Parameters:
        release: the release's id, or words for it.
        attack: what was tried.
        epsilon: the lower bound that the attack proves.
        confidence: of that bound.
    """

    release: str
    attack: str
    epsilon: float
    confidence: float


@dataclass(frozen=True, kw_only=True)
class ReleaseLine:
    """One release, as it was charged to the accounts of a data set."""

    time: str
    what: str
    actor: str
    purpose: str
    release: str
    vault: str
    generation: int
    costs: tuple[str, ...]
    epsilon_per_record: float | None
    epsilon_per_person: float | None


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What was released of a data set, by whom, for what purpose, and at which cost.

    Parameters:
        dataset: the data set's name.
        made: when the statement was made, in UTC.
        budgets: each account: unit, neighbour relation, budget, spent and remaining.
        releases: every charge, in order.
        head: the ledger's last entry, which the statement was verified against.
        audits: what was audited, where the caller gives it.
        remarks: disagreements of vault and ledger, and what is not stated, in words.
    """

    dataset: str
    made: str
    budgets: tuple[dict[str, Any], ...]
    releases: tuple[ReleaseLine, ...]
    head: Head
    audits: tuple[AuditedRelease, ...] = ()
    remarks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": "blindsight budget statement 1",
            "framework": "NIST SP 800-226",
            "trust_model": _TRUST,
            **dataclasses.asdict(self),
            "head": self.head._asdict(),
        }

    def to_html(self) -> str:
        """The statement as one self-contained page."""
        budgets = [
            (f"per {b['unit']} ({b['neighbours']})", b["budget"], b["spent"], b["remaining"])
            for b in self.budgets
        ]
        lines = [
            (
                line.time[:16].replace("T", " "),
                line.what,
                line.actor or "not stated",
                line.purpose or "not stated",
                _number(line.epsilon_per_record),
                _number(line.epsilon_per_person),
                "; ".join(line.costs),
                f"{line.vault} / {line.generation}" if line.vault else "",
            )
            for line in self.releases
        ]
        audits = [
            (a.release, a.attack, f"epsilon is at least {a.epsilon:.3g}", f"{a.confidence:.0%}")
            for a in self.audits
        ]
        columns = ("when (UTC)", "what", "by whom", "purpose", "epsilon per photo")
        more = ("epsilon per person", "all costs", "vault / release")
        parts = [
            f"<h1>Privacy statement: {html.escape(self.dataset)}</h1>",
            f"<p>Made {html.escape(self.made[:16].replace('T', ' '))} UTC, verified against entry "
            f"{self.head.sequence} of the ledger (SHA-256 {html.escape(self.head.hash)}). Fields "
            f"after NIST SP 800-226. {html.escape(_TRUST)}</p>",
            *(f"<p><strong>{html.escape(remark)}</strong></p>" for remark in self.remarks),
            _table("Budgets", ("unit of privacy", "budget", "spent", "remaining"), budgets),
            _table("Releases", (*columns, *more), lines),
            _table("Audits", ("release", "attack", "result", "confidence"), audits),
        ]
        return (
            '<!doctype html><html lang="en"><meta charset="utf-8">'
            f"<title>Privacy statement: {html.escape(self.dataset)}</title><style>{_STYLE}</style>"
            f"<body>{''.join(parts)}</body></html>"
        )


_TRUST = (
    "The owner holds the data, the vault and the ledger; whoever receives a release is not trusted."
)
_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;width:100%}td,th{border:1px solid #bbb;padding:.3em .6em;"
    "text-align:left;vertical-align:top}"
)


def statement(
    ledger: Ledger, *, audits: Iterable[AuditedRelease] = (), remarks: Iterable[str] = ()
) -> Statement:
    """The statement of a data set's releases; the ledger's chain is verified first.

    Parameters:
        ledger: the account of the data set.
        audits: what was audited.
        remarks: sentences to put at the top, such as what `reconcile` found.

    Raises:
        LedgerTampered: the chain does not hold.

    Examples:
        >>> import tempfile
        >>> from blindsight.privacy.cost import Cost
        >>> ledger = Ledger(tempfile.mkdtemp() + "/budget.db", dataset="ward-7")
        >>> entry = ledger.grant(Cost(epsilon=8, unit="record"))
        >>> cost = Cost(epsilon=4, unit="record")
        >>> entry = ledger.charge(cost, what="codes", actor="Anna", purpose="a study")
        >>> statement(ledger).releases[0].purpose
        'a study'
    """
    head = ledger.verify()
    entries = [entry for entry in ledger.entries() if entry.sequence <= head.sequence]
    charges = [entry for entry in entries if entry.kind == "charge"]
    grouped: dict[tuple[str, int], list[Entry]] = {}
    for entry in charges:
        # The entries of one release share its key; an entry without a key is a release of its own.
        number = 0 if entry.key else entry.sequence
        grouped.setdefault((entry.key, number), []).append(entry)
    lasts = {entry.account: entry for entry in entries}
    unstated = sum(not entry.purpose for entry in charges)
    sentences = list(remarks)
    if unstated:
        sentences.append(f"{unstated} of {len(charges)} charges state no purpose.")
    return Statement(
        dataset=ledger.dataset,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        budgets=tuple(_budget(Balance.after(entry)) for entry in lasts.values()),
        releases=tuple(map(_line, grouped.values())),
        head=head,
        audits=tuple(audits),
        remarks=tuple(sentences),
    )


def _budget(balance: Balance) -> dict[str, Any]:
    return {
        "unit": balance.unit,
        "neighbours": balance.neighbours,
        "composition": balance.composition,
        "budget": str(balance.budget),
        "spent": str(balance.spent),
        "remaining": "closed" if balance.closed else str(balance.remaining),
    }


def _line(entries: list[Entry]) -> ReleaseLine:
    first = entries[0]
    costs = tuple(f"{e.amount} per {e.unit} ({e.neighbours})" for e in entries)
    return ReleaseLine(
        time=first.time,
        what=first.what,
        actor=first.actor,
        purpose=first.purpose,
        release=first.release,
        vault=first.vault,
        generation=first.generation,
        costs=costs,
        epsilon_per_record=_epsilon(entries, "record"),
        epsilon_per_person=_epsilon(entries, "person"),
    )


def _epsilon(entries: list[Entry], unit: str) -> float | None:
    """The cost per unit, under "replace one" where it is stated so."""
    of_unit = [entry for entry in entries if entry.unit == unit]
    chosen = [entry for entry in of_unit if entry.neighbours == "replace one"] or of_unit
    return chosen[0].amount.epsilon if chosen else None


def _number(value: float | None) -> str:
    return "not stated" if value is None else f"{value:g}"


def _table(title: str, columns: Iterable[str], rows: list[tuple[Any, ...]]) -> str:
    heads = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    if not rows:
        return f"<h2>{title}</h2><p>None.</p>"
    return f"<h2>{title}</h2><table><tr>{heads}</tr>{body}</table>"
