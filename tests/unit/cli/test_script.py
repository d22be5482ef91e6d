"""Directives of batch scripts: what each means, and what is refused."""

from __future__ import annotations

import pytest

from fluxqueue.cli.user.job_manifest import job_manifest
from fluxqueue.cli.user.script import ScriptRequest, duration, read_script
from fluxqueue.errors import InvalidInput


def read(*lines: str) -> ScriptRequest:
    """A shell script with these lines at its head."""
    return read_script("\n".join(["#!/bin/bash", *lines, "srun app", "#SBATCH -n 99"]), "job.sh")


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("#SBATCH --ntasks=4", "tasks", 4),
        ("#SBATCH -n4", "tasks", 4),
        ("#SBATCH -n 4 # four", "tasks", 4),
        ("#SBATCH -c 8", "cpus", "8"),
        ("#SBATCH --mem=512", "memory", "512Mi"),
        ("#SBATCH --mem 4GB", "memory", "4Gi"),
        ("#SBATCH --gres=gpu:a100:2", "gpus", 2),
        ("#SBATCH -t 1-12:30", "duration", "131400s"),
        ("#SBATCH -p batch", "queue", "batch"),
        ("#SBATCH -J my-job", "name", "my-job"),
        ("#SBATCH -d afterok:a", "depends_on", "afterok:a"),
        ("#SBATCH --array=0-9", "array", 10),
        ("#SBATCH --exclusive", "is_exclusive", True),
        ("#SBATCH -H", "is_held", True),
        ("#SBATCH --export=ALL", "ignored", ("--export",)),
        ("#FLUX: -n 4", "tasks", 4),
        ("# flux: --nslots=4", "tasks", 4),
        ("#flux: -c2", "cpus", "2"),
        ("#FLUX: -g 1", "gpus", 1),
        ("#FLUX: --time-limit=2.5h", "duration", "9000s"),
        ("#FLUX: -q gpu", "queue", "gpu"),
        ("#FLUX: -x", "is_exclusive", True),
        ("#FLUX: --within=rack --image=busybox", "image", "busybox"),
        ("#FLUX: --env=A=b", "environment", (("A", "b"),)),
    ],
)
def test_a_directive(line: str, field: str, value: object) -> None:
    """Of either dialect, in either spelling; below the first command none counts."""
    assert getattr(read(line), field) == value


def test_nodes_are_tasks_on_nodes_of_their_own() -> None:
    """`-N 3` alone is a task on each of three nodes; with tasks named, these are the pods."""
    alone, more = read("#SBATCH -N 3"), read("#SBATCH -n 12", "#SBATCH -N 3")
    assert (alone.tasks, alone.is_spread) == (3, True)
    assert (more.tasks, more.is_spread) == (12, False)
    assert read("#SBATCH -c 4 --mem-per-cpu=2G").memory == "8Gi"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("#SBATCH --frobnicate=1", "job.sh:2: '--frobnicate=1' is not a known directive"),
        ("#SBATCH -n many", "'many' is not a positive number"),
        ("#SBATCH -n", "-n needs a value"),
        ("#SBATCH -t soon", "'soon' is not a duration"),
        ("#SBATCH --mem=much", "'much' is not an amount"),
        ("#SBATCH --array=1,2", "'1,2' is not an array"),
        ('#SBATCH -J "x', "cannot be read"),
    ],
)
def test_a_bad_directive_is_refused_with_its_line(line: str, complaint: str) -> None:
    """The author finds it at once."""
    with pytest.raises(InvalidInput) as refusal:
        read(line)
    assert "job.sh:2" in str(refusal.value)
    assert complaint.rsplit("|", maxsplit=1)[-1].removeprefix("job.sh:2: ") in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("1:30", 90), ("1:00:00", 3600), ("2-0", 172800), ("1-1:1:1", 90061),
     ("90s", 90), ("15m", 900), ("1.5h", 5400)],
)  # fmt: skip
def test_times(text: str, seconds: int) -> None:
    """As Slurm and Flux write them."""
    assert duration(text, "time", "job.sh:2") == f"{seconds}s"


@pytest.mark.parametrize(
    ("first", "command"),
    [
        ("#!/bin/sh", ("/bin/sh", "-c")),
        ("#!/usr/bin/env python3", ("/usr/bin/env", "python3", "-c")),
        ("#!/usr/bin/perl -w", ("/usr/bin/perl", "-w", "-e")),
    ],
)
def test_the_program_gets_the_text(first: str, command: tuple[str, ...]) -> None:
    """No file has to be in the image."""
    assert read_script(f"{first}\nx", "s").command == (*command, f"{first}\nx")


def test_scripts_that_cannot_be_carried() -> None:
    """Too long for an argument, or for a program that takes none."""
    for text in ("echo hi", "#!/usr/bin/octave\n1", "#!/bin/sh\n" + "x" * 100_001):
        with pytest.raises(InvalidInput, match="s"):
            read_script(text, "s")


def test_an_array_is_completions() -> None:
    """One pod for each index."""
    spec = job_manifest(ScriptRequest(name="a", image="i", array=10, command=("x",)))["spec"]
    assert (spec["completions"], spec["completionMode"]) == (10, "Indexed")
