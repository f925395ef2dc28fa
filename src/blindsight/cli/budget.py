"""`blindsight budget`: grant a budget, see what is spent, prove that nothing was changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from blindsight.cli.terminal import console, emit_json, errors, progress_bar

if TYPE_CHECKING:
    from blindsight.privacy.ledger import Amount, Balance, Entry, Head, Ledger

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
    typer.Option("--unit", help="bit, record, person, pair, kappa pairs, pixel, query or user."),
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
    for verb in (grant, charge, close, show, entries, verify, witness, key, backup, export):
        verbs.command(verb.__name__)(verb)
    app.add_typer(verbs, name="budget")
    app.add_typer(verbs, name="ledger", hidden=True)


def grant(
    ledger: Where,
    dataset: DataSet,
    epsilon: Epsilon,
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
    json: Json = False,
) -> None:
    """State a data set's budget in all (not what to add); starts the ledger if there is none."""
    from blindsight.privacy.ledger import Ledger

    with Ledger(ledger, dataset=dataset) as opened:
        entry = opened.grant(
            _cost(epsilon, delta, unit, neighbours),
            what=what,
            composition=composition,  # type: ignore[arg-type]
        )
        _say(opened, entry, json)


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
    json: Json = False,
) -> None:
    """Charge a release that other software makes. Release only after this ends with exit code 0."""
    from blindsight.privacy.ledger import Ledger

    with Ledger(ledger, dataset=dataset, create=False) as opened:
        entry = opened.charge(_cost(epsilon, delta, unit, neighbours), what=what, key=key)
        _say(opened, entry, json)


def close(
    ledger: Where,
    dataset: DataSet,
    unit: UnitName = "record",
    neighbours: Relation = "replace one",
    what: Annotated[str, typer.Option("--what", help="Who closed it, and why.")] = "closed",
    json: Json = False,
) -> None:
    """Close a budget for good: what is left is forfeited."""
    from blindsight.privacy.ledger import Ledger

    cost = _cost(0.0, 0.0, unit, neighbours)
    with Ledger(ledger, dataset=dataset, create=False) as opened:
        entry = opened.close_budget(cost.unit, cost.neighbours, what=what)
        _say(opened, entry, json)


def show(ledger: Where, dataset: AnyDataSet = None, json: Json = False) -> None:
    """Show each data set's budget: granted, spent, left."""
    balances = [balance for opened in _each(ledger, dataset) for balance in opened.balances()]
    if json:
        emit_json({"balances": [_balance(balance) for balance in balances]})
        return
    console.print(_balances_table(balances) if balances else "No budget has been granted here.")


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
    chains = {}
    for opened in _each(ledger, dataset):
        after = 0 if everything else max(0, opened.head().sequence - last)
        chains[opened.dataset] = list(opened.entries(after=after))
    if json:
        emit_json({"entries": [entry.to_dict() for found in chains.values() for entry in found]})
        return
    for name, found in chains.items():
        console.print(f"[bold]{escape(name)}[/]")
        console.print(_entries_table(found))
    if not chains:
        console.print("There are no entries.")


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
    results = (
        _verify_file(file)
        if file is not None
        else _verify_ledger(ledger, dataset, known, witness, key)
    )
    if json:
        emit_json({"datasets": results})
    else:
        for result in results:
            if result["holds"]:
                console.print(
                    f"{result['dataset']}: {result['entries']:,} entries hold.",
                    soft_wrap=True,
                    markup=False,
                )
                console.print(f"  head {result['entries']}:{result['hash']}", soft_wrap=True)
            else:
                errors.print(
                    f"{result['dataset']}: DOES NOT HOLD: {result['problem']}",
                    soft_wrap=True,
                    markup=False,
                )
    if not all(result["holds"] for result in results):
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
    from blindsight.privacy.ledger import SigningKey
    from blindsight.privacy.ledger import witness as note

    signing = None if key is None else SigningKey.read(key)
    heads = note(_each(ledger, dataset, readonly=True), to, key=signing)
    if json:
        emit_json({"to": str(to), "heads": {name: head._asdict() for name, head in heads.items()}})
        return
    for name, head in heads.items():
        console.print(
            f"{name}: head {head.sequence}:{head.hash} is witnessed.", soft_wrap=True, markup=False
        )


def key(
    out: Annotated[Path, typer.Option("--out", help="The new key's file.")],
    json: Json = False,
) -> None:
    """Make a key to sign heads with."""
    from blindsight.privacy.ledger import make_key

    made = make_key(out)
    if json:
        emit_json({"key": str(out), "fingerprint": made.fingerprint})
        return
    console.print(f"{out}: keep it secret. It is {made.fingerprint}.", soft_wrap=True, markup=False)
    console.print(f"{out}.pub: give it to those who verify.", soft_wrap=True, markup=False)


