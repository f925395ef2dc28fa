"""One site of a federation that the workbench runs: its keys, its invitations and its roles, each
in a thread, until the last round.

`create_host` or `join_site` creates the folder. `take_part` runs the site in it and writes the
progress that the page shows; if it is killed and started again, it continues.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import blindsight.app.together_statistics  # noqa: F401  (plans of that method are read)
from blindsight.app.hosting import share_file, write_file
from blindsight.app.library.sending import added_epsilon
from blindsight.core.errors import ProtocolError
from blindsight.federated.agreement import Agreement
from blindsight.federated.deploy.folders import PartyFolder, accept, join, make_roster, write_secret
from blindsight.federated.deploy.plan import Plan, read_rows
from blindsight.federated.deploy.running import (
    UserService,
    enrol_by_invitation,
    enrol_sites,
    invitation_digest,
    keep_role,
    run_aggregator,
)
from blindsight.federated.deploy.server import SiteEnrolment
from blindsight.federated.sums import Request, Role, Settings
from blindsight.privacy import Guarantee

if TYPE_CHECKING:
    from blindsight.app.train_together import PlannedFederation
    from blindsight.privacy.vault import Vault

__all__ = ["MODEL_FILE", "SiteProcess", "create_host", "join_site", "share_model", "take_part"]

MODEL_FILE = "model.safetensors"
_NO_STATEMENT = "An earlier version trained this model and did not store its guarantee."
_LAST_MESSAGE = 30.0  # seconds to wait for this site's last message
_LATE = 7 * 86_400.0  # seconds for which the aggregator serves the last result to absent sites
_FIRST_HOLDER = 1000  # the numbers of key holders are larger


def create_host(
    folder: Path, sites: tuple[str, ...], address: str, planned: PlannedFederation
) -> dict[int, dict[str, str]]:
    """Create the keys of the site that starts a run and aggregates the sums.

    Parameters:
        folder: the run's folder.
        sites: the names of all sites, this one first.
        address: the address at which the other sites reach this one.
        planned: the plan of the federation.

    Returns:
        For each other site, by its number, the certificate and token of its invitation.
    """
    roles = Role.USER | Role.HOLDER | Role.AGGREGATOR
    party = join(folder / "parties" / "site", sites[0], roles, address=address)
    authority = json.loads(party.request.extra)["ca"]
    access = {
        number: {"ca": authority, "token": secrets.token_urlsafe(32)}
        for number in range(2, len(sites) + 1)
    }
    invited = {invitation_digest(each["token"]): number for number, each in access.items()}
    planned.plan.save(folder / "plan.safetensors")
    write_file(folder / "settings.bin", planned.settings.encode())
    write_file(folder / "invited.json", json.dumps(invited).encode())
    return access


def join_site(folder: Path, name: str, access: dict[str, str]) -> None:
    """Create the keys of an invited site, and store its invitation until it has enrolled."""
    join(folder / "parties" / "site", name, Role.USER | Role.HOLDER)
    write_secret(folder / "parties" / "access.json", json.dumps(access).encode())


def share_model(model: Path, copy: Path, vault: Vault | None) -> Path:
    """Return a folder to share, with a copy of a model, its card, manifest and signature.

    Parameters:
        model: the model, with its `guarantee.json` beside it.
        copy: the path of the copy.
        vault: the owner's vault, from which the signing key is derived; without it the key is
            random and used once.
    """
    stated = model.with_name("guarantee.json")
    guarantee = Guarantee.from_json(stated.read_text()) if stated.is_file() else None
    shutil.copyfile(model, copy)
    return share_file(copy, "federated model", guarantee, vault, card=_NO_STATEMENT)


class SiteProcess:
    """The progress of a site: what the page shows, and whether the site's roles have ended.

    Parameters:
        folder: the run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.over, self.closed = folder, threading.Event(), threading.Event()
        self.party = PartyFolder(folder / "parties" / "site")
        self.rows, self._test = (read_rows(folder / f"{name}.npz") for name in ("rows", "held"))
        self._guard, self._sent = threading.Lock(), 0
        path = folder / "progress.json"
        self.says: dict[str, Any] = (
            json.loads(path.read_bytes()) if path.exists() else {"rounds": [], "joined": {}}
        )
        self._since = time.time()

    def agreed(self) -> None:
        """Check the roster, and measure the accuracy of a model of this site alone.

        Raises:
            ProtocolError: the roster differs from the invitation, for which this site was charged.
        """
        invitation = json.loads((self.folder / "about.json").read_bytes())
        plan = self.party.plan
        guarantee = Agreement(self.party.settings).guarantee(plan.rounds)
        expected = invitation["epsilon"] and added_epsilon(invitation["epsilon"]) * (1 + 1e-9)
        if list(plan.names) != invitation["classes"] or (
            expected is not None and (guarantee.unit != "record" or guarantee.epsilon > expected)
        ):
            raise ProtocolError("the roster differs from the invitation.")
        self.say(fingerprint=self.party.roster.fingerprint)
        if "alone" not in self.says:
            self.say(alone=self._alone(), start=self._right(self.party.plan.initial))

    def came(self, requests: dict[int, Request]) -> None:
        """Store which sites have enrolled, and delete their invitations."""
        joined = self._joined([1, *requests])
        self.say(joined=joined)
        self._delete_invitations(joined)

    def _joined(self, numbers: list[int]) -> dict[str, float]:
        """Return when each site joined, with the present time for new ones."""
        earlier: dict[str, float] = self.says["joined"]
        return earlier | {str(n): earlier.get(str(n), time.time()) for n in numbers}

    def _delete_invitations(self, joined: dict[str, float]) -> None:
        """Delete the secrets of sites that have joined, which are not needed any longer."""
        for number in joined:
            (self.folder / "invitations" / f"site-{number}.txt").unlink(missing_ok=True)

    def say(self, **words: Any) -> None:
        """Change the values that the page shows, and write them to `progress.json`."""
        with self._guard:
            self.says |= words
            write_file(self.folder / "progress.json", json.dumps(self.says).encode())

    def answered(self, service: Any, size: int) -> None:
        """Measure a new model on the held-out photos; called after every message of the user."""
        self._sent += size
        if self.says.get("away"):
            self.say(away=None)
        if service.turn - 1 > len(self.says["rounds"]):
            opened, now = service.user.result, time.time()
            line = {
                "round": service.turn - 1,
                "who": [int(number) for number in opened.contributors]
                if opened is not None
                else [],
                "right": self._right(service.weights),
                "seconds": round(now - self._since, 1),
                "bytes": self._sent,
            }
            self._since, self._sent = now, 0
            self.say(rounds=[*self.says["rounds"], line])
        if service.turn > service.plan.total_rounds:
            self.keep_model(service.folder.model)
            self.over.set()

    def keep_model(self, model: Path) -> None:
        """Store the model and its guarantee in the run's folder."""
        guarantee = Agreement(self.party.settings).guarantee(self.party.plan.rounds)
        write_file(self.folder / "guarantee.json", guarantee.to_json().encode())
        write_file(self.folder / MODEL_FILE, model.read_bytes())

    def status(self, status: dict[str, Any] | None) -> None:
        """Store the aggregator's status: which sites have joined, and which are waited for."""
        if status is None:
            return
        joined = self._joined([number for number in status["seen"] if number < _FIRST_HOLDER])
        news = {
            "joined": joined,
            "round": status["round"],
            "sent": status["users_in"],
            "waiting": status["waiting"],
        }
        if len(status["rounds"]) >= status["planned"]:
            news["late"] = status["late"]
        if any(self.says.get(name) != value for name, value in news.items()):
            self.say(**news)
            self._delete_invitations(joined)

    def _right(self, weights: Any) -> int:
        """Return the accuracy of a model on the held-out photos, in per cent."""
        return round(100 * self.party.plan.accuracy(np.asarray(weights), *self._test))

    def _alone(self) -> int:
        """Return the accuracy of a model of this site's photos only, after as many rounds."""
        plan, number = self.party.plan, self.party.number(Role.USER)
        task = plan.task(*self.rows, user=number)
        weights = plan.initial
        for turn in range(1, plan.rounds + 1):
            own = task.vector(weights, turn, self.party.settings)
            weights = plan.advanced(weights, own, users=1, turn=turn)
        return self._right(weights)


