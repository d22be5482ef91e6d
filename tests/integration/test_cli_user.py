"""The verbs of users against an embedded API server: what they print, send, and exit with."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CRDS,
    FLUXJOBS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
)
from tests.support.control_plane import ControlPlane
from tests.support.typing_verbs import Typist, fluxjob, real_typist, typist
from tests.support.workloads import bare_pod, container

PENDING, RUNNING, HELD = FluxJobState.PENDING, FluxJobState.RUNNING, FluxJobState.HELD
COMPLETED, FAILED = FluxJobState.COMPLETED, FluxJobState.FAILED
RACK = "topology.kubernetes.io/rack"
CPU = {"cpu": 4000, "memory": 1 << 30, "pods": 1}


@pytest_asyncio.fixture
async def shell(tmp_path: Path) -> AsyncIterator[Typist]:
    """A shell on a cluster with a few FluxJobs in it."""
    async with typist(tmp_path) as made:
        await made.job("train", RUNNING, jobid=1, slots=[("n1", CPU), ("n2", CPU)], queue="default")
        await made.job("post", jobid=3, priority=0, reason="waits for train", queue="default")
        await made.job("next", jobid=4, priority=9, user="bob", queue="batch",
                       expected_start_s=1_900_000_000)  # fmt: skip
        await made.job("old", COMPLETED, jobid=2, started_at_s=1, ended_at_s=61)
        await made.client.create(NAMESPACES, None, {"metadata": {"name": "other"}})
        await made.job("away", HELD, jobid=5, namespace="other")
        yield made


async def test_jobs_are_listed_in_the_order_of_their_turn(shell: Typist) -> None:
    """What runs comes first. What has ended is not among them unless it is asked for."""
    told = await shell.type("jobs")
    assert told.code == 0
    assert told.lines[0][:5] == ["JOBID", "NAME", "USER", "QUEUE", "STATE"]
    assert [line[1] for line in told.lines[1:]] == ["train", "next", "post"]
    assert "n[1-2]" in told.lines[1]
    assert "waits for train" in told.out
    assert "~20" in told.out, "an expected start is told apart from a real one"
    assert "\x1b" not in told.out


@pytest.mark.cases_long("other words, each in a process of its own")
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("-A",), ["train", "next", "post", "away"]),
        (("-n", "other"), ["away"]),
        (("--state", "all"), ["train", "next", "post", "old"]),
        (("-t", "COMPLETED,running"), ["train", "old"]),
        (("-u", "bob"), ["next"]),
        (("-q", "batch"), ["next"]),
        (("--sort", "-jobid"), ["next", "post", "train"]),
        (("--sort", "name"), ["next", "post", "train"]),
        (("--sort", "name", "--limit", "2"), ["next", "post"]),
        (("--limit", "1"), ["train"]),
        (("old", "3"), ["post", "old"]),
    ],
)
async def test_filters_and_orders(shell: Typist, words: tuple[str, ...], names: list[str]) -> None:
    """Each says which, and in which order."""
    told = await shell.type("jobs", "-o", "custom=NAME", *words)
    assert [line[0] for line in told.lines[1:]] == names


@pytest.mark.parametrize("is_old", [False, True], ids=["", "without selectable fields"])
async def test_of_many_lines_come_as_they_are_read(
    shell: Typist, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    """State by state. Those of a state in the order of their turn as long as they are few, and the
    order is shown. A server before Kubernetes 1.31 selects nothing: all by name."""
    monkeypatch.setattr("fluxqueue.cli.user.jobs.BATCH", 2)
    monkeypatch.setattr("fluxqueue.cli.user.jobs.ORDERED_MAX", 2)
    if is_old:
        patch = {"spec": {"versions": [{**await _version(shell), "selectableFields": None}]}}
        await shell.client.patch(CRDS, None, "fluxjobs.jobs.converged-computing.org", patch)
    for number, priority in enumerate((7, 8)):
        await shell.job(f"held-{number}", HELD, jobid=10 + number, priority=priority)
    await shell.job("after", jobid=20, priority=99)

    async def names(*words: str) -> tuple[list[str], str]:
        told = await shell.type("jobs", "-o", "custom=NAME", *words)
        return [line[0] for line in told.lines[1:]], told.err

    found, said = await names()
    if is_old:
        assert found == ["after", "held-0", "held-1", "next", "post", "train"]
        assert "--sort turn reads all of them first" in said
        assert (await shell.type("nodes", "n1")).lines[1][4] == "4", "those that run are found"
        return
    assert found == ["train", "after", "next", "post", "held-1", "held-0"]
    assert "more than 2 are Pending or Provisioning: shown by name as they are read" in said
    assert await names("--limit", "2") == (["train", "after"], said)
    assert await names("-t", "pending", "-u", "bob") == (["next"], "")
    found, said = await names("--sort", "turn", "--limit", "2")
    assert found == ["train", "after"]
    assert "more than 2: all are read before the first is shown" in said
    assert (await names("--sort", "-jobid", "--limit", "1"))[0] == ["after"]
    assert await names("--sort", "name", "--limit", "2") == (["after", "held-0"], "")


async def _version(shell: Typist) -> dict[str, object]:
    definition = await shell.client.get(CRDS, None, "fluxjobs.jobs.converged-computing.org")
    (version,) = definition["spec"]["versions"]
    return dict(version)


async def test_forms_of_output(shell: Typist) -> None:
    """Objects whole, names for kubectl, columns of one's own."""
    for order in ("turn", "name"):
        found = json.loads((await shell.type("jobs", "-o", "json", "--sort", order)).out)
        assert {one["metadata"]["name"] for one in found["items"]} == {
            "train-job", "next-job", "post-job"
        }  # fmt: skip
    empty = await shell.type("jobs", "-o", "json", "-u", "nobody")
    assert json.loads(empty.out)["items"] == []
    assert "no jobs found" in empty.err
    documents = list(yaml.safe_load_all((await shell.type("jobs", "-o", "yaml")).out))
    assert [one["status"]["jobid"] for one in documents] == [1, 4, 3]
    names = (await shell.type("jobs", "-o", "name")).out.split()
    assert names[0] == "fluxjob.jobs.converged-computing.org/train-job"
    custom = await shell.type("jobs", "-o", "custom=jobid,WHY:.status.reason,N:.spec.size", "3")
    assert custom.out.splitlines()[1].split() == ["3", "waits", "for", "train", "2"]
    assert "END" in (await shell.type("jobs", "-o", "wide")).lines[0]


