""".ci/quickstart as far as it can be run without kind, k3d, Helm and a Docker engine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.wheel import ROOT

SCRIPT = ROOT / ".ci" / "quickstart"
SHELLS_OWN = ("bash", "basename", "cut", "date", "dirname", "grep", "sed")
TOOLS = ("kind", "docker", "helm", "kubectl")
FAILS = "#!/bin/sh\nexit 1\n"
RECORDS = '#!/bin/sh\necho "$(basename "$0") $*" >> "$RECORD"\n'


def quickstart(*arguments: str, tools: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the script where nothing but the shell's own programs and ``tools`` is found."""
    for name in SHELLS_OWN:
        program = shutil.which(name)
        assert program is not None
        if not (tools / name).exists():
            (tools / name).symlink_to(program)
    return subprocess.run(
        [str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        env={"PATH": str(tools), "HOME": os.environ.get("HOME", "/"), **environ},
    )


def put(folder: Path, name: str, text: str) -> None:
    """Make a program."""
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def test_it_says_how_it_is_called(tmp_path: Path) -> None:
    """Exit code 2, as for every wrong call."""
    done = quickstart("minikube", tools=tmp_path)
    assert (done.returncode, done.stderr) == (2, "quickstart: usage: .ci/quickstart kind|k3d\n")


@pytest.mark.parametrize("tool", ["kind", "k3d"])
def test_a_missing_tool_is_named_with_where_to_find_it(tool: str, tmp_path: Path) -> None:
    """Before anything has been made."""
    done = quickstart(tool, tools=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"quickstart: {tool} is not installed: https://")


def test_an_engine_that_does_not_answer_is_said_to_be_so(tmp_path: Path) -> None:
    """The client alone is often there, as on this project's own machines."""
    for name in TOOLS:
        put(tmp_path, name, FAILS)
    done = quickstart("kind", tools=tmp_path)
    assert done.returncode == 1
    assert "Docker engine does not answer" in done.stderr


@pytest.mark.parametrize("tool", ["kind", "k3d"])
def test_the_steps_and_their_order(tool: str, tmp_path: Path) -> None:
    """Recorded in place of run: what is loaded is what was built, and the chart comes after it."""
    record = tmp_path / "record"
    for name in (*TOOLS, "k3d", "make"):
        put(tmp_path, name, RECORDS)
    done = quickstart(tool, tools=tmp_path, RECORD=str(record))
    assert done.returncode == 0, done.stderr
    lines = record.read_text().splitlines()
    load = {"kind": "kind load docker-image", "k3d": "k3d image import"}[tool]
    wanted = ["docker info", f"{tool} cluster", "make images", load, "helm upgrade", "helm test"]
    if tool == "kind":
        wanted[1] = "kind create cluster"
    places = [next(n for n, line in enumerate(lines) if line.startswith(w)) for w in wanted]
    assert places == sorted(places), lines
    loaded = next(line for line in lines if line.startswith(load)).split()
    names = {word.rpartition(":")[0].rpartition("/")[2] for word in loaded if "ghcr.io" in word}
    assert names == {"fluxqueue", "fluxqueue-webhook"}


def test_the_example_that_it_submits_fits_a_laptop() -> None:
    """A tenth of a core for each pod. The example of the embedded cluster asks for 32 cores."""
    assert "docs/examples/pi-small.yaml" in SCRIPT.read_text(encoding="utf-8")
    text = (ROOT / "docs" / "examples" / "pi-small.yaml").read_text(encoding="utf-8")
    spec = yaml.safe_load(text)["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert spec["parallelism"] * int(container["resources"]["requests"]["cpu"][:-1]) <= 1000
