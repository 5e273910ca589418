"""
Become the right user, tie this process's life to its owner's, and turn into PostgreSQL.

Run as a script in a fresh interpreter, so that none of it happens between fork and
exec of a program with threads:

    shim.py OWNER_PID DEATH_SIGNAL WAY FOLDER PROGRAM ARGUMENT...

WAY is `itself`, `account:UID:GID` or `namespace:UID:GID`; see `privileges`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

EXIT_REFUSED = 125
"""This script itself failed; PROGRAM was not started."""

_CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG = 1

CallLibc = Callable[..., None]


def main(arguments: list[str]) -> None:
    owner, death_signal, way, folder, *command = arguments
    try:
        # Loaded first: once we are somebody else, Python's own files may be out of reach.
        call = load_libc()
        become(way, call)
        os.chdir(folder)
        # Python ignores these two; a program should start with the defaults.
        for name in ("SIGPIPE", "SIGXFSZ"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        end_with_owner(int(owner), int(death_signal), call)
        os.execv(command[0], command)
    except OSError as error:
        print(f"can't run {Path(command[0]).name}: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_REFUSED)


def load_libc() -> CallLibc:
    """Return what calls a function of the C library that Python has no name for."""
    try:
        import ctypes
    except ImportError as error:  # some builds of Python lack it
        reason = f"Python has no ctypes: {error}"

        def refuse(name: str, *arguments: int) -> None:
            raise OSError(f"{name}: {reason}")

        return refuse
    library = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: int) -> None:
        if getattr(library, name)(*map(ctypes.c_ulong, arguments)) != 0:
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")

    return call


def become(way: str, call: CallLibc) -> None:
    """Take on the ids that *way* names."""
    kind, _, ids = way.partition(":")
    if kind == "itself":
        return
    uid, gid = map(int, ids.split(":"))
    if kind == "account":
        os.setgroups([gid])
        os.setgid(gid)
        os.setuid(uid)
    elif sys.platform == "linux":
        enter_namespace(uid, gid, call)
    else:
        raise OSError("this system has no user namespaces")


def enter_namespace(uid: int, gid: int, call: CallLibc) -> None:
    """
    Look like *uid* from inside while staying who we are for every file.

    A user namespace with one line in its map. PostgreSQL asks for its uid, gets *uid*
    and is content; the kernel still treats it as us, but without root's capabilities.
    """
    real_uid, real_gid = os.geteuid(), os.getegid()
    call("unshare", _CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text(f"{gid} {real_gid} 1")
    Path("/proc/self/uid_map").write_text(f"{uid} {real_uid} 1")


def end_with_owner(owner: int, death_signal: int, call: CallLibc) -> None:
    """
    Have the kernel send *death_signal* when the thread that started us ends.

    Linux only. After `become`, because a change of ids clears it. The owner may have
    died before the call, so look afterwards whether it is still our parent.
    """
    if sys.platform != "linux":
        return
    # Without ctypes the server may outlive its owner, and the next start ends it.
    if "ctypes" in sys.modules:
        call("prctl", _PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != owner:
        sys.exit(EXIT_REFUSED)


if __name__ == "__main__":
    main(sys.argv[1:])