@pytest.mark.cases_long("other words, each in a process of its own")
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("jobs", "--state", "sleeping"), "'sleeping' is not a state"),
        (("jobs", "--sort", "beauty"), "'beauty' is not an order"),
        (("jobs", "-o", "xml"), "invalid output format 'xml'"),
        (("jobs", "-o", "custom=NOSE"), "'NOSE' is not a column"),
        (("jobs", "-o", "custom=A:status"), "'status' is not a path"),
        (("nodes", "--by", "galaxy"), "'galaxy' is not a level"),
        (("nodes", "n9"), "no such node"),
        (("queues", "q9"), "no such queue"),
        (("priority", "train"), "needs a number"),
        (("wait", "train", "--for", "bliss"), "'bliss' is not a state"),
        (("submit", "--image", "a", "-e", "X", "--", "true"), "'X' is not NAME=VALUE"),
        (("submit", "--", "true"), "no image given"),
        (("jobs", "--kubeconfig", "/nowhere"), "no such kubeconfig"),
        (("jobs", "-n", "nowhere"), "the cluster has no namespace 'nowhere'"),
        (("wait", "train", "-n", "nowhere"), "the cluster has no namespace 'nowhere'"),
        (("wait", ""), "the name is empty"),
        (("drain", "", "-r", "x"), "the name of the node is empty"),
        (
            ("priority", "train", "3", "--clear"),
            "PRIORITY = '3': a number and --clear cannot be combined",
        ),
        (("submit", "--image", "a", "--time", "-1", "--", "true"), "'-1' is not a duration"),
        (("submit", "--image", "a", "--cpus", "x", "--", "true"), "--cpus: 'x' is not a quantity"),
        (("submit", "--image", "a", "--memory", "-1Gi", "--", "true"), "--memory"),
        (("submit", "--image", "a", "trian.sh"), "trian.sh: no such script"),
        (("submit", "--image", "a", "--", ""), "COMMAND"),
    ],
)
async def test_bad_input_is_named(shell: Typist, words: tuple[str, ...], complaint: str) -> None:
    """Exit code 2, the option, the value and the way out."""
    told = await shell.type(*words)
    assert told.code == 2
    assert complaint in told.err


