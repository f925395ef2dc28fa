"""Training together: this machine's part in federations. Each run has its own folder and process.

    STATE/together/RUN/about.json      what was agreed, and the state: running, paused, left or done
    STATE/together/RUN/parties/site/   this site's own keys and state, mode 0700
    STATE/together/RUN/invitations/    invitations of the sites that have not joined yet
    STATE/together/RUN/rows.npz        features and labels of this site; held.npz: held-out rows
    STATE/together/RUN/progress.json   written by the process, read by the page
    STATE/together/RUN/model.safetensors   what was learned; guarantee.json: what it promises

One site starts a federation and collects the sums over the federation's own HTTPS port. Each other
site gets an invitation, makes its own keys, and sends its public request. When all have joined,
every site gets the roster. No site ever holds another site's keys, and all sites are key holders.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import io
import json
import logging
import os
import re
import secrets
import shutil
import ssl
import tempfile
import threading
import zipfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blindsight.app.hosting import write_file
from blindsight.app.library.datasets import today
from blindsight.app.library.photos import image_encoder
from blindsight.app.library.sending import added_epsilon
from blindsight.app.train_together import METHODS, PlannedFederation
from blindsight.core.errors import BlindsightError
from blindsight.workbench.infra.jobs import start_child
from blindsight.workbench.infra.problems import Problem
from blindsight.workbench.infra.settings import WorkbenchSettings, is_loopback

if TYPE_CHECKING:
    from blindsight.encoders import Encoder
    from blindsight.privacy.vault import Vault

__all__ = ["COLUMNS", "MODEL_FILE", "Federations", "Run", "read_invitation"]

COLUMNS = 64
MODEL_FILE = "model.safetensors"
MOST_SITES = 12
_log = logging.getLogger("blindsight.workbench")
_RUN = re.compile(r"[0-9a-f]{12}")
_MARK = b"blindsight-invitation:"
_DELTA = 1e-5
_PATIENCE = 30.0
_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds before a process that died is started again


@dataclass(frozen=True)
class Run:
    """What is agreed in a federation, and this site's part in it."""

    id: str
    title: str
    number: int
    sites: tuple[str, ...]
    classes: tuple[str, ...]
    features: str
    rounds: int
    address: str
    made: str
    epsilon: float | None = None
    delta: float = _DELTA
    method: str = "updates"
    records: int = 1000
    advice: str | None = None
    dataset: str = ""
    photos: int = 0
    state: str = "running"

    @property
    def host(self) -> bool:
        """Whether this machine collects the sums."""
        return self.number == 1

    @property
    def limit(self) -> tuple[float, float] | None:
        """Epsilon and delta per photo (replaced) over all rounds; None for exact sums."""
        return None if self.epsilon is None else (self.epsilon, self.delta)

    @property
    def needed(self) -> int:
        """The number of sites that open a sum together."""
        sites = len(self.sites)
        return (sites + (sites - 1) // 2) // 2 + 1


class Federations:
    """The runs that this machine takes part in, and their processes."""

    def __init__(self, settings: WorkbenchSettings) -> None:
        self.settings = settings
        self.root = settings.state / "together"
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changes = threading.Lock()  # a task that is cancelled may still store its state

    def listed(self) -> list[Run]:
        """Return all runs, the newest first."""
        runs = [self.get(path.parent.name) for path in self.root.glob("*/about.json")]
        return sorted(runs, key=lambda run: run.made, reverse=True)

    def get(self, number: str) -> Run:
        """Return a run by its number; raise `Problem("not_found")` if there is none."""
        path = self.root / number / "about.json"
        if not _RUN.fullmatch(number) or not path.is_file():
            raise Problem("not_found")
        fields = json.loads(path.read_bytes())
        return Run(
            **{**fields, "sites": tuple(fields["sites"]), "classes": tuple(fields["classes"])}
        )

    def save(self, run: Run) -> Run:
        """Write the record of a run, and return the run."""
        write_file(self.root / run.id / "about.json", json.dumps(asdict(run), indent=1).encode())
        return run

    def progress(self, run: Run) -> dict[str, Any]:
        """Return what the process of a run wrote last."""
        path = self.root / run.id / "progress.json"
        with contextlib.suppress(OSError, ValueError):
            fields: dict[str, Any] = json.loads(path.read_bytes())
            return fields
        return {}

    def linked(self) -> int:
        """Return the number of other sites that this machine works with now."""
        return (
            sum(len(run.sites) - 1 for run in self.listed() if run.state == "running")
            if self.root.exists()
            else 0
        )

    @staticmethod
    def plan(run: Run, columns: int, encoder: Encoder | None = None) -> PlannedFederation:
        """Plan what the sites of a run agree on, before anything is charged or made.

        Parameters:
            run: the run that the host wants.
            columns: the number of features of a photo.
            encoder: the encoder that read the photos, if it is not a built-in one.
        """
        from blindsight.app.train_together import plan_federation

        statistics = run.method == "statistics"
        return plan_federation(
            sites=len(run.sites),
            method=run.method,
            names=run.classes,
            encoder=(encoder or image_encoder(run.features)) if statistics else None,
            features=columns,
            scale=np.vstack([np.zeros(columns), np.full(columns, 1 / np.sqrt(columns))]),
            rounds=run.rounds,
            epsilon=None if run.epsilon is None else added_epsilon(run.epsilon),
            delta=run.delta,
            records=run.records,
            patience=_PATIENCE,
        )

    def start(
        self,
        run: Run,
        rows: NDArray[Any],
        labels: NDArray[Any],
        planned: PlannedFederation | None = None,
    ) -> Run:
        """Make this site's keys, and an invitation for each other site.

        Parameters:
            run: what is agreed.
            rows: this site's features.
            labels: class numbers, in the order of the run's classes.
            planned: what `plan` returned; by default it is called here.
        """
        from blindsight.app.federation_site import create_host

        planned = self.plan(run, rows.shape[1]) if planned is None else planned
        run = replace(run, advice=planned.advice)
        folder = self._folder(run)
        for number, access in create_host(folder, run.sites, run.address, planned).items():
            write_file(self.invitation(run, number), _written(replace(run, number=number), access))
        self._keep_rows(run, rows, labels)
        return self.save(run)

    def join(
        self, run: Run, access: dict[str, str], rows: NDArray[Any], labels: NDArray[Any]
    ) -> Run:
        """Make this site's own keys; its process then joins with the access of the invitation."""
        from blindsight.app.federation_site import join_site

        try:
            folder = self._folder(run)
        except FileExistsError:
            raise Problem("joined_before") from None
        try:
            join_site(folder, run.sites[run.number - 1], access)
            self._keep_rows(run, rows, labels)
            return self.save(replace(run, made=today()))
        except BlindsightError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise Problem("refused_invitation") from error

    def invitation(self, run: Run, number: int) -> Path:
        """Return the invitation file of a site, which is deleted when the site has joined."""
        folder = self.root / run.id / "invitations"
        folder.mkdir(exist_ok=True, mode=0o700)
        return folder / f"site-{number}.txt"

    def shared_model(self, run: Run, vault: Vault | None = None) -> bytes:
        """Return the trained model as a zip of a folder to share, with card and signature.

        Parameters:
            run: a run whose last round is complete.
            vault: the owner's vault, from which the signing key is derived; without one, a key is
                made for this file only.

        Raises:
            Problem: "not_found", if the model is not complete.
        """
        model = self.root / run.id / MODEL_FILE
        if not model.is_file():
            raise Problem("not_found")
        from blindsight.app.federation_site import share_model

        packed = io.BytesIO()
        with tempfile.TemporaryDirectory(dir=model.parent) as scratch:
            folder = share_model(model, Path(scratch) / MODEL_FILE, vault)
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in sorted(folder.iterdir()):
                    entry = zipfile.ZipInfo(f"{folder.name}/{path.name}")
                    entry.external_attr = 0o644 << 16  # readable for colleagues on a shared folder
                    archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
        return packed.getvalue()

    async def open(self) -> None:
        """Continue the runs that were running when the workbench was stopped."""
        for run in await asyncio.to_thread(self.listed):
            if run.state == "running":
                self.go_on(run)

    def go_on(self, run: Run) -> None:
        """Start the process of a run, on the event loop; it is restarted if it fails."""
        if run.id not in self._tasks:
            self._tasks[run.id] = asyncio.create_task(self._keep(run))

    async def rest(self, run: Run, state: str = "paused") -> Run:
        """End the process of a run and store its state, unless the run is complete meanwhile; with
        the state "left", its keys are deleted.
        """
        task = self._tasks.pop(run.id, None)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if state == "left":
            await asyncio.to_thread(
                shutil.rmtree, self.root / run.id / "parties", ignore_errors=True
            )
        return await asyncio.to_thread(self._change_state, run, state)

    async def close(self) -> None:
        """End all processes; runs continue at the next start."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    async def _keep(self, run: Run) -> None:
        folder, process, pause = self.root / run.id, None, _PAUSE
        order = {
            "folder": str(folder),
            # Sites wait for each other, so a run gets more processor time than a job.
            "niceness": self.settings.job_niceness // 2,
            "bind": None if is_loopback(run.address.rpartition(":")[0]) else "0.0.0.0",  # noqa: S104
        }
        try:
            while True:
                process = await start_child("job_process", order)
                if await process.wait() == 0:
                    await asyncio.to_thread(self._change_state, run, "done")
                    self._tasks.pop(run.id, None)
                    return
                _log.warning(
                    "a site's process ended with exit code %d; it is started again",
                    process.returncode,
                )
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            if process is not None and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()  # state is on disk before any answer leaves
                await process.wait()

    def _change_state(self, run: Run, state: str) -> Run:
        """Store a new state, and return the stored run; a complete run stays complete."""
        with self._changes:
            stored = self.get(run.id)
            return stored if stored.state == "done" else self.save(replace(stored, state=state))

    def _folder(self, run: Run) -> Path:
        folder = self.root / run.id
        folder.mkdir(parents=True, mode=0o700)
        (folder / "parties").mkdir(mode=0o700)
        return folder

    def _keep_rows(self, run: Run, rows: NDArray[Any], labels: NDArray[Any]) -> None:
        """Write the features, of which a random fifth is held out to measure accuracy."""
        order = np.random.default_rng(secrets.randbits(64)).permutation(len(rows))
        held_out, used = np.split(order, [len(order) // 5])
        for name, part in (("held", held_out), ("rows", used)):
            path = self.root / run.id / f"{name}.npz"
            with os.fdopen(
                os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb"
            ) as file:
                np.savez(file, X=rows[part].astype(np.float64), y=labels[part].astype(np.int64))


def _written(run: Run, access: dict[str, str]) -> bytes:
    """Return an invitation as one line of text, to be sent as a file or pasted."""
    agreed = {
        name: value
        for name, value in asdict(run).items()
        if name not in ("dataset", "photos", "state", "made")
    }
    content = json.dumps({"run": agreed, "access": access}).encode()
    return _MARK + base64.urlsafe_b64encode(content) + b"\n"


def read_invitation(text: bytes) -> tuple[Run, dict[str, str]]:
    """Read an invitation, which comes from outside, so that everything in it is checked.

    Returns:
        The run, and the access to the collector.

    Raises:
        Problem: "refused_invitation", whatever is wrong.
    """
    try:
        mark, _, packed = text.strip().partition(b":")
        fields = json.loads(base64.b64decode(packed, altchars=b"-_", validate=True))
        agreed, granted = fields["run"], fields["access"]
        sites, classes = (
            tuple(str(name) for name in agreed[word]) for word in ("sites", "classes")
        )
        run = Run(
            id=str(agreed["id"]),
            title=str(agreed["title"]),
            number=int(agreed["number"]),
            sites=sites,
            classes=classes,
            features=str(agreed["features"]),
            rounds=int(agreed["rounds"]),
            address=str(agreed["address"]),
            made=today(),
            epsilon=None if agreed["epsilon"] is None else float(agreed["epsilon"]),
            delta=float(agreed["delta"]),
            method=str(agreed["method"]),
            records=int(agreed["records"]),
            advice=None if agreed["advice"] is None else str(agreed["advice"])[:400],
        )
        access = {name: str(granted[name]) for name in ("ca", "token")}
        ssl.create_default_context(cadata=access["ca"])
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        binascii.Error,
        RecursionError,
        ssl.SSLError,
    ) as error:
        raise Problem("refused_invitation") from error
    words = (run.title, run.features, *sites, *classes)
    sound = (
        mark == _MARK[:-1]
        and _RUN.fullmatch(run.id)
        and 3 <= len(sites) <= MOST_SITES
        and 2 <= run.number <= len(sites)
        and 2 <= len(classes) <= 60
        and 1 <= run.rounds <= 100
        and run.method in METHODS
        and (run.method == "updates") == (run.epsilon is None)
        and (run.epsilon is None or (0 < run.epsilon < 100 and 0 < run.delta < 1))
        and list(classes) == sorted(set(classes))
        and all(0 < len(word) <= 60 and word.isprintable() for word in words)
        and set(granted) == {"ca", "token"}
        and re.fullmatch(r"[\w-]{20,100}", access["token"])
        and re.fullmatch(r"[\w.:-]{1,250}:\d{1,5}", run.address)
    )
    if not sound:
        raise Problem("refused_invitation")
    return run, access
