"""Become Postgres: tie this process to its parent, leave root behind, then exec.

``privileges.py`` runs it as a script in a fresh interpreter (``python -I -S become.py MODE PARENT
PROGRAM ARG...``) instead of in a ``preexec_fn``. Code between fork and exec can deadlock if the
parent has threads. It uses only the standard library and imports none of our modules.

Modes:

- ``plain``: change nothing.
- ``userns``: a user namespace in which root looks like uid 65534. So Postgres agrees to run while
  the files stay ours.
- ``nobody``: really change to the user ``nobody``.
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
    """Do what the module's docstring says. Returns only by an exception."""
    mode, parent, command = argv[1], int(argv[2]), argv[3:]
    _leave_root(mode)
    if sys.platform == "linux":
        # This must follow the change of user, which clears it. SIGINT is Postgres' fast, clean
        # shutdown.
        _call("prctl", _PR_SET_PDEATHSIG, signal.SIGINT)
    if os.getppid() != parent:  # The parent died before prctl could notice.
        sys.exit("the parent is gone")
    os.execv(command[0], command)  # noqa: S606  no shell is the point


if __name__ == "__main__":
    main(sys.argv)
