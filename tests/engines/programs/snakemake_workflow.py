"""Snakemake: a workflow of one rule, with its executor for Kubernetes and the profile of our docs.

The pods are simulated, so the rule has no output files. ``--precommand`` says how long they run.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

from common import NAMESPACE, POOL, SECONDS, interrupt, main, remember

PROFILE = Path(__file__).parents[3] / "docs" / "examples" / "snakemake"
RULE = """
rule work:
    threads: 4
    {resources}
    shell: "true"
"""


def _provide_rsync(folder: Path) -> None:
    """Make the ``rsync`` of a machine that has none: the storage plugin copies files by it."""
    if shutil.which("rsync") is None:
        folder.mkdir()
        file = folder / "rsync"
        last_two = 'for word; do from=$to to=$word; done; exec cp -a "$from" "$to"'
        file.write_text(f"#!/bin/sh\n{last_two}\n", encoding="utf-8")
        file.chmod(0o755)
        os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


def run(_: str) -> bool:
    """Become Snakemake, which waits for its jobs."""
    home = Path(os.environ["HOME"])
    # The only label by which a rule can choose nodes is that of their type.
    resources = 'resources: machine_type="late"' if POOL == "late" else ""
    (home / "Snakefile").write_text(RULE.format(resources=resources), encoding="utf-8")
    _provide_rsync(home / "bin")
    remember()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.chdir(home)
    options = {
        "profile": PROFILE,
        "kubernetes-namespace": NAMESPACE,
        "container-image": "busybox",
        "default-storage-prefix": home / "storage",
        "seconds-between-status-checks": 1,
        "precommand": f"sleep {SECONDS}",
    }
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    os.execv(sys.executable, [sys.executable, "-m", "snakemake", *words, "work"])


main(run, interrupt)
