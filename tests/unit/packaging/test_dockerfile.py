"""The Dockerfile and what surrounds it, read and judged where no Docker engine runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from dockerfile_parse import DockerfileParser

from tests.support.wheel import ROOT

TARGETS = {"fluxqueue", "webhook"}
DIGEST = "sha256:" + "0" * 64


@pytest.fixture(scope="module")
def instructions() -> list[dict[str, Any]]:
    """Instructions of the Dockerfile in their order, comments left out."""
    parser = DockerfileParser(path=str(ROOT / "Dockerfile"))
    return [step for step in parser.structure if step["instruction"] != "COMMENT"]


@pytest.fixture(scope="module")
def stages(instructions: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Instructions by stage."""
    found: dict[str, list[dict[str, Any]]] = {}
    for step in instructions:
        if step["instruction"] == "FROM":
            current = found.setdefault(step["value"].split()[-1], [])
        elif found:
            current.append(step)
    return found


def values(steps: list[dict[str, Any]], instruction: str) -> list[str]:
    """The arguments of one kind of instruction."""
    return [step["value"] for step in steps if step["instruction"] == instruction]


def origins(instructions: list[dict[str, Any]]) -> dict[str, str]:
    """Stage to what it is made from."""
    found = {}
    for value in values(instructions, "FROM"):
        image, word, stage = value.split()
        assert word.upper() == "AS", value
        found[stage] = image
    return found


def lineage(instructions: list[dict[str, Any]], stage: str) -> list[str]:
    """The stage and those below it."""
    below = origins(instructions)
    found = [stage]
    while below[found[-1]] in below:
        found.append(below[found[-1]])
    return found


def tool(name: str) -> str:
    """A program of the dev extra."""
    found = shutil.which(name, path=sysconfig.get_path("scripts"))
    if found is None:
        pytest.skip(f"{name} is not built for this platform ({sys.platform})")
    return found


def test_the_only_base_is_pinned_and_can_be_pinned_by_digest(
    instructions: list[dict[str, Any]],
) -> None:
    """One ARG with a full tag. `name:tag@sha256:...` fits in its place."""
    (first, *_) = instructions
    assert first["instruction"] == "ARG"
    name, _, default = first["value"].partition("=")
    assert name == "PYTHON_IMAGE"
    reference = re.compile(r"[a-z0-9./-]+:\d+\.\d+\.\d+[a-z0-9-]*(@sha256:[0-9a-f]{64})?")
    assert reference.fullmatch(default), default
    assert reference.fullmatch(f"{default.partition('@')[0]}@{DIGEST}")
    known = origins(instructions)
    assert {image for image in known.values() if image not in known} == {"${PYTHON_IMAGE}"}


def test_the_base_is_a_python_that_we_support(instructions: list[dict[str, Any]]) -> None:
    """And its minor version is the one that the lock files are made for."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    minor = re.search(r":(\d+\.\d+)", instructions[0]["value"])
    assert minor is not None
    assert f"Programming Language :: Python :: {minor[1]}" in content["project"]["classifiers"]


def test_the_targets_are_what_the_chart_wants(stages: dict[str, Any]) -> None:
    """Two images, and a build without a target makes the larger one."""
    assert set(stages) >= TARGETS
    assert list(stages)[-1] == "fluxqueue"


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_an_image_runs_as_a_numeric_user_without_rights(
    target: str, stages: dict[str, Any], instructions: list[dict[str, Any]]
) -> None:
    """Kubernetes can only verify `runAsNonRoot` of a number. Nothing goes back to root."""
    users = [
        user for stage in lineage(instructions, target) for user in values(stages[stage], "USER")
    ]
    assert len(users) == 1
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[0])


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_an_image_is_made_without_running_anything_in_it(
    target: str, stages: dict[str, Any], instructions: list[dict[str, Any]]
) -> None:
    """Its files come from a build stage. No package manager, no shell, no leftovers."""
    for stage in lineage(instructions, target):
        assert not values(stages[stage], "RUN")
        copies = values(stages[stage], "COPY")
        assert all(copy.startswith("--from=") for copy in copies)
        assert not any("--chown" in copy for copy in copies), "files belong to root"
    assert not values(stages[target], "CMD")
    (entry,) = values(stages[target], "ENTRYPOINT")
    command = json.loads(entry)
    assert command[0].startswith("/opt/fluxqueue/bin/")


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_an_image_says_what_it_is_and_what_is_in_it(
    target: str, stages: dict[str, Any], instructions: list[dict[str, Any]]
) -> None:
    """Labels of the Open Container Initiative, and where the list of parts lies."""
    text = " ".join(
        label for stage in lineage(instructions, target) for label in values(stages[stage], "LABEL")
    )
    for name in ("title", "description", "version", "revision", "source", "licenses"):
        assert f"org.opencontainers.image.{name}=" in text
    assert 'sbom="/opt/fluxqueue/sbom.cdx.json"' in text
    assert "sbom.cdx.json" in (ROOT / "images" / "assemble").read_text(encoding="utf-8")


def test_the_version_is_the_packages(stages: dict[str, Any]) -> None:
    """Of builds that are not made by `make images`."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert f"VERSION={content['project']['version']}" in values(stages["base"], "ARG")


