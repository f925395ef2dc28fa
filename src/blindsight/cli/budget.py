"""`blindsight budget`: grant a budget, see what is spent, prove that nothing was changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from blindsight.cli.options import ActorOption, LargeEpsilonOption, PurposeOption, unit_name
from blindsight.cli.terminal import console, emit_json, errors, stage_bar

if TYPE_CHECKING:
    from blindsight.app.budget import BudgetChange
    from blindsight.app.result import ResultTable

__all__ = ["register"]

Where = Annotated[
    str,
    typer.Option(
        "--ledger",
        envvar="BLINDSIGHT_LEDGER",
        help="The ledger's file, or a postgresql:// URL.",
        show_envvar=True,
    ),
]
MaybeWhere = Annotated[
    str | None,
    typer.Option(
        "--ledger", envvar="BLINDSIGHT_LEDGER", help="The ledger's file, or a postgresql:// URL."
    ),
]
DataSet = Annotated[str, typer.Option("--dataset", help="The data set whose budget it is.")]
AnyDataSet = Annotated[str | None, typer.Option("--dataset", help="Only this data set.")]
Epsilon = Annotated[float, typer.Option("--epsilon", help="Epsilon, per unit.")]
Delta = Annotated[float, typer.Option("--delta", help="Delta, per unit.")]
UnitName = Annotated[
    str,
    typer.Option(
        "--unit",
        callback=unit_name,
        help="record (a photo), person, bit, pair, kappa pairs, pixel, query or user.",
    ),
]
Relation = Annotated[
    str, typer.Option("--neighbours", help="'replace one' or 'add or remove one'.")
]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    verbs = typer.Typer(
        help="Budgets of data sets: grant, show, verify, export.", no_args_is_help=True
    )
    for verb in (
        grant,
        charge,
        close,
        show,
        entries,
        verify,
        witness,
        key,
        backup,
        export,
        statement,
        reconcile,
    ):
        verbs.command(verb.__name__)(verb)
    app.add_typer(verbs, name="budget")
    app.add_typer(verbs, name="ledger", hidden=True)


def grant(
    ledger: Where,
    dataset: DataSet,
    epsilon: Epsilon,
    large_epsilon: LargeEpsilonOption = False,
    delta: Delta = 0.0,
    unit: UnitName = "record",
    neighbours: Relation = "replace one",
    what: Annotated[str, typer.Option("--what", help="Who granted it, and why.")] = "budget",
    composition: Annotated[
        str,
        typer.Option(
            "--composition", help="basic (epsilons add), or zcdp (rho adds: cheaper for Gaussians)."
        ),
    ] = "basic",
    actor: ActorOption = None,
    purpose: PurposeOption = "",
    json: Json = False,
) -> None:
    """State a data set's budget in all (not what to add); starts the ledger if there is none."""
    from blindsight.app.budget import grant_budget

    change = grant_budget(
        ledger,
        dataset,
        epsilon=epsilon,
        delta=delta,
        unit=unit,
        neighbours=neighbours,
        what=what,
        composition=composition,
        actor=actor,
        purpose=purpose,
    )
    _show_change(change, json)


def charge(
    ledger: Where,
    dataset: DataSet,
    epsilon: Epsilon,
    what: Annotated[str, typer.Option("--what", help="What is about to be released.")],
    delta: Delta = 0.0,
    unit: UnitName = "record",
    neighbours: Relation = "replace one",
    key: Annotated[
        str | None,
        typer.Option("--key", help="Names the release: the same key again is not charged again."),
    ] = None,
    actor: ActorOption = None,
    purpose: PurposeOption = "",
    json: Json = False,
) -> None:
    """Charge a release that other software makes. Release only after this ends with exit code 0."""
    from blindsight.app.budget import charge_budget

    change = charge_budget(
        ledger,
        dataset,
        epsilon=epsilon,
        what=what,
        delta=delta,
        unit=unit,
        neighbours=neighbours,
        key=key,
        actor=actor,
        purpose=purpose,
    )
    _show_change(change, json)


