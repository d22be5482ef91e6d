"""The package ``kubernetes`` is imported without what it would like to have beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

SAY = """
import sys
{first}
print(sorted(name for name in ("kubernetes", "kubernetes_validate", "jsonschema")
             if name in sys.modules))
import kubernetes_validate
"""


def test_the_validator_costs_no_start_of_ours_and_can_be_had_afterwards() -> None:
    """In a process of its own: others here may have imported it already."""
    for first in (
        "from fluxqueue.kube.kubernetes_package import import_without_validator as f; f()",
        "import fluxqueue.controller.operator",
    ):
        done = subprocess.run(
            [sys.executable, "-c", SAY.format(first=first)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "['kubernetes']\n"


KEEP = """
import sys
import kubernetes_validate as before
from fluxqueue.kube.kubernetes_package import import_without_validator
import_without_validator()
assert sys.modules["kubernetes_validate"] is before
"""


def test_who_has_the_validator_already_keeps_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KEEP], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