async def test_who_is_asked_for_and_not_there_is_told(shell: Typist) -> None:
    """Beside those that are, and with the exit code of a refusal."""
    told = await shell.type("jobs", "train", "nosuch", "away", "-o", "custom=NAME")
    assert (told.code, told.lines) == (1, [["NAME"], ["train"]])
    assert told.err.splitlines() == [
        f"{name}: no such job in namespace default (-A: in all)" for name in ("away", "nosuch")
    ]
    assert (await shell.type("jobs", "-A", "away", "old", "3")).code == 0
    told = await shell.type("hold", "", "post", "-n", "default")
    assert told.code == 1
    assert "the name is empty" in told.err
    assert "post-job (job 3): hold requested" in told.out


@pytest.mark.cases_long("a full disk")
@pytest.mark.parametrize(
    ("redirection", "code", "complaint"),
    [(">/dev/full", 1, "fluxqueue: [Errno 28] No space left on device\n"), (">&-", 0, "")],
)
async def test_where_nothing_can_be_printed(
    shell: Typist, redirection: str, code: int, complaint: str
) -> None:
    """A sentence and no traceback. A reader that closes standard output wants none of it."""
    process = await asyncio.create_subprocess_shell(
        f"exec '{sys.executable}' -m fluxqueue jobs {redirection}",
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "KUBECONFIG": str(shell.kubeconfig)},
    )  # fmt: skip
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, err.decode()) == (code, complaint)


async def test_watching_tells_each_change_once(shell: Typist) -> None:
    """After the table each FluxJob that changes, and one that leaves the filter a last time."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fluxqueue", "jobs", "-w", "-o", "custom=NAME,STATE",
        "--kubeconfig", str(shell.kubeconfig),
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(60):
        first = [(await process.stdout.readline()).decode().split() for _ in range(4)]
        assert [line[0] for line in first] == ["NAME", "train", "next", "post"]
        post = await shell.read("post-job")
        await shell.tell(post, HELD, jobid=3)
        assert (await process.stdout.readline()).split() == [b"post", b"Held"]
        await shell.tell(post, COMPLETED, jobid=3)
        assert (await process.stdout.readline()).split() == [b"post", b"Completed"]
    process.terminate()
    await process.wait()


async def test_nodes_tell_ours_others_and_free(shell: Typist) -> None:
    """What is allocated is ours, what others' pods ask for is theirs."""
    pod = bare_pod("them", nodeName="n3", containers=[container(requests={"cpu": "2"})])
    pod["metadata"] = {"name": "them", "annotations": {"localcluster/never-ends": "true"}}
    await shell.client.create(PODS, "default", pod)
    await shell.type("drain", "n2", "--reason", "fan is loud")
    told = await shell.type("nodes", "-o", "wide")
    rows = {line[0]: line for line in told.lines[1:]}
    assert told.lines[0][:7] == ["NODE", "STATE", "RACK", "CPU", "OURS", "OTHERS", "FREE"]
    total = int(rows["n1"][3])
    assert rows["n1"][1:7] == ["mixed", "r1", str(total), "4", "0", str(total - 4)]
    assert rows["n2"][1:7] == ["draining", "r1", str(total), "4", "0", str(total - 4)]
    assert rows["n3"][1:7] == ["idle", "r2", str(total), "0", "2", str(total - 2)]
    assert "fan is loud" in told.out
    assert [r[0] for r in (await shell.type("nodes", "-t", "idle")).lines[1:]] == ["n3"]
    sums = json.loads((await shell.type("nodes", "--by", "rack", "-o", "json")).out)
    assert {one["name"]: one["resources"]["cpu"]["ours"] for one in sums} == {"r1": 8000, "r2": 0}
    by_state = (await shell.type("nodes", "--by", "state")).lines
    assert {line[0]: line[1] for line in by_state[1:]} == {
        "mixed": "1",
        "draining": "1",
        "idle": "1",
    }


