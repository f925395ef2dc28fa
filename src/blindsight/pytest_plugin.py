"""The pytest plugin: `assert_private` as a fixture, and what it measured at the end of the run.

    def test_my_mean_is_private(assert_private):
        assert_private(my_mean, data, neighbour, epsilon=1.0)

It is found by pytest where Blindsight is installed, and imports nothing heavy until a test uses it.
`pytest --privacy-trials 50000` attacks harder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["assert_private"]

_MEASURED = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--privacy-trials`."""
    parser.getgroup("blindsight").addoption(
        "--privacy-trials",
        type=int,
        default=None,
        metavar="N",
        help="runs on each of two inputs in assert_private, unless a test says otherwise",
    )


@pytest.fixture
def assert_private(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`blindsight.assert_private`, whose measurements are listed at the end of the run."""
    from blindsight.audit import assertions

    def check(subject: Any, data: Any, neighbour: Any, **options: Any) -> Any:
        trials = request.config.getoption("--privacy-trials")
        if trials is not None:
            options.setdefault("trials", trials)
        measured = assertions.assert_private(subject, data, neighbour, **options)
        lines = request.config.stash.setdefault(_MEASURED, [])
        stated = options.get("epsilon")
        lines.append(
            f"{request.node.nodeid}: epsilon >= {measured.epsilon:.3g} measured"
            + ("" if stated is None else f", {stated:g} stated")
        )
        return measured

    return check


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """List what was measured."""
    lines = config.stash.get(_MEASURED, [])
    if lines:
        terminalreporter.section("privacy measured by attack (not a proof)")
        for line in lines:
            terminalreporter.write_line(line)
