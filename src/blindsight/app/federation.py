"""One site of a federation across machines: join, agree, accept, run and watch.

These are the functions behind `blindsight federate`. Secrets stay in the site's own folder. The
files that sites exchange by hand (requests and the roster) are public.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blindsight.app.defaults import federated_encoder, no_progress
from blindsight.app.hosting import share_file
from blindsight.app.result import JobResult, Progress, ResultTable, files_table, to_plain
from blindsight.app.train_together import (
    PlannedFederation,
    plan_federation,
    read_labelled,
)
from blindsight.core import checks
from blindsight.core.errors import InvalidParameter, MissingData
from blindsight.privacy import Disclosure, Guarantee

if TYPE_CHECKING:
    from blindsight.data.listing import FilesRead
    from blindsight.federated.deploy.folders import PartyFolder
    from blindsight.federated.deploy.plan import LearnedModel, Plan
    from blindsight.federated.deploy.running import SiteRows
    from blindsight.federated.own_updates import NoisedUpdate
    from blindsight.federated.sums import Roster

__all__ = [
    "FLOWER_SITES",
    "Agreed",
    "Joined",
    "Status",
    "accept_roster",
    "agree_federation",
    "join_federation",
    "load_model",
    "make_update",
    "merge_update_files",
    "run_site",
    "site_rows",
    "watch_federation",
]

PathText = str | Path
Status = dict[str, Any]
#: From this number of sites on, a Flower app is recommended instead of one HTTPS server.
FLOWER_SITES = 100
_LINGER = 60.0  # seconds to wait for sites that lack the last result
_GOODBYE = 10.0  # seconds to wait for this party's own thread
_BUILT_IN_ENCODERS = ("lite0", "lite0-224", "lite2", "both", "pixels")


@dataclass(frozen=True)
class Joined(JobResult):
    """The result of `join_federation`.

    Attributes:
        party: the site's name.
        request: the public file to send to the person who collects the requests.
    """

    party: str
    request: Path

    @property
    def title(self) -> str:
        return f"{self.party} has keys of its own"

    def facts(self) -> list[tuple[str, str]]:
        return [
            ("your keys are in", str(self.request.parent)),
            ("send this file", str(self.request)),
        ]


def join_federation(
    folder: PathText, name: str, *, role: str = "site", address: str | None = None
) -> Joined:
    """Create a party's folder with its keys and its public request.

    Parameters:
        folder: the folder, which must be empty or not exist.
        name: the name under which the other parties know this one.
        role: "site" (contributes, and holds keys), "user" (contributes), "holder" or "aggregator".
        address: "host:port" where the aggregator will listen, if this party runs it.

    Examples:
        >>> import tempfile
        >>> join_federation(Path(tempfile.mkdtemp()) / "here", "Harbour hospital").party
        'Harbour hospital'
    """
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
    party = folders.join(folder, name, roles, address=address)
    return Joined(party.name, party.path / "request")


@dataclass(frozen=True)
class Agreed(JobResult):
    """A roster: the parties and settings of a federation.

    Attributes:
        fingerprint: 30 digits that the parties compare over another channel.
        parties: name and roles of each party.
        users: number of sites that contribute.
        holders: number of parties that hold keys.
        needed: number of key holders that are needed to open a sum.
        classes: the names of the classes; empty if classes are numbers.
        weights: number of values that are summed.
        disclosure: what each role learns.
        guarantee: the guarantee of the sums.
        advice: what to change, or None.
        roster: the file, if it was written.
        files: the files of the folder of public photos, by what was done with them.
    """

    fingerprint: str
    parties: tuple[tuple[str, str], ...]
    users: int
    holders: int
    needed: int
    classes: tuple[str, ...]
    weights: int
    disclosure: Disclosure
    guarantee: Guarantee
    advice: str | None = None
    roster: Path | None = None
    files: FilesRead | None = None

    @property
    def title(self) -> str:
        return f"{self.users} users, {self.holders} key holders, {self.needed} open a sum"

    def facts(self) -> list[tuple[str, str]]:
        facts = [("fingerprint", self.fingerprint), ("guarantee", self.guarantee.line())]
        if self.classes:
            some = ", ".join(self.classes[:12])
            facts.insert(1, ("classes", some + (", ..." if len(self.classes) > 12 else "")))
        return facts if self.advice is None else [*facts, ("note", self.advice)]

    def tables(self) -> list[ResultTable]:
        files = [] if self.files is None else [files_table(self.files)]
        return [ResultTable("parties", ("party", "roles"), self.parties), *files]

    def to_dict(self) -> dict[str, object]:
        """Return the fields of the command's `--json`."""
        return {
            "roster": None if self.roster is None else str(self.roster),
            "fingerprint": self.fingerprint,
            "users": self.users,
            "classes": list(self.classes),
            "weights": self.weights,
            "guarantee": self.guarantee.cost.to_dict(),
            "disclosure": self.disclosure.rows(),
            "note": self.advice,
            "files": to_plain(self.files),
        }


