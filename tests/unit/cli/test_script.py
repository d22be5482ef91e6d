"""Directives of batch scripts: the shape that a whole header gives, and what is refused."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from fluxqueue.client.batch.batch_step import ARRAY_STRIDE
from fluxqueue.client.batch.begin_time import begin_time
from fluxqueue.client.batch.dialects import DIALECTS
from fluxqueue.client.batch.directive_values import duration, read_array
from fluxqueue.client.batch.directives import SLURM, Fate
from fluxqueue.client.batch.job_manifest import job_manifest, read_command, valid_name
from fluxqueue.client.batch.job_of_script import manifest_of
from fluxqueue.client.batch.script import read_script
from fluxqueue.client.batch.script_request import translate
from fluxqueue.client.batch.site_names import SiteNames, load_site_names
from fluxqueue.client.batch.task_layout import TaskLayout
from fluxqueue.errors import InvalidInput
from fluxqueue.workload.annotations import read_wishes
from fluxqueue.workload.starting import parse_begin_time
from tests.support.batch_scripts import NOW, SITE, manifest, once, read, sbatch, shape
from tests.support.slurm_headers import HEADERS


@pytest.mark.parametrize(("header", "expected"), HEADERS, ids=[one for one, _ in HEADERS])
def test_a_header_gives_its_shape_or_is_refused(header: str, expected: str) -> None:
    """The shape is read from the Job, as admission and the queue read it."""
    if not expected.startswith("!"):
        assert shape(sbatch(header)) == expected
        return
    with pytest.raises(InvalidInput) as refusal:
        sbatch(header)
    assert expected[1:] in str(refusal.value)
    assert "job.sh:" in str(refusal.value)


def test_the_table_is_large_and_names_each_header_once() -> None:
    """At least 150 headers, and every directive of the table of sbatch's that has a shape."""
    assert len(HEADERS) >= 150
    assert len({one for one, _ in HEADERS}) == len(HEADERS)


@pytest.mark.parametrize(
    "header", [one for one, expected in HEADERS if ";" in one and not expected.startswith("!")]
)
def test_the_order_of_lines_does_not_matter(header: str) -> None:
    lines = header.split(";")
    if len({line.strip().split()[0] for line in lines}) == len(lines):
        assert shape(sbatch(";".join(reversed(lines)))) == shape(sbatch(header))


@pytest.mark.parametrize(
    ("header", "key", "value"),
    [
        ("-t 1-12:30", "fluxqueue/duration", "131400s"),
        ("-t UNLIMITED", "fluxqueue/duration", None),
        ("-t 0", "fluxqueue/duration", None),
        ("-d afterok:1:2,afterany:c", "fluxqueue/depends-on", "afterok:1:2,afterany:c"),
        ("-b now+1hour", "fluxqueue/begin-time", "+3600s"),
        ("-b 16:00", "fluxqueue/begin-time", "2030-05-15T16:00:00+02:00"),
        ("-H", "fluxqueue/hold", "true"),
        ("--nice", "fluxqueue/priority", "-100"),
        ("--nice=-5", "fluxqueue/priority", "5"),
        ("--priority=7", "fluxqueue/priority", "7"),
        ("--qos=high", "fluxqueue/priority", "100"),
        ("--requeue", "fluxqueue/on-node-loss", "requeue"),
        ("-A physics", "fluxqueue/account", "physics"),
        ("--comment='a b'", "fluxqueue/comment", "a b"),
        ("--within=rack", "fluxqueue/within", "rack"),
        ("-t 10 --signal=B:TERM@60", "fluxqueue/duration", "540s"),
        ("-t 10 -a 0-9%4", "fluxqueue/duration", "600s"),
        ("-t 10 -a 0-9", "fluxqueue/duration", "600s"),
        ("-a 0-9", "fluxqueue/gang", "false"),
        ("-a 0-9%4", "fluxqueue/gang", "false"),
        ("-n 4", "fluxqueue/gang", None),
    ],
)
def test_annotations(header: str, key: str, value: str | None) -> None:
    """Of the Job. Admission accepts each of them."""
    job = manifest(sbatch(header))
    assert job["metadata"]["annotations"].get(key) == value
    read_wishes(job)