def backup(
    ledger: Where,
    out: Annotated[Path, typer.Option("--out", help="The copy: a new SQLite file.")],
    json: Json = False,
) -> None:
    """Copy the whole ledger while it may be in use, and prove the copy."""
    from blindsight.privacy.ledger import backup as copy

    heads = copy(ledger, out)
    if json:
        emit_json(
            {"out": str(out), "heads": {name: head._asdict() for name, head in heads.items()}}
        )
        return
    console.print(f"{len(heads)} data sets are in {out}, verified.", soft_wrap=True, markup=False)


def export(
    ledger: Where,
    out: Annotated[
        Path, typer.Option("--out", help="A .json file, which proves itself, or a .csv file.")
    ],
    dataset: AnyDataSet = None,
    json: Json = False,
) -> None:
    """Write all entries to a JSON or CSV file, after proving them."""
    from blindsight.core.errors import InvalidParameter
    from blindsight.privacy.ledger import to_csv, to_json

    opened = list(_each(ledger, dataset))
    if out.suffix not in (".json", ".csv"):
        raise InvalidParameter(f"--out must end in .json or .csv, got {out.name!r}.")
    heads = {each.dataset: each.verify() for each in opened}
    text = (
        to_json(opened)
        if out.suffix == ".json"
        else to_csv(entry for each in opened for entry in each.entries())
    )
    try:
        out.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise InvalidParameter(f"--out {out} cannot be written: {error.strerror}.") from error
    count = sum(head.sequence for head in heads.values())
    if json:
        emit_json({"out": str(out), "entries": count, "datasets": list(heads)})
    else:
        console.print(
            f"{count:,} entries of {len(heads)} data sets are in {out}.",
            soft_wrap=True,
            markup=False,
        )


def _verify_ledger(
    where: str | None, dataset: str | None, known: str | None, seen: Path | None, key: Path | None
) -> list[dict[str, Any]]:
    from blindsight.core.errors import InvalidParameter, LedgerTampered
    from blindsight.privacy.ledger import SigningKey, read_witness

    if where is None:
        raise InvalidParameter(
            "say which ledger, with --ledger or BLINDSIGHT_LEDGER, or which export, with --file."
        )
    if known is not None and dataset is None:
        raise InvalidParameter("--known is the head of one data set: say which, with --dataset.")
    if key is not None and seen is None:
        raise InvalidParameter("--key checks a witness: say which, with --witness.")
    results = []
    heads = (
        {}
        if seen is None
        else read_witness(seen, key=None if key is None else SigningKey.read(key))
    )
    if known is not None and dataset is not None:
        heads.setdefault(dataset, []).append(_head(known))
    opened_all = _each(where, dataset, readonly=True)
    for name in heads.keys() - {opened.dataset for opened in opened_all}:
        if dataset in (None, name):
            problem = (
                f"the witness knows data set {name!r}, and the ledger does not: it was removed."
            )
            results.append({"dataset": name, "holds": False, "problem": problem})
    for opened in opened_all:
        try:
            with progress_bar(f"verifying {opened.dataset}") as progress:
                head = opened.verify(known=heads.get(opened.dataset, ()), progress=progress)
            results.append(_holds(opened.dataset, head))
        except LedgerTampered as error:
            results.append({"dataset": opened.dataset, "holds": False, "problem": str(error)})
    return results


def _verify_file(file: Path) -> list[dict[str, Any]]:
    from blindsight.core.errors import InvalidParameter, LedgerTampered
    from blindsight.privacy.ledger import check_json

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"--file {file} cannot be read as text.") from error
    try:
        return [_holds(dataset, head) for dataset, head in check_json(text).items()]
    except LedgerTampered as error:
        return [{"dataset": str(file), "holds": False, "problem": str(error)}]


def _holds(dataset: str, head: Head) -> dict[str, Any]:
    return {"dataset": dataset, "holds": True, "entries": head.sequence, "hash": head.hash}


def _head(text: str) -> Head:
    from blindsight.core.errors import InvalidParameter
    from blindsight.privacy.ledger import Head

    number, colon, digest = text.partition(":")
    if not number.isdecimal() or not colon or len(digest) != 64:
        raise InvalidParameter("--known must be NUMBER:HASH, as verify prints it.")
    return Head(int(number), digest)