def _agreed(roster: Roster, planned: PlannedFederation, path: Path | None = None) -> Agreed:
    from blindsight.federated.agreement import discloses

    settings = roster.settings
    advice = planned.advice
    if settings.users >= FLOWER_SITES:
        flower = (
            f"for {settings.users} sites use a Flower app (`blindsight federate new DIR`): here a "
            "single HTTPS server answers all sites."
        )
        advice = flower if advice is None else f"{advice} Besides, {flower}"
    return Agreed(
        fingerprint=roster.fingerprint,
        parties=tuple(
            (request.name, ", ".join(str(role.name).lower() for role in request.roles))
            for request in roster.requests
        ),
        users=settings.users,
        holders=settings.n_holders,
        needed=settings.needed,
        classes=planned.plan.names,
        weights=len(planned.plan.initial),
        disclosure=discloses(settings),
        guarantee=planned.guarantee,
        advice=advice,
        roster=path,
    )


def agree_federation(
    roster: PathText,
    requests: Sequence[PathText],
    *,
    public: PathText | None = None,
    labels: PathText | None = None,
    encoder: str | None = None,
    names: Sequence[str] = (),
    method: str | None = None,
    progress: Progress = no_progress,
    **options: Any,
) -> Agreed:
    """Collect requests into one public roster, which every party must accept.

    This needs no secret of any party.

    Parameters:
        roster: the file to write, which must not exist.
        requests: the requests of all parties, users in order.
        public: a folder of photos or an .npz file of rows that is public.
        labels: the labels of the public folder, see `read_labelled`.
        encoder: the encoder of photos. By default a built-in one if the public data are a folder;
            None if the sites have rows.
        names: the names of the classes.
        method: "statistics", "gradients" or "updates", see `plan_federation`. By default
            statistics for photos with epsilon per record, unless `rounds` are given.
        progress: called with (stage, done, total).
        options: further keywords of `plan_federation`.

    Raises:
        InvalidParameter: the file exists, or the model's shape is not known.
        InvalidData: the requests do not belong together.
    """
    import blindsight.app.together_statistics  # noqa: F401  (plans of that method are read)
    from blindsight.core.storage import write_atomically
    from blindsight.federated.deploy import folders
    from blindsight.federated.sums import Role

    path = Path(roster)
    if path.exists():
        raise InvalidParameter(f"{path} exists: a roster is never overwritten.")
    opened = [folders.read_request(request) for request in requests]
    folder = public is not None and Path(public).is_dir()
    if method is None and (folder or encoder is not None):
        private = options.get("epsilon") is not None and options.get("unit", "record") == "record"
        method = "statistics" if private and options.get("rounds") is None else None
    if encoder is None and folder:
        encoder = federated_encoder(method)
    public_rows = None
    if public is not None:
        public_rows = read_labelled(public, labels=labels, encoder=encoder, progress=progress)
    planned = plan_federation(
        sites=sum(Role.USER in request.roles for request in opened),
        holders=sum(Role.HOLDER in request.roles for request in opened),
        names=names,
        public=public_rows,
        encoder=encoder,
        method=method,
        **options,
    )
    data = folders.make_roster(planned.settings, planned.plan, opened)
    write_atomically(path, data)
    agreed = _agreed(folders.read_roster(data)[0], planned, path)
    return agreed if public_rows is None else replace(agreed, files=public_rows.files)


def accept_roster(folder: PathText, roster: PathText) -> Agreed:
    """Accept a roster, after checking that it contains this party's own request.

    Compare the names and the fingerprint with the other parties over another channel, for example
    by telephone.

    Parameters:
        folder: the party's folder.
        roster: the file of the roster.
    """
    import blindsight.app.together_statistics  # noqa: F401  (plans of that method are read)
    from blindsight.federated.agreement import Agreement
    from blindsight.federated.deploy import folders

    path = Path(roster)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MissingData(f"{path} cannot be read: {error.strerror}. Check the path.") from error
    party = folders.PartyFolder(Path(folder))
    agreed = folders.accept(party, data)
    agreement = Agreement(agreed.settings)
    planned = PlannedFederation(
        agreed.settings, party.plan, agreement.guarantee(party.plan.rounds), agreement.advice()
    )
    return _agreed(agreed, planned)


def ignore_files(files: FilesRead | None) -> None:
    """Ignore the files that were read: the default `show_files` of the functions below."""