@pytest.mark.parametrize(
    ("header", "terms"),
    [
        ("-C ib", [[("example.com/fabric", "In", ["infiniband"])]]),
        ("-C 'ib&big'", [[("example.com/fabric", "In", ["infiniband"]),
                          ("example.com/disk", "In", ["yes"]),
                          ("example.com/size", "In", ["big"])]]),
        ("-C 'ib|big'", [[("example.com/fabric", "In", ["infiniband"])],
                         [("example.com/disk", "In", ["yes"]),
                          ("example.com/size", "In", ["big"])]]),
        ("-w n[1-2]", [[("kubernetes.io/hostname", "In", ["n1", "n2"])]]),
        ("-x n[1-2]", [[("kubernetes.io/hostname", "NotIn", ["n1", "n2"])]]),
        ("-C ib -x n3", [[("example.com/fabric", "In", ["infiniband"]),
                          ("kubernetes.io/hostname", "NotIn", ["n3"])]]),
        ("--gres=gpu:a100:1", [[("nvidia.com/gpu.product", "In", ["A100"])]]),
        ("-n 2", None),
    ],
)  # fmt: skip
def test_nodes_allowed(header: str, terms: list[list[tuple[str, str, list[str]]]] | None) -> None:
    """As required node affinity, which the matcher reads."""
    pod = manifest(sbatch(header))["spec"]["template"]["spec"]
    if terms is None:
        assert "affinity" not in pod
        return
    found = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [
        [(one["key"], one["operator"], one["values"]) for one in term["matchExpressions"]]
        for term in found["nodeSelectorTerms"]
    ] == terms


def test_the_rest_of_the_manifest() -> None:
    """Queue, folder, environment, grace, and what is only named."""
    request = sbatch("-p batch -D /work --export=ALL,A=b --signal=B:TERM@90 -o x --mail-user=a@b")
    job = manifest(request)
    pod = job["spec"]["template"]["spec"]
    assert job["metadata"]["labels"] == {"fluxqueue/queue": "batch"}
    assert pod["containers"][0]["workingDir"] == "/work"
    assert pod["containers"][0]["env"][-1] == {"name": "A", "value": "b"}
    assert pod["terminationGracePeriodSeconds"] == 90
    assert request.ignored == ("--output", "--mail-user", "--export=ALL")
    assert sbatch("--qos=debug").queue == "debug"
    assert sbatch("--qos=debug -p batch").queue == "batch"
    assert sbatch("-W").waits


def test_tasks_of_an_array_know_their_index_and_fail_alone() -> None:
    """By the index of the Job, or by a list of others."""
    plain = manifest(sbatch("-a 0-4"))["spec"]
    assert "backoffLimit" not in plain
    assert plain["backoffLimitPerIndex"] == 0
    first = plain["template"]["spec"]["containers"][0]["env"][0]
    assert first["name"] == "SLURM_ARRAY_TASK_ID"
    assert "job-completion-index" in first["valueFrom"]["fieldRef"]["fieldPath"]
    listed = manifest(sbatch("-a 2-8:3 -t 5"))
    main = listed["spec"]["template"]["spec"]["containers"][0]
    assert main["command"][:2] == ["/bin/sh", "-c"]
    assert "* 3 + 2" in main["command"][2]
    assert main["command"][4:6] == ["/bin/bash", "-c"]
    assert listed["spec"]["podFailurePolicy"]["rules"][0]["action"] == "Ignore"
    assert "fluxqueue/on-node-loss" not in listed["metadata"]["annotations"]
    large = manifest(sbatch("-a 1-99999"))["spec"]
    assert (large["parallelism"], large["completions"]) == (1000, 99_999)
    assert " 777 " not in str(large["template"]["spec"]["containers"][0]["command"]), "no list"


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff#!/bin/sh\n#SBATCH -n 2\necho hi\n",
        "#!/bin/sh\r\n#SBATCH -n 2\r\necho hi\r\n",
        "\ufeff#!/bin/sh\r\n#SBATCH -n 2\necho hi\r\n",
    ],
)
def test_a_script_of_another_editor_is_the_same(text: str) -> None:
    """With a byte order mark, or with line ends of Windows, which a shell would not understand."""
    found = read_script(text, "job.sh")
    assert found.command == ("/bin/sh", "-c", "#!/bin/sh\n#SBATCH -n 2\necho hi\n")
    assert shape(translate(found, SITE, NOW)) == "1 cpu=2"


