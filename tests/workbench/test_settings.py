"""Settings: file, environment and command line, the last wins; nothing unsafe by accident."""

from __future__ import annotations

from pathlib import Path

import pytest

from blindsight.core.errors import InvalidParameter
from blindsight.workbench import Settings


def test_the_environment_wins_over_the_file_and_arguments_over_both(tmp_path: Path) -> None:
    file = tmp_path / "studio.toml"
    file.write_text('[studio]\nport = 1000\nrate = 7\nhosts = ["a.example"]\nquery_budget = 5\n')
    found = Settings.read(
        file,
        environment={"BLINDSIGHT_STUDIO_PORT": "2000", "BLINDSIGHT_STUDIO_BURST": "9"},
        port=3000,
    )
    assert (found.port, found.rate, found.burst, found.hosts, found.query_budget) == (
        3000,
        7,
        9,
        ("a.example",),
        5.0,
    )


@pytest.mark.parametrize(
    "text",
    ["[studio]\nprot = 1", "port = 1", "[studio]\nport = [1]", "[studio", "[studio]\nport=true"],
)
def test_a_file_with_a_mistake_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "studio.toml").write_text(text)
    with pytest.raises(InvalidParameter):
        Settings.read(tmp_path / "studio.toml", environment={})


def test_keys_are_off_on_loopback_only() -> None:
    assert Settings(keys="off").open
    assert not Settings().open
    assert Settings().local
    assert not Settings(host="192.0.2.1").local
    assert not Settings(host="0.0.0.0").open  # noqa: S104
    assert not Settings(keys="required").open
    with pytest.raises(InvalidParameter, match="loopback"):
        Settings(host="192.0.2.1", keys="off")


def test_a_misspelt_name_is_refused_wherever_it_stands() -> None:
    with pytest.raises(InvalidParameter, match="no setting"):
        Settings.read(environment={"BLINDSIGHT_STUDIO_KEY": "required"})
    with pytest.raises(InvalidParameter, match="port must be at most 65535, got 80000"):
        Settings(port=80_000)
    with pytest.raises(
        InvalidParameter, match="keys must be 'auto', 'required' or 'off', got 'no'"
    ):
        Settings(keys="no")


def test_a_short_secret_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidParameter) as found:
        Settings(token="guessable")
    assert "guessable" not in str(found.value)


def test_a_password_is_not_in_the_repr() -> None:
    assert "secret" not in repr(Settings(database="postgresql://u:secret@h/d"))


def test_settings_survive_the_way_to_a_job() -> None:
    settings = Settings(port=1, hosts=("x",), query_budget=3.0)
    assert Settings(**settings.to_fields()) == settings