def load_model(path: PathText) -> LearnedModel:
    """Read the model of a federation, for any of the methods.

    Parameters:
        path: `model.safetensors` in a party's folder, or what `train_together` saved.

    Returns:
        A classifier with `predict`: a `FederatedClassifier`, or a `StatisticsClassifier` where
        feature statistics were summed.

    Raises:
        HostileFile: the file contains something else.
    """
    from blindsight.core.storage import load_any
    from blindsight.federated import FederatedClassifier
    from blindsight.sketching import StatisticsClassifier

    statistics = load_any(path)[0] == "statistics classifier"
    return (StatisticsClassifier if statistics else FederatedClassifier).load(path)


def site_rows(
    party: PartyFolder,
    data: PathText,
    *,
    labels: PathText | None = None,
    encoder: str | None = None,
    show_files: Callable[[FilesRead | None], None] = ignore_files,
    progress: Progress = no_progress,
) -> SiteRows:
    """Read a site's rows and class numbers, and check them against the plan.

    Parameters:
        party: the site's folder, with a roster.
        data: a folder of photos, or an .npz file of rows.
        labels: the labels of a folder, see `read_labelled`.
        encoder: the path of the agreed encoder on this machine; not needed for a built-in one.
        show_files: called with the files of a folder, by what was done with them.
        progress: called with (stage, done, total).

    Raises:
        InvalidParameter: the encoder is not the agreed one.
        InvalidData: rows or labels are not as agreed.
    """
    from blindsight.encoders import open_encoder, require_same_encoder
    from blindsight.federated.deploy.plan import class_numbers
    from blindsight.federated.sums import Role

    plan, opened = party.plan, None
    if Path(data).is_dir():
        if not plan.encoder:
            raise InvalidParameter(
                "the sites of this federation agreed on rows, not on photos: give an .npz file "
                "with X and y."
            )
        name = plan.encoder.get("open") if encoder is None else encoder
        if encoder is None and name not in _BUILT_IN_ENCODERS:
            # The name comes from another party and must not choose which file is opened here.
            raise InvalidParameter(
                f"this federation uses the encoder {name!r}: say where it is on this machine, "
                "--encoder FOLDER."
            )
        opened = open_encoder(str(name))
        require_same_encoder(plan.encoder.get("identity", {}), opened, what="this federation")
    rows = read_labelled(data, labels=labels, encoder=opened, progress=progress)
    show_files(rows.files)
    numbers = class_numbers(rows.labels, plan.names)
    plan.task(rows.X, numbers, user=party.number(Role.USER))  # refuse bad rows now
    return rows.X, numbers


def run_site(
    folder: PathText,
    *,
    data: PathText | None = None,
    labels: PathText | None = None,
    encoder: str | None = None,
    ledger: PathText | None = None,
    actor: str | None = None,
    purpose: str = "",
    test: PathText | None = None,
    bind: str | None = None,
    say: Callable[[str], None] = print,
    show_files: Callable[[FilesRead | None], None] = ignore_files,
    progress: Progress = no_progress,
) -> Iterator[Status | None]:
    """Run every role of a party until the last round. A run that was killed can be started again.

    Parameters:
        folder: the party's folder, with a roster.
        data: a user's photos or rows, which are not sent.
        labels: the labels of a folder of photos, see `read_labelled`.
        encoder: the path of the agreed encoder on this machine.
        ledger: the ledger that is charged once, for all rounds, before the first round.
        actor: the name of the person who takes part (default: the operating system's user).
        purpose: the purpose, which the ledger stores.
        test: labelled rows of the aggregator, on which the accuracy of each round is measured.
        bind: the address at which the aggregator listens, if it is not the public one.
        say: called with sentences on the progress of the run.
        show_files: called with the files of a folder, by what was done with them.
        progress: called with (stage, done, total).

    Yields:
        The status, repeatedly, at the aggregator; nothing at other parties.
    """
    import blindsight.app.together_statistics  # noqa: F401  (plans of that method are read)
    from blindsight.federated.agreement import Agreement
    from blindsight.federated.deploy.folders import PartyFolder
    from blindsight.federated.deploy.running import charge, run_aggregator, run_party
    from blindsight.federated.sums import Role
    from blindsight.privacy import Ledger
    from blindsight.release.manifest import bundle_folder

    party, rows = PartyFolder(Path(folder)), None
    if Role.USER in party.roles:
        if data is None:
            raise InvalidParameter("a user needs its data: --data photos/ or --data rows.npz.")
        rows = site_rows(
            party, data, labels=labels, encoder=encoder, show_files=show_files, progress=progress
        )
        if ledger is not None:
            account = Ledger(str(ledger), dataset=Path(data).stem, actor=actor, purpose=purpose)
            with account as opened:
                say(charge(party, opened).line())
    if Role.AGGREGATOR not in party.roles:
        run_party(party, data=rows, say=say)
    else:
        say(f"aggregator at {party.address}; the model goes to {party.model}")
        failed: list[BaseException] = []

        def keep() -> None:
            try:
                run_party(party, data=rows, say=say)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=keep, daemon=True)
        if party.roles != Role.AGGREGATOR:
            thread.start()
        with closing(run_aggregator(party, test=test, bind=bind, linger=_LINGER)) as statuses:
            for status in statuses:
                if failed:  # the aggregator would wait for its own site
                    raise failed[0]
                yield status
        if thread.ident is not None:
            thread.join(_GOODBYE)
        if failed:
            raise failed[0]
    if party.model.is_file() and not bundle_folder(party.model).exists():
        guarantee = Agreement(party.settings).guarantee(party.plan.rounds)
        share_file(party.model, "federated model", guarantee)
    say(f"{party.plan.rounds} rounds are done; the model is {party.model}")


