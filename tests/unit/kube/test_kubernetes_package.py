"""The package ``kubernetes`` is imported without what it would like to have beside it.

In processes of their own: others here may have imported it already.
"""

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
"""

KEEP = """
import kubernetes_validate as afterwards
import_without_validator()
assert sys.modules["kubernetes_validate"] is afterwards
"""


def said_by(program: str) -> str:
    """What a Python process of our own prints."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_validator_can_be_had_afterwards_and_is_kept() -> None:
    here = "from fluxqueue.kube.kubernetes_package import import_without_validator"
    asked = SAY.format(first=f"{here}\nimport_without_validator()")
    assert said_by(asked + KEEP) == "['kubernetes']\n"


def test_the_validator_costs_no_start_of_a_controller() -> None:
    asked = SAY.format(first="import fluxqueue.controller.main")
    assert said_by(asked) == "['kubernetes']\n"


def test_a_start_loads_no_graph_library() -> None:
    """Each of the many processes of a test run and of a cluster would pay for it."""
    parts = "import fluxqueue.worker.main, fluxqueue.controller.main"
    assert said_by(f"import sys\n{parts}\nprint('networkx' in sys.modules)") == "False\n"