def _enrol(site: SiteProcess, bind: str | None) -> SiteEnrolment | None:
    """Get the roster: the aggregator makes it from all requests, and other sites fetch it."""
    party, folder = site.party, site.folder
    if Role.AGGREGATOR not in party.roles:
        access = folder / "parties" / "access.json"
        if not party.agreed:
            invitation = json.loads(access.read_bytes())
            address = json.loads((folder / "about.json").read_bytes())["address"]
            enrol_by_invitation(party, address, invitation["ca"], invitation["token"])
        access.unlink(missing_ok=True)
        return None
    invitations = json.loads((folder / "invited.json").read_bytes())
    names = json.loads((folder / "about.json").read_bytes())["sites"]

    def make(requests: dict[int, Request]) -> bytes:
        settings = Settings.decode((folder / "settings.bin").read_bytes())
        ordered = [party.request, *(requests[n] for n in sorted(requests))]
        if [request.name for request in ordered] != names:
            raise ProtocolError("the sites that enrolled are not those that were invited.")
        return make_roster(settings, Plan.load(folder / "plan.safetensors"), ordered)

    if not party.agreed:
        enrolment = enrol_sites(party, invitations, make, bind=bind, came=site.came)
        if enrolment.roster is not None:
            accept(party, enrolment.roster)
        return enrolment

    def refuse(number: int, data: bytes) -> None:
        if data != party.roster.requests[number - 1].encode():
            raise ProtocolError("the roster has been made already.")

    enrolment = SiteEnrolment(invitations, refuse)
    enrolment.roster = (party.path / "roster").read_bytes()
    return enrolment


