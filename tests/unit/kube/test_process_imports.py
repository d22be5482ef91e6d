"""What the processes of the server import: each of them pays for it at its start.

In processes of their own: others here may have imported it already.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def said_by(program: str) -> str:
    """What a Python process of our own prints."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_start_loads_no_graph_library() -> None:
    """Each of the many processes of a test run and of a cluster would pay for it."""
    parts = "import fluxqueue.worker.worker_process, fluxqueue.controller.controller_process"
    assert said_by(f"import sys\n{parts}\nprint('networkx' in sys.modules)") == "False\n"
