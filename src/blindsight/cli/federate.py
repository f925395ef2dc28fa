"""`blindsight federate`: make keys, agree on a roster, run, watch; or simulate in this process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from blindsight.cli.options import ActorOption, LedgerOption, PurposeOption
from blindsight.cli.terminal import console, emit_json, errors, progress_bar, show_card, table

__all__ = ["register"]

Folder = Annotated[Path, typer.Argument(help="Your folder, as `federate join` made it.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
_COLUMNS = ("round", "users in", "sparsity", "bytes per user", "seconds", "accuracy")


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    verbs = typer.Typer(
        help="Learn a classifier over users who keep their images.", no_args_is_help=True
    )
    for verb in (join, keys, accept, run, watch, simulate, update, merge):
        verbs.command(verb.__name__)(verb)
    app.add_typer(verbs, name="federate")


def join(
    folder: Annotated[Path, typer.Argument(help="Where your folder goes; must be empty.")],
    name: Annotated[str, typer.Option(help="How the others recognise you.")],
    role: Annotated[
        str, typer.Option(help="site (user and key holder), user, holder or aggregator.")
    ] = "site",
    address: Annotated[
        str | None,
        typer.Option(help="host:port where the aggregator will listen: this site runs it."),
    ] = None,
    json: Json = False,
) -> None:
    """Make your own keys and a public request; send the request to whoever collects them.

    Your keys never leave the folder. With --address this site also runs the aggregator.
    """
    from blindsight.core import checks
    from blindsight.federated.deploy import folders
    from blindsight.federated.sums import Role

    roles = {
        "site": Role.USER | Role.HOLDER,
        "user": Role.USER,
        "holder": Role.HOLDER,
        "aggregator": Role.AGGREGATOR,
    }[checks.one_of("role", role, ("site", "user", "holder", "aggregator"))]
    if address is not None:
        roles |= Role.AGGREGATOR
    made = folders.join(folder, name, roles, address=address)
    if json:
        emit_json({"party": made.name, "request": str(made.path / "request")})
        return
    console.print(f"your keys are in {made.path}; send this file: {made.path / 'request'}")


def keys(
    roster: Annotated[Path, typer.Argument(help="The roster file to write; it is public.")],
    requests: Annotated[list[Path], typer.Argument(help="All parties' requests, users in order.")],
    public: Annotated[
        Path | None, typer.Option(help="Public rows (.npz with X, y): start and scale.")
    ] = None,
    features: Annotated[
        int | None, typer.Option(help="Without public rows: features of a row.")
    ] = None,
    classes: Annotated[
        int | None, typer.Option(help="Number of classes (default: of the public rows).")
    ] = None,
    rounds: Annotated[int, typer.Option(help="How many rounds.")] = 3,
    send: Annotated[str, typer.Option(help="change, or mask.")] = "change",
    sparsity: Annotated[float | None, typer.Option(help="Share of zeros, for mask.")] = None,
    learner: Annotated[str, typer.Option(help="proximal or sgd.")] = "proximal",
    strength: Annotated[float, typer.Option(help="Of the elastic net.")] = 1e-3,
    colluders: Annotated[
        int, typer.Option(help="How many users may be in league with the aggregator.")
    ] = 1,
    epsilon: Annotated[
        float | None, typer.Option(help="Noise: budget per user over all rounds.")
    ] = None,
    delta: Annotated[float, typer.Option(help="With --epsilon.")] = 1e-5,
    clip: Annotated[float | None, typer.Option(help="The largest l2 norm of an update.")] = None,
    groups: Annotated[
        int, typer.Option(help="Odd number of groups: bounds what lying users can do; no noise.")
    ] = 1,
    least_users: Annotated[int | None, typer.Option(help="Fewest contributors of a round.")] = None,
    patience: Annotated[
        float, typer.Option(help="Seconds without a new user that end a round.")
    ] = 60.0,
    json: Json = False,
) -> None:
    """Collect requests into one public roster; send it to every party, to be accepted.

    Whoever runs this holds nobody's secret.
    """
    from blindsight.core.errors import InvalidParameter
    from blindsight.core.storage import write_atomically
    from blindsight.federated.agreement import agree
    from blindsight.federated.deploy import folders
    from blindsight.federated.sums import Role, Roster

    if roster.exists():
        raise InvalidParameter(f"{roster} exists: a roster is never overwritten.")
    given = [folders.read_request(path) for path in requests]
    start, scale, found = _start(public, features, classes)
    agreement = agree(
        dimension=len(start),
        users=sum(Role.USER in request.roles for request in given),
        holders=sum(Role.HOLDER in request.roles for request in given),
        rounds=rounds,
        epsilon=epsilon,
        delta=delta,
        clip=clip,
        least_users=least_users,
        colluders=colluders,
        groups=groups,
    )
    settings = agreement.settings
    plan = _plan(start, scale, found, rounds, send, sparsity, learner, strength, patience)
    data = folders.make_roster(settings, plan, given)  # type: ignore[arg-type]
    write_atomically(roster, data)
    made = Roster.decode(_roster_of(data))
    guarantee, disclosure = agreement.guarantee(rounds), agreement.disclosure()
    if json:
        emit_json(
            {
                "roster": str(roster),
                "fingerprint": made.fingerprint,
                "weights": len(start),
                "guarantee": guarantee.cost.to_dict(),
                "disclosure": disclosure.rows(),
            }
        )
        return
    _show_roster(made)
    show_card(disclosure.card())
    console.print(guarantee.line())
    _note(agreement.advice())


def _roster_of(data: bytes) -> bytes:
    """The roster inside a roster file."""
    from blindsight.federated.sums.wire import Reader

    reader = Reader(data)
    reader.raw(5)
    return reader.field()


def _show_roster(roster: Any) -> None:
    settings = roster.settings
    table(
        f"{settings.users} users, {settings.n_holders} key holders, {settings.needed} open a sum",
        ("party", "roles"),
        [
            (request.name, ", ".join(str(role.name).lower() for role in request.roles))
            for request in roster.requests
        ],
    )
    console.print(f"fingerprint: {roster.fingerprint}")


def accept(
    folder: Folder,
    roster: Annotated[Path, typer.Argument(help="The roster file that you were sent.")],
    json: Json = False,
) -> None:
    """Accept a roster: check that it holds your request, and show whom you will work with.

    Compare the names and the fingerprint with the others, by telephone for example.
    """
    from blindsight.core.errors import MissingData
    from blindsight.federated.agreement import discloses
    from blindsight.federated.deploy import folders

    try:
        data = roster.read_bytes()
    except OSError as error:
        raise MissingData(f"{roster} cannot be read: {error.strerror}. Check the path.") from error
    agreed = folders.accept(folders.PartyFolder(folder), data)
    if json:
        emit_json({"fingerprint": agreed.fingerprint, "users": agreed.settings.users})
        return
    _show_roster(agreed)
    show_card(discloses(agreed.settings).card())
    console.print(f"next: blindsight federate run {folder}")


def _note(advice: str | None) -> None:
    if advice is not None:
        errors.print(f"note: {advice}")


def _start(public: Path | None, features: int | None, classes: int | None) -> tuple[Any, Any, int]:
    """Initial weights, scale and number of classes."""
    import numpy as np

    from blindsight.core.errors import InvalidParameter
    from blindsight.federated.deploy.plan import read_rows
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

    from blindsight.federated.deploy.plan import Plan

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


def run(
    folder: Folder,
    data: Annotated[
        Path | None, typer.Option(help="A user's own rows: .npz with X and y. They stay here.")
    ] = None,
    ledger: LedgerOption = None,
    actor: ActorOption = None,
    purpose: PurposeOption = "",
    test: Annotated[
        Path | None, typer.Option(help="Aggregator: labelled rows for each round's accuracy.")
    ] = None,
    bind: Annotated[
        str | None, typer.Option(help="Aggregator: listen here (default: its address).")
    ] = None,
    json: Json = False,
) -> None:
    """Run every role of your folder until the last round; after a kill, run it again."""
    import threading

    from blindsight.core.errors import InvalidParameter
    from blindsight.federated.deploy.folders import PartyFolder
    from blindsight.federated.deploy.plan import read_rows
    from blindsight.federated.deploy.running import run_aggregator, run_party
    from blindsight.federated.deploy.services import charge
    from blindsight.federated.sums import Role
    from blindsight.privacy import Ledger

    home = PartyFolder(folder)
    if Role.USER in home.roles:
        if data is None:
            raise InvalidParameter("a user needs its rows: --data rows.npz.")
        # Refuse bad rows now, not in the first round.
        home.plan.trainer(*read_rows(data), user=home.number(Role.USER))
        if ledger is not None:
            with Ledger(ledger, dataset=data.stem, actor=actor, purpose=purpose) as opened:
                errors.print(charge(home, opened).line())
    if Role.AGGREGATOR not in home.roles:
        run_party(home, data=data, say=errors.print)
    else:
        errors.print(f"aggregator at {home.address}; the model goes to {home.model}")
        party = threading.Thread(
            target=run_party, args=(home,), kwargs={"data": data, "say": errors.print}, daemon=True
        )
        if home.roles != Role.AGGREGATOR:
            party.start()
        # A minute for users who lack the last result; it is over at once when all have it.
        _show(run_aggregator(home, test=test, bind=bind, linger=60.0), json=json)
        if party.ident is not None:
            party.join(10)
    errors.print(f"{home.plan.rounds} rounds are done; the model is {home.model}")


def watch(
    folder: Folder,
    once: Annotated[bool, typer.Option("--once", help="Show the state of now, and end.")] = False,
    json: Json = False,
) -> None:
    """Watch a run as a live table, from the aggregator's folder."""
    from blindsight.federated.deploy.folders import PartyFolder
    from blindsight.federated.deploy.running import read_status
    from blindsight.federated.deploy.running import watch as statuses
    from blindsight.federated.sums import Role

    home = PartyFolder(folder).require(Role.AGGREGATOR)
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
        send=from_name(send, sparsity=sparsity),
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


