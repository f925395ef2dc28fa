"""HTTPS by the workbench itself, and behind the documented Caddy and nginx: the real programs."""

from __future__ import annotations

import datetime
import ipaddress
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from blindsight.core.errors import InvalidParameter
from blindsight.workbench import WorkbenchSettings
from blindsight.workbench.infra.database import Database
from blindsight.workbench.infra.identity import Keys
from blindsight.workbench.infra.server import check_certificate
from ports import held_port
from workbench.conftest import Server

DEPLOY = Path(__file__).parents[2] / "deploy"
NAME = "workbench.example"
BURST = 60


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for the workbench's name, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName(NAME), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder / "cert.pem", folder / "key.pem"


def _key(state: Path) -> str:
    state.mkdir(parents=True)
    database = Database(f"sqlite:///{state / 'workbench.db'}")
    key = Keys(database).make("ann", "owner")
    database.close()
    return key


def _trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


def _sign_in(browser: httpx.Client, address: str, key: str) -> httpx.Response:
    page = browser.get(f"{address}/login")
    token = re.search(r'name="csrf" value="([^"]+)"', page.text)
    assert token is not None, page.text
    return browser.post(
        f"{address}/login",
        data={"csrf": token[1], "key": key},
        headers={"Origin": address, "Sec-Fetch-Site": "same-origin"},
    )


def _check_secure_session(browser: httpx.Client, address: str, key: str) -> None:
    answer = _sign_in(browser, address, key)
    assert answer.status_code == 303, answer.text
    flags = answer.headers["set-cookie"].lower()
    assert all(flag in flags for flag in ("secure", "httponly", "samesite=strict"))
    assert browser.get(f"{address}/people").status_code == 200
    home = browser.get(f"{address}/login")
    assert home.headers["strict-transport-security"].startswith("max-age=")
    token = {"X-CSRF-Token": re.search(r'csrf-token" content="([^"]+)"', home.text)[1]}  # type: ignore[index]
    headers = {**token, "Origin": address}
    assert browser.post(f"{address}/logout", headers=headers).status_code == 204
    assert browser.get(f"{address}/api/jobs").status_code in (401, 429)


def test_the_workbench_speaks_https_itself(
    serve: Callable[..., Server], state: Path, certificate: tuple[Path, Path]
) -> None:
    key = _key(state / "w")
    server = serve(
        state / "w",
        KEYS="required",
        TLS_CERT=certificate[0],
        TLS_KEY=certificate[1],
        HEADER_SECONDS=10.0,
    )
    # Whoever connects and never speaks TLS is let go, within the deadline for headers.
    with socket.create_connection(("127.0.0.1", server.port)) as silent:
        with httpx.Client(verify=_trusting(certificate[0]), timeout=600) as browser:
            _check_secure_session(browser, server.url, key)
        silent.settimeout(600)
        assert silent.recv(1) == b""
    context = _trusting(certificate[0])
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    assert httpx.get(server.url + "/health", verify=context, timeout=600).status_code == 200
    log = server.log.read_text()
    assert f"https://127.0.0.1:{server.port}" in log


@pytest.mark.parametrize("wrong", ["missing", "text", "another key"])
def test_a_certificate_that_cannot_be_used_is_named_before_the_start(
    certificate: tuple[Path, Path], tmp_path: Path, wrong: str
) -> None:
    cert, key = certificate[0], tmp_path / "key.pem"
    if wrong == "text":
        key.write_text("no key")
    if wrong == "another key":
        other = ec.generate_private_key(ec.SECP256R1())
        key.write_bytes(
            other.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    with pytest.raises(InvalidParameter, match="belong together"):
        check_certificate(WorkbenchSettings(tls_cert=cert, tls_key=key, state=tmp_path / "s"))


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A workbench that believes a proxy on this machine, and the owner's key."""
    state = tmp_path_factory.mktemp("behind") / "state"
    key = _key(state)
    server = Server(state, KEYS="required", PROXIES="127.0.0.1", HOSTS=NAME, RATE=6, BURST=BURST)
    yield server, key
    server.stop()


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not on this machine: make apt, or apt-get install {name}.")
    return path


def _nginx(folder: Path, certificate: tuple[Path, Path], to: int) -> tuple[list[str], int, int]:
    """nginx with the documented file; only ports and the certificate's place are changed."""
    secure, plain = held_port(), held_port()
    text = (DEPLOY / "nginx.conf").read_text()
    for before, after in (
        ("listen 443 ssl;", f"listen 127.0.0.1:{secure} ssl;"),
        ("listen 80;", f"listen 127.0.0.1:{plain};"),
        ("/etc/ssl/workbench.pem", str(certificate[0])),
        ("/etc/ssl/private/workbench.key", str(certificate[1])),
        ("127.0.0.1:8731", f"127.0.0.1:{to}"),
    ):
        assert before in text, before
        text = text.replace(before, after)
    (folder / "site.conf").write_text(text)
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/log;\nevents {{}}\n"
        f"http {{ access_log off; {temporary} include {folder}/site.conf; }}\n"
    )
    command = [_program("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf")]
    return command, secure, plain


