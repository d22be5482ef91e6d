"""Our wheel, built once and installed where no source tree is: what an image and a user get.

Used by tests of packaging and by those that run docker-compose.yml's commands as processes. The
wheel is built without network. Its dependencies are those of the interpreter that runs the tests,
found by path alone, so that the editable installation there is not.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILT_AT = 1_700_000_000
BUILD_TIMEOUT_S = 300
PIN = re.compile(r"^([a-z0-9._-]+)(?:\[[a-z,]+\])?==([^ ;\\]+)", re.MULTILINE)
"""A line of a lock file: name and version."""


def pins(lock: str) -> dict[str, str]:
    """Name to version of every requirement in a lock file."""
    return dict(PIN.findall((ROOT / lock).read_text(encoding="utf-8")))


def clean_environ(**more: str) -> dict[str, str]:
    """This process's environment without anything that leads into the source tree.

    What is compiled is kept, whatever the environment says, and beside its source: images are
    compiled too, and what the dependencies' installation has compiled is found.
    """
    ours = (
        *("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "VIRTUAL_ENV"),
        *("DATABASE_URL", "KUBECONFIG"),
    )
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith("FLUXQUEUE_")
    }
    return {**kept, **more}


def run(*command: str | Path, cwd: Path = ROOT, **environ: str) -> str:
    """Run a command to its end and give what it printed. AssertionError with that if it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=clean_environ(**environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}"
    return done.stdout


def build_wheel(folder: Path, source: Path = ROOT) -> Path:
    """Build the wheel of ``source`` as the Dockerfile does and give its path."""
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps"),
        *("--no-build-isolation", "--wheel-dir", folder, source),
        SOURCE_DATE_EPOCH=str(BUILT_AT),
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


@dataclass(frozen=True, slots=True)
class Installation:
    """An environment of its own. ``folder`` is its root."""

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def fluxqueue(self) -> Path:
        """The command line that the wheel brought."""
        return self.folder / "bin" / "fluxqueue"


def install_wheels(wheels: list[Path], folder: Path) -> Installation:
    """Install ``wheels``, not as links, in a new environment in ``folder``."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    found = Installation(folder)
    run(
        *(sys.executable, "-m", "pip", "--python", found.python, "install", "--quiet"),
        *("--no-index", "--no-deps", "--no-compile", *wheels),
    )
    (packages,) = (folder / "lib").glob("python*/site-packages")
    # A line of a .pth file is a path and no more: .pth files over there are not followed.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return found
