"""`blindsight federate`: join, agree on a roster, run and watch; or simulate in this process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from blindsight.cli.options import (
    ActorOption,
    LargeEpsilonOption,
    LedgerOption,
    PurposeOption,
    unit_name,
)
from blindsight.cli.terminal import (
    console,
    emit_json,
    errors,
    print_result,
    progress_bar,
    show_card,
    show_files,
    show_shared,
    stage_bar,
    table,
)

if TYPE_CHECKING:
    from blindsight.app.federation import Agreed

__all__ = ["register"]

Folder = Annotated[Path, typer.Argument(help="Your folder, as `federate join` made it.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
Labels = Annotated[
    str | None,
    typer.Option(help="Labels of photos: a table, FILE:COLUMN or keywords (default: subfolders)."),
]
_COLUMNS = ("round", "users in", "sparsity", "bytes per user", "seconds", "accuracy")


def register(app: typer.Typer) -> None:
    """Add the verbs of `federate` to the command line."""
    verbs = typer.Typer(
        help="Train a classifier across users whose images stay with them.", no_args_is_help=True
    )
    for verb in (join, keys, accept, run, watch, simulate, new, update, merge):
        verbs.command(verb.__name__)(verb)
    verbs.command("user", hidden=True)(run)
    app.add_typer(verbs, name="federate")


def new(
    folder: Annotated[Path, typer.Argument(help="Where the example goes; must be empty.")],
    json: Json = False,
) -> None:
    """Write a runnable Flower app whose sites share only sums, as a start for your own."""
    from blindsight.app.flower_example import new_federation

    example = new_federation(folder)
    print_result(example, as_json=json)


def join(
    folder: Annotated[Path, typer.Argument(help="Where your folder goes; must be empty.")],
    name: Annotated[str, typer.Option(help="Your name, as the others see it.")],
    role: Annotated[
        str, typer.Option(help="site (user and key holder), user, holder or aggregator.")
    ] = "site",
    address: Annotated[
        str | None,
        typer.Option(help="host:port where the aggregator will listen: this site runs it."),
    ] = None,
    json: Json = False,
) -> None:
    """Make your own keys and a public request; send the request to the party that collects them.

    Your keys never leave the folder. With --address this site also runs the aggregator.
    """
    from blindsight.app.federation import join_federation

    joined = join_federation(folder, name, role=role, address=address)
    if json:
        emit_json({"party": joined.party, "request": str(joined.request)})
        return
    console.print(f"Your keys are in {joined.request.parent}. Send this file: {joined.request}")


def keys(
    roster: Annotated[Path, typer.Argument(help="The roster file to write; it is public.")],
    requests: Annotated[list[Path], typer.Argument(help="All parties' requests, users in order.")],
    public: Annotated[
        Path | None,
        typer.Option(
            help="Public photos in subfolders, or rows (.npz with X, y), for start and scale."
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="How photos become rows: lite0, lite2, both, pixels, a folder of ONNX."),
    ] = None,
    features: Annotated[
        int | None, typer.Option(help="For rows without public rows: the number of features.")
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(help="The classes' names, separated by commas; or how many there are."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="With --epsilon per record: statistics (one round, the default for photos) or "
            "gradients (the default for rows); without: updates."
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="How many rounds (default: updates 3, gradients 30).")
    ] = None,
    send: Annotated[str, typer.Option(help="change, or mask.")] = "change",
    sparsity: Annotated[float | None, typer.Option(help="Share of zeros, for mask.")] = None,
    learner: Annotated[str, typer.Option(help="proximal or sgd.")] = "proximal",
    strength: Annotated[float, typer.Option(help="Strength of the elastic net.")] = 1e-3,
    colluders: Annotated[
        int, typer.Option(help="How many users may collude with the aggregator.")
    ] = 1,
    epsilon: Annotated[
        float | None, typer.Option(help="Noise: budget over all rounds, per --unit.")
    ] = None,
    large_epsilon: LargeEpsilonOption = False,
    unit: Annotated[
        str,
        typer.Option(callback=unit_name, help="photo (also record), or site (needs many sites)."),
    ] = "record",
    records: Annotated[
        int, typer.Option(help="About how many photos the largest site has; public.")
    ] = 1000,
    holdout: Annotated[
        float, typer.Option(help="Share of each site's photos that only test the model, by a sum.")
    ] = 0.0,
    delta: Annotated[float, typer.Option(help="Delta of the guarantee, with --epsilon.")] = 1e-5,
    clip: Annotated[
        float | None,
        typer.Option(help="The largest l2 norm of an update (per record: of a gradient)."),
    ] = None,
    groups: Annotated[
        int,
        typer.Option(
            help="Odd number of groups: bounds the effect of dishonest users; without noise."
        ),
    ] = 1,
    least_users: Annotated[
        int | None, typer.Option(help="Smallest number of users in a round.")
    ] = None,
    patience: Annotated[
        float, typer.Option(help="Seconds without a new user that end a round.")
    ] = 60.0,
    labels: Labels = None,
    json: Json = False,
) -> None:
    """Collect requests into one public roster; send it to every party, to be accepted.

    The party that runs this holds no secret of another party.
    """
    from blindsight.app.federation import agree_federation

    number = None if classes is None or not classes.isdecimal() else int(classes)
    names = [] if classes is None or number is not None else classes.split(",")
    with stage_bar() as progress:
        agreed = agree_federation(
            roster,
            requests,
            public=public,
            labels=labels,
            encoder=encoder,
            names=names,
            classes=number,
            features=features,
            method=method,
            rounds=rounds,
            send=send,
            sparsity=sparsity,
            learner=learner,
            strength=strength,
            colluders=colluders,
            epsilon=epsilon,
            unit=unit,
            records=records,
            holdout=holdout,
            delta=delta,
            clip=clip,
            groups=groups,
            least_users=least_users,
            patience=patience,
            progress=progress,
        )
    if json:
        emit_json(agreed.to_dict())
        return
    _show_roster(agreed)
    console.print(agreed.guarantee.line())
    if agreed.advice is not None:
        errors.print(f"note: {agreed.advice}")
    show_files(agreed.files)


def _show_roster(agreed: Agreed) -> None:
    table(agreed.title, ("party", "roles"), agreed.parties)
    if agreed.classes:
        console.print(f"classes: {', '.join(agreed.classes)}")
    console.print(f"fingerprint: {agreed.fingerprint}")
    show_card(agreed.disclosure.card())


def accept(
    folder: Folder,
    roster: Annotated[Path, typer.Argument(help="The roster file that you were sent.")],
    json: Json = False,
) -> None:
    """Accept a roster: check that it holds your request, and show whom you will work with.

    Compare the names and the fingerprint with the others, by telephone for example.
    """
    from blindsight.app.federation import accept_roster

    agreed = accept_roster(folder, roster)
    if json:
        emit_json({"fingerprint": agreed.fingerprint, "users": agreed.users})
        return
    _show_roster(agreed)
    console.print(
        f"next: blindsight federate run {folder} (a user adds --data photos/ or --data rows.npz)",
        markup=False,
        soft_wrap=True,
    )


def run(
    folder: Folder,
    data: Annotated[
        Path | None,
        typer.Option(help="A user's own photos, or rows (.npz with X and y). They stay here."),
    ] = None,
    labels: Labels = None,
    encoder: Annotated[
        str | None, typer.Option(help="Where the agreed encoder is, unless it is a built-in one.")
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
    """Run every role of your folder until the last round; if it was stopped, run it again."""
    from blindsight.app.federation import run_site

    statuses = run_site(
        folder,
        data=data,
        labels=labels,
        encoder=encoder,
        ledger=ledger,
        actor=actor,
        purpose=purpose,
        test=test,
        bind=bind,
        say=errors.print,
        show_files=partial(show_files, err=True),
    )
    started = list(islice(statuses, 1))
    if started:  # this party runs the aggregator
        _show(chain(started, statuses), json=json)


def watch(
    folder: Folder,
    once: Annotated[bool, typer.Option("--once", help="Show the present state, and end.")] = False,
    json: Json = False,
) -> None:
    """Watch a run as a live table, from the aggregator's folder."""
    from blindsight.app.federation import watch_federation

    _show(watch_federation(folder, once=once), json=json)


