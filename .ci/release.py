#!/usr/bin/env python3
"""Prepare and check a release: docs/developer/release.md.

    .ci/release.py set 0.2.0     write the version everywhere, and date the section of the changelog
    .ci/release.py check v0.2.0  exit 1 if a file has another version, or the changelog no section
    .ci/release.py notes 0.2.0   print that section, as the text of the GitHub release

The release workflow calls ``check`` and ``notes``. Only the standard library is needed.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/converged-computing/fluxqueue"
CHANGELOG = "CHANGELOG.md"
VERSION = r"\d+\.\d+\.\d+"

PLACES = {
    "pyproject.toml": rf'^version = "({VERSION})"$',
    "fluxqueue/__init__.py": rf'^__version__ = "({VERSION})"$',
    "chart/Chart.yaml": rf'^(?:appVersion: "|version: )({VERSION})"?$',
    "Dockerfile": rf"^ARG VERSION=({VERSION})$",
    "localcluster/Dockerfile": rf"^ARG VERSION=({VERSION})$",
    "docker-compose.yml": rf"converged-computing/[a-z-]+:({VERSION})\}}$",
    "docs/user/install.md": rf"(?:/v|fluxqueue_k8s-)({VERSION})\b",
    "docs/admin/install.md": rf"(?:converged-computing/[a-z-]+:|/fluxqueue-)({VERSION})\b",
}
"""Every file that names the version, and how. localcluster's own package has its own version."""


def versions(root: Path) -> dict[str, set[str]]:
    """Return the versions that each file names."""
    return {
        name: set(re.findall(pattern, _read(root / name), re.MULTILINE))
        for name, pattern in PLACES.items()
    }


def wrong(root: Path, version: str) -> list[str]:
    """Return what keeps this tree from being the release ``version``."""
    found = [
        f"{name}: {', '.join(sorted(named)) or 'no version'} is not {version}."
        for name, named in versions(root).items()
        if named != {version}
    ]
    if not notes(root, version):
        found.append(f"{CHANGELOG}: no section for {version}. Fix: .ci/release.py set {version}")
    return found


def notes(root: Path, version: str, repository: str = REPOSITORY) -> str:
    """Return the section of one version with links to its tag, or an empty text."""
    heading = rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$"
    parts = re.split(heading, _read(root / CHANGELOG), flags=re.MULTILINE)
    if len(parts) != 2:
        return ""
    section = re.split(r"^## ", parts[1], maxsplit=1, flags=re.MULTILINE)[0].strip()
    return re.sub(r"\]\((?!https?:|#)", f"]({repository}/blob/v{version}/", section)


def set_version(root: Path, version: str, date: datetime.date) -> None:
    """Write the version into every file, and make Unreleased the section of this version."""
    if notes(root, version):
        raise SystemExit(f"{CHANGELOG}: {version} has a section already")
    for name, pattern in PLACES.items():
        text = re.sub(
            pattern, lambda at: _with(at, version), _read(root / name), flags=re.MULTILINE
        )
        (root / name).write_text(text, encoding="utf-8")
    head, unreleased, rest = _read(root / CHANGELOG).partition("## Unreleased\n")
    if not unreleased:
        raise SystemExit(f"{CHANGELOG}: no section Unreleased")
    (root / CHANGELOG).write_text(
        f"{head}{unreleased}\n## {version} - {date.isoformat()}\n{rest}", encoding="utf-8"
    )


def _with(found: re.Match[str], version: str) -> str:
    start, end = found.start(1) - found.start(), found.end(1) - found.start()
    return found[0][:start] + version + found[0][end:]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description="Prepare and check a release.")
    parser.add_argument("command", choices=("set", "check", "notes"))
    parser.add_argument("version", help="X.Y.Z, or the tag vX.Y.Z")
    parser.add_argument("--date", type=datetime.date.fromisoformat, help="default: today, UTC")
    asked = parser.parse_args(arguments)
    version = asked.version.removeprefix("v")
    if not re.fullmatch(VERSION, version):
        parser.error(f"version: {asked.version} is not valid: it must be X.Y.Z")
    if asked.command == "set":
        today = datetime.datetime.now(datetime.UTC).date()
        set_version(root, version, asked.date or today)
        return 0
    found = wrong(root, version) if asked.command == "check" else []
    text = notes(root, version) if asked.command == "notes" else ""
    if asked.command == "notes" and not text:
        found = [f"{CHANGELOG}: no section for {version}"]
    for line in found:
        print(line, file=sys.stderr)
    if text:
        print(text)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
