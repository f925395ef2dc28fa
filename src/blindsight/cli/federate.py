"""`blindsight federate`: make keys, start each role, watch a run; or simulate one in this
process.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from blindsight.cli.terminal import console, emit_json, errors, progress_bar, show_card, table

__all__ = ["register"]

Folder = Annotated[Path, typer.Argument(help="The party's folder, as `federate keys` made it.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
_COLUMNS = ("round", "users in", "sparsity", "bytes per user", "seconds", "accuracy")


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    verbs = typer.Typer(
        help="Learn a classifier over users who keep their images.", no_args_is_help=True
    )
    for verb in (keys, join, aggregator, keygen, holder, user, watch, simulate):
        verbs.command(verb.__name__)(verb)
    app.add_typer(verbs, name="federate")


def keys(
    folder: Annotated[Path, typer.Argument(help="Where the parties' folders go; must be empty.")],
    public: Annotated[
        Path | None, typer.Option(help="Public rows (.npz with X, y): start and scale.")
    ] = None,
    features: Annotated[
        int | None, typer.Option(help="Without public rows: features of a row.")
    ] = None,
    classes: Annotated[
        int | None, typer.Option(help="Number of classes (default: of the public rows).")
    ] = None,
    users: Annotated[int, typer.Option(help="How many users.")] = 5,
    rounds: Annotated[int, typer.Option(help="How many rounds.")] = 3,
    send: Annotated[str, typer.Option(help="change, weights, top-k or mask.")] = "change",
    sparsity: Annotated[
        float | None, typer.Option(help="Share of zeros, for weights, top-k and mask.")
    ] = None,
    learner: Annotated[str, typer.Option(help="proximal or sgd.")] = "proximal",
    strength: Annotated[float, typer.Option(help="Of the elastic net.")] = 1e-3,
    mode: Annotated[str, typer.Option(help="pad, or paper to the letter.")] = "pad",
    holders: Annotated[
        int, typer.Option(help="Key holders in place of one key generator; 5 is a good number.")
    ] = 0,
    needed: Annotated[int, typer.Option(help="With --holders: how many open a sum together.")] = 3,
    group: Annotated[
        int | None, typer.Option(help="Sum whole groups of so many users; 1: any (default: 3).")
    ] = None,
    colluders: Annotated[
        int, typer.Option(help="How many users may be in league with the aggregator.")
    ] = 1,
    epsilon: Annotated[
        float | None, typer.Option(help="Noise: budget per user over all rounds.")
    ] = None,
    delta: Annotated[float, typer.Option(help="With --epsilon.")] = 1e-5,
    clip: Annotated[float, typer.Option(help="With --epsilon: l2 bound of an update.")] = 1.0,
    least_users: Annotated[int | None, typer.Option(help="Fewest contributors of a round.")] = None,
    least_per_coordinate: Annotated[
        int,
        typer.Option(
            help="With weights and top-k: users vote first, and fewer than so many reveal nothing."
        ),
    ] = 3,
    patience: Annotated[
        float, typer.Option(help="Seconds without a new user that end a round.")
    ] = 60.0,
    key_bits: Annotated[int, typer.Option(help="2048, or 3072 for the long term.")] = 2048,
    host: Annotated[str, typer.Option(help="The aggregator's host name or address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The aggregator's port.")] = 9092,
    carrier: Annotated[
        str, typer.Option(help="mailbox (HTTPS), or flower where sites run Flower.")
    ] = "mailbox",
    json: Json = False,
) -> None:
    """Make keys, and a folder and an invitation for each party.

    Hand them out, keep your own, delete the rest.
    """
    from blindsight.federated import keys as paillier
    from blindsight.federated.agreement import agree
    from blindsight.federated.flower.homes import make_homes
    from blindsight.federated.flower.invitations import invite

    with progress_bar("making keys") as progress:
        start, scale, found = _start(public, features, classes)
        agreement = agree(
            dimension=len(start),
            users=users,
            rounds=rounds,
            epsilon=epsilon,
            delta=delta,
            clip=clip,
            least_users=least_users,
            mode=mode,
            group=group,
            colluders=colluders,
            holders=(needed, holders) if holders else None,
            least_per_coordinate=least_per_coordinate
            if mode == "pad" and epsilon is None and send in ("weights", "top-k")
            else 1,
        )
        progress(1, 3)
        key = None if holders else paillier.generate(key_bits)
        progress(2, 3)
        plan = _plan(start, scale, found, rounds, send, sparsity, learner, strength, patience)
        homes = make_homes(
            folder, agreement.settings, key, plan, host=host, port=port, carrier=carrier
        )
        for home in homes:
            invite(home, folder / f"{home.path.name}.invitation")
    guarantee, disclosure = agreement.guarantee(rounds), agreement.disclosure()
    if json:
        emit_json(
            {
                "folders": [str(home.path) for home in homes],
                "weights": len(start),
                "guarantee": guarantee.cost.to_dict(),
                "disclosure": disclosure.rows(),
            }
        )
        return
    table(
        f"{users} users, {len(start):,} weights",
        ("party", "folder"),
        [(h.path.name, str(h.path)) for h in homes],
    )
    show_card(disclosure.card())
    console.print(guarantee.line())
    _note(agreement.advice())


def _note(advice: str | None) -> None:
    if advice is not None:
        errors.print(f"note: {advice}")


def _start(public: Path | None, features: int | None, classes: int | None) -> tuple[Any, Any, int]:
    """Initial weights, scale and number of classes."""
    import numpy as np

    from blindsight.core.errors import InvalidParameter
    from blindsight.federated.flower.plan import read_rows
    from blindsight.federated.learning import initial_weights, linear

    if public is None:
        if features is None or classes is None:
            raise InvalidParameter("say --public rows.npz, or both --features and --classes.")
        zero = np.zeros(linear.rows_of(classes) * (features + 1))
        return zero, np.vstack([np.zeros(features), np.ones(features)]), classes
    X, y = read_rows(public)
    deviation = X.std(axis=0)
    scale = np.vstack([X.mean(axis=0), np.where(deviation > 1e-9, deviation, 1.0)])
    count = int(y.max()) + 1 if classes is None else classes
    return initial_weights((X - scale[0]) / scale[1], y, classes=count), scale, count


def _plan(
    start: Any,
    scale: Any,
    classes: int,
    rounds: int,
    send: str,
    sparsity: float | None,
    learner: str,
    strength: float,
    patience: float,
) -> Any:
    import secrets

    from blindsight.federated.flower.plan import Plan

    return Plan(
        initial=start,
        scale=scale,
        classes=classes,
        rounds=rounds,
        learner=learner,
        options={"strength": strength},
        send=send,
        sparsity=sparsity,
        mask_seed=secrets.randbits(62),
        patience=patience,
    )


def join(
    invitation: Annotated[Path, typer.Argument(help="The file you were sent.")],
    folder: Annotated[Path, typer.Argument(help="Where your party's folder goes; must be empty.")],
    json: Json = False,
) -> None:
    """Accept an invitation: make your party's folder from the one file you were sent, and say what
    you will see.
    """
    from blindsight.federated.agreement import discloses
    from blindsight.federated.flower import invitations
    from blindsight.federated.flower.parties import settings_of

    home = invitations.join(invitation, folder)
    if json:
        emit_json({"party": home.name, "address": home.about["address"], "next": home.command})
        return
    console.print(
        f"you are {home.name} at {home.about['address']}; next: blindsight federate {home.command}"
    )
    show_card(discloses(settings_of(home)).card())


def aggregator(
    folder: Folder,
    test: Annotated[
        Path | None, typer.Option(help="Labelled rows (.npz) for each round's accuracy.")
    ] = None,
    bind: Annotated[
        str | None, typer.Option(help="Listen here (default: the host the keys were made for).")
    ] = None,
    json: Json = False,
) -> None:
    """Run the aggregator until the last round; after a kill, run it again and it goes on."""
    from blindsight.federated.flower.homes import Home
    from blindsight.federated.flower.running import run_aggregator

    home = Home(folder).require("aggregator")
    errors.print(f"aggregator at {home.about['address']}; the model goes to {home.model}")
    # A minute for users who have not fetched the last result; it is over at once when all have.
    _show(run_aggregator(home, test=test, bind=bind, linger=60.0, say=errors.print), json=json)


def keygen(folder: Folder) -> None:
    """Run the key generator's node until it is stopped."""
    from blindsight.federated.flower.homes import Home

    _keep(Home(folder).require("keygen"))