@pytest.mark.parametrize(
    ("namespace", "node", "jobid", "is_ours"),
    [
        ("default", "n1", "1", True),
        ("default", "n3", "1", False),
        ("other", "n1", "1", False),
        ("default", "n1", "9", False),
        ("default", "n1", "3", False),
    ],
)
async def test_pods_of_groups_and_sets_count_once(
    shell: Typist, namespace: str, node: str, jobid: str, is_ours: bool
) -> None:
    """Their maker is not the workload of the FluxJob. The label of a released pod names the job,
    and hides nothing of another namespace, on other nodes, or of a job that waits."""
    pod = bare_pod("member", nodeName=node, containers=[container(requests={"cpu": "2"})])
    pod["metadata"] = {
        "name": "member",
        "labels": {"fluxqueue/jobid": jobid},
        "annotations": {"localcluster/never-ends": "true"},
    }
    await shell.client.create(PODS, namespace, pod)
    found = json.loads((await shell.type("nodes", node, "-o", "json")).out)
    assert found[0]["resources"]["cpu"]["others"] == (0 if is_ours else 2000)


async def test_a_node_without_a_level_s_label_is_unknown_there(shell: Typist) -> None:
    """Also below a place of a level above."""
    labels = {"topology.kubernetes.io/zone": "east"}
    for name in ("n1", "n3"):
        await shell.client.patch(NODES, None, name, {"metadata": {"labels": labels}})
    await shell.client.patch(NODES, None, "n3", {"metadata": {"labels": {RACK: None}}})
    lines = (await shell.type("nodes", "--by", "rack")).lines
    assert {line[0]: line[1] for line in lines[1:]} == {"east/r1": "1", "r1": "1", "unknown": "1"}


async def test_a_job_is_shown_on_one_screen(shell: Typist) -> None:
    """By name or jobid. What it does not have is left out, and no line breaks a word."""
    told = await shell.type("show", "train")
    facts = dict(line.split(None, 1) for line in told.out.splitlines() if len(line.split()) > 1)
    assert told.code == 0
    assert facts["Job"] == "train (job 1)"
    assert (facts["State"], facts["Nodes"], facts["User"]) == ("Running", "n[1-2]", "alice")
    assert "Ended" not in facts
    assert "None" not in told.out
    waiting = (await shell.type("show", "4", "3")).out
    assert "next (job 4)" in waiting
    assert "Starts" in waiting
    assert "Reason       waits for train" in waiting
    assert yaml.safe_load((await shell.type("show", "train", "-o", "yaml")).out)["status"]
    assert (await shell.type("show", "train", "-o", "name")).out.endswith("/train-job\n")
    assert (await shell.type("show", "nope")).code == 2


async def test_the_forms_of_places(shell: Typist) -> None:
    """-o yaml and name, too."""
    await shell.queue("batch")
    for words in (("nodes",), ("nodes", "--by", "rack"), ("queues",), ("tree",)):
        as_json = json.loads((await shell.type(*words, "-o", "json")).out)
        assert yaml.safe_load((await shell.type(*words, "-o", "yaml")).out) == as_json
    assert (await shell.type("nodes", "-o", "name")).out.split() == ["n1", "n2", "n3"]
    assert (await shell.type("queues", "-o", "name")).out == "batch\n"
    assert (await shell.type("tree", "-o", "csv")).code == 2


async def test_a_queue_that_is_not_there_is_refused_at_once(shell: Typist) -> None:
    """With the names of those that are."""
    await shell.queue("batch")
    told = await shell.type("move", "post", "bathc")
    assert told.code == 1
    assert "there is no queue 'bathc'. Fix: choose batch" in told.err
    assert (await shell.type("move", "post", "batch")).code == 0


async def test_a_namespace_that_is_not_there_is_not_adopted(shell: Typist) -> None:
    """Also by a dry run, which once said that nothing was changed."""
    for words in ((), ("--dry-run",)):
        told = await shell.type("adopt", "-n", "nowhere", *words)
        assert (told.code, told.out) == (2, "")
        assert "the cluster has no namespace 'nowhere'" in told.err
    assert yaml.safe_load((await shell.type("adopt", "--dry-run", "-o", "yaml")).out) == []


