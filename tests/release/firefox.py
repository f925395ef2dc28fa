"""A Firefox without a window, driven over its own protocol (Marionette), for tests."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

__all__ = ["Firefox"]

_SECONDS = 600  # within which it must start and answer: the machine may be busy


class Firefox:
    """One page in a Firefox with a profile of its own.

    Messages are `LENGTH:[0, NUMBER, COMMAND, PARAMETERS]`; answers `[1, NUMBER, ERROR, RESULT]`.
    """

    def __init__(self, folder: Path) -> None:
        program = shutil.which("firefox-esr") or shutil.which("firefox")
        assert program is not None, "Firefox is not installed."
        profile = folder / "profile"
        profile.mkdir()
        (profile / "user.js").write_text('user_pref("marionette.port", 0);\n')
        self._process = subprocess.Popen(
            [program, "--headless", "--marionette", "--no-remote", "--profile", str(profile)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"HOME": str(folder), "PATH": "/usr/bin:/bin", "MOZ_HEADLESS": "1"},
        )
        self._socket = self._connect(profile / "MarionetteActivePort")
        self._number = 0
        self._receive()  # what the server says of itself
        self("WebDriver:NewSession")

    def _connect(self, file: Path) -> socket.socket:
        until = time.monotonic() + _SECONDS  # ends what hangs
        while time.monotonic() < until and self._process.poll() is None:
            if file.is_file() and file.read_text().strip():
                port = int(file.read_text())
                return socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)
            time.sleep(0.1)
        raise AssertionError("Firefox did not open its port.")

    def _receive(self) -> Any:
        digits = b""
        while not digits.endswith(b":"):
            digits += self._some(1)
        length, data = int(digits[:-1]), b""
        while len(data) < length:
            data += self._some(length - len(data))
        return json.loads(data)

    def _some(self, most: int) -> bytes:
        data = self._socket.recv(most)
        assert data, "Firefox has ended."
        return data

    def __call__(self, command: str, **parameters: Any) -> Any:
        self._number += 1
        text = json.dumps([0, self._number, command, parameters])
        self._socket.sendall(f"{len(text.encode())}:{text}".encode())
        _, _, error, result = self._receive()
        assert error is None, error
        return result

    def script(self, text: str, *words: Any) -> Any:
        """The value of an async function's body, run in the page."""
        wrapped = (
            "const done = arguments[arguments.length - 1];"
            f"(async (...words) => {{ {text} }})(...arguments)"
            ".then(done, (error) => done({error: String(error)}));"
        )
        self("WebDriver:SetTimeouts", script=_SECONDS * 1000, pageLoad=_SECONDS * 1000)
        answer = self("WebDriver:ExecuteAsyncScript", script=wrapped, args=list(words))
        return answer["value"]

    def choose(self, selector: str, path: Path) -> None:
        """Choose a file in a field."""
        found = self("WebDriver:FindElement", using="css selector", value=selector)["value"]
        (element,) = found.values()
        self("WebDriver:ElementSendKeys", id=element, text=str(path))

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self._process.terminate()
        self._process.wait(_SECONDS)