def holder(folder: Folder) -> None:
    """Run a key holder's node until it is stopped."""
    from blindsight.federated.flower.homes import Home

    _keep(Home(folder).require("holder"))


def user(
    folder: Folder,
    data: Annotated[
        Path, typer.Option(help="The user's own rows: .npz with X and y. They stay here.")
    ],
    ledger: Annotated[
        str | None,
        typer.Option(
            envvar="BLINDSIGHT_LEDGER", help="Charge this ledger before the first round, once."
        ),
    ] = None,
) -> None:
    """Run a user's node until the last round; after a kill, run it again and it goes on."""
    from blindsight.federated.flower.homes import Home
    from blindsight.federated.flower.parties import charge
    from blindsight.federated.flower.plan import read_rows
    from blindsight.privacy import Ledger

    home = Home(folder).require("user")
    home.plan.trainer(
        *read_rows(data), user=home.number
    )  # refuse bad rows now, not in the first round
    if ledger is not None:
        with Ledger(ledger, dataset=data.stem) as opened:
            errors.print(charge(home, opened).line())
    _keep(home, data=data)
    errors.print(f"{home.plan.rounds} rounds are done; the model is {home.model}")


def _keep(home: Any, *, data: Path | None = None) -> None:
    """Run a party over the carrier that its federation chose, until it is stopped."""
    from blindsight.federated.mailbox.party import keep_party

    keep_party(home, data=data, say=errors.print)