def close(
    ledger: Where,
    dataset: DataSet,
    unit: UnitName = "record",
    neighbours: Relation = "replace one",
    what: Annotated[str, typer.Option("--what", help="Who closed it, and why.")] = "closed",
    actor: ActorOption = None,
    json: Json = False,
) -> None:
    """Close a budget for good: what is left is forfeited."""
    from blindsight.app.budget import close_budget

    change = close_budget(ledger, dataset, unit=unit, neighbours=neighbours, what=what, actor=actor)
    _show_change(change, json)


def show(ledger: Where, dataset: AnyDataSet = None, json: Json = False) -> None:
    """Show each data set's budget: granted, spent, left."""
    from blindsight.app.budget import budget

    result = budget(ledger, dataset)
    if json:
        emit_json(result.to_dict())
        return
    for shown in result.tables():
        console.print(_table(shown, stretch="data set"))
    for _, line in result.facts():
        console.print(line)


def entries(
    ledger: Where,
    dataset: AnyDataSet = None,
    last: Annotated[
        int, typer.Option("--last", min=1, help="Only so many of the latest, per data set.")
    ] = 20,
    everything: Annotated[bool, typer.Option("--all", help="From the first one on.")] = False,
    json: Json = False,
) -> None:
    """List a data set's entries, the latest 20 unless told otherwise."""
    from blindsight.app.budget import budget_entries

    result = budget_entries(ledger, dataset, last=None if everything else last)
    if json:
        emit_json(result.to_dict())
        return
    for shown in result.tables():
        console.print(f"[bold]{escape(shown.title)}[/]")
        console.print(_table(shown, stretch="what"))
    for _, line in result.facts():
        console.print(line)


def verify(
    ledger: MaybeWhere = None,
    dataset: AnyDataSet = None,
    known: Annotated[
        str | None, typer.Option("--known", help="A head kept elsewhere, as NUMBER:HASH.")
    ] = None,
    witness: Annotated[
        Path | None,
        typer.Option(
            "--witness", help="A witness's file or folder: every head in it must be passed."
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", help="Every line of the witness must bear this key's signature."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Check a JSON export instead of a ledger.")
    ] = None,
    json: Json = False,
) -> None:
    """Prove every chain from its first entry to its head, read only.

    Exit code 1 if one does not hold.
    """
    from blindsight.app.budget import verify_budget

    with stage_bar() as progress:
        result = verify_budget(
            ledger, dataset, known=known, witness=witness, key=key, file=file, progress=progress
        )
    if json:
        emit_json(result.to_dict())
    else:
        for each in result.datasets:
            if each.head is None:
                errors.print(
                    f"{each.dataset}: DOES NOT HOLD: {each.problem}", soft_wrap=True, markup=False
                )
            else:
                console.print(
                    f"{each.dataset}: {each.head.sequence:,} entries hold.",
                    soft_wrap=True,
                    markup=False,
                )
                console.print(f"  head {each.head.sequence}:{each.head.hash}", soft_wrap=True)
    if not result.holds:
        raise typer.Exit(1)


def witness(
    ledger: Where,
    to: Annotated[
        Path,
        typer.Option(
            "--to", help="The witness: a file, or a folder, best on another disk or host."
        ),
    ],
    dataset: AnyDataSet = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="Sign the heads with this key (ledger key).")
    ] = None,
    json: Json = False,
) -> None:
    """Verify the ledger, then note its heads in a witness: nothing before them can change
    unseen.
    """
    from blindsight.app.budget import witness_budget

    result = witness_budget(ledger, to, dataset, key=key)
    if json:
        emit_json(result.to_dict())
        return
    for name, head in result.heads.items():
        console.print(
            f"{name}: head {head.sequence}:{head.hash} is witnessed.", soft_wrap=True, markup=False
        )


