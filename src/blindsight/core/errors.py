"""The error tree. Everything Blindsight raises on purpose is a `BlindsightError`.

    BlindsightError
    ├── InvalidParameter (ValueError)   an argument is not what the method can work with
    ├── InvalidData (ValueError)        an array, table or data set is not what it should be
    │   └── HostileFile                 a file from outside failed its checks
    ├── UnitMismatch (ValueError)       costs in different units were mixed
    ├── NotProven                       a finite guarantee was asked of something that has none
    ├── NotPlanned                      a release that its plan does not name was refused
    ├── BudgetExceeded                  the charge was refused; nothing was released
    ├── LedgerError                     the ledger cannot be read, written or trusted
    │   └── LedgerTampered              an entry does not fit the hash chain
    ├── RolledBack                      vault, ledger and releases disagree: one of them is older
    ├── ProtocolError                   a message was refused; the round goes on without it
    ├── MissingData (LookupError)       a data set is not on this machine
    └── MissingDependency (ImportError) an optional package is not installed

Warnings: `UnchargedRelease` (something was released without a ledger), `UncheckedFile`,
`TooFewRecords`.

Messages say what was expected, what was found and what to do. They never contain private values.
"""

from __future__ import annotations

__all__ = [
    "BlindsightError",
    "BudgetExceeded",
    "HostileFile",
    "InvalidData",
    "InvalidParameter",
    "LedgerError",
    "LedgerTampered",
    "MissingData",
    "MissingDependency",
    "NotPlanned",
    "NotProven",
    "ProtocolError",
    "RolledBack",
    "TooFewRecords",
    "UnchargedRelease",
    "UncheckedFile",
    "UnitMismatch",
]


class BlindsightError(Exception):
    """The root: catch this to catch everything that Blindsight raises on purpose."""


class InvalidParameter(BlindsightError, ValueError):
    """An argument is not what the method can work with."""


class InvalidData(BlindsightError, ValueError):
    """An array, table or set is not what it should be."""


class HostileFile(InvalidData):
    """A file from outside is corrupt, truncated, too large or not what it says it is."""


class UnitMismatch(BlindsightError, ValueError):
    """Costs in different units or neighbour relations were mixed."""


class NotProven(BlindsightError):
    """A finite guarantee was asked of something that has none."""


class NotPlanned(BlindsightError):
    """A release that its plan does not name was refused; nothing was released."""


class BudgetExceeded(BlindsightError):
    """The charge was refused because it would overspend; nothing was released."""


class LedgerError(BlindsightError):
    """The ledger cannot be read, written or trusted."""


class LedgerTampered(LedgerError):
    """An entry does not fit the hash chain."""


class RolledBack(BlindsightError):
    """Vault, ledger and releases do not agree: one of them is older than the others know."""


class ProtocolError(BlindsightError):
    """A message was refused; the round goes on without it."""


class MissingData(BlindsightError, LookupError):
    """A data set is not on this machine."""


class MissingDependency(BlindsightError, ImportError):
    """An optional package is not installed."""


class UncheckedFile(UserWarning):
    """A file of an earlier version holds no digest, so that damage to it cannot be seen."""


class TooFewRecords(UserWarning):
    """Something is learned privately from so few records that the noise is larger than they are."""


class UnchargedRelease(UserWarning):
    """Something was released without a ledger."""