def _caddy(folder: Path, certificate: tuple[Path, Path], to: int) -> tuple[list[str], int, int]:
    """Caddy with the documented file, ports and certificate changed in the same way."""
    secure, plain = held_port(), held_port()
    text = (DEPLOY / "Caddyfile").read_text()
    for before, after in (
        ("admin off", f"admin off\n\thttp_port {plain}\n\thttps_port {secure}"),
        (
            f"\n{NAME} {{",
            f"\n{NAME} {{\n\tbind 127.0.0.1\n\ttls {certificate[0]} {certificate[1]}",
        ),
        ("127.0.0.1:8731", f"127.0.0.1:{to}"),
    ):
        assert before in text, before
        text = text.replace(before, after)
    (folder / "Caddyfile").write_text(text)
    command = [_program("caddy"), "run", "--config", str(folder / "Caddyfile")]
    return [*command, "--adapter", "caddyfile"], secure, plain


class _Named(httpx.HTTPTransport):
    """Connects to this machine whatever the name, as if DNS said so; the name is checked in TLS."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        there = httpx.Request(
            request.method,
            request.url.copy_with(host="127.0.0.1"),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": request.url.host},
        )
        return super().handle_request(there)


@pytest.mark.parametrize("proxy", [_caddy, _nginx])
def test_the_documented_proxy_brings_people_in_over_https(
    behind: tuple[Server, str],
    certificate: tuple[Path, Path],
    tmp_path: Path,
    proxy: Callable[..., tuple[list[str], int, int]],
) -> None:
    server, key = behind
    command, secure, plain = proxy(tmp_path, certificate, server.port)
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        )
    address = f"https://{NAME}:{secure}"
    transport: Any = _Named(verify=_trusting(certificate[0]))
    try:
        with httpx.Client(transport=transport, timeout=600) as browser:
            for _ in range(6000):
                try:
                    assert browser.get(f"{address}/health/ready").status_code == 200
                    break
                except httpx.HTTPError:
                    assert process.poll() is None, (tmp_path / "output").read_text()
                    time.sleep(0.1)
            _check_secure_session(browser, address, key)
            redirect = browser.get(f"http://{NAME}:{plain}/search")
            assert redirect.status_code in (301, 308)
            assert redirect.headers["location"].startswith(f"https://{NAME}")
            _check_strangers_lock_nobody_out(browser, address, key)
    finally:
        process.terminate()
        process.wait(600)


def _check_strangers_lock_nobody_out(browser: httpx.Client, address: str, key: str) -> None:
    """Strangers come through the same proxy, and their made-up addresses are not believed."""
    owner = {"Authorization": f"Bearer {key}"}
    statuses = []
    for number in range(2 * BURST):
        forged = {"X-Forwarded-For": f"10.0.0.{number}", "Authorization": f"Bearer bs_{number}"}
        statuses.append(browser.get(f"{address}/api/jobs", headers=forged).status_code)
    assert statuses.count(429) > 0, "strangers share one allowance"
    for _ in range(10):
        assert browser.get(f"{address}/api/jobs", headers=owner).status_code == 200
    assert browser.get(f"{address}/login").status_code == 200, "and signing in goes on"