def watch_federation(folder: PathText, *, once: bool = False) -> Iterator[Status | None]:
    """Return the status of a run, repeatedly until it is over, from the aggregator's folder.

    Parameters:
        folder: the aggregator's folder.
        once: return only the present status.
    """
    from blindsight.federated.deploy.folders import PartyFolder
    from blindsight.federated.deploy.running import read_status, watch
    from blindsight.federated.sums import Role

    party = PartyFolder(Path(folder)).require(Role.AGGREGATOR)
    return iter([read_status(party)]) if once else watch(party)


def make_update(
    data: PathText,
    out: PathText,
    *,
    public: PathText,
    epsilon: float,
    delta: float = 1e-5,
    clip: float = 1.0,
    ledger: PathText | None = None,
    actor: str | None = None,
    purpose: str = "",
) -> NoisedUpdate:
    """Write a site's own update with noise, for two sites: a sum of two updates hides neither.

    Parameters:
        data: the site's rows, an .npz file.
        out: the file to send, which must not exist.
        public: public rows that both sites have.
        epsilon: the epsilon of the update, for all rows of the site together.
        delta: the delta of the guarantee.
        clip: the largest norm of the update.
        ledger: the ledger that is charged before the update is computed.
        actor: the name of the person who asks for it (default: the operating system's user).
        purpose: the purpose, which the ledger stores.
    """
    from blindsight.federated.deploy.plan import read_rows
    from blindsight.federated.own_updates import noised_update
    from blindsight.privacy import Ledger

    if Path(out).exists():
        raise InvalidParameter(f"{out} exists: an update is never overwritten.")
    account = (
        nullcontext()
        if ledger is None
        else Ledger(str(ledger), dataset=Path(data).stem, actor=actor, purpose=purpose)
    )
    with account as opened:
        update = noised_update(
            _public_plan(public),
            *read_rows(data),
            epsilon=epsilon,
            delta=delta,
            clip=clip,
            ledger=opened,
        )
    update.save(out)
    return update


def merge_update_files(
    out: PathText,
    updates: Sequence[PathText],
    *,
    public: PathText,
    test: PathText | None = None,
) -> tuple[Any, float | None]:
    """Compute one model as the mean of the sites' own noisy updates.

    Parameters:
        out: the file of the model.
        updates: the files of the sites.
        public: the public rows with which the updates were made.
        test: labelled rows to measure the accuracy on.

    Returns:
        The model, and its accuracy on the test rows; None without test rows.
    """
    from blindsight.federated.deploy.plan import read_rows
    from blindsight.federated.own_updates import NoisedUpdate, merge_updates

    loaded = [NoisedUpdate.load(path) for path in updates]
    model = merge_updates(_public_plan(public), loaded)
    model.save(out)
    stated = ", ".join(f"epsilon {update.epsilon:g} (delta {update.delta:g})" for update in loaded)
    card = f"The mean of {len(loaded)} updates. Each site added noise of its own: {stated}."
    share_file(Path(out), "federated model", None, card=card)
    if test is None:
        return model, None
    X, y = read_rows(test)
    return model, float((model.predict(X) == y).mean())


def _public_plan(public: PathText) -> Plan:
    """Return the plan that follows from public rows only, which is the same at every site."""
    from blindsight.federated.deploy.plan import Plan, read_rows
    from blindsight.federated.learning import initial_weights

    X, y = read_rows(public)
    deviation, classes = X.std(axis=0), int(y.max()) + 1
    scale = np.vstack([X.mean(axis=0), np.where(deviation > 1e-9, deviation, 1.0)])
    start = initial_weights((X - scale[0]) / scale[1], y, classes=classes)
    return Plan(initial=start, scale=scale, classes=classes, rounds=1, options={"strength": 1e-3})
