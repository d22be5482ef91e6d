"""A clone of this repository as a newcomer has it after ``make`` has installed it.

Called by the walks through the pages. The files are those that a commit of the working tree would
have. The packages are linked, not installed: the environment imports the code of the clone, and
everything else from the environment of the tests.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECTS = {
    ".": (".", "webhook"),
    **{name: (f"{name}/src",) for name in ("localcluster", "fluxion", "devtools")},
}
"""Folder of a project -> its folders with packages."""
PROGRAM = """#!{python}
import sys
from {module} import {function}
sys.exit({function}())
"""


def make_clone(folder: Path) -> None:
    """Fill the empty ``folder``."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in listed.stdout.decode().split("\0"):
        source = ROOT / name
        if name and source.is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            target.chmod(source.stat().st_mode & 0o777)
    _make_environment(folder)


def _make_environment(folder: Path) -> None:
    """Make ``.venv``, and mark it as installed for make."""
    place = folder / ".venv"
    venv.create(place, with_pip=False, symlinks=True)
    inside = next(place.glob("lib/python*/site-packages"))
    own = [folder / path for paths in PROJECTS.values() for path in paths]
    lines = [*map(str, own), sysconfig.get_path("purelib")]
    (inside / "clone.pth").write_text("\n".join(lines) + "\n")
    for project in PROJECTS:
        described = tomllib.loads((folder / project / "pyproject.toml").read_text())["project"]
        for name, entry in described.get("scripts", {}).items():
            module, _, function = entry.partition(":")
            text = PROGRAM.format(python=place / "bin/python", module=module, function=function)
            program = place / "bin" / name
            program.write_text(text)
            program.chmod(0o755)
    # Newer than the lock files, or make would install all of them again.
    for stamp in (".installed-demo", ".installed"):
        (place / stamp).touch()


def is_possible() -> bool:
    """Whether this is a checkout, with its git."""
    return (ROOT / ".git").exists() and sys.platform == "linux"
