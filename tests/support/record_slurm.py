"""Ask a real sbatch what it makes of scripts, and write its answers into the file that has them.

    python -m tests.support.record_slurm tests/unit/cli/public_style.jsonl

runs by hand, on a machine with a Slurm whose nodes are those of ``slurm_cases`` and are all busy.
Each line of the file has a script, and gets the moment and what ``scontrol show job`` said of it.
``@A`` and ``@B`` in a script are jobs that wait. It is not for scripts with ``--wait``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.support.slurm_cases import DEFAULTS

KEPT = (
    *DEFAULTS, "ArrayTaskId", "Comment", "MinMemoryCPU", "TresPerJob", "TresPerNode", "TresPerTask",
)  # fmt: skip
WAITING = ("@A", "@B")


def submit(script: str) -> str | None:
    """Return the number of the job, None if sbatch refuses it."""
    done = subprocess.run(
        ["sbatch", "--parsable"], input=script, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def facts(jobid: str) -> dict[str, str]:
    """Return what Slurm says of a job that differs from a job without options."""
    show = ["scontrol", "--oneliner", "show", "job", jobid]
    said = subprocess.run(show, capture_output=True, text=True, check=True).stdout.split("\n")[0]
    found = dict(re.findall(r"(\S+?)=(.*?)\s*(?= \S+?=|$)", said))
    if found["Reason"] not in {"BeginTime", "JobHeldUser"}:
        found["Reason"] = DEFAULTS["Reason"]
    if found["JobName"] == "sbatch":  # of a script without a name
        found["JobName"] = DEFAULTS["JobName"]
    usual = DEFAULTS.get
    kept = {key: found[key] for key in KEPT if found.get(key, usual(key)) != usual(key)}
    return kept | ({"StartTime": found["StartTime"]} if "Reason" in kept else {})


def record(row: dict[str, Any], waiting: dict[str, str]) -> dict[str, Any]:
    """Return the row with Slurm's answer."""
    script, job = row["script"], None
    for name, number in waiting.items():
        script = script.replace(name, number)
    if jobid := submit(script):
        text = json.dumps(facts(jobid))
        for name, number in waiting.items():
            text = re.sub(rf"\b{number}\b", name, text)
        job = json.loads(text)
        subprocess.run(["scancel", jobid], check=True)
    at = datetime.now().isoformat(timespec="seconds")  # noqa: DTZ005
    return {**row, "at": at, "job": job}


def main() -> None:
    """Record each line of the files."""
    waiting = {name: submit("#!/bin/sh\n#SBATCH -H\n:\n") or "" for name in WAITING}
    for file in map(Path, sys.argv[1:]):
        rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        lines = [json.dumps(record(row, waiting)) for row in rows]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    subprocess.run(["scancel", *waiting.values()], check=True)


if __name__ == "__main__":
    main()