def test_packages_are_installed_by_hash_alone(stages: dict[str, Any]) -> None:
    """Every pip that installs says --require-hashes, or takes nothing but our wheel."""
    script = (ROOT / "images" / "assemble").read_text(encoding="utf-8")
    text = script + "\n".join(run for steps in stages.values() for run in values(steps, "RUN"))
    installs = re.findall(r"pip (?:install|wheel)[^\n&]*", text.replace("\\\n", " "))
    assert len(installs) == 4
    for line in installs:
        assert "--require-hashes" in line or ("--no-index" in line and "--no-deps" in line), line


def test_what_is_copied_exists_and_reaches_the_builder(stages: dict[str, Any]) -> None:
    """A source that .dockerignore keeps away would fail the build only where an engine runs."""
    sources = [
        source
        for steps in stages.values()
        for copy in values(steps, "COPY")
        if not copy.startswith("--from=")
        for source in copy.split()[:-1]
    ]
    assert "fluxqueue" in sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert not is_ignored(source), source


def test_nothing_else_reaches_the_builder(stages: dict[str, Any]) -> None:
    """No secrets, no databases of `fluxqueue up`, no history: the list names what is let in."""
    copied = {
        PurePosixPath(source)
        for steps in stages.values()
        for copy in values(steps, "COPY")
        for source in copy.split()[:-1]
    }
    for line in ignore_lines():
        if line.startswith("!"):
            entry = PurePosixPath(line[1:])
            assert any(c == entry or c.is_relative_to(entry) for c in copied), line
    for path in (".git/config", ".fluxqueue/kubeconfig", ".env", "tests/conftest.py", ".venv/x"):
        assert is_ignored(path), path


def ignore_lines() -> list[str]:
    """The lines of .dockerignore that say something."""
    text = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def is_ignored(path: str) -> bool:
    """Docker's rule: the last line that fits the path or a folder above it decides."""
    whole = PurePosixPath(path)
    names = [str(p) for p in (whole, *whole.parents) if str(p) != "."]
    verdict = False
    for line in ignore_lines():
        pattern = line.lstrip("!").removeprefix("**/")
        if any(fnmatch(name, pattern) or fnmatch(Path(name).name, pattern) for name in names):
            verdict = not line.startswith("!")
    return verdict


@pytest.mark.parametrize("folder", [ROOT, ROOT / "localcluster"], ids=["fluxqueue", "localcluster"])
def test_hadolint_has_nothing_to_say(folder: Path) -> None:
    """All its rules. None is switched off."""
    text = (folder / "Dockerfile").read_text(encoding="utf-8")
    assert "hadolint ignore" not in text
    _run_clean(tool("hadolint"), str(folder / "Dockerfile"))


@pytest.mark.parametrize("script", ["images/assemble", ".ci/run", ".ci/quickstart"])
def test_shellcheck_has_nothing_to_say(script: str) -> None:
    """Every shell script that builds or starts something, with the optional checks that matter."""
    _run_clean(tool("shellcheck"), "--enable=quote-safe-variables", str(ROOT / script))


def _run_clean(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_what_the_wheel_includes_by_name_is_copied(stages: dict[str, Any]) -> None:
    """hatchling fails on a file that is not there, and only where an engine runs."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    targets = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    copied = {
        PurePosixPath(source)
        for copy in values(stages["build"], "COPY")
        for source in copy.split()[:-1]
    }
    for name in targets:
        assert any(PurePosixPath(name).is_relative_to(one) for one in copied), name
