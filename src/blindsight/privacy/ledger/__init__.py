"""The privacy ledger: a durable, exact, tamper-evident budget for each data set.

Examples:
    >>> import tempfile, os
    >>> from blindsight.privacy.cost import Cost
    >>> ledger = Ledger(os.path.join(tempfile.mkdtemp(), "ledger.db"), dataset="ward-7")
    >>> entry = ledger.grant(Cost(epsilon=1, unit="record"))
    >>> entry = ledger.charge(Cost(epsilon=0.1, unit="record"), what="codes")
    >>> print(ledger.balance("record").remaining)
    ε = 0.9
"""

from __future__ import annotations

from blindsight.core.checks import core_module

core_module("sqlalchemy")  # says which extra brings it

from blindsight.privacy.ledger.amounts import Amount, Composition
from blindsight.privacy.ledger.book import Balance, Ledger, datasets
from blindsight.privacy.ledger.chain import Entry, Head
from blindsight.privacy.ledger.export import (
    AuditedRelease,
    SigningKey,
    Statement,
    backup,
    check_json,
    make_key,
    read_witness,
    statement,
    to_csv,
    to_json,
    witness,
)

__all__ = [
    "Amount",
    "AuditedRelease",
    "Balance",
    "Composition",
    "Entry",
    "Head",
    "Ledger",
    "SigningKey",
    "Statement",
    "backup",
    "check_json",
    "datasets",
    "make_key",
    "read_witness",
    "statement",
    "to_csv",
    "to_json",
    "witness",
]