def update(
    data: Annotated[Path, typer.Argument(help="Your own rows: .npz with X and y. They stay here.")],
    out: Annotated[Path, typer.Argument(help="The file to send to the other site.")],
    public: Annotated[Path, typer.Option(help="Public rows that every site has: start and scale.")],
    epsilon: Annotated[
        float, typer.Option(help="What the update may tell about all your rows together.")
    ],
    delta: Annotated[float, typer.Option(help="Of the guarantee.")] = 1e-5,
    clip: Annotated[float, typer.Option(help="The largest l2 norm of the update.")] = 1.0,
    ledger: LedgerOption = None,
    actor: ActorOption = None,
    purpose: PurposeOption = "",
    json: Json = False,
) -> None:
    """Two sites cannot have a secure sum; each sends its own update with noise instead."""
    from contextlib import nullcontext

    from blindsight.core.errors import InvalidParameter
    from blindsight.federated.deploy.plan import read_rows
    from blindsight.federated.own_updates import noised_update
    from blindsight.privacy import Ledger

    if out.exists():
        raise InvalidParameter(f"{out} exists: an update is never overwritten.")
    account = (
        nullcontext()
        if ledger is None
        else Ledger(ledger, dataset=data.stem, actor=actor, purpose=purpose)
    )
    with account as opened:
        made = noised_update(
            _public_plan(public),
            *read_rows(data),
            epsilon=epsilon,
            delta=delta,
            clip=clip,
            ledger=opened,
        )
    made.save(out)
    if json:
        emit_json({"update": str(out), "epsilon": made.epsilon, "delta": made.delta})
        return
    console.print(
        f"{out} holds your update with noise: epsilon {made.epsilon:.4g}, delta {made.delta:g} for "
        "all your rows together. It may be sent openly."
    )


