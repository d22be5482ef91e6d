"""A user's command imports what it needs, so that it is there at once.

In processes of their own: others here have imported everything already.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fluxqueue.cli.main import USERS, VERBS, CommandVerb, app, main

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
    *("", ".clock", ".errors", ".process", ".process.distribution", ".process.metrics"),
    *(".process.pacing", ".fluxjob.turns", ".workload.objects"),
    *(".client", ".client.refusals", ".client.fluxjob_lists", ".client.narrowed"),
    *(".cli", ".cli.main", ".cli.messages", ".cli.user", ".cli.option_class", ".fluxjob"),
    *(".fluxjob.states", ".fluxjob.times", ".workload", ".workload.fluxjob_name"),
}
"""Beside ``kube/`` and the user's commands themselves."""
HEAVY = {
    *("kopf", "sqlalchemy", "procrastinate", "psycopg", "alembic", "networkx", "numpy"),
    *("cryptography", "matplotlib", "localcluster", "uvloop", "aiohttp_sse"),
}
EXTRAS = ("server", "graph", "embedded", "draw")
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


@pytest.mark.cases_long("the other cases are variations of the first")
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


WITHOUT_SERVER = """
import sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
from fluxqueue.cli.main import main
sys.argv = ["fluxqueue", *{words}]
main()
"""


def server_packages() -> set[str]:
    """The import names of what the extras bring, from pyproject.toml."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = [one for extra in EXTRAS for one in content["project"]["optional-dependencies"][extra]]
    names = {re.split(r"[\[<>=~]", one)[0].replace("-", "_") for one in listed}
    return names - {"fluxqueue_k8s"} | {"fluxion"}


def run_without_server(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command line where only the users' packages can be imported."""
    program = WITHOUT_SERVER.format(packages=sorted(server_packages()), words=list(words))
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_help_names_all_commands_without_the_servers_packages() -> None:
    """Of which HEAVY is a part."""
    assert {"kopf", "sqlalchemy", "procrastinate", "psycopg", "alembic"} <= server_packages()
    said = run_without_server("--help")
    assert said.returncode == 0, said.stderr
    shown = {name for name in VERBS if f" {name} " in said.stdout}
    assert shown == {name for name, verb in VERBS.items() if verb.package == "fluxqueue.cli"}


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize("name", [name for name, verb in VERBS.items() if verb.panel == USERS])
def test_a_users_command_needs_no_package_of_the_server(name: str, tmp_path: Path) -> None:
    """It gets as far as the API server, which refuses the connection here."""
    (tmp_path / "kubeconfig").write_text(KUBECONFIG, encoding="utf-8")
    environ = {"KUBECONFIG": str(tmp_path / "kubeconfig"), "COLUMNS": "200"}
    words = {
        "submit": ["--image", "busybox", "--", "true"],
        "priority": ["one", "7"],
        "move": ["one", "other"],
        "drain": ["node-1", "--reason", "disk"],
        "undrain": ["node-1"],
        "web": ["--no-open"],
    }
    needs_no_name = {"adopt", "jobs", "mcp", "nodes", "tree", "queues", "top", "acct", "version"}
    given = words.get(name, [] if name in needs_no_name else ["one"])
    said = run_without_server(name, *given, **environ)
    # The server of mcp ends with its input, which is empty here.
    others = {"top": (2, "is not a terminal"), "mcp": (0, "")}
    code, expected = others.get(name, (1, "127.0.0.1:9"))
    assert said.returncode == code, said.stderr
    assert expected in said.stdout + said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["worker"], "server"),
        (["controller"], "server"),
        (["view", "--cert-dir", "{folder}"], "server"),
        (["db", "check"], "server"),
        (["check"], "server"),
        (["certs", "{folder}"], "server"),
        (["sim"], "server"),
        (["up"], "embedded"),
        (["demo"], "embedded"),
        (["resource-query"], "graph"),
    ],
)
def test_a_command_of_the_server_names_the_extra(
    words: list[str], extra: str, tmp_path: Path
) -> None:
    """One line instead of a traceback."""
    (tmp_path / "kubeconfig").write_text(KUBECONFIG, encoding="utf-8")
    environ = {
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
        "DATABASE_URL": "postgresql://127.0.0.1:9/fluxqueue",
    }
    said = run_without_server(*(word.format(folder=tmp_path) for word in words), **environ)
    assert said.returncode == 1
    (line,) = said.stderr.splitlines()
    assert re.fullmatch(
        r"fluxqueue: this command needs the package \w+, which is not installed"
        rf" \(pip install 'fluxqueue-k8s\[{extra}\]'\)",
        line,
    )


def test_levels_are_shown_without_fluxions_matcher(tmp_path: Path) -> None:
    """It gets as far as the API server. Only an export as JGF needs the extra ``graph``."""
    (tmp_path / "kubeconfig").write_text(KUBECONFIG, encoding="utf-8")
    said = run_without_server("graph", "--levels", KUBECONFIG=str(tmp_path / "kubeconfig"))
    assert (said.returncode, "127.0.0.1:9" in said.stderr) == (1, True), said.stderr


def test_a_missing_module_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a fault, and no extra brings it."""

    def broken(_: CommandVerb, __: str) -> None:
        raise ModuleNotFoundError("No module named 'fluxqueue.lost'", name="fluxqueue.lost")

    monkeypatch.setattr(CommandVerb, "load", broken)
    monkeypatch.setattr("sys.argv", ["fluxqueue", "jobs"])
    with pytest.raises(ModuleNotFoundError):
        main()


def test_every_command_is_there() -> None:
    """Its name, its help. ``db`` has commands below it."""
    command = typer.main.get_command(app)
    for name in VERBS:
        found = command.commands[name]  # type: ignore[attr-defined]  a group, which mypy cannot know
        assert (found.name, bool(found.help)) == (name, True)
    assert {"upgrade", "list", "history"} <= set(command.commands["db"].commands)  # type: ignore[attr-defined]


def test_a_fault_in_a_command_is_not_taken_for_another_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """click asks a mapping, and a KeyError out of the import was `No such command 'jobs'`."""

    def broken(_: CommandVerb, __: str) -> None:
        raise KeyError("SOME_VARIABLE")

    monkeypatch.setattr(CommandVerb, "load", broken)
    assert repr(CliRunner().invoke(app, ["jobs"]).exception) == "KeyError('SOME_VARIABLE')"
    assert "No such command 'jbos'" in CliRunner().invoke(app, ["jbos"]).output