async def test_a_minus_descends(shell: Typist) -> None:
    """Whatever the order is."""

    async def names(order: str) -> list[str]:
        return (await shell.type("jobs", "-o", "custom=NAME", "--sort", order)).out.split()[1:]

    assert await names("jobid") == ["train", "post", "next"]
    assert await names("-jobid") == ["next", "post", "train"]
    assert (await names("priority"))[-1] == (await names("-priority"))[0] == "next"


async def test_help_is_short(shell: Typist) -> None:
    """-h, of each command."""
    for words in (("-h",), ("jobs", "-h"), ("db", "list", "-h")):
        assert (await shell.type(*words)).code == 0


async def test_the_tree_sums_up(shell: Typist) -> None:
    """Each place has what is below it."""
    told = await shell.type("tree")
    places = [line[: line.index("   ", 8)].rstrip() for line in told.out.splitlines()[1:]]
    assert places == ["cluster", "├─ r1", "│  ├─ n1", "│  └─ n2", "└─ r2", "   └─ n3"]
    found = json.loads((await shell.type("tree", "-o", "json", "--depth", "1")).out)
    assert (found["nodes"], found["resources"]["cpu"]["ours"]) == (3, 8000)
    assert [(one["name"], one["nodes"]) for one in found["below"]] == [("r1", 2), ("r2", 1)]
    assert "below" not in found["below"][0]


async def test_queues(shell: Typist) -> None:
    """Policy, doors and counts."""
    await shell.queue("batch", policy="easy", priority=5, started=False)
    told = await shell.type("queues")
    assert told.lines[1][:5] == ["batch", "easy", "yes", "no", "5"]
    assert "WEIGHT" in (await shell.type("queues", "batch", "-o", "wide")).lines[0]


@pytest.mark.parametrize(
    ("words", "spec"),
    [
        (("hold", "post"), {"hold": True}),
        (("priority", "post", "7"), {"priority": 7}),
        (("priority", "3", "--set", "-7"), {"priority": -7}),
        (("move", "post-job", "batch"), {"queue": "batch"}),
    ],
)
async def test_steering_patches_the_spec(
    shell: Typist, words: tuple[str, ...], spec: dict[str, object]
) -> None:
    """By the workload's name, the FluxJob's or the jobid. A dry run changes nothing."""
    before = (await shell.read("post-job"))["spec"]
    (told_once,) = yaml.safe_load((await shell.type(*words, "--dry-run", "-o", "yaml")).out)
    assert (told_once["fluxjob"], told_once["isDone"]) == ("post-job", True)
    dry = await shell.type(*words, "--dry-run")
    assert (dry.code, "dry run" in dry.out) == (0, True)
    assert (await shell.read("post-job"))["spec"] == before
    told = await shell.type(*words)
    assert (told.code, told.err) == (0, "")
    assert told.out.startswith("post-job (job 3): ")
    assert told.out.endswith(" requested\n")
    assert (await shell.read("post-job"))["spec"] == {**before, **spec}


async def test_release_and_the_author_s_priority_are_removals(shell: Typist) -> None:
    """null in a merge patch: what was set by hand is gone."""
    await shell.type("priority", "post", "7")
    await shell.type("priority", "post", "--clear")
    assert (await shell.read("post-job"))["spec"].get("priority", 0) == 0


@pytest.mark.parametrize(
    ("verb", "spec", "holder", "reason", "hold"),
    [
        ("release", {"hold": True, "steeredBy": {"hold": "bob"}}, "bob", "held by bob", None),
        ("release", {}, "start", "its pods do not start", False),
        ("release", {"hold": True}, "quarantine", "cannot be read", False),
        ("release", {"hold": False, "steeredBy": {"hold": "bob"}}, "start", "again", None),
        ("hold", {"hold": True}, "author", "held by its annotation", True),
    ],
)
async def test_a_hold_and_a_release_change_the_field(
    shell: Typist, verb: str, spec: dict[str, Any], holder: str, reason: str, hold: bool | None
) -> None:
    """Whatever the field has: a user, the author, or fluxqueue itself holds the job."""
    made = await shell.job("kept", HELD, reason=reason, operator={"heldBy": holder})
    await shell.client.patch(FLUXJOBS, "default", "kept-job", {"spec": spec})
    told = await shell.type(verb, "kept")
    assert told.code == 0, told.err
    after = await shell.read("kept-job")
    assert after["spec"].get("hold") == hold
    assert after["metadata"]["generation"] >= made["metadata"]["generation"] + 1 + bool(spec)