def key(
    out: Annotated[Path, typer.Option("--out", help="The new key's file.")],
    json: Json = False,
) -> None:
    """Make a key to sign heads with."""
    from blindsight.app.budget import make_witness_key

    result = make_witness_key(out)
    if json:
        emit_json(result.to_dict())
        return
    console.print(result.title, soft_wrap=True, markup=False)
    console.print(f"{out}.pub: give it to those who verify.", soft_wrap=True, markup=False)


def backup(
    ledger: Where,
    out: Annotated[Path, typer.Option("--out", help="The copy: a new SQLite file.")],
    json: Json = False,
) -> None:
    """Copy the whole ledger while it may be in use, and prove the copy."""
    from blindsight.app.budget import backup_budget

    result = backup_budget(ledger, out)
    if json:
        emit_json(result.to_dict())
        return
    console.print(result.title, soft_wrap=True, markup=False)


def export(
    ledger: Where,
    out: Annotated[
        Path, typer.Option("--out", help="A .json file, which proves itself, or a .csv file.")
    ],
    dataset: AnyDataSet = None,
    json: Json = False,
) -> None:
    """Write all entries to a JSON or CSV file, after proving them."""
    from blindsight.app.budget import export_budget

    result = export_budget(ledger, out, dataset)
    if json:
        emit_json(result.to_dict())
        return
    console.print(result.title, soft_wrap=True, markup=False)


def statement(
    dataset: Annotated[str, typer.Argument(help="The data set.")],
    ledger: Where,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write it to this .html or .json file.")
    ] = None,
    vault: Annotated[
        Path | None, typer.Option("--vault", help="Also compare the ledger with this vault.")
    ] = None,
    json: Json = False,
) -> None:
    """State what was released of a data set, when, by whom, for what and at which cost."""
    from blindsight.app.budget_review import budget_statement

    result = budget_statement(ledger, dataset, vault=vault)
    if out is not None:
        result.write(out)
    if json:
        emit_json(result.to_dict())
        return
    console.print(str(result), soft_wrap=True, markup=False)
    if out is not None:
        console.print(f"wrote {out}", soft_wrap=True, markup=False)


def reconcile(
    ledger: Where,
    dataset: DataSet,
    vault: Annotated[Path, typer.Option("--vault", help="The owner's vault.")],
    release: Annotated[
        list[Path] | None, typer.Option("--release", help="A release on disk; repeat it.")
    ] = None,
    decision: Annotated[
        str | None,
        typer.Option(
            "--decision", help="'take over' what the other side knows, or 'close' the budgets."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Compare a vault with its ledger and releases: which is an older copy, and what to do.

    Exit code 1 if they do not agree.
    """
    from blindsight.app.budget_review import reconcile_budget

    result = reconcile_budget(ledger, dataset, vault, releases=release or (), decision=decision)
    if json:
        emit_json(result.to_dict())
    else:
        console.print(result.title, soft_wrap=True, markup=False)
    if not result.agrees:
        raise typer.Exit(1)


def _show_change(change: BudgetChange, json: bool) -> None:
    if json:
        emit_json(change.to_dict())
    else:
        console.print(str(change.balance), soft_wrap=True, markup=False)


def _table(shown: ResultTable, *, stretch: str) -> Table:
    """Columns as wide as their words; only `stretch` folds, and numbers are set to the right.

    The hash of an entry is left out where the terminal is narrow.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    listed = [
        number
        for number, name in enumerate(shown.columns)
        if name != "hash" or console.width >= 100
    ]
    for name in (shown.columns[number] for number in listed):
        numeric = name[0] in "εδ" or name in ("no.", "spent", "left", "used")
        table.add_column(
            name, justify="right" if numeric else "left", no_wrap=name != stretch, overflow="fold"
        )
    for row in shown.rows:
        table.add_row(*(escape(row[number]) for number in listed))
    return table