def merge(
    out: Annotated[Path, typer.Argument(help="The model's file to write.")],
    updates: Annotated[list[Path], typer.Argument(help="The sites' updates.")],
    public: Annotated[Path, typer.Option(help="The public rows that the updates were made with.")],
    test: Annotated[Path | None, typer.Option(help="Labelled rows for the accuracy.")] = None,
    json: Json = False,
) -> None:
    """Make one model of several sites' own noised updates."""
    from blindsight.federated.deploy.plan import read_rows
    from blindsight.federated.own_updates import NoisedUpdate, merge_updates

    model = merge_updates(_public_plan(public), [NoisedUpdate.load(path) for path in updates])
    model.save(out)
    accuracy = None
    if test is not None:
        X, y = read_rows(test)
        accuracy = float((model.predict(X) == y).mean())
    if json:
        emit_json({"model": str(out), "updates": model.updates, "accuracy": accuracy})
        return
    told = "" if accuracy is None else f"; {accuracy:.1%} of the test rows are right"
    console.print(f"{out} holds the mean of {model.updates} updates{told}.")


def _public_plan(public: Path) -> Any:
    """The plan that follows from public rows alone, the same at every site."""
    from blindsight.federated.deploy.plan import Plan

    start, scale, classes = _start(public, None, None)
    return Plan(initial=start, scale=scale, classes=classes, rounds=1, options={"strength": 1e-3})


def _rows(data: Path | None) -> tuple[Any, Any]:
    if data is not None:
        from blindsight.federated.deploy.plan import read_rows

        return read_rows(data)
    from sklearn.datasets import load_digits

    rows, labels = load_digits(return_X_y=True)
    return rows, labels
