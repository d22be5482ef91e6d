"""Become Postgres: tie this process to its parent, leave root behind, then exec.

Run as a script by ``privileges.py`` in a fresh interpreter (``python -I -S become.py MODE PARENT
PROGRAM ARG...``) instead of in a ``preexec_fn``, because code between fork and exec can deadlock in
a parent that has threads. Standard library only; imports nothing of ours.

Modes: ``plain``; ``userns``: a user namespace in which root looks like uid 65534, so that Postgres
agrees to run while the files stay ours; ``nobody``: really change to the user ``nobody``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG = 1


def _call(name: str, *args: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _leave_root(mode: str) -> None:
    if mode == "userns":
        _call("unshare", _CLONE_NEWUSER)
    elif mode == "nobody":
        import pwd

        nobody = pwd.getpwnam("nobody")
        os.setgroups([])
        os.setgid(nobody.pw_gid)
        os.setuid(nobody.pw_uid)


def main(argv: list[str]) -> None:
    """Do as the module's docstring says; returns only by exception."""
    mode, parent, command = argv[1], int(argv[2]), argv[3:]
    _leave_root(mode)
    if sys.platform == "linux":
        # After the change of user, which clears it. SIGINT is Postgres' fast, clean shutdown.
        _call("prctl", _PR_SET_PDEATHSIG, signal.SIGINT)
    if os.getppid() != parent:  # the parent died before prctl could notice
        sys.exit("the parent is gone")
    os.execv(command[0], command)  # noqa: S606  no shell is the point


if __name__ == "__main__":
    main(sys.argv)
