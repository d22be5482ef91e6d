"""Pages of the documentation, run as their readers would."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.support.e2e.space import Space

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
CANNOT_RUN = {
    r"make ": "what it calls is run by the tests of it: test_demo, test_up, all of `make test`",
    r"docker |kubectl --kubeconfig kubeconfig": "needs Docker; test_compose_processes runs all",
    r"for lock in requirements": "downloads all packages; images/assemble has a test of its own",
    r"helm (?!template)|.*&& helm ": "needs pods that run images; tests/chart renders all",
    r"kubectl (create namespace fluxqueue-system|apply --server-side -f dist)": (
        "installs a release: tests/chart/test_manifest applies it"
    ),
    r"kubectl -n (fluxqueue-system|NS) |export PGPASSWORD": "about a release's pods, as above",
    r"export DATABASE_URL|fluxqueue db list$": "behind a port forwarded from such a pod",
    r"fluxqueue uninstall": "would stop the queue of all tests of this process: test_uninstall",
    r"fluxqueue top": "wants a terminal: test_top drives it in one",
    r"fluxqueue --install-completion": "writes into the user's shell: test_completion",
}
"""Beginning of a command -> why it is not run here."""
WITHOUT_KUBELETS = re.compile(r".*--attach|kubectl logs|.*\b(again|greet)\b|fluxqueue acct --since")
"""A real control plane without kubelets has no logs. So these Jobs are not submitted there, and no
job has ended when the page sums up the past day."""


def why_not(command: str) -> str:
    return next((why for form, why in CANNOT_RUN.items() if re.match(form, command)), "")


def in_namespace(space: Space, folder: Path) -> Path:
    """A kubeconfig that names the test's namespace."""
    config = yaml.safe_load(space.world.kubeconfig.read_text(encoding="utf-8"))
    for context in config["contexts"]:
        context["context"]["namespace"] = space.name
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config), encoding="utf-8")
    return kubeconfig


def skipping(kind: str) -> Callable[[str], bool]:
    """A test of commands that cannot run on this kind of cluster."""

    def is_skipped(command: str) -> bool:
        is_without = kind == "real" and WITHOUT_KUBELETS.match(command) is not None
        return is_without or bool(why_not(command))

    return is_skipped
