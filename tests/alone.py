"""Each test in a process of its own: `pytest -p alone` or `python -m benchmarks.suite --alone`.

A test that passes only because an earlier one imported a module, filled a cache or made a fixture
fails here. The process that collected the tests forks for each of them, so that heavy imports are
paid once, and no fixture of a whole session outlives its test. `--sample N` keeps a random N of
them, because a costly fixture is made again for every test that uses it.
"""

from __future__ import annotations

import json
import os
import random
import traceback

import pytest
from _pytest.runner import runtestprotocol

from forked import data_of, report_of


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", type=int, help="only so many tests, chosen at random")
    parser.addoption("--sample-seed", type=int, default=0, help="which ones")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.sample is not None:
        rng = random.Random(config.option.sample_seed)
        items[:] = rng.sample(items, min(config.option.sample, len(items)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool:
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item):
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _reports(item: pytest.Item) -> list[pytest.TestReport]:
    """The reports of a test that ran in a child process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _answer(item, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        answer = stream.read()
    _, status = os.waitpid(pid, 0)
    if not answer:
        code = os.waitstatus_to_exitcode(status)
        message = f"the test's process ended with code {code} before it reported"
        return [
            pytest.TestReport(
                item.nodeid, item.location, {}, "failed", message, "call", duration=0.0
            )
        ]
    return [report_of(data, item.config) for data in json.loads(answer)]


def _answer(item: pytest.Item, stream: int) -> None:
    """Run the test, with the fixtures that it needs, and end the process."""
    code = 1
    try:
        reports = runtestprotocol(item, log=False, nextitem=None)
        answer = json.dumps([data_of(report, item.config) for report in reports]).encode()
        with os.fdopen(stream, "wb") as pipe:
            pipe.write(answer)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
