"""Every way in which a run can tell something about its data is compared by the audit."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import warm
from blindsight.audit.engine import DoorAudit, audit_door, neighbours_of, watch
from blindsight.audit.engine.outputs import collect
from blindsight.privacy import Door, Guarantee, Planned
from blindsight.privacy.ledger import Ledger
from blindsight.privacy.mechanisms import DiscreteGaussian

Rows = NDArray[np.float64]
X = np.random.default_rng(0).normal(size=(12, 3))
NOISE = DiscreteGaussian.calibrate(1.0, delta=1e-5, sensitivity=2.0, dimensions=3, unit="record")
PROMISE = Guarantee(releases=(Planned(what="sum", mechanism=NOISE),), delta=1e-5, model="central")


def _secret(data: Rows) -> int:
    """A number that depends on private values."""
    return int(1000 * float(np.clip(np.nan_to_num(abs(data[0, 0])), 0, 9))) % 1000


def _to_file(act: Callable[[Path, int], object]) -> Callable[[Rows, Path], object]:
    def tell(data: Rows, folder: Path) -> object:
        path = folder / "noisy.npy"
        path.write_bytes(b"nothing private")
        return act(path, _secret(data))

    return tell


TELLING: dict[str, tuple[str, Callable[[Rows, Path], object]]] = {
    "print": ("stdout", lambda data, _: print(_secret(data))),
    "standard error": ("stderr", lambda data, _: print(_secret(data), file=sys.stderr)),
    "descriptor": ("stdout", lambda data, _: os.write(1, b"%d" % _secret(data))),
    "log": ("logging", lambda data, _: logging.getLogger("blindsight.x").debug(_secret(data))),
    "warning": ("warnings", lambda data, _: warnings.warn(f"{_secret(data)}", stacklevel=1)),
    "progress": ("progress", lambda data, _: watch(1, 2, _secret(data))),
    "file time": ("mode and time", _to_file(lambda path, secret: os.utime(path, (secret, secret)))),
    "file mode": ("mode and time", _to_file(lambda path, secret: path.chmod(0o600 + secret % 64))),
    "empty folder": ("files", lambda data, folder: (folder / f"{_secret(data)}").mkdir()),
    "link": ("target", lambda data, folder: (folder / "x").symlink_to(f"/{_secret(data)}")),
    "environment": ("system", lambda data, _: os.putenv("BLINDSIGHT_X", f"{_secret(data)}")),
}


def _run(data: Rows, folder: Path) -> Rows:
    released: Rows = Door(PROMISE, what="a sum").total("sum", data)
    return released


@pytest.mark.parametrize("name", TELLING)
def test_a_run_that_tells_by_another_way_is_caught_there(name: str) -> None:
    part, tell = TELLING[name]

    def run(data: Rows, folder: Path) -> Rows:
        tell(data, folder)
        return _run(data, folder)

    report = audit_door(run, X, neighbours=neighbours_of(X), rolls=2000)
    assert {finding.kind for finding in report.findings} == {"output"}, str(report)
    assert any(part in finding.where for finding in report.findings), str(report)


def what_may_be_said() -> DoorAudit:
    """The audit of a run that says what does not depend on the data, in a program that logs with
    the time, as some libraries do once they are imported.
    """
    logging.basicConfig(format="%(created)f %(message)s", level=logging.INFO, force=True)

    def run(data: Rows, folder: Path) -> Rows:
        print("learning")
        logging.getLogger("blindsight.x").info("%d rows", len(data))
        warnings.warn("be patient", stacklevel=1)
        watch(len(data), len(data))
        (folder / "notes.txt").write_text("done")
        return _run(data, folder)

    return audit_door(run, X, neighbours=neighbours_of(X), rolls=2000)


def test_what_does_not_depend_on_the_data_may_be_said() -> None:
    """In a process of its own: threads and log handlers that other tests leave behind would write
    to this one's standard error, which the audit reports.
    """
    code = "import sys; sys.path[:0] = sys.argv[1:]; import test_outputs as t; "
    code += "report = t.what_may_be_said(); print(report); sys.exit(report.refuted)"
    done = warm.run(["-c", code, *Path(__file__).parents[:2]])
    assert done.returncode == 0 and done.stdout, done.stdout + done.stderr


def test_streams_handlers_and_levels_are_as_before(capfd: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("blindsight")
    before = (sys.stdout, sys.stderr, log.level, list(logging.getLogger().handlers))
    collect(lambda data, folder: print("inside"), X, None)
    assert before == (sys.stdout, sys.stderr, log.level, list(logging.getLogger().handlers))
    os.write(1, b"after")
    assert capfd.readouterr().out == "after"


def test_a_ledger_that_is_charged_less_than_is_due_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Ledger.charge

    def half(ledger: Ledger, costs: object, **named: object) -> object:
        from dataclasses import replace

        return real(ledger, [replace(cost, epsilon=cost.epsilon / 2) for cost in costs], **named)

    assert not audit_door(_run, X, rolls=2000).refuted
    monkeypatch.setattr(Ledger, "charge", half)
    report = audit_door(_run, X, rolls=2000)
    assert {finding.kind for finding in report.findings} == {"ledger"}, str(report)


def test_a_run_that_charges_for_part_of_its_doors_is_caught() -> None:
    def run(data: Rows, folder: Path) -> list[Rows]:
        first = Door(PROMISE, what="one sum", key="sum").total("sum", data)
        # Another value under the key of the first: paid once, released twice.
        return [first, Door(PROMISE, what="one sum", key="sum").total("sum", 2 * data)]

    report = audit_door(run, X, neighbours=neighbours_of(X), rolls=2000)
    assert "ledger" in {finding.kind for finding in report.findings}, str(report)


def test_entropy_that_an_older_thread_draws_meanwhile_does_not_change_a_run() -> None:
    """As a server's thread does that an earlier piece of work has left running."""
    with ThreadPoolExecutor(1) as older:
        older.submit(int).result()

        def run(disturbed: bool, _: Path) -> list[bytes]:
            if disturbed:
                older.submit(os.urandom, 8).result()
            with ThreadPoolExecutor(1) as own:
                return [os.urandom(8), own.submit(os.urandom, 8).result()]

        assert collect(run, False, None).differing(collect(run, True, None)) == []