def _each(where: str, dataset: str | None, *, readonly: bool = False) -> list[Ledger]:
    from blindsight.core.errors import InvalidParameter
    from blindsight.privacy.ledger import Ledger, datasets

    names = datasets(where, readonly=readonly)
    if dataset is not None and dataset not in names:
        known = ", ".join(names) or "none yet"
        raise InvalidParameter(f"the ledger has no data set {dataset!r}. It has: {known}.")
    return [
        Ledger(where, dataset=name, create=False, readonly=readonly)
        for name in names
        if dataset in (None, name)
    ]


def _cost(epsilon: float, delta: float, unit: str, neighbours: str) -> Any:
    from blindsight.privacy import Cost

    return Cost(epsilon=epsilon, delta=delta, unit=unit, neighbours=neighbours)  # type: ignore[arg-type]


def _say(opened: Ledger, entry: Entry, json: bool) -> None:
    balance = opened.balance(entry.unit, entry.neighbours)  # type: ignore[arg-type]
    if json:
        emit_json({"entry": entry.to_dict(), "balance": _balance(balance)})
    else:
        console.print(str(balance), soft_wrap=True, markup=False)


def _balance(balance: Balance) -> dict[str, Any]:
    parts = {"budget": balance.budget, "spent": balance.spent, "remaining": balance.remaining}
    amounts = {
        name: {
            "epsilon": part.epsilon,
            "delta": part.delta,
            "micro_epsilon": part.micro_epsilon,
            "atto_delta": part.atto_delta,
        }
        for name, part in parts.items()
    }
    names = {"dataset": balance.dataset, "unit": balance.unit, "neighbours": balance.neighbours}
    if balance.composition == "zcdp":
        for name, part in parts.items():
            amounts[name] |= {"rho": part.rho, "pico_rho": part.pico_rho}
    return names | amounts | {"closed": balance.closed, "composition": balance.composition}


def _balances_table(balances: list[Balance]) -> Table:
    deltas = any(balance.budget.atto_delta or balance.spent.atto_delta for balance in balances)
    rows = []
    for balance in balances:
        row = {
            "data set": balance.dataset,
            "per": balance.unit,
            "neighbours": _relation(balance.neighbours),
        }
        row |= {
            "ε": _epsilon(balance.budget),
            "spent": _epsilon(balance.spent),
            "left": _epsilon(balance.remaining),
        }
        if deltas:
            row |= {"δ": _delta(balance.budget), "δ left": _delta(balance.remaining)}
        rows.append(row | {"used": "closed" if balance.closed else _used(balance)})
    return _table(rows, stretch="data set")


def _entries_table(found: list[Entry]) -> Table:
    deltas = any(entry.atto_delta for entry in found)
    relations = len({entry.neighbours for entry in found}) > 1
    rows = []
    for entry in found:
        row = {
            "no.": f"{entry.sequence:,}",
            "time (UTC)": entry.time[:16].replace("T", " "),
            "kind": entry.kind,
        }
        row |= {"ε": _epsilon(entry.amount)} | ({"δ": _delta(entry.amount)} if deltas else {})
        row |= {"per": entry.unit} | (
            {"neighbours": _relation(entry.neighbours)} if relations else {}
        )
        row |= {"what": entry.what}
        rows.append(row | ({"hash": entry.hash[:12]} if console.width >= 100 else {}))
    return _table(rows, stretch="what")


def _table(rows: list[dict[str, str]], *, stretch: str) -> Table:
    """Columns as wide as their words; only `stretch` folds, and numbers are set to the right."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in rows[0] if rows else ():
        numeric = name[0] in "εδ" or name in ("no.", "spent", "left", "used")
        shown.add_column(
            name, justify="right" if numeric else "left", no_wrap=name != stretch, overflow="fold"
        )
    for row in rows:
        shown.add_row(*(escape(cell) for cell in row.values()))
    return shown


def _relation(neighbours: str) -> str:
    return {"replace one": "replace", "add or remove one": "add/remove"}.get(neighbours, neighbours)


def _epsilon(amount: Amount) -> str:
    return str(amount).removeprefix("ε = ").partition(", δ")[0]


def _delta(amount: Amount) -> str:
    return f"{amount.delta:.4g}" if amount.atto_delta else "0"


def _used(balance: Balance) -> str:
    """How much of the budget is used: of epsilon or of delta, whichever is nearer its end; rounded
    up.
    """
    if balance.composition == "zcdp":
        return f"{-(-100 * balance.spent.pico_rho // balance.budget.pico_rho) if balance.budget.pico_rho else 0}%"  # noqa: E501
    pairs = (
        (balance.spent.micro_epsilon, balance.budget.micro_epsilon),
        (balance.spent.atto_delta, balance.budget.atto_delta),
    )
    return f"{max(-(-100 * spent // budget) if budget else 0 for spent, budget in pairs)}%"
