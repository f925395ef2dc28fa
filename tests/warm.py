"""Processes of one's own that start with the heavy libraries imported already.

Many tests need a process of their own: for the code of a page, a command, a server. Importing
numpy, SciPy, scikit-learn and torch again takes each of them some seconds. Here one process per
test run imports them once and forks: what a test runs has a fresh `__main__`, a working folder, an
environment and output files of its own, and nothing else of the test's process.

    done = warm.run(["-c", "print(1 + 1)"], cwd=tmp_path)        # as subprocess.run
    server = warm.Process(["-m", "blindsight", "serve"], output=log)  # as subprocess.Popen

Where `sys.executable` is `warm.python()`, as it is in those processes, the jobs that a workbench
starts are forked, too. They first run the code that the variable `warm.FIRST` of the environment
holds, by which a test has a job stop or die at a certain place.
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
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["FIRST", "Process", "prepare", "python", "run", "start"]

HEAVY = (
    "blindsight.cli.main",
    "blindsight.workbench.app",
    "alembic.command",
    "blindsight.app",
    "blindsight.app.federation_site",
    "blindsight.hashing",
    "blindsight.metric",
    "matplotlib.pyplot",
    "onnxruntime",
    "opacus",
    "pandas",
    "scipy.optimize",
    "scipy.stats",
    "sklearn.cluster",
    "sklearn.datasets",
    "sklearn.ensemble",
    "sklearn.linear_model",
    "torch._dynamo",
)
FIRST = "BLINDSIGHT_TESTS_FIRST"
_FOLDER = "BLINDSIGHT_TESTS_WARM"  # names the folder with the socket of the process that forks
_SIZE = 8  # bytes of a number on the wire

# A program in place of the interpreter: it has the process that forks run a job of the workbench
# with its own standard streams, passes on SIGTERM, and ends as the job does.
_PYTHON = """#!{python} -IS
import json, os, signal, socket, sys
if sys.argv[1:] != ["-m", "blindsight.workbench.infra.job_process"]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
line = socket.socket(socket.AF_UNIX)
line.connect({address!r})
order = dict(arguments=sys.argv[1:], cwd=os.getcwd(), env=dict(os.environ))
order = json.dumps(order).encode()
socket.send_fds(line, [len(order).to_bytes({size}, "big")], [0, 1, 2])
line.sendall(order)
os.closerange(0, 3)
number = lambda: int.from_bytes(line.recv({size}, socket.MSG_WAITALL), "big", signed=True)
process = number()
def pass_on(*_):
    try:
        os.kill(process, signal.SIGTERM)
    except ProcessLookupError:  # it has just ended, and its code is on the way
        pass
signal.signal(signal.SIGTERM, pass_on)
code = number()
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if code != -signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def start() -> None:
    """Start the process that forks; it imports when it is first used, and ends with this one."""
    folder = Path(tempfile.mkdtemp(prefix="blindsight-warm-", dir="/tmp"))
    os.environ[_FOLDER] = str(folder)
    program = Path(python())
    address = str(folder / "socket")
    program.write_text(_PYTHON.format(python=sys.executable, address=address, size=_SIZE))
    program.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(128)
        process = subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            env={**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"},
        )

    owner = os.getpid()

    def end() -> None:
        if os.getpid() != owner:  # a worker that was forked
            return
        assert process.stdin is not None
        process.stdin.close()
        process.wait()

    atexit.register(end)