async def test_cancel_asks_for_it_in_that_fluxjob(shell: Typist) -> None:
    """In no other one, and it says of each name what became of it."""
    told = await shell.type("cancel", "post", "nobody", "-o", "json")
    assert told.code == 1
    found = json.loads(told.out)
    assert [(one["reference"], one["isDone"]) for one in found] == [
        ("post", True),
        ("nobody", False),
    ]
    asked = {
        one["metadata"]["name"]
        for one in (await shell.client.list(FLUXJOBS, "default")).items
        if one["spec"].get("cancel")
    }
    assert asked == {"post-job"}


async def test_of_two_of_a_name_the_newest_that_lives(shell: Typist) -> None:
    """A Pod and a Job may share a name. What has ended is not steered instead."""
    await shell.job("old", jobid=9, kind="Pod")
    told = await shell.type("hold", "old", "-o", "name")
    assert told.out.strip() == "fluxjob.jobs.converged-computing.org/old-pod"


@pytest.mark.real_cluster
async def test_rights_are_those_of_the_api_server(
    control_plane: ControlPlane,
) -> None:
    """Without the right: one sentence, exit code 1. A viewer reads, and steers nothing."""
    async with real_typist(control_plane) as shell:
        await shell.job("post", jobid=3)
        rule = {"apiGroups": [FLUXJOBS.group], "resources": ["fluxjobs"], "verbs": ["get", "list"]}
        role = {"metadata": {"name": "seer"}, "rules": [rule]}
        api = "rbac.authorization.k8s.io"
        binding = {
            "metadata": {"name": "seer"},
            "subjects": [{"kind": "User", "name": "vera", "apiGroup": api}],
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": "seer"},
        }
        await shell.client.create(CLUSTER_ROLES, None, role)
        await shell.client.create(CLUSTER_ROLE_BINDINGS, None, binding)
        assert (await shell.type("jobs", "--as", "vera")).lines[1][1] == "post"
        refused = await shell.type("hold", "post", "--as", "vera")
        assert refused.code == 1
        assert 'User "vera" cannot patch' in refused.err
        assert "hold" not in (await shell.read("post-job"))["spec"]
        nobody = await shell.type("jobs", "--as", "nemo")
        assert nobody.code == 1
        assert 'User "nemo" cannot list' in nobody.err
        assert (await shell.type("hold", "post")).code == 0
        assert (await shell.read("post-job"))["spec"]["hold"] is True
        for word in ("nodes", "tree", "queues", "version"):
            told = await shell.type(word)
            assert told.code in ((0,) if word in {"queues", "version"} else (2,)), told.err
        assert (await shell.type("cancel", "post")).code == 0


@pytest.mark.parametrize(
    ("how", "way_out"),
    [
        ("annotation", "kubectl annotate job mine fluxqueue/hold-"),
        ("suspended", """kubectl patch job mine -p '{"spec":{"suspend":false}}'"""),
    ],
)
async def test_what_its_author_holds_he_lets_go(shell: Typist, how: str, way_out: str) -> None:
    """It is not released by hand. The refusal says how it is done."""
    await shell.job("mine", HELD, jobid=9, reason="held by its author", author_hold=how)
    told = await shell.type("release", "mine")
    assert told.code == 1
    assert "is not held by hand: held by its author" in told.err + told.out
    assert way_out in told.err + told.out


async def test_drain_and_undrain(shell: Typist) -> None:
    """Cordoned with the reason. Both go again."""
    told = await shell.type("drain", "n1", "n9", "--reason", "disk")
    assert told.code == 1
    assert "n1: takes no new jobs" in told.out
    assert "n9" in told.err
    node = await shell.client.get(NODES, None, "n1")
    assert node["spec"]["unschedulable"] is True
    assert node["metadata"]["annotations"]["fluxqueue/drain-reason"] == "disk"
    assert (await shell.type("undrain", "n1")).code == 0
    node = await shell.client.get(NODES, None, "n1")
    assert not node["spec"].get("unschedulable")
    assert "fluxqueue/drain-reason" not in (node["metadata"].get("annotations") or {})