def take_part(folder: Path, bind: str | None) -> None:
    """Run every role of the site until its user has the last result and its aggregator is done."""
    site = SiteProcess(folder)
    try:
        enrolment = _enrol(site, bind)
    except ProtocolError:
        site.say(problem="The collector refuses this site. Ask it for a new invitation.")
        os._exit(70)
    try:
        site.agreed()
    except ProtocolError:
        site.say(problem="The agreement is not what the invitation said. Leave this run.")
        os._exit(70)

    def keep(role: Role) -> None:
        user = role is Role.USER

        def away(words: str) -> None:
            if user:
                site.say(away=time.time())

        try:
            keep_role(
                site.party,
                role,
                data=site.rows if user else None,
                say=away,
                stop=site.over.is_set if user else site.closed.is_set,
                after=site.answered if user else None,
            )
        except BaseException as error:
            if isinstance(error, ProtocolError):
                site.say(problem="The collector refuses this site. Ask it for a new invitation.")
            os._exit(70)  # the workbench starts all roles of the site again

    # The last round may have ended without being stored.
    site.answered(UserService(site.party, site.rows), 0)
    parties = {
        role: threading.Thread(target=keep, args=(role,), daemon=True)
        for role in (Role.USER, Role.HOLDER)
    }
    for thread in parties.values():
        thread.start()
    if enrolment is not None:
        for status in run_aggregator(site.party, bind=bind, linger=_LATE, enrolment=enrolment):
            site.status(status)
        if not site.over.wait(_LAST_MESSAGE):
            # The site was started again after the end: the aggregator has the model too.
            site.keep_model(site.party.model)
            site.over.set()
    site.over.wait()
    # The user confirms the last result to the aggregator.
    parties[Role.USER].join(_LAST_MESSAGE)
    site.closed.set()
    site.say(finished=True, waiting="")