@pytest.mark.parametrize(
    ("indexes", "expected"),
    [
        ("2,5,11", ("2", "5", "11")),
        ("7", ("7",)),
        ("4-10:3", ("4", "7", "10")),
        ("0,7", ("0", "7")),
    ],
)
def test_the_index_that_the_shell_picks(indexes: str, expected: tuple[str, ...]) -> None:
    """The lines before the script run in a real shell."""
    import os
    import subprocess

    request = sbatch(f"-a {indexes}")
    command = manifest(request)["spec"]["template"]["spec"]["containers"][0]["command"]
    shell = [word.replace("$$", "$") for word in command[:4]]
    for index, number in enumerate(expected):
        told = subprocess.run(
            [*shell, "/bin/sh", "-c", "echo $SLURM_ARRAY_TASK_ID $SLURM_JOB_ID $0", "arg"],
            env={**os.environ, "JOB_COMPLETION_INDEX": str(index), "SLURM_ARRAY_JOB_ID": "7"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert told.stdout == f"{number} {7 * ARRAY_STRIDE + int(number)} arg\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("#FLUX: -n 4",), "4 cpu=1"),
        (("# flux: --nslots=4",), "4 cpu=1"),
        (("#flux: -c2",), "1 cpu=2"),
        (("#FLUX: -g 1 -n 2",), "2 cpu=1 gpu=1"),
        (("#FLUX: -N 2 -n 8",), "2x4 cpu=1"),
        (("#FLUX: -n 8", "#FLUX: -N 2"), "2x4 cpu=1"),
        (("#FLUX: -N 2",), "2x1 cpu=1 whole"),
        (("#FLUX: -N 2 -n 2",), "2x1 cpu=1"),
        (("#FLUX: -N 2 -n 4 -x",), "2x2 cpu=1 whole"),
        (("#FLUX: --mem=2G -n 4",), "4 cpu=1 mem=2048"),
        (("#FLUX: -N 4 -n 2",), "!4 nodes are more than 2 slots"),
        (("#FLUX: -o cpu-affinity=off",), "!options of the Flux shell"),
        (("#FLUX: --urgency=40",), "!is not an urgency"),
        (("#FLUX: --requires=fast",), "!'fast' has no meaning"),
        (("#FLUX: --requires=ranks:1",), "!is not supported"),
        (("# SBATCH -n 64", "#SBATCH -n 2"), "2 cpu=1"),
        (("##SBATCH -n 64", "#SBATCH -n 2"), "2 cpu=1"),
        (("#sbatch -n 64", "#SBATCH -n 2"), "2 cpu=1"),
        ((" #SBATCH -n 64", "#SBATCH -n 2"), "2 cpu=1"),
        (("#SBATCH -n 2", "", "# comment", "#SBATCH -c 2"), "2 cpu=2"),
        (("#SBATCH -n 2", "set -e", "#SBATCH -c 2"), "2 cpu=1"),
        (("#SBATCH\t-n 2",), "2 cpu=1"),
        (("#  flux: -n 3",), "3 cpu=1"),
        (("## FLUX: -n 3",), "3 cpu=1"),
        ((" #flux: -n 3",), "3 cpu=1"),
        (("# Flux: -n 3",), "1 cpu=1"),
        (("#flux: -n 3", "app", "#flux: -c 2"), "!move the line up"),
        (("app", "  # flux: -c 2"), "!move the line up"),
        (("app", "# flux: the scheduler"), "1 cpu=1"),
        (("cat <<END", "flux: -n 3", "#SBATCH -n 3", "END"), "1 cpu=1"),
        (('#FLUX: --env=A="""', '#FLUX: b"""'), "!close the quotes"),
        (("#$ -pe mpi 16",), "!directives of Grid Engine are not read"),
        (("#COBALT -n 16",), "!directives of Cobalt"),
        (("#OAR -l /nodes=2",), "!directives of OAR"),
        (("#PJM -L node=2",), "!directives of PJM"),
        (("#MSUB -l nodes=2",), "!directives of Moab"),
        (("# @ node = 2",), "!directives of LoadLeveler"),
        (("#$ -pe mpi 16", "#SBATCH -n 2"), "2 cpu=1"),
        (("# $HOME is small",), "1 cpu=1"),
        (("#SBATCH: -n 8",), "!write #SBATCH and a space"),
        (("#SBATCHfoo",), "!write #SBATCH and a space"),
        (("#SLURM -n 8",), "!write #SBATCH and a space"),
        (("# SLURM settings",), "1 cpu=1"),
        (("#SBATCH",), "1 cpu=1"),
        (("app", "#PBS -l nodes=2"), "1 cpu=1"),
        (("#PBSX",), "1 cpu=1"),
    ],
)
def test_lines_of_either_dialect(lines: tuple[str, ...], expected: str) -> None:
    """Comments and lines after the first command are not directives."""
    if expected.startswith("!"):
        with pytest.raises(InvalidInput, match=r"job\.sh") as refusal:
            read(*lines)
        assert expected[1:] in str(refusal.value)
    else:
        assert shape(read(*lines)) == expected


