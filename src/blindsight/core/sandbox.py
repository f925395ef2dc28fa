"""Confinement of a process that opens files from outside: no files, no network, no programs.

Landlock takes away the file system and, where the kernel is new enough, TCP; a seccomp filter
leaves the calls that reading, computing and writing need, and refuses all others. Where the kernel
has neither, a user namespace without a network replaces them in part. macOS has some resource
limits and Windows has nothing: there a decoder runs in a separate process, so that a crash ends
only that process, and is not confined. `confine` returns the protections that are in force.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct

__all__ = ["confine"]

_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_CREATE_RULESET, _RESTRICT_SELF = 444, 446
_LANDLOCK_VERSION = 1
# Every right over files of Landlock's first version (13), then one more each in versions 2, 3 and
# 5.
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL_FILE_RIGHTS = (1 << 16) - 1
_TCP_RIGHTS = 0b11
_NEW_USER, _NEW_NET, _NEW_IPC = 0x10000000, 0x40000000, 0x08000000
# The calls of a process that reads a pipe, computes and writes to a pipe. All others are refused,
# so that none can be forgotten: Landlock, for example, does not restrict `chmod`.
_ALLOWED: dict[str, tuple[int, ...]] = {
    "x86_64": (
        *(0, 1, 19, 20, 3, 8, 5),  # read, write, readv, writev, close, lseek, fstat
        *(9, 10, 11, 12, 25, 28),  # mmap, mprotect, munmap, brk, mremap, madvise
        # rt_sigaction, rt_sigprocmask, rt_sigreturn, sigaltstack, restart_syscall
        *(13, 14, 15, 131, 219),
        # futex, sched_yield, getpid, gettid, sched_getaffinity, getrusage
        *(202, 24, 39, 186, 204, 98),
        # clock_gettime, clock_nanosleep, gettimeofday, getrandom, exit, exit_group
        *(228, 230, 96, 318, 60, 231),
    ),
    "aarch64": (
        *(63, 64, 65, 66, 57, 62, 80),
        *(222, 226, 215, 214, 216, 233),
        *(134, 135, 139, 132, 128),
        *(98, 124, 172, 178, 123, 165),
        *(113, 115, 169, 278, 93, 94),
    ),
}
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# clone, clone3; then set_robust_list, rseq, sched_setaffinity, prctl, sched_getscheduler, -param.
_THREADS: dict[str, tuple[int, ...]] = {
    "x86_64": (56, 435, 273, 334, 203, 157, 145, 143),
    "aarch64": (220, 435, 99, 293, 122, 167, 120, 121),
}
_CLONE_THREAD = 0x00010000
_ERRNO_EPERM = 0x00050000 | 1
_ERRNO_ENOSYS = 0x00050000 | 38
_ALLOW, _KILL = 0x7FFF0000, 0x80000000


def confine(memory: int, seconds: float, *, threads: bool = False) -> tuple[str, ...]:
    """Confine this process permanently.

    Parameters:
        memory: the largest address space, in bytes.
        seconds: expected seconds of work for one task; processor time is bounded by a multiple of
            it.
        threads: whether the process may start threads (never processes), which some decoders need.

    Returns:
        The names of the protections that are in force.
    """
    protections = ["limits"] if _limits(memory, seconds) else []
    if platform.system() != "Linux":  # the calls below have other numbers there
        return tuple(protections)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if _landlock(libc):
        protections.append("landlock")
    elif _namespace(libc):
        protections.append("namespace")
    if _seccomp(libc, threads):
        protections.append("seccomp")
    return tuple(protections)


def _limits(memory: int, seconds: float) -> bool:
    """Limit address space, written files, descriptors, core dumps and processor time; return
    whether the system accepted all limits.
    """
    try:
        import resource
    except ImportError:  # Windows
        return False
    # A worker serves many images and the parent times each one; this limit only ends a worker that
    # never stops.
    hard = int(seconds * 400) + 60
    most = {"AS": memory, "FSIZE": 0, "CORE": 0, "NOFILE": 32, "CPU": hard}
    accepted = 0
    for name, value in most.items():
        with contextlib.suppress(OSError, ValueError):  # macOS accepts no limit of address space
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
            accepted += 1
    return accepted == len(most)


def _landlock(libc: ctypes.CDLL) -> bool:
    """Apply a rule set that handles every right and grants none."""
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_VERSION)
    if version < 1:
        return False
    files = _FILE_RIGHTS.get(version, _ALL_FILE_RIGHTS)
    rights = struct.pack("=QQ", files, _TCP_RIGHTS) if version >= 4 else struct.pack("=Q", files)
    ruleset = libc.syscall(_CREATE_RULESET, rights, ctypes.c_size_t(len(rights)), 0)
    if ruleset < 0:
        return False
    try:
        return bool(libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _namespace(libc: ctypes.CDLL) -> bool:
    """Enter a user namespace with a network of its own, which reaches nothing."""
    return bool(libc.unshare(_NEW_USER | _NEW_NET | _NEW_IPC) == 0)


def _seccomp(libc: ctypes.CDLL, threads: bool) -> bool:
    """Install a filter of allowed calls; others fail with EPERM, and calls of another architecture
    end the process.
    """
    machine = platform.machine()
    calls = _ALLOWED.get(machine, ())
    if not calls:
        return False
    program = [
        _step(0x20, 0, 0, 4),
        _step(0x15, 1, 0, _AUDIT[machine]),
        _step(0x06, 0, 0, _KILL),
        _step(0x20, 0, 0, 0),
    ]
    if threads:
        clone, clone3, *others = _THREADS[machine]
        calls = (*calls, *others)
        program += [
            # `clone3` hides its flags in memory: not implemented, so that libc takes `clone`.
            _step(0x15, 0, 1, clone3),
            _step(0x06, 0, 0, _ERRNO_ENOSYS),
            # `clone` only for a thread of this process.
            _step(0x15, 0, 4, clone),
            _step(0x20, 0, 0, 16),
            _step(0x45, 1, 0, _CLONE_THREAD),
            _step(0x06, 0, 0, _ERRNO_EPERM),
            _step(0x06, 0, 0, _ALLOW),
        ]
    for position, call in enumerate(calls):
        program.append(_step(0x15, len(calls) - position, 0, call))
    program += [_step(0x06, 0, 0, _ERRNO_EPERM), _step(0x06, 0, 0, _ALLOW)]
    code = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("@HxxxxxxP", len(program), ctypes.addressof(code))
    return bool(libc.prctl(_SET_SECCOMP, _FILTER, ctypes.c_char_p(header), 0, 0) == 0)


def _step(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
