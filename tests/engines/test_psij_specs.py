"""Specifications of PSI/J become options of a submission, or are refused before one is made."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.engines.catalogue import ENVIRONMENTS, PROGRAMS, ROOT

PYTHON = ENVIRONMENTS / "adapters" / "bin" / "python"


@pytest.mark.long("the interpreter of another environment")
@pytest.mark.skipif(not PYTHON.exists(), reason="adapters is not installed: make test-engines")
def test_a_specification_is_kept_or_refused() -> None:
    """Each refusal names the field, the value, and the way out."""
    done = subprocess.run(
        [str(PYTHON), str(PROGRAMS / "psij_specs.py")],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    words, options = found.pop("whole")
    assert words == ["/bin/sh", "-c", "cd '/data/my runs' && exec simulate --fast"]
    assert options == {
        "env": "{'SEED': '1'}",
        "time": "2:00:00",
        "queue": "night",
        "image": "a",
        "name": "sim",
        "tasks": "6",
        "nodes": "2",
        "cpus": "4",
        "gpus": "1",
        "exclusive": "True",
        # A sixth of the job's memory, rounded up.
        "memory": str(512 * 1024 * 1024 + 1),
    }
    assert found.pop("single")[1]["tasks"] == "1"
    starts = {
        "mpirun": "launcher: 'mpirun'",
        "input": "stdin_path: /data/in",
        "reserved": "reservation_id: 'r1'",
        "unknown": "fluxqueue.color: 'red'",
        "nothing": "executable: is missing",
    }
    assert {name: text.partition(" ")[0] for name, text in found.items()} == {
        name: text.partition(" ")[0] for name, text in starts.items()
    }
    assert all(found[name].startswith(text) for name, text in starts.items()), found
    assert all(". Fix: " in text for text in found.values())
