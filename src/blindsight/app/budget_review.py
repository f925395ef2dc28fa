"""Review an account: a statement of its releases, and whether vault and ledger agree."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal, cast

from blindsight.app.budget import open_accounts
from blindsight.app.result import JobResult, framed
from blindsight.core.errors import InvalidParameter
from blindsight.index.index_file import IndexHeader
from blindsight.index.release_folder import ReleaseFolder
from blindsight.privacy.charges import read_release_file
from blindsight.privacy.ledger import Ledger
from blindsight.privacy.ledger.export import Statement, statement
from blindsight.privacy.reconcile import Reconciliation, ReleaseOnDisk, reconcile, resolve
from blindsight.privacy.vault import Vault

__all__ = ["BudgetStatement", "ReconciledBudget", "budget_statement", "reconcile_budget"]

PathText = str | PathLike[str]


@dataclass(frozen=True)
class ReconciledBudget(JobResult):
    """How a vault, a ledger and the releases on disk compare.

    Parameters:
        reconciliation: the findings, each with the side that is older and what to do.
        decision: the owner's decision that was carried out; None if nothing was changed.
    """

    reconciliation: Reconciliation
    decision: str | None = None

    @property
    def agrees(self) -> bool:
        """Whether no side is older than another, so that more may be released."""
        return self.reconciliation.agrees

    @property
    def title(self) -> str:
        return str(self.reconciliation)

    def facts(self) -> list[tuple[str, str]]:
        return [(f"{each.older} is older", str(each)) for each in self.reconciliation.findings]

    def to_dict(self) -> dict[str, object]:
        return {**self.reconciliation.to_dict(), "decision": self.decision}


@dataclass(frozen=True)
class BudgetStatement(JobResult):
    """What was released of a data set, when, by whom, for what purpose and at which cost.

    Parameters:
        statement: the statement, verified against the ledger's entries.
    """

    statement: Statement

    @property
    def title(self) -> str:
        return f"Statement of the releases of {self.statement.dataset!r}"

    def facts(self) -> list[tuple[str, str]]:
        facts = [("made", self.statement.made), ("releases", str(len(self.statement.releases)))]
        return [*facts, *(("remark", remark) for remark in self.statement.remarks)]

    def _repr_html_(self) -> str:
        return framed(self.to_html())

    def to_html(self) -> str:
        """Return the statement as one page for people who read it without this software."""
        return self.statement.to_html()

    def to_dict(self) -> dict[str, object]:
        return self.statement.to_dict()

    def write(self, out: PathText) -> Path:
        """Write the statement as a page (.html) or as JSON values (.json), and return its path."""
        target = Path(out)
        if target.suffix not in (".html", ".json"):
            raise InvalidParameter(f"--out must end in .html or .json, got {target.name!r}.")
        page = self.to_html() if target.suffix == ".html" else json.dumps(self.to_dict(), indent=2)
        try:
            target.write_text(page, encoding="utf-8")
        except OSError as error:
            raise InvalidParameter(
                f"--out {target} cannot be written: {error.strerror}."
            ) from error
        return target


def budget_statement(
    ledger: PathText, dataset: str, *, vault: PathText | None = None
) -> BudgetStatement:
    """State what was released of a data set, for a regulator or a data protection officer.

    Parameters:
        ledger: the ledger's file or postgresql:// address.
        dataset: the data set.
        vault: the owner's vault; where it and the ledger disagree, the statement says so.

    Raises:
        InvalidParameter: if the ledger has no such data set.
        LedgerTampered: if the ledger's entries were changed.

    Examples:
        >>> import tempfile
        >>> from blindsight.app.budget import grant_budget
        >>> ledger = Path(tempfile.mkdtemp()) / "budget.db"
        >>> granted = grant_budget(ledger, "holiday", epsilon=8)
        >>> print(budget_statement(ledger, "holiday").title)
        Statement of the releases of 'holiday'
    """
    (opened,) = open_accounts(ledger, dataset)
    compared = None if vault is None else reconcile(Vault(Path(vault)), opened)
    remarks = () if compared is None or compared.agrees else (str(compared),)
    return BudgetStatement(statement(opened, remarks=remarks))


def reconcile_budget(
    ledger: PathText,
    dataset: str,
    vault: PathText,
    *,
    releases: Sequence[PathText] = (),
    decision: str | None = None,
    actor: str | None = None,
) -> ReconciledBudget:
    """Compare a vault with a ledger and with releases on disk, and carry out a decision about them.

    Parameters:
        ledger: the ledger's file or postgresql:// address.
        dataset: the data set whose account it is.
        vault: the owner's vault.
        releases: folders that `protect` made, or files of other commands, each with its file
            OUT.release.json beside it.
        decision: None compares and changes nothing. "take over" accepts what the other side knows:
            missing releases are charged, or everything that is released from now on is charged
            again. "close" closes every budget of the data set.
        actor: the name of the person who decides (default: the operating system's user).

    Raises:
        InvalidParameter: if `decision` has another value.
        BudgetExceeded: if the budget is too small for the charges that are taken over.
    """
    if decision not in (None, "take over", "close"):
        raise InvalidParameter(f"decision must be 'take over' or 'close', got {decision!r}.")
    opened_vault = Vault(Path(vault))
    on_disk: list[ReleaseOnDisk] = []
    for path in releases:
        if not Path(path).is_dir():
            on_disk += read_release_file(path)
            continue
        folder = ReleaseFolder.read(Path(path))
        guarantee = IndexHeader.of(folder.codes).guarantee
        costs = () if guarantee is None else guarantee.costs
        on_disk.append(ReleaseOnDisk(str(path), folder.vault, folder.release, costs))
    with Ledger(str(ledger), dataset=dataset, create=False, actor=actor) as opened:
        if decision is None:
            return ReconciledBudget(reconcile(opened_vault, opened, on_disk))
        chosen = cast("Literal['take over', 'close']", decision)
        return ReconciledBudget(resolve(opened_vault, opened, chosen, releases=on_disk), decision)
