"""Processes of one's own that start with the heavy libraries imported already.

Many tests need a process of their own: for the code of a page, a command, a server. Importing
numpy, SciPy, scikit-learn and torch again takes each of them some seconds. Here one process per
worker imports them once and forks: what a test runs has a fresh `__main__`, a working folder, an
environment and output files of its own, and nothing else of the test's process.

    done = warm.run(["-c", "print(1 + 1)"], cwd=tmp_path)        # as subprocess.run
    server = warm.Process(["-m", "blindsight", "serve"], output=log)  # as subprocess.Popen
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Process", "run"]

HEAVY = (
    "blindsight.cli.main",
    "blindsight.workbench.app",
    "blindsight.app",
    "matplotlib.pyplot",
    "onnxruntime",
    "pandas",
    "scipy.optimize",
    "scipy.stats",
    "sklearn.ensemble",
    "sklearn.linear_model",
    "torch._dynamo",
)


class _Zygote:
    """The process that forks, and how each of its children ended."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"},
        )
        self.changed = threading.Condition()
        self.pids: dict[int, int] = {}
        self.codes: dict[int, int] = {}
        self.started = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            kind, key, value = json.loads(line)
            with self.changed:
                (self.pids if kind == "started" else self.codes)[key] = value
                self.changed.notify_all()

    def start(self, order: dict[str, Any]) -> tuple[int, int]:
        """The number and the process id of a new child."""
        assert self.process.stdin is not None
        with self.changed:
            self.started += 1
            number = self.started
            self.process.stdin.write(json.dumps([number, order]) + "\n")
            self.process.stdin.flush()
            came = self.changed.wait_for(
                lambda: number in self.pids or self.process.poll() is not None, 600
            )
            assert came and number in self.pids, "the process that forks has ended"
            return number, self.pids[number]

    def wait(self, number: int, timeout: float | None) -> int | None:
        """Its exit code as `subprocess` has it, or None if it still runs."""
        with self.changed:
            self.changed.wait_for(lambda: number in self.codes, timeout)
            return self.codes.get(number)


_zygotes: dict[int, _Zygote] = {}


def _zygote() -> _Zygote:
    if os.getpid() not in _zygotes:  # a forked worker needs one of its own
        _zygotes[os.getpid()] = _Zygote()
    return _zygotes[os.getpid()]


class Process:
    """A running process, with the part of `subprocess.Popen` that the tests use.

    Parameters:
        arguments: what follows `python`: `-W` filters, then `-c CODE`, `-m MODULE` or a file, and
            its own arguments.
        cwd: its working folder.
        env: its whole environment; this process's by default.
        output: the file to which both streams are appended, or the two files.
    """

    def __init__(
        self,
        arguments: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        output: Path | tuple[Path, Path],
    ) -> None:
        streams = output if isinstance(output, tuple) else (output, output)
        self.args = [str(each) for each in arguments]
        order = {
            "arguments": self.args,
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "streams": [str(path) for path in streams],
        }
        self._owner = _zygote()
        self._number, self.pid = self._owner.start(order)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        self.returncode = self._owner.wait(self._number, 0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        self.returncode = self._owner.wait(self._number, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by kill -9."""
        self.send_signal(signal.SIGKILL)


def run(
    arguments: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Run a process to its end, as `subprocess.run(..., capture_output=True, text=True)` does."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = Process(arguments, cwd=cwd, env=env, output=(out, err))
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(600)
            raise
        return subprocess.CompletedProcess(process.args, code, out.read_text(), err.read_text())


def _serve() -> None:
    """Fork a child for each order on standard input; end with it."""
    filters = warnings.filters[:]
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    warnings.filters[:] = filters  # without those that libraries add when they are imported
    # What is imported is not looked at again by the collector: pages stay shared with the children.
    gc.collect()
    gc.freeze()
    running: dict[int, int] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    orders, pending = sys.stdin.fileno(), b""
    while True:
        ready, _, _ = select.select([orders, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid in running:
                code = os.waitstatus_to_exitcode(status)
                print(json.dumps(["ended", running.pop(pid), code]), flush=True)
        if orders not in ready:
            continue
        got = os.read(orders, 1 << 20)
        if not got:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            return
        *lines, pending = (pending + got).split(b"\n")
        for line in lines:
            number, order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(woken)
                os.close(wake)
                _become(order)
            running[pid] = number
            print(json.dumps(["started", number, pid]), flush=True)


def _become(order: dict[str, Any]) -> None:
    """Run what was ordered in this forked process, and leave as an interpreter would."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        for number, path in enumerate([os.devnull, *order["streams"]]):
            flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
            handle = os.open(path, flags, 0o666)
            os.dup2(handle, number)
            os.close(handle)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115
        code = _main(order["arguments"])
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = 0 if end.code is None else end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(code)


def _main(arguments: list[str]) -> int:
    here = str(Path(__file__).parent)
    sys.path[:] = [each for each in sys.path if each != here]
    for entry in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if entry:
            sys.path.insert(0, entry)
    while arguments[0] == "-W":
        warnings.simplefilter(arguments[1])  # type: ignore[arg-type]
        arguments = arguments[2:]
    if arguments[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *arguments[2:]]
        module = type(sys)("__main__")
        sys.modules["__main__"] = module
        exec(compile(arguments[1], "<string>", "exec"), module.__dict__)  # noqa: S102
    else:
        sys.path.insert(0, str(Path(arguments[0]).parent))
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
    return 0


def _leave(code: int) -> None:
    """End as an interpreter does: threads are waited for, exit functions run, streams flushed."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
