"""The process of one site in a federation: its parties, each in a thread, until the last round is
learned.

Told on standard input which folder is its own. It writes what the page shows, and ends with 0 when
all is done; killed at any moment and started again, it goes on.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from blindsight.app.hosting import limit_threads, write_file

limit_threads()
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402

import blindsight.app.together_statistics  # noqa: E402, F401  (plans of that method are read)
from blindsight.app.library.sending import added_epsilon  # noqa: E402
from blindsight.core.errors import ProtocolError  # noqa: E402
from blindsight.federated.agreement import Agreement  # noqa: E402
from blindsight.federated.deploy.folders import PartyFolder, accept, make_roster  # noqa: E402
from blindsight.federated.deploy.plan import Plan, read_rows  # noqa: E402
from blindsight.federated.deploy.running import (  # noqa: E402  # noqa: E402
    UserService,
    enrol_by_invitation,
    enrol_sites,
    keep_role,
    run_aggregator,
)
from blindsight.federated.deploy.server import SiteEnrolment  # noqa: E402
from blindsight.federated.sums import Request, Role, Settings  # noqa: E402
from blindsight.workbench.infra.federations import MODEL_FILE  # noqa: E402
from blindsight.workbench.infra.jobs import end_with_parent  # noqa: E402

__all__ = ["SiteProcess", "main", "take_part"]

_LAST_WORDS = 30.0
_LATE = (
    7 * 86_400.0
)  # seconds for which the collector keeps the last result for a site that is away
_NO_USER = 1000  # addresses of key holders lie far above


class SiteProcess:
    """What the page is told, and when the work here is over."""

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
        """The roster is there: check it, and measure where this site stands without the others.

        Raises:
            ProtocolError: it is not what the invitation said, by which this site has paid.
        """
        about = json.loads((self.folder / "about.json").read_bytes())
        plan = self.party.plan
        guarantee = Agreement(self.party.settings).guarantee(plan.rounds)
        expected = about["epsilon"] and added_epsilon(about["epsilon"]) * (1 + 1e-9)
        if list(plan.names) != about["classes"] or (
            expected is not None and (guarantee.unit != "record" or guarantee.epsilon > expected)
        ):
            raise ProtocolError("the roster is not what the invitation said.")
        self.say(fingerprint=self.party.roster.fingerprint)
        if "alone" not in self.says:
            self.say(alone=self._alone(), start=self._right(self.party.plan.initial))

    def came(self, requests: dict[int, Request]) -> None:
        """Sites whose request is there; their invitations are not needed any longer."""
        joined = self.says["joined"] | {
            str(n): self.says["joined"].get(str(n), time.time()) for n in (1, *requests)
        }
        self.say(joined=joined)
        for number in joined:
            (self.folder / "invitations" / f"site-{number}.txt").unlink(missing_ok=True)

    def say(self, **words: Any) -> None:
        """Change what the page shows."""
        with self._guard:
            self.says |= words
            write_file(self.folder / "progress.json", json.dumps(self.says).encode())

    def answered(self, service: Any, size: int) -> None:
        """After every message of the user: a new model is counted on the photos kept aside."""
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
        """Keep the learned model beside what it promises; both outlive the party's folder."""
        guarantee = Agreement(self.party.settings).guarantee(self.party.plan.rounds)
        write_file(self.folder / "guarantee.json", guarantee.to_json().encode())
        shutil.copyfile(model, self.folder / MODEL_FILE)

    def status(self, found: dict[str, Any] | None) -> None:
        """What the collector knows: who has come, and for whom it waits."""
        if found is None:
            return
        users = [number for number in found["seen"] if number < _NO_USER]
        joined = self.says["joined"] | {
            str(n): self.says["joined"].get(str(n), time.time()) for n in users
        }
        news = {
            "joined": joined,
            "round": found["round"],
            "sent": found["users_in"],
            "waiting": found["waiting"],
        }
        if len(found["rounds"]) >= found["planned"]:
            news["late"] = found["late"]
        if any(self.says.get(name) != value for name, value in news.items()):
            self.say(**news)
            for number in joined:  # its secrets are not needed here any longer
                (self.folder / "invitations" / f"site-{number}.txt").unlink(missing_ok=True)

    def _right(self, weights: Any) -> int:
        """How many of 100 photos kept aside a model names rightly."""
        return round(100 * self.party.plan.accuracy(np.asarray(weights), *self._test))

    def _alone(self) -> int:
        """The same for a model of this site's photos only, after as many rounds."""
        plan, number = self.party.plan, self.party.number(Role.USER)
        task = plan.task(*self.rows, user=number)
        weights = plan.initial
        for turn in range(1, plan.rounds + 1):
            own = task.vector(weights, turn, self.party.settings)
            weights = plan.advanced(weights, own, users=1, turn=turn)
        return self._right(weights)


def _enrol(site: SiteProcess, bind: str | None) -> SiteEnrolment | None:
    """Get the roster: the collector makes it of all requests, the others fetch it."""
    party, folder = site.party, site.folder
    if Role.AGGREGATOR not in party.roles:
        access = folder / "parties" / "access.json"
        if not party.agreed:
            given = json.loads(access.read_bytes())
            address = json.loads((folder / "about.json").read_bytes())["address"]
            enrol_by_invitation(party, address, given["ca"], given["token"])
        access.unlink(missing_ok=True)
        return None
    invitations = json.loads((folder / "invited.json").read_bytes())
    names = json.loads((folder / "about.json").read_bytes())["sites"]

    def make(requests: dict[int, Request]) -> bytes:
        settings = Settings.decode((folder / "settings.bin").read_bytes())
        ordered = [party.request, *(requests[n] for n in sorted(requests))]
        if [request.name for request in ordered] != names:
            raise ProtocolError("the sites that came are not those that were invited.")
        return make_roster(settings, Plan.load(folder / "plan.safetensors"), ordered)

    if not party.agreed:
        enrolment = enrol_sites(party, invitations, make, bind=bind, came=site.came)
        if enrolment.roster is not None:
            accept(party, enrolment.roster)
        return enrolment

    def refuse(number: int, data: bytes) -> None:
        if data != party.roster.requests[number - 1].encode():
            raise ProtocolError("the roster is made already.")

    enrolment = SiteEnrolment(invitations, refuse)
    enrolment.roster = (party.path / "roster").read_bytes()
    return enrolment


def take_part(folder: Path, bind: str | None) -> None:
    """Run every role of the site until the user has learned the last round, and the collector is
    done.
    """
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
            os._exit(70)  # half a site is none: the workbench starts all of it again

    # Perhaps the last round was learned, but not told.
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
        if not site.over.wait(_LAST_WORDS):
            # Started again after the end: the collector has the model too.
            site.keep_model(site.party.model)
            site.over.set()
    site.over.wait()
    # The user tells the collector that the last result has come.
    parties[Role.USER].join(_LAST_WORDS)
    site.closed.set()
    site.say(finished=True, waiting="")


def main() -> None:
    """Take part in one federation."""
    order = json.loads(sys.stdin.buffer.readline())
    end_with_parent()
    os.nice(max(0, 5 - os.nice(0)))
    take_part(Path(order["folder"]), order["bind"])
    os._exit(0)  # threads may still wait for a message that nobody needs


if __name__ == "__main__":
    main()
