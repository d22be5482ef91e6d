"""docker-compose.yml as data: variables put in, services in the order in which they may start.

Used by the tests that hold the file against the code, and by the one that runs its commands as
processes, with words of its own in place of the containers'. Only what the file uses of the Compose
specification is known here. `docker compose config`, where it is installed, judges the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml
from dockerfile_parse import DockerfileParser

from tests.support.wheel import ROOT

Service = dict[str, Any]
_VARIABLE = re.compile(r"\$\{([A-Z_]+)(?::-([^}]*))?\}")


def load(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Read the file as Compose does with these variables."""
    given = environ or {}

    def fill(match: re.Match[str]) -> str:
        return given.get(match[1], "") or (match[2] or "")

    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(_VARIABLE.sub(fill, text))
    return content


def services(environ: Mapping[str, str] | None = None) -> dict[str, Service]:
    """All services, each after those that it waits for."""
    left: dict[str, Service] = load(environ)["services"]
    found: dict[str, Service] = {}
    while left:
        able = [n for n, one in left.items() if one.get("depends_on", {}).keys() <= found.keys()]
        assert able, f"these wait for each other, or for something unknown: {sorted(left)}"
        found |= {name: left.pop(name) for name in able}
    return found


def target_of(service: Service) -> str | None:
    """The image of ours that a service runs, by the name of its last stage. None for others'."""
    build: dict[str, str] | None = service.get("build")
    return build.get("target", build["context"]) if build else None


def command_line(service: Service) -> list[str]:
    """What a container of a service of ours executes: entry point and arguments."""
    own = service.get("entrypoint") or _entry_points()[str(target_of(service))]
    return [*own, *service.get("command", [])]


def translated(text: str, stand_ins: Mapping[str, str]) -> str:
    """Put something else in place of the words of a container, which end where a word ends.

    All in one go: what is put in may look like what is looked for, as a database's port 46443 does.
    """
    theirs = "|".join(map(re.escape, stand_ins))
    return re.sub(rf"(?:{theirs})\b", lambda found: stand_ins[found[0]], text)


def _entry_points() -> dict[str, list[str]]:
    """ENTRYPOINT of each target of the Dockerfiles."""
    found: dict[str, list[str]] = {}
    stage = ""
    for folder in (ROOT, ROOT / "localcluster"):
        for step in DockerfileParser(path=str(folder / "Dockerfile")).structure:
            if step["instruction"] == "FROM":
                stage = step["value"].split()[-1]
            elif step["instruction"] == "ENTRYPOINT":
                found[stage] = json.loads(step["value"])
    return found