HOSTILE = (
    *("9" * 5000, "²", "1e400", "1-999999999", "n[" * 30 + "1", "ib&" * 300, "\0", "[1-9]:٣"),
    *("0-2147483647%1", "now+" + "9" * 30, "afterok:" + "1:" * 3000, "gpu:" + "9" * 30),
)


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_no_value_of_a_directive_ends_in_a_traceback(value: str) -> None:
    """Of any directive of both dialects: it is read, or refused in words."""
    for mark, dialect in (("#SBATCH", DIALECTS["slurm"]), ("#FLUX:", DIALECTS["flux"])):
        for directive in dialect:
            with suppress(InvalidInput):
                manifest_of(read(f"{mark} --{directive.name}={value}"))


@pytest.mark.parametrize(
    ("urgency", "held", "priority"),
    [("0", True, ""), ("hold", True, ""), ("16", False, ""), ("default", False, ""),
     ("17", False, "1"), ("expedite", False, "15"), ("1", False, "-15")],
)  # fmt: skip
def test_urgency(urgency: str, held: bool, priority: str) -> None:
    """Its distance to the default. 0 is a hold."""
    found = read(f"#FLUX: --urgency={urgency}")
    assert (found.is_held, found.priority) == (held, priority)


def test_requires() -> None:
    """Names, hosts, and their negations."""
    found = read("#FLUX: --requires='ib and -host:n[1-2]'").nodes_allowed
    assert [[(one.key, one.operator) for one in term] for term in found] == [
        [("example.com/fabric", "In"), ("kubernetes.io/hostname", "NotIn")]
    ]
    either = read("#FLUX: --requires='ib|host:n7'").nodes_allowed
    assert [one[0].key for one in either] == ["example.com/fabric", "kubernetes.io/hostname"]
    for text, count in (("ib || big", 2), ("ib&-host:n1", 1), ("ib or big or host:n[1,3]", 3)):
        assert len(read(f"#FLUX: --requires='{text}'").nodes_allowed) == count
    for text in ("ib |", "| ib", "and"):
        with pytest.raises(InvalidInput, match="lacks a name"):
            read(f"#FLUX: --requires='{text}'")
    neither = read("#FLUX: --requires=-big").nodes_allowed
    assert len(neither) == 2, "not big is without one of its labels"