def watch(
    folder: Folder,
    once: Annotated[bool, typer.Option("--once", help="Show the state of now, and end.")] = False,
    json: Json = False,
) -> None:
    """Watch a run as a live table, from the aggregator's folder."""
    from blindsight.federated.flower.homes import Home
    from blindsight.federated.flower.running import read_status
    from blindsight.federated.flower.running import watch as statuses

    home = Home(folder).require("aggregator")
    _show([read_status(home)] if once else statuses(home), json=json)


def _show(statuses: Iterable[dict[str, Any] | None], *, json: bool) -> None:
    """A live table on a terminal; the last state as JSON for machines."""
    last: dict[str, Any] | None = None
    if json:
        for last in statuses:  # noqa: B007
            continue
        emit_json(last)
        return
    with Live(_table(None), console=console, auto_refresh=False) as live:
        for status in statuses:
            live.update(_table(status), refresh=True)


def _table(status: dict[str, Any] | None) -> Table:
    shown = Table(*(_COLUMNS), title="federation", title_justify="left")
    if status is None:
        shown.title = "waiting for the first round"
        return shown
    for entry in status["rounds"]:
        shown.add_row(*_cells(entry, status["users"]))
    if len(status["rounds"]) < status["planned"]:
        shown.add_row(
            str(status["round"]),
            f"{status['users_in']} of {status['users']}",
            status["phase"],
            "",
            "",
            "",
        )
    shown.title = f"{len(status['rounds'])} of {status['planned']} rounds"
    shown.caption = status.get("waiting") or None
    return shown


def _cells(entry: dict[str, Any], users: int) -> list[str]:
    accuracy = "" if entry["accuracy"] is None else f"{entry['accuracy']:.4f}"
    return [
        str(entry["round"]),
        f"{entry['users']} of {users}",
        f"{entry['sparsity']:.1%}",
        f"{entry['bytes']:,.0f}",
        f"{entry['seconds']:.1f}",
        accuracy,
    ]


def simulate(
    data: Annotated[
        Path | None, typer.Option(help="Rows (.npz with X, y); without, scikit-learn's digits.")
    ] = None,
    users: Annotated[int, typer.Option(help="How many users share the rows.")] = 5,
    rounds: Annotated[int, typer.Option(help="How many rounds.")] = 3,
    send: Annotated[str, typer.Option(help="change, weights, top-k or mask.")] = "change",
    sparsity: Annotated[
        float | None, typer.Option(help="Share of zeros, for weights, top-k and mask.")
    ] = None,
    mode: Annotated[str, typer.Option(help="pad or paper.")] = "pad",
    epsilon: Annotated[
        float | None, typer.Option(help="Noise: budget per user over all rounds.")
    ] = None,
    encrypt: Annotated[
        bool, typer.Option(help="--no-encrypt computes the same numbers without ciphertexts.")
    ] = True,
    out: Annotated[Path | None, typer.Option(help="Save the model here.")] = None,
    seed: Annotated[int, typer.Option(help="Of the split.")] = 0,
    json: Json = False,
) -> None:
    """All roles in this process, on one set of rows: a tenth public, a fifth to test on, the rest
    dealt to users.
    """
    import dataclasses

    import numpy as np

    from blindsight.core import checks
    from blindsight.federated import FederatedClassifier, Pad, Paper, SumNoise
    from blindsight.federated.learning.sending import from_name

    X, y = _rows(data)
    order = np.random.default_rng(seed).permutation(len(X))
    public, test, private = np.split(order, [len(X) // 10, len(X) // 10 + len(X) // 5])
    model = FederatedClassifier(
        classes=None
        if epsilon is None
        else np.unique(y[public]),  # the public rows name the classes
        users=users,
        rounds=rounds,
        send=from_name(send, sparsity=sparsity, least=1 if send == "weights" else 3),
        sums=Paper() if checks.one_of("mode", mode, ("pad", "paper")) == "paper" else Pad(),
        noise=None if epsilon is None else SumNoise(epsilon=epsilon),
        encrypt=encrypt,
    )
    with progress_bar("rounds") as progress:
        model.fit(
            X[private],
            y[private],
            public=(X[public], y[public]),
            test=(X[test], y[test]),
            progress=progress,
        )
    if out is not None:
        model.save(out)
    rounds_ = [dataclasses.asdict(entry) for entry in model.rounds_]
    if json:
        emit_json({"rounds": rounds_, "guarantee": model.guarantee_.cost.to_dict()})
        return
    table("simulation", _COLUMNS, [_cells(entry, users) for entry in rounds_])
    show_card(model.disclosure_.card())
    console.print(model.guarantee_.line())
    _note(model.advice_)


def _rows(data: Path | None) -> tuple[Any, Any]:
    if data is not None:
        from blindsight.federated.flower.plan import read_rows

        return read_rows(data)
    from sklearn.datasets import load_digits

    rows, labels = load_digits(return_X_y=True)
    return rows, labels