@pytest.mark.cases_long("other ends, each in a process of its own")
@pytest.mark.parametrize(
    ("words", "end", "code"),
    [
        (("wait", "post"), COMPLETED, 0),
        (("wait", "post"), FAILED, 4),
        (("wait", "post", "--for", "ended"), FAILED, 0),
        (("wait", "post", "--for", "started"), RUNNING, 0),
        (("wait", "post", "--timeout", "1s"), HELD, 3),
        (("wait", "post", "old"), None, 4),
    ],
)
async def test_waiting_ends_with_an_exact_code(
    shell: Typist, words: tuple[str, ...], end: FluxJobState | None, code: int
) -> None:
    """0 it is so, 3 the time is over, 4 it never will be (None: the FluxJob was deleted)."""
    waiting = asyncio.create_task(shell.type(*words))
    if end is None:
        await shell.client.delete(FLUXJOBS, "default", "post-job")
        assert (await waiting).code in {4, 2}  # 2: it was gone before it was looked for
        return
    await shell.tell(await shell.read("post-job"), end, jobid=3)
    assert (await waiting).code == code


async def test_submit_makes_a_job(shell: Typist, tmp_path: Path) -> None:
    """From a command, or from a script with directives. Options win over the script's."""
    told = await shell.type(
        "submit", "--image", "busybox", "--tasks", "3", "--cpus", "2", "-t", "15m", "-q", "batch",
        "--name", "hello", "--env", "A=$B", "--", "sh", "-c", "echo $$ $(hostname)",
    )  # fmt: skip
    assert (told.code, told.out) == (0, "hello: submitted\n")
    job = await shell.client.get(JOBS, "default", "hello")
    assert job["metadata"]["labels"]["fluxqueue/queue"] == "batch"
    assert job["metadata"]["annotations"]["fluxqueue/duration"] == "900s"
    assert (job["spec"]["parallelism"], job["spec"]["completionMode"]) == (3, "Indexed")
    main = job["spec"]["template"]["spec"]["containers"][0]
    assert main["command"] == ["sh", "-c", "echo $$$$ $$(hostname)"], "Kubernetes halves them"
    assert main["env"] == [{"name": "A", "value": "$$B"}]

    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH -n 4 -N 2 --mem=2G --mail-user=a@b\n#FLUX: -q gpu\ndate\n"
    )
    dry = await shell.type("submit", str(script), "--image", "a", "--dry-run", "-o", "yaml",
                           "-q", "other")  # fmt: skip
    made = yaml.safe_load(dry.out)
    assert made["spec"]["parallelism"] == 2, "one pod for each node"
    assert made["metadata"]["labels"]["fluxqueue/queue"] == "other"
    assert "ignored: --mail-user" in dry.err
    assert len((await shell.client.list(JOBS, "default")).items) == 1, "a dry run makes none"


async def test_submit_waits_for_the_end(shell: Typist) -> None:
    """Its exit code is the Job's fate."""
    waiting = asyncio.create_task(
        shell.type("submit", "--image", "a", "--name", "w", "--wait", "--", "true")
    )
    async with asyncio.timeout(60):
        while not (jobs := (await shell.client.list(JOBS, "default")).items):
            await asyncio.sleep(0.05)
        body = fluxjob("w")
        body["spec"]["workload"]["uid"] = jobs[0]["metadata"]["uid"]
        made = await shell.client.create(FLUXJOBS, "default", body)
        await shell.tell(made, FAILED, jobid=11, reason="segfault")
        told = await waiting
    assert told.code == 4
    assert "w-job Failed: segfault" in told.err


async def test_version(shell: Typist) -> None:
    """Of the three that have to fit."""
    found = json.loads((await shell.type("version", "-o", "json")).out)
    assert set(found) == {"client", "kubernetes", "api"}
    assert found["api"] == "jobs.converged-computing.org/v1alpha1"
    assert yaml.safe_load((await shell.type("version", "-o", "yaml")).out) == found
    assert "kubernetes" not in (await shell.type("version", "--client")).out
