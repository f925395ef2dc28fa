"""Settings of the workbench: file, environment and command line; nothing unsafe by accident."""

from __future__ import annotations

from pathlib import Path

import pytest

from blindsight.core.errors import InvalidParameter
from blindsight.workbench import WorkbenchSettings


def test_the_environment_wins_over_the_file_and_arguments_over_both(tmp_path: Path) -> None:
    file = tmp_path / "workbench.toml"
    file.write_text('[workbench]\nport = 1000\nrate = 7\nhosts = ["a.example"]\nphoto_budget = 5\n')
    found = WorkbenchSettings.read(
        file,
        environment={"BLINDSIGHT_WORKBENCH_PORT": "2000", "BLINDSIGHT_WORKBENCH_BURST": "9"},
        port=3000,
    )
    assert (found.port, found.rate, found.burst, found.hosts, found.photo_budget) == (
        3000,
        7,
        9,
        ("a.example",),
        5.0,
    )


@pytest.mark.parametrize(
    "text",
    [
        "[workbench]\nprot = 1",
        "port = 1",
        "[workbench]\nport = [1]",
        "[workbench",
        "[workbench]\nport=true",
    ],
)
def test_a_file_with_a_mistake_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "workbench.toml").write_text(text)
    with pytest.raises(InvalidParameter):
        WorkbenchSettings.read(tmp_path / "workbench.toml", environment={})


def test_keys_are_off_on_loopback_only() -> None:
    assert WorkbenchSettings(keys="off").open
    assert not WorkbenchSettings().open
    assert WorkbenchSettings().local
    assert not WorkbenchSettings(host="192.0.2.1", plain_http=True).local
    assert not WorkbenchSettings(host="0.0.0.0", proxies="192.0.2.7").open  # noqa: S104
    assert not WorkbenchSettings(keys="required").open
    with pytest.raises(InvalidParameter, match="loopback"):
        WorkbenchSettings(host="192.0.2.1", keys="off")


@pytest.mark.parametrize("host", ["192.0.2.1", "0.0.0.0", "::"])  # noqa: S104
def test_keys_never_cross_a_network_in_clear_by_accident(host: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="unencrypted"):
        WorkbenchSettings(host=host)
    with pytest.raises(InvalidParameter, match="belong together"):
        WorkbenchSettings(host=host, tls_cert=tmp_path / "cert.pem")
    assert WorkbenchSettings(
        host=host, tls_cert=tmp_path / "c.pem", tls_key=tmp_path / "k.pem"
    ).https
    assert WorkbenchSettings(host=host, proxies="192.0.2.7").proxies


def test_an_identity_provider_is_asked_over_https_only() -> None:
    with pytest.raises(InvalidParameter, match="https"):
        WorkbenchSettings(oidc_issuer="http://login.example", oidc_client="workbench")
    with pytest.raises(InvalidParameter, match="belong together"):
        WorkbenchSettings(oidc_issuer="https://login.example")
    found = WorkbenchSettings(
        oidc_issuer="https://login.example", oidc_client="workbench", oidc_secret="hidden"
    )
    assert "hidden" not in repr(found)


def test_a_misspelt_name_is_refused_wherever_it_stands() -> None:
    with pytest.raises(InvalidParameter, match="not a setting"):
        WorkbenchSettings.read(environment={"BLINDSIGHT_WORKBENCH_KEY": "required"})
    with pytest.raises(InvalidParameter, match="port must be at most 65535, got 80000"):
        WorkbenchSettings(port=80_000)
    with pytest.raises(
        InvalidParameter, match="keys must be 'auto', 'required' or 'off', got 'no'"
    ):
        WorkbenchSettings(keys="no")


def test_a_short_secret_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidParameter) as found:
        WorkbenchSettings(token="guessable")
    assert "guessable" not in str(found.value)


def test_a_password_is_not_in_the_repr() -> None:
    assert "secret" not in repr(WorkbenchSettings(database="postgresql://u:secret@h/d"))


def test_settings_survive_the_way_to_a_job() -> None:
    settings = WorkbenchSettings(port=1, hosts=("x",), photo_budget=3.0)
    assert WorkbenchSettings(**settings.to_fields()) == settings


def test_former_names_are_refused_with_the_present_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="is now called BLINDSIGHT_WORKBENCH_KEYS"):
        WorkbenchSettings.read(environment={"BLINDSIGHT_STUDIO_KEYS": "required"})
    (tmp_path / "old.toml").write_text("[studio]\nport = 1\n")
    with pytest.raises(InvalidParameter, match=r"now called \[workbench\]"):
        WorkbenchSettings.read(tmp_path / "old.toml", environment={})
    with pytest.raises(InvalidParameter, match="query_budget was removed"):
        WorkbenchSettings(query_budget=3.0)


def test_a_state_folder_of_an_earlier_version_is_used_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert WorkbenchSettings().state == tmp_path / "blindsight" / "workbench"
    former = tmp_path / "blindsight" / "studio"
    former.mkdir(parents=True)
    assert WorkbenchSettings().state == former
    (former / "studio.db").touch()
    assert WorkbenchSettings().database_url == f"sqlite:///{former / 'studio.db'}"
    (tmp_path / "blindsight" / "workbench").mkdir()
    assert WorkbenchSettings().state == tmp_path / "blindsight" / "workbench"