def python() -> str:
    """The program for `sys.executable` with which the jobs of a workbench are forked."""
    return f"{os.environ[_FOLDER]}/python"


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
        self.args = [str(each) for each in arguments]
        order = {
            "arguments": self.args,
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
        }
        encoded = json.dumps(order).encode()
        self.returncode: int | None = None
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(f"{os.environ[_FOLDER]}/socket")
        with contextlib.ExitStack() as opened:
            files = [opened.enter_context(open(os.devnull, "rb"))]
            for path in output if isinstance(output, tuple) else (output, output):
                files.append(opened.enter_context(open(path, "ab")))
            numbers = [file.fileno() for file in files]
            socket.send_fds(self._line, [len(encoded).to_bytes(_SIZE, "big")], numbers)
        self._line.sendall(encoded)
        self.pid = _number(self._line)
        _running.add(self)

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by kill -9."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        """Wait for the exit code so long; None if it still runs."""
        if self.returncode is None and select.select([self._line], [], [], timeout)[0]:
            self.returncode = _number(self._line)
            self._line.close()
            _running.discard(self)
        return self.returncode


_running: set[Process] = set()  # a process whose line is closed is ended


def _number(line: socket.socket) -> int:
    received = line.recv(_SIZE, socket.MSG_WAITALL)
    assert len(received) == _SIZE, "the process that forks has ended"
    return int.from_bytes(received, "big", signed=True)


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


def _serve(listener: socket.socket) -> None:
    """Fork a child for each order that comes; end with standard input."""
    # Signals to the whole group (Ctrl-C, timeout) must not leave children without this process: it
    # ends when the tests have ended, and its children with it.
    signals = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    usual = {number: signal.signal(number, signal.SIG_IGN) for number in signals}
    waiting = [listener, sys.stdin]
    if sys.stdin in select.select(waiting, [], [])[0]:
        return
    prepare()
    program = python()
    # What is imported is not looked at again by the collector: pages stay shared with the children.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
    running: dict[int, socket.socket] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    while True:
        ready, _, _ = select.select([listener, sys.stdin, woken, *running.values()], [], [])
        if woken in ready:
            os.read(woken, 4096)
        for pid, line in running.items():
            if line in ready:  # whoever waits for it has gone
                os.kill(pid, signal.SIGKILL)
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid in running:
                with running.pop(pid) as line, contextlib.suppress(OSError):
                    line.sendall(_encoded(os.waitstatus_to_exitcode(status)))
        if sys.stdin in ready:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            return
        if listener not in ready:
            continue
        line, _ = listener.accept()
        try:
            size, streams, _, _ = socket.recv_fds(line, _SIZE, 3)
            order = json.loads(line.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
        except (OSError, ValueError):  # killed before it had asked
            line.close()
            continue
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, handler in usual.items():
                signal.signal(number, handler)
            for each in (listener, line, *running.values()):
                each.close()
            os.close(woken)
            os.close(wake)
            sys.executable = program
            _become(order, streams)
        running[pid] = line
        for stream in streams:
            os.close(stream)
        with contextlib.suppress(OSError):
            line.sendall(_encoded(pid))


def prepare() -> None:
    """Do what many processes would do first: import the heavy libraries, and compute numba's tables
    of types and functions and the public pictures of the small encoders, which are the same on
    every call.
    """
    filters = warnings.filters[:]
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    warnings.filters[:] = filters  # without those that libraries add when they are imported
    with contextlib.suppress(ImportError):
        from numba.core.registry import cpu_target

        from blindsight.encoders.builtin import BUILT_IN
        from blindsight.encoders.public_pictures import built_in_images

        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()
        for name in ("pixels", "gradients"):
            built_in_images(800, BUILT_IN[name].size)


def _encoded(number: int) -> bytes:
    return number.to_bytes(_SIZE, "big", signed=True)


def _become(order: dict[str, Any], streams: list[int]) -> None:
    """Run what was ordered in this forked process, and leave as an interpreter would."""
    code = 1
    try:
        os.setsid()
        os.environ.clear()
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, closefd=False, errors="backslashreplace")  # noqa: SIM115
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
        exec(os.environ.get(FIRST, ""), {})  # noqa: S102
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
    try:
        _serve(socket.socket(fileno=int(sys.argv[1])))
    finally:
        shutil.rmtree(os.environ[_FOLDER], ignore_errors=True)