def test_options_of_the_command_line_win_and_keep_the_nodes() -> None:
    """A number of tasks counts with the script's nodes. Resources are those of each pod."""
    assert shape(read("#SBATCH -N 2 -n 4", tasks=8)) == "2x4 cpu=1"
    assert shape(read("#SBATCH -n 8", nodes="4")) == "4x2 cpu=1"
    assert shape(read("#SBATCH --gres=gpu:8 -n 4", gpus=1)) == "4 cpu=1 gpu=1"
    assert shape(read("#SBATCH --mem=8G -n 4", memory="1Gi")) == "4 cpu=1"
    assert shape(read("#SBATCH --mem-per-cpu=1G -c 2", cpus="4")) == "1 cpu=4 mem=4096"
    assert shape(read(exclusive=True)) == "1 cpu=1 whole"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("afterok:1?afterok:2", "? is not supported"),
        ("after:1+5", "without a delay"),
        ("afterok:12_4", "it waits for the whole array"),
        ("afterburstbuffer:1", "use afterok"),
        ("finally:1", "is no type of dependency"),
    ],
)
def test_dependencies_that_cannot_be_kept(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        sbatch(f"-d '{text}'")
    assert problem in str(refusal.value)


@pytest.mark.parametrize(
    ("header", "name", "original"),
    [("-J Train_1", "train-1", "Train_1"), ("-J train", "train", "train"), ("", "job", "job")],
)
def test_a_singleton_shares_its_name_and_has_one_of_its_own(
    tmp_path: Path, header: str, name: str, original: str
) -> None:
    """A Job needs a name that no other one has. Without -J it is that of the script."""
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n#SBATCH {header} -d afterok:1,Singleton\nsrun app\n")
    request = replace(read_command([str(script)]), image="x")
    first, second = (job_manifest(request)["metadata"] for _ in range(2))
    assert first["annotations"]["fluxqueue/depends-on"] == f"afterok:1,singleton:{name}"
    assert first["annotations"]["fluxqueue/job-name"] == original
    assert re.fullmatch(f"{name}-[0-9a-f]{{6}}", first["name"])
    assert first["name"] != second["name"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", "+0s"),
        ("now+60", "+60s"),
        ("now+60seconds", "+60s"),
        ("now+1hour", "+3600s"),
        ("now+2hours", "+7200s"),
        ("now + 3 days", "+259200s"),
        ("now+1week", "+604800s"),
        ("now+90minutes", "+5400s"),
        ("+2h", "+2h"),
        ("now+1d6h", "+1d6h"),
        ("16:00", "2030-05-15T16:00:00+02:00"),
        ("09:00", "2030-05-16T09:00:00+02:00"),
        ("10:30", "2030-05-16T10:30:00+02:00"),
        ("16:00:30", "2030-05-15T16:00:30+02:00"),
        ("4:30PM", "2030-05-15T16:30:00+02:00"),
        ("4:30 pm", "2030-05-15T16:30:00+02:00"),
        ("12am", "2030-05-16T00:00:00+02:00"),
        ("12PM", "2030-05-15T12:00:00+02:00"),
        ("noon", "2030-05-15T12:00:00+02:00"),
        ("midnight", "2030-05-16T00:00:00+02:00"),
        ("teatime", "2030-05-15T16:00:00+02:00"),
        ("fika", "2030-05-15T15:00:00+02:00"),
        ("elevenses", "2030-05-15T11:00:00+02:00"),
        ("today", "2030-05-15T00:00:00+02:00"),
        ("tomorrow", "2030-05-16T00:00:00+02:00"),
        ("16:00 tomorrow", "2030-05-16T16:00:00+02:00"),
        ("tomorrow noon", "2030-05-16T12:00:00+02:00"),
        ("2030-06-01", "2030-06-01T00:00:00+02:00"),
        ("2030-06-01T08:15", "2030-06-01T08:15:00+02:00"),
        ("2030-06-01T08:15:30", "2030-06-01T08:15:30+02:00"),
        ("2030-06-01T08:15:30Z", "2030-06-01T08:15:30Z"),
        ("2030-06-01T08:15:30-05:00", "2030-06-01T08:15:30-05:00"),
        ("06/01", "2030-06-01T00:00:00+02:00"),
        ("01/31", "2031-01-31T00:00:00+02:00"),
        ("06/01/31", "2031-06-01T00:00:00+02:00"),
        ("06.01.2031 8:00", "2031-06-01T08:00:00+02:00"),
        ("060131", "2031-06-01T00:00:00+02:00"),
        ("0601", "2030-06-01T00:00:00+02:00"),
    ],
)
def test_begin_times(text: str, expected: str) -> None:
    """All of sbatch's spellings. The annotation accepts the result."""
    found = begin_time(text, NOW, "job.sh:2")
    assert found == expected
    parse_begin_time(found, "annotation")


