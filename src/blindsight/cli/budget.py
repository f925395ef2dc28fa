"""`blindsight budget`: grant budgets, show what is spent, verify the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from blindsight.cli.options import ActorOption, LargeEpsilonOption, PurposeOption, unit_name
from blindsight.cli.terminal import console, emit_json, errors, print_result, stage_bar

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
DataSet = Annotated[str, typer.Option("--dataset", help="The data set that the budget is for.")]
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
    """Add the verbs of `budget` to the command line."""
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
    """Set the total budget of a data set (not an amount to add); create the ledger if needed."""
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
    """Close a budget for good. What is left of it is forfeited."""
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
    for content in result.tables():
        console.print(_table(content, stretch="data set"))
    for _, line in result.facts():
        console.print(line)


def entries(
    ledger: Where,
    dataset: AnyDataSet = None,
    last: Annotated[
        int,
        typer.Option("--last", min=1, help="The number of latest entries to show, per data set."),
    ] = 20,
    everything: Annotated[bool, typer.Option("--all", help="Show all entries.")] = False,
    json: Json = False,
) -> None:
    """List the entries of a data set, by default the latest 20."""
    from blindsight.app.budget import budget_entries

    result = budget_entries(ledger, dataset, last=None if everything else last)
    if json:
        emit_json(result.to_dict())
        return
    for content in result.tables():
        console.print(f"[bold]{escape(content.title)}[/]")
        console.print(_table(content, stretch="what"))
    for _, line in result.facts():
        console.print(line)


def verify(
    ledger: MaybeWhere = None,
    dataset: AnyDataSet = None,
    known: Annotated[
        str | None, typer.Option("--known", help="A head that you noted elsewhere, as NUMBER:HASH.")
    ] = None,
    witness: Annotated[
        Path | None,
        typer.Option(
            "--witness", help="A witness's file or folder: the chain must contain every head in it."
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", help="Every line of the witness must be signed with this key."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Check a JSON export instead of a ledger.")
    ] = None,
    json: Json = False,
) -> None:
    """Verify every chain from its first entry to its head, without writing.

    The exit code is 1 if a chain was changed.
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
        Path | None, typer.Option("--key", help="Sign the heads with this key (see budget key).")
    ] = None,
    json: Json = False,
) -> None:
    """Verify the ledger, then note its heads in a witness, so that later changes are detected."""
    from blindsight.app.budget import witness_budget

    result = witness_budget(ledger, to, dataset, key=key)
    if json:
        emit_json(result.to_dict())
        return
    for name, head in result.heads.items():
        console.print(
            f"{name}: head {head.sequence}:{head.hash} is noted in {to}.",
            soft_wrap=True,
            markup=False,
        )


def key(
    out: Annotated[Path, typer.Option("--out", help="The new key's file.")],
    json: Json = False,
) -> None:
    """Make a key that signs the heads in a witness."""
    from blindsight.app.budget import make_witness_key

    result = make_witness_key(out)
    if json:
        emit_json(result.to_dict())
        return
    console.print(result.title, soft_wrap=True, markup=False)
    console.print(
        f"{out}.pub: give this file to those who verify the witness.", soft_wrap=True, markup=False
    )


def backup(
    ledger: Where,
    out: Annotated[Path, typer.Option("--out", help="The copy: a new SQLite file.")],
    json: Json = False,
) -> None:
    """Copy the whole ledger, also while it is in use, and verify the copy."""
    from blindsight.app.budget import backup_budget

    result = backup_budget(ledger, out)
    print_result(result, as_json=json, text=result.title)


def export(
    ledger: Where,
    out: Annotated[
        Path,
        typer.Option(
            "--out", help="A .json file, which can be verified by itself, or a .csv file."
        ),
    ],
    dataset: AnyDataSet = None,
    json: Json = False,
) -> None:
    """Verify all entries, and write them to a JSON or CSV file."""
    from blindsight.app.budget import export_budget

    result = export_budget(ledger, out, dataset)
    print_result(result, as_json=json, text=result.title)


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
    """State what was released of a data set: when, by whom, for what purpose and at which cost."""
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
        list[Path] | None, typer.Option("--release", help="A release on disk; may be repeated.")
    ] = None,
    decision: Annotated[
        str | None,
        typer.Option(
            "--decision",
            help="'take over' what the older copy lacks, or 'close' the budgets.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Compare a vault with its ledger and releases; say which one is an older copy and what to do.

    The exit code is 1 if they do not agree.
    """
    from blindsight.app.budget_review import reconcile_budget

    result = reconcile_budget(ledger, dataset, vault, releases=release or (), decision=decision)
    print_result(result, as_json=json, text=result.title)
    if not result.agrees:
        raise typer.Exit(1)


def _show_change(change: BudgetChange, json: bool) -> None:
    print_result(change, as_json=json, text=str(change.balance))


def _table(content: ResultTable, *, stretch: str) -> Table:
    """Return a table in which only the column `stretch` wraps and numbers are right-aligned.

    The hash of an entry is omitted if the terminal is narrower than 100 columns.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    listed = [
        number
        for number, name in enumerate(content.columns)
        if name != "hash" or console.width >= 100
    ]
    for name in (content.columns[number] for number in listed):
        numeric = name[0] in "εδ" or name in ("no.", "spent", "left", "used")
        table.add_column(
            name, justify="right" if numeric else "left", no_wrap=name != stretch, overflow="fold"
        )
    for row in content.rows:
        table.add_row(*(escape(row[number]) for number in listed))
    return table
