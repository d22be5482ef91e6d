"""A user's command imports what it needs, so that it is there at once.

In processes of their own: others here have imported everything already.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fluxqueue.cli.main import VERBS, CommandVerb, app

ROOT = Path(__file__).parents[3]
RUN = """
import sys
from fluxqueue.cli.main import main
sys.argv = ["fluxqueue", *{words}]
try:
    main()
except SystemExit:
    print(" ".join(sorted(sys.modules)), file=sys.stderr)
"""
OURS = {
    *("", ".clock", ".errors", ".objects", ".metrics"),
    *(".cli", ".cli.main", ".cli.user", ".fluxjob", ".fluxjob.states"),
    *(".workload", ".workload.fluxjob_name"),
}
"""Beside ``kube/`` and the user's commands themselves."""
HEAVY = {
    *("kopf", "sqlalchemy", "procrastinate", "psycopg", "alembic", "networkx", "numpy"),
    *("cryptography", "matplotlib", "localcluster", "uvloop", "aiohttp_sse"),
}
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: me, user: {token: none}}]
"""


def imported_by(words: list[str], kubeconfig: Path) -> set[str]:
    """Modules that a process has when it has run a command line."""
    kubeconfig.write_text(KUBECONFIG, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(words=words)],
        env=os.environ | {"KUBECONFIG": str(kubeconfig)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    modules = set(done.stderr.splitlines()[-1].split())
    assert "fluxqueue.cli.main" in modules, done.stderr
    return modules


@pytest.mark.parametrize("words", [["jobs"], ["jobs", "--help"], ["version"], ["wait", "some-job"]])
def test_a_users_command_imports_kube_and_what_it_prints(words: list[str], tmp_path: Path) -> None:
    """Also where it got as far as the connection, which is refused here."""
    modules = imported_by(words, tmp_path / "kubeconfig")
    assert not HEAVY & {name.partition(".")[0] for name in modules}
    if "--help" not in words:
        assert "fluxqueue.kube.client" in modules
        assert "rich" not in modules
    ours = {name.removeprefix("fluxqueue") for name in modules if name.startswith("fluxqueue")}
    if words[0] == "wait":
        return  # it reads a duration as the manifests' annotations have it
    assert {one for one in ours if not one.startswith((".kube", ".cli.user"))} <= OURS


def test_every_command_is_there() -> None:
    """Its name, its help; ``db`` has commands below it."""
    command = typer.main.get_command(app)
    for name in VERBS:
        found = command.commands[name]  # type: ignore[attr-defined]  a group, which mypy cannot know
        assert (found.name, bool(found.help)) == (name, True)
    assert {"upgrade", "list", "hold"} <= set(command.commands["db"].commands)  # type: ignore[attr-defined]


def test_a_fault_in_a_command_is_not_taken_for_another_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """click asks a mapping, and a KeyError out of the import was `No such command 'jobs'`."""

    def broken(_: CommandVerb, __: str) -> None:
        raise KeyError("SOME_VARIABLE")

    monkeypatch.setattr(CommandVerb, "load", broken)
    assert repr(CliRunner().invoke(app, ["jobs"]).exception) == "KeyError('SOME_VARIABLE')"
    assert "No such command 'jbos'" in CliRunner().invoke(app, ["jbos"]).output