@pytest.mark.parametrize(
    "text", ["soon", "25:00", "13pm", "2030-02-30", "13/01", "now+1fortnight", "", "8:00 9:00"]
)
def test_begin_times_that_are_none(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a begin time"):
        begin_time(text, NOW, "job.sh:2")


def test_a_local_begin_time_has_the_offset_of_its_own_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """A naive time is one of this machine's zone, in summer and in winter."""
    import time

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        winter = datetime(2030, 1, 10, 12)  # noqa: DTZ001
        assert begin_time("2030-07-01T08:00", winter, "x") == "2030-07-01T08:00:00+02:00"
        assert begin_time("16:00", winter, "x") == "2030-01-10T16:00:00+01:00"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("1:30", 90), ("1:00:00", 3600), ("2-0", 172800), ("1-1:1:1", 90061),
     ("2-12:30", 217800), ("90s", 90), ("15m", 900), ("1.5h", 5400), ("2h30m", 9000),
     ("1d", 86400), ("0.5", 30)],
)  # fmt: skip
def test_times(text: str, seconds: int) -> None:
    """As Slurm and Flux write them."""
    assert duration(text, "time", "job.sh:2") == f"{seconds}s"


@pytest.mark.parametrize("text", ["0", "UNLIMITED", "unlimited", "INFINITE", "0:00"])
def test_no_limit(text: str) -> None:
    assert duration(text, "time", "job.sh:2") == ""


@pytest.mark.parametrize("text", ["soon", "-1", "1:2:3:4", "-5", "1-", "-1:00", "1d2x", "1 h"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a duration"):
        duration(text, "time", "job.sh:2")


def test_arrays() -> None:
    assert read_array("1,3,5-9:2%2", "x") == ((1, 3, 5, 7, 9), 2)
    assert read_array("9,1", "x") == ((1, 9), 0)
    assert read_array("0-3,2,1-2,%0", "x") == ((0, 1, 2, 3), 0)


@pytest.mark.parametrize(
    ("name", "valid"),
    [("My Job", "my-job"), ("run_2", "run-2"), ("a.b/c", "a-b-c"), ("--", "job"), ("ok-1", "ok-1"),
     ("Größe", "gr-e"), ("x" * 80, "x" * 52)],
)  # fmt: skip
def test_names_are_made_valid(name: str, valid: str) -> None:
    assert valid_name(name) == valid


@pytest.mark.parametrize("signal", ["R:TERM@60", "B:KILL@60", "B:NOSUCH", "B:USR1@soon", "999"])
def test_signals_that_cannot_be_kept(signal: str) -> None:
    with pytest.raises(InvalidInput, match="B:USR1@180"):
        sbatch(f"-t 5 --signal={signal}")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("-t 10 --signal=B:USR1@180", (180, "420s", "USR1", False)),
        ("-t 10 --signal=USR1@180", (180, "420s", "USR1", True)),
        ("-t 10 --signal=B:TERM", (60, "540s", "", False)),
        ("-t 10 --signal=TERM@30", (30, "570s", "TERM", True)),
        ("-t 1 --signal=b:10@600", (59, "1s", "USR1", False)),
        ("--signal=B:SIGINT@5", (5, "", "INT", False)),
    ],
)
def test_signals(header: str, expected: tuple[int, str, str, bool]) -> None:
    """Sent by the first process of the pod: to the script, or to what srun started."""
    found = sbatch(header)
    assert (found.grace_s, found.duration, found.signal, found.is_for_steps) == expected


def test_variables_of_the_shell_are_not_copied() -> None:
    with pytest.raises(InvalidInput, match=r"--env HOME="):
        sbatch("--export=HOME")


@pytest.mark.parametrize(
    ("first", "command"),
    [
        ("#!/bin/sh", ("/bin/sh", "-c")),
        ("#!/usr/bin/env python3", ("/usr/bin/env", "python3", "-c")),
        ("#!/usr/bin/perl -w", ("/usr/bin/perl", "-w", "-e")),
        ("#! /bin/bash -l", ("/bin/bash", "-l", "-c")),
        ("#!/usr/bin/env -S bash -e", ("/usr/bin/env", "-S", "bash", "-e", "-c")),
    ],
)
def test_the_program_gets_the_text(first: str, command: tuple[str, ...]) -> None:
    """No file has to be in the image."""
    assert read_script(f"{first}\nx", "s").command == (*command, f"{first}\nx")


