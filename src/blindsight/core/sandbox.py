"""Confinement of a process that opens files from outside: no files, no network, no programs.

Landlock takes away the file system and, where the kernel is new enough, TCP; a seccomp filter
leaves the calls that reading, computing and writing need, and refuses all others. Where the kernel
has neither, a user namespace without a network takes their place as far as it goes. Other systems
have resource limits (macOS, some of them) or nothing (Windows): there a decoder runs in a process
of its own, which may crash alone, and is not confined. `confine` says which walls stand.
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
# All that a process needs that reads a pipe, computes and writes to a pipe; other calls are
# refused, so that none can be forgotten: Landlock, say, leaves `chmod` and the limits of other
# processes alone.
_ALLOWED: dict[str, tuple[int, ...]] = {
    "x86_64": (
        *(0, 1, 19, 20, 3, 8, 5),  # read, write, readv, writev, close, lseek, fstat
        *(9, 10, 11, 12, 25, 28),  # mmap, mprotect, munmap, brk, mremap, madvise
        *(
            13,
            14,
            15,
            131,
            219,
        ),  # rt_sigaction, rt_sigprocmask, rt_sigreturn, sigaltstack, restart_syscall
        *(
            202,
            24,
            39,
            186,
            204,
            98,
        ),  # futex, sched_yield, getpid, gettid, sched_getaffinity, getrusage
        *(
            228,
            230,
            96,
            318,
            60,
            231,
        ),  # clock_gettime, clock_nanosleep, gettimeofday, getrandom, exit, exit_group
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
    """Confine this process for good, and name the walls that stand.

    Parameters:
        memory: most bytes of address space.
        seconds: expected seconds of work for one task; processor time is bounded by a multiple of
            it.
        threads: whether the process may start threads (never processes): some decoders cannot do
            without.
    """
    walls = ["limits"] if _limits(memory, seconds) else []
    if platform.system() != "Linux":  # the calls below have other numbers there
        return tuple(walls)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if _landlock(libc):
        walls.append("landlock")
    elif _namespace(libc):
        walls.append("namespace")
    if _seccomp(libc, threads):
        walls.append("seccomp")
    return tuple(walls)


def _limits(memory: int, seconds: float) -> bool:
    """Address space, no written files, few descriptors, no core dump; processor time as a last
    resort. Whether the system took them all.
    """
    try:
        import resource
    except ImportError:  # Windows
        return False
    # A worker serves many images; the parent keeps the time of each, this only ends a runaway.
    hard = int(seconds * 400) + 60
    most = {"AS": memory, "FSIZE": 0, "CORE": 0, "NOFILE": 32, "CPU": hard}
    stand = 0
    for name, value in most.items():
        with contextlib.suppress(OSError, ValueError):  # macOS takes no bound on address space
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
            stand += 1
    return stand == len(most)


def _landlock(libc: ctypes.CDLL) -> bool:
    """A rule set that handles every right and grants none."""
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
    """A user namespace with a network of its own, in which nothing is reached."""
    return bool(libc.unshare(_NEW_USER | _NEW_NET | _NEW_IPC) == 0)


def _seccomp(libc: ctypes.CDLL, threads: bool) -> bool:
    """A filter of allowed calls; others fail with EPERM, and another architecture's calls end the
    process.
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
    for place, call in enumerate(calls):
        program.append(_step(0x15, len(calls) - place, 0, call))
    program += [_step(0x06, 0, 0, _ERRNO_EPERM), _step(0x06, 0, 0, _ALLOW)]
    code = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("@HxxxxxxP", len(program), ctypes.addressof(code))
    return bool(libc.prctl(_SET_SECCOMP, _FILTER, ctypes.c_char_p(header), 0, 0) == 0)


def _step(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