def _show(statuses: Iterable[dict[str, Any] | None], *, json: bool) -> None:
    """Show a live table, or print the last state as JSON."""
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
    grid = Table(*(_COLUMNS), title="federation", title_justify="left")
    if status is None:
        grid.title = "waiting for the first round"
        return grid
    for entry in status["rounds"]:
        grid.add_row(*_cells(entry, status["users"]))
    if len(status["rounds"]) < status["planned"]:
        grid.add_row(
            str(status["round"]),
            f"{status['users_in']} of {status['users']}",
            status["phase"],
            "",
            "",
            "",
        )
    grid.title = f"{len(status['rounds'])} of {status['planned']} rounds"
    grid.caption = status.get("waiting") or None
    return grid


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
        Path | None,
        typer.Option(help="Photos in subfolders, or rows (.npz); without, scikit-learn's digits."),
    ] = None,
    users: Annotated[int, typer.Option(help="How many users share the rows.")] = 5,
    rounds: Annotated[int | None, typer.Option(help="How many rounds.")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="statistics, gradients (both with --epsilon per record) or updates."),
    ] = None,
    send: Annotated[str, typer.Option(help="change, weights, top-k or mask.")] = "change",
    sparsity: Annotated[
        float | None, typer.Option(help="Share of zeros, for weights, top-k and mask.")
    ] = None,
    mode: Annotated[str, typer.Option(help="pad or paper.")] = "pad",
    epsilon: Annotated[
        float | None,
        typer.Option(help="Noise: budget over all rounds, per user; with --method, per record."),
    ] = None,
    encrypt: Annotated[
        bool, typer.Option(help="--no-encrypt computes the same numbers without ciphertexts.")
    ] = True,
    out: Annotated[Path | None, typer.Option(help="Save the model here.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    labels: Labels = None,
    json: Json = False,
) -> None:
    """Simulate all roles in this process, on one set of photos or rows split among users."""
    from blindsight.app.train_together import simulate_federation, train_together

    if data is not None and (data.is_dir() or method is not None):
        with stage_bar() as progress:
            trained = train_together(
                data, sites=users, method=method, labels=labels, epsilon=epsilon, rounds=rounds,
                encrypt=encrypt, out=out, progress=progress,
            )  # fmt: skip
        print_result(trained, as_json=json)
        if not json:
            show_shared(out)
        return
    with progress_bar("rounds") as bar:
        model = simulate_federation(
            data, users=users, rounds=3 if rounds is None else rounds, send=send,
            sparsity=sparsity, mode=mode, epsilon=epsilon, encrypt=encrypt, out=out, seed=seed,
            progress=lambda stage, done, total: bar(done, total),
        )  # fmt: skip
    rounds_ = [asdict(entry) for entry in model.rounds_]
    if json:
        saved = None if out is None else str(out)
        emit_json({"rounds": rounds_, "guarantee": model.guarantee_.cost.to_dict(), "model": saved})
        return
    table("simulation", _COLUMNS, [_cells(entry, users) for entry in rounds_])
    show_card(model.disclosure_.card())
    console.print(model.guarantee_.line())
    if out is not None:
        console.print(f"The model is in {out}.", markup=False, soft_wrap=True)
        show_shared(out)
    if model.advice_ is not None:
        errors.print(f"note: {model.advice_}")


def update(
    data: Annotated[Path, typer.Argument(help="Your own rows: .npz with X and y. They stay here.")],
    out: Annotated[Path, typer.Argument(help="The file to send to the other site.")],
    public: Annotated[Path, typer.Option(help="Public rows that every site has: start and scale.")],
    epsilon: Annotated[
        float, typer.Option(help="Epsilon of the update, for all your rows together.")
    ],
    large_epsilon: LargeEpsilonOption = False,
    delta: Annotated[float, typer.Option(help="Delta of the guarantee.")] = 1e-5,
    clip: Annotated[float, typer.Option(help="The largest l2 norm of the update.")] = 1.0,
    ledger: LedgerOption = None,
    actor: ActorOption = None,
    purpose: PurposeOption = "",
    json: Json = False,
) -> None:
    """Write this site's own update with noise, for two sites, which cannot have a secure sum."""
    from blindsight.app.federation import make_update

    noised = make_update(
        data, out, public=public, epsilon=epsilon, delta=delta, clip=clip, ledger=ledger,
        actor=actor, purpose=purpose,
    )  # fmt: skip
    if json:
        emit_json({"update": str(out), "epsilon": noised.epsilon, "delta": noised.delta})
        return
    console.print(
        f"{out} holds your update with noise: epsilon {noised.epsilon:.4g}, delta {noised.delta:g} "
        "for all your rows together. It may be sent openly."
    )


def merge(
    out: Annotated[Path, typer.Argument(help="The model's file to write.")],
    updates: Annotated[list[Path], typer.Argument(help="The sites' updates.")],
    public: Annotated[Path, typer.Option(help="The public rows that the updates were made with.")],
    test: Annotated[Path | None, typer.Option(help="Labelled rows for the accuracy.")] = None,
    json: Json = False,
) -> None:
    """Make one model from the noisy updates of several sites."""
    from blindsight.app.federation import merge_update_files

    model, accuracy = merge_update_files(out, updates, public=public, test=test)
    if json:
        emit_json({"model": str(out), "updates": model.updates, "accuracy": accuracy})
        return
    tested = "" if accuracy is None else f"; {accuracy:.1%} of the test rows are right"
    console.print(f"{out} holds the mean of {model.updates} updates{tested}.")
