"""Run the tests in several processes: `pytest -p forked --workers 3`.

The process that collected the tests forks its workers, so that the libraries are imported and the
tests collected once and their memory is shared. (pytest-xdist starts interpreters that each import
and collect again, which took 12 s of processor time and a gigabyte each.) Workers are given whole
groups of tests, in the order of collection: tests that follow each other and for which the hook
`pytest_test_group` answers the same.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import signal
import threading
import traceback
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

import pytest

STOP = -1  # in place of a group's number: there are no more


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=1, help="processes that run the tests")
    parser.addoption("--failures", help="a file that names each failure as soon as it is known")


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    class Hooks:
        @pytest.hookspec(firstresult=True)
        def pytest_test_group(self, item: pytest.Item) -> str | None:
            """The tests of one group run in one worker; by default, those of one file."""

    pluginmanager.add_hookspecs(Hooks)


def pytest_test_group(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    config = session.config
    if config.option.workers < 2 or config.option.collectonly or session.testsfailed:
        return None  # as usual, in this process
    name = config.hook.pytest_test_group
    groups = [list(items) for _, items in itertools.groupby(session.items, lambda i: name(item=i))]
    workers = [_start(session, groups, number) for number in range(config.option.workers)]
    try:
        _give_out(session, len(groups), workers)
    finally:
        for worker in workers:
            worker.end()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    return True


@dataclass
class _Worker:
    """A worker as the process that gives out the tests sees it."""

    pid: int
    line: Connection
    test: str = ""  # that it runs
    code: int | None = None

    def end(self) -> None:
        """Kill it if it still runs."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def wait(self) -> None:
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.line.close()


def _start(session: pytest.Session, groups: list[list[pytest.Item]], number: int) -> _Worker:
    factory = session.config._tmp_path_factory  # type: ignore[attr-defined]
    folder = factory.getbasetemp() / f"worker{number}"
    folder.mkdir(mode=0o700)
    ours, theirs = Pipe()
    pid = os.fork()
    if pid:
        theirs.close()
        return _Worker(pid, ours)
    code = 1
    try:
        ours.close()
        factory._basetemp = folder
        _run(session, groups, theirs)
        code = 0
    except KeyboardInterrupt:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        os._exit(code)


def _give_out(session: pytest.Session, groups: int, workers: list[_Worker]) -> None:
    """Give each worker that asks its next group, and pass on the reports, until all have ended."""
    hook, numbers = session.config.hook, iter(range(groups))
    lines = {worker.line: worker for worker in workers}
    while lines:
        for line in wait(list(lines)):
            worker = lines[line]  # type: ignore[index]
            try:
                message = json.loads(worker.line.recv_bytes())
            except EOFError:
                del lines[worker.line]
                worker.wait()
                if worker.code:
                    _report_death(session, worker)
                continue
            if message["kind"] == "group":
                stopping = session.shouldstop or session.shouldfail
                number = STOP if stopping else next(numbers, STOP)
                worker.line.send_bytes(json.dumps(number).encode())
            elif message["kind"] == "test":
                worker.test = message["test"]
            else:
                report = report_of(message["report"], session.config)
                hook.pytest_runtest_logreport(report=report)
                if report.failed and session.config.option.failures:
                    with open(session.config.option.failures, "a", encoding="utf-8") as file:
                        file.write(f"{report.nodeid}\n{report.longreprtext}\n\n")


def data_of(report: pytest.TestReport, config: pytest.Config) -> object:
    """A report as a value of JSON."""
    data = config.hook.pytest_report_to_serializable(config=config, report=report)
    return json.loads(json.dumps(data, default=str))


def report_of(data: object, config: pytest.Config) -> pytest.TestReport:
    """The report that `data_of` made this of."""
    report = config.hook.pytest_report_from_serializable(config=config, data=data)
    if isinstance(report.longrepr, list):  # where a test was skipped, and why: JSON has no tuples
        report.longrepr = tuple(report.longrepr)
    return report


def _report_death(session: pytest.Session, worker: _Worker) -> None:
    """A test whose process died has failed, and the run ends: the rest of its group is lost."""
    message = f"its process ended with code {worker.code} (below 0: the signal that ended it)"
    location = (worker.test.partition("::")[0], None, worker.test)
    report = pytest.TestReport(worker.test, location, {}, "failed", message, "call", duration=0.0)
    session.config.hook.pytest_runtest_logreport(report=report)
    session.shouldfail = f"a process that ran tests died while it ran {worker.test}"


def _run(session: pytest.Session, groups: list[list[pytest.Item]], line: Connection) -> None:
    """Run the groups that this worker is given, until there are no more."""
    config = session.config
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False  # folders of the process that this one was forked from
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # into files that the workers would share
    capture.start_global_capturing()
    capture.suspend_global_capture(in_=False)
    reporter = config.pluginmanager.getplugin("terminalreporter")
    reporter._tw._file = open(os.devnull, "w")  # noqa: SIM115

    def send(**message: object) -> None:
        line.send_bytes(json.dumps(message).encode())

    class Sender:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            send(kind="report", report=data_of(report, config))

    config.pluginmanager.register(Sender())

    def tests() -> Iterator[pytest.Item]:
        while True:
            send(kind="group")
            number = json.loads(line.recv_bytes())
            if number == STOP:
                return
            yield from groups[number]

    following = tests()
    item = next(following, None)
    while item is not None:
        after = next(following, None)  # it says which fixtures stay
        send(kind="test", test=item.nodeid)
        config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        item = after
