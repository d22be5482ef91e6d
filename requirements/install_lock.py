"""Install a lock file with pip, and show on a terminal how far it is. Standard library only.

    python requirements/install_lock.py FILE

The Makefile runs it with the Python of the environment. The lock is also its own constraint, so
that pip takes no other version for an extra of a package.
"""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from pathlib import Path

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-color")
COLUMNS = 79
SHOWN_OF_A_FAILURE = 40
"""Lines at the end of pip's output, which say what failed."""


def main(lock: str) -> int:
    """Install ``lock`` and return pip's exit code."""
    packages = sum("==" in line for line in Path(lock).read_text(encoding="utf-8").splitlines())
    words = ("install", "--progress-bar=off", "--require-hashes", "-r", lock, "-c", lock)
    last: deque[str] = deque(maxlen=SHOWN_OF_A_FAILURE)
    done = 0
    with subprocess.Popen(
        [*PIP, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        for line in pip.stdout or ():
            last.append(line)
            if name := _collected(line):
                done += 1
                _show(f"{done} of {packages}: {name}")
            elif line.startswith("Installing collected packages"):
                _show(f"writing {packages} packages")
    _show("")
    if pip.returncode:
        sys.stderr.writelines(last)
    return pip.returncode


def _collected(line: str) -> str:
    """Return the name of the package that pip takes next, or an empty text."""
    verb, _, rest = line.removeprefix("Requirement already satisfied: ").partition(" ")
    if verb == "Processing":  # a file of this machine
        return Path(rest.strip()).name.partition("-")[0]
    if verb == "Collecting":
        return rest.partition("==")[0].strip()
    return verb.partition("==")[0] if line.startswith("Requirement already satisfied: ") else ""


def _show(text: str) -> None:
    """Replace the last line of a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text[:COLUMNS]:<{COLUMNS}}\r")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