def test_a_folder_with_the_name_of_a_script_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was submitted as a program of the image."""
    (tmp_path / "run.sh").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=r"no such script.*Fix: .*-- \./run\.sh"):
        read_command(["run.sh"])


def test_scripts_that_cannot_be_carried() -> None:
    """Too long for an argument, or for a program that takes none."""
    for text, way_out in (
        ("echo hi", "such as #!/bin/sh"),
        ("#!/usr/bin/octave\n1", "use a command"),
        ("#!/bin/tcsh\n1", "use a command"),
        ("#!\n1", "use a command"),
        ("#!/usr/bin/env\n1", "use a command"),
        ("#!/bin/sh\n\0", "use a text file"),
        ("#!/bin/sh\n" + "x" * 100_001, "into an image"),
    ):
        with pytest.raises(InvalidInput, match=rf"Fix: .*{way_out}"):
            read_script(text, "s")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_directive_says_what_becomes_of_it(dialect: str) -> None:
    """Letters are unique. A refusal names its way out, and no name stands twice."""
    table = DIALECTS[dialect]
    letters = [one.short for one in table if one.short]
    assert len(letters) == len(set(letters))
    assert len({one.name for one in table}) == len(table)
    assert all(one.text for one in table)


def test_directives_with_a_way_out_are_refused_with_it() -> None:
    """Each one that changes where or how a job runs and cannot be kept."""
    for one in SLURM:
        if one.fate is Fate.REFUSED:
            with pytest.raises(InvalidInput) as refusal:
                sbatch(f"--{one.name}=1" if one.argument.value == "required" else f"--{one.name}")
            assert one.text in str(refusal.value)


def test_the_shapes_of_the_page() -> None:
    """docs/user/slurm.md says what the translation gives."""
    page = (Path(__file__).parents[3] / "docs" / "user" / "slurm.md").read_text(encoding="utf-8")
    table = page.partition("<!-- shapes -->")[2].partition("<!-- end of shapes -->")[0]
    rows = re.findall(r"^\| `(.*?)` \| (.*?) \|$", table, re.MULTILINE)
    assert len(rows) >= 8
    for header, words in rows:
        found = once(header)
        assert words == _in_words(found.layout), header


def _in_words(layout: TaskLayout) -> str:
    """The words of the page for the pods of a layout."""
    each = [str(tasks) for count, tasks in layout.parts for _ in range(count)]
    tasks = each[0] if len(set(each)) == 1 else " and ".join(each)
    word = "task" if tasks == "1" else "tasks"
    ending = " each" if layout.pods > 1 and tasks == each[0] else ""
    return f"{layout.pods}, for {tasks} {word}{ending}"


def test_a_sites_names(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the file that a variable names. A wrong file says where."""
    file = tmp_path / "names.yaml"
    file.write_text("constraints: {ib: {example.com/fabric: x}}\n")
    monkeypatch.setenv("FLUXQUEUE_DIRECTIVES", str(file))
    assert load_site_names().constraints == {"ib": {"example.com/fabric": "x"}}
    for text, problem in (
        ("constraints: {ib: x}", "constraints.ib"),
        ("constraints: {ib: {a: 1}}", "text as values"),
        ("qos: {high: {priority: much}}", "qos.high.priority"),
        ("colours: {}", "'colours' is not known"),
        ("a: [", "is not YAML"),
        ("- 1", "is not a mapping"),
    ):
        file.write_text(text)
        with pytest.raises(InvalidInput, match=problem):
            load_site_names()
    monkeypatch.setenv("FLUXQUEUE_DIRECTIVES", str(tmp_path / "gone"))
    with pytest.raises(InvalidInput, match="no such file"):
        load_site_names()
    monkeypatch.setenv("FLUXQUEUE_DIRECTIVES", "")
    assert isinstance(load_site_names(), SiteNames)
