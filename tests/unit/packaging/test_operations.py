"""Documents held against the chart, the settings and the commands they talk of."""

from __future__ import annotations

import functools
import re
import subprocess
from dataclasses import fields
from typing import Any

import pytest
import yaml
from typer.main import get_command

from fluxqueue.cli.main import app
from fluxqueue.client.batch.job_manifest import IMAGE_VARIABLE
from fluxqueue.client.batch.site_names import VARIABLE as DIRECTIVES_VARIABLE
from fluxqueue.client.view_server import TOKEN_VARIABLE, URL_VARIABLE
from fluxqueue.process.settings import Settings
from tests.chart.rendering import RELEASE, find, pod_specs, render, render_files
from tests.support.wheel import ROOT

DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", ROOT / ".ci" / "quickstart", *(ROOT / "docs").rglob("*.md"))
)


def text_of(document: str) -> str:
    """What stands in it."""
    return (ROOT / document).read_text(encoding="utf-8")


def test_the_command_for_air_gapped_clusters_lists_every_image() -> None:
    """The very line of the document, over what Helm renders."""
    (line,) = re.findall(
        r"^\$ helm template .*? \| (sed .*)$", text_of("docs/admin/install.md"), re.M
    )
    whole = "\n".join(text for path, text in render_files().items() if path.endswith(".yaml"))
    done = subprocess.run(
        ["bash", "-euc", line], input=whole, capture_output=True, text=True, check=True
    )
    used = {
        container["image"]
        for _, spec in pod_specs(render())
        for container in [*spec.get("initContainers", []), *spec["containers"]]
    }
    assert set(done.stdout.split()) == used
    assert len(used) == 3


CLIENT_VARIABLES = {
    IMAGE_VARIABLE,
    URL_VARIABLE,
    TOKEN_VARIABLE,
    DIRECTIVES_VARIABLE,
    "FLUXQUEUE_PYTHON",  # .ci/kubectl-fluxqueue
    "FLUXQUEUE_SHARED",  # recordings and cases that tests read
    "FLUXQUEUE_UPSTREAM",  # repositories of other projects, for tests
    "FLUXQUEUE_CLUSTER_AUTOSCALER",  # a program of another project, for tests
}
"""Defaults of options that users type."""


@pytest.mark.parametrize("document", DOCUMENTS)
def test_values_that_are_set_exist(document: str) -> None:
    """Every ``--set a.b=`` and every value in backquotes with a dot is a key of values.yaml."""
    values: dict[str, Any] = yaml.safe_load(text_of("chart/values.yaml"))
    named = set(re.findall(r"--set(?:-string)? \"?([A-Za-z.]+)=", text_of(document)))
    dotted = r"`([a-z][A-Za-z]+(?:\.[a-z][A-Za-z]+)+)(?:: [^`]*)?`"
    named |= {
        word for word in re.findall(dotted, text_of(document)) if word.partition(".")[0] in values
    }
    for key in named:
        here: Any = values
        for step in key.split("."):
            assert step in here, f"{key}: {step}"
            here = here[step]
            if here == {}:
                break


@pytest.mark.parametrize("document", DOCUMENTS)
def test_variables_that_are_named_are_settings(document: str) -> None:
    """With the defaults that the text gives in brackets where they are numbers of our own."""
    known = {one.metadata["variable"].name: one.default for one in fields(Settings)}
    for name, default in re.findall(r"(FLUXQUEUE_[A-Z_]+)`?(?: \((\d+)\))?", text_of(document)):
        if name in {*CLIENT_VARIABLES, "FLUXQUEUE_WEBHOOK_IMAGE"}:
            continue
        if name in _variables_of(get_command(app)) or name in _variables_of_tests():
            continue
        assert name in known, name
        if default:
            assert float(default) == known[name], name


@functools.cache
def _variables_of_tests() -> frozenset[str]:
    """Return the variables that choose what tests draw."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    return frozenset(re.findall(r'"(FLUXQUEUE_(?:TEST|LIVES)_[A-Z_]+)"', "\n".join(texts)))


def _variables_of(command: Any) -> set[str]:
    """Those that stand for options on the command line."""
    own = {one.envvar for one in command.params if isinstance(one.envvar, str)}
    under = getattr(command, "commands", {}).values()
    return own.union(*map(_variables_of, under))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_that_are_named_exist(document: str) -> None:
    """With the options that they are given, be it in a pod (`exec ... -- fluxqueue`) or a shell."""
    called = r"(?:^\$ (?:\w+=\S+ )*|`|-- |&& )(?:kubectl )?fluxqueue ([a-z][^`|#&\n]*)"
    for line in re.findall(called, text_of(document), re.M):
        typed = line.partition(" -- ")[0]  # what follows is another program's
        words = typed.replace("[", " ").replace("]", " ").split()
        command: Any = get_command(app)
        while words and hasattr(command, "commands"):
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        options = {name for one in command.params for name in one.opts} | {"--help"}
        given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert given <= options, line


def test_objects_that_commands_name_are_rendered() -> None:
    """Deployments, the server's pod, the definitions that uninstalling leaves."""
    text = text_of("docs/admin/operations.md")
    scaled = set(re.findall(r"scale deployment ([a-z -]+) --replicas", text))
    assert scaled
    for names in scaled:
        for name in names.split():
            assert find("Deployment", name)
    (pod,) = set(re.findall(r"exec ([a-z0-9-]+) --", text))
    assert find("StatefulSet", pod.removesuffix("-0"))
    removal = text_of("docs/admin/uninstall.md")
    (line,) = re.findall(r"`kubectl delete crd ([^`]*)`", removal)
    there = {
        yaml.safe_load(path.read_text(encoding="utf-8"))["metadata"]["name"]
        for path in (ROOT / "chart" / "crds").glob("*.yaml")
    }
    assert set(line.split()) == there
    (left,) = re.findall(r"delete pvc/(\S+) secret/(\S+)`", removal)
    (claim,) = find("StatefulSet", f"{RELEASE}-postgres")["spec"]["volumeClaimTemplates"]
    assert left == (f"{claim['metadata']['name']}-{RELEASE}-postgres-0", f"{RELEASE}-postgres")
    assert find("Secret", left[1])


def test_the_connections_are_counted_as_the_code_opens_them() -> None:
    """Engine's pool, its overflow, the task queue's own pool, and its listener."""
    from fluxqueue.db.task_queue import POOL_MAX

    defaults = Settings()
    total = defaults.db_pool_size + defaults.db_pool_overflow + POOL_MAX + 1
    text = text_of("docs/admin/sizing.md")
    assert f"+ {POOL_MAX} of the task queue + 1 that listens = {total}" in text
    assert f"| Two controllers and three workers, at most | {5 * total} |" in text
