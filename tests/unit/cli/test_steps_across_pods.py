"""A script over several nodes: its pods are processes here, which meet on loopback."""

from __future__ import annotations

import hashlib
import json
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fluxqueue.client.batch.pod_connections import companions_of
from fluxqueue.client.batch.script_request import ScriptRequest
from fluxqueue.errors import InvalidInput
from tests.support.batch_scripts import (
    RECORDED,
    check_variables,
    manifest,
    once,
    recorded_runs,
)
from tests.support.script_pods import BUSYBOX, SHELLS, WITHIN_S, ScriptPods
from tests.support.waiting import eventually

with_busybox = pytest.mark.skipif(BUSYBOX is None, reason="busybox is not installed")


def asked(header: str, body: str) -> ScriptRequest:
    return once(f"-J fold;{header}", body)


def ran(header: str, body: str, folder: Path, shell: str = "dash") -> list[str]:
    """What the script prints. All pods end well."""
    with ScriptPods(asked(header, body), folder, shell) as pods:
        lines = pods.lines()
        assert pods.codes() == [0] * len(pods.pods), pods.errors
        return lines


# --- the tasks ----------------------------------------------------------------------------------


@with_busybox
@pytest.mark.parametrize("shell", SHELLS)
def test_the_body_runs_once_and_its_steps_on_all_nodes(shell: str, tmp_path: Path) -> None:
    """Each task has its numbers and its node, and what the body has set."""
    told = (
        "echo $SLURM_PROCID/$SLURM_NTASKS $SLURM_LOCALID $SLURM_NODEID $SLURMD_NODENAME"
        " $SLURM_STEP_ID $SLURM_NNODES $SLURM_TASKS_PER_NODE $SLURM_JOB_ID"
    )
    body = f"""echo body
srun sh -c '{told}' | sort
mkdir work; cd work
export MODE="two
lines='\\" \\\\ $HOME*"; unset SLURM_JOB_NAME
echo 'echo "${{SLURM_JOB_NAME:-unset}} ${{PWD##*/}} $1 $#"; [ "$MODE" = "$2" ]' >../task.sh
srun -l -n 3 sh ../task.sh 'a  b
c' "$MODE" | sort
echo $?
srun -n 3 sh -c 'exit $SLURM_NODEID'; echo $?
srun sh -c 'echo oops >&2' 2>&1 >/dev/null | sort | uniq -c"""
    lines = ran("-N 3 -n 5", body, tmp_path, shell)
    nodes = [f"fold-{one}." for one in range(3)]
    assert lines[:6] == [
        "body",
        f"0/5 0 0 {nodes[0]} 0 3 2(x2),1 17",
        f"1/5 1 0 {nodes[0]} 0 3 2(x2),1 17",
        f"2/5 0 1 {nodes[1]} 0 3 2(x2),1 17",
        f"3/5 1 1 {nodes[1]} 0 3 2(x2),1 17",
        f"4/5 0 2 {nodes[2]} 0 3 2(x2),1 17",
    ]
    each = (f"{one}: {words}" for one in range(3) for words in ("c 2", "unset work a  b"))
    assert lines[6:12] == list(each)
    assert [line.strip() for line in lines[12:]] == ["0", "2", "5 oops"]


OPTIONS = {
    "-N 2 -n 2 @": "0 1",
    "-N 1 -n 2 @": "0 0",
    "--ntasks-per-node=1 @": "0 1 2",
    "-n 4 --ntasks-per-node=2 @": "0 0 1 1",
    "-w fold-2 -n 1 @": "2",
    "-w fold-1.,fold-2. -n 2 @": "1 2",
    "-w fold-2 -N 2 -n 2 @": "0 2",
    "-x fold-0 -N 2 -n 2 @": "1 2",
    "-r 1 -N 1 -n 2 @": "1 1",
    "-n 1 -c 2 @": "0",
    "-m cyclic sh -c 'echo $SLURM_NODEID$SLURM_PROCID'": "00 03 11 14 22 25",
    "-O -N 2 -n 8 @": "0 0 0 0 1 1 1 1",
    "-N 2 true; echo $?": "1",
    "-N 1 -n 3 true; echo $?": "1",
    "-w fold-7 true; echo $?": "1",
    "-N 4 true; echo $?": "1",
    "--mpi=none true; echo $?": "0",
    "-n 6 -o out-%t.txt sh -c 'echo $SLURM_PROCID'; cat out-?.txt": "0 1 2 3 4 5",
    "-n 3 -o out-%n-$x.txt @; cat out-?-$x.txt": "0 1 2",
    "-n 3 -o one.txt -e err.txt @; cat one.txt": "0 1 2",
    "-n 3 -D / pwd": "/ / /",
    "-n 3 --gpus-per-task=2 sh -c 'echo $CUDA_VISIBLE_DEVICES'": "0,1 0,1 0,1",
}


@with_busybox
def test_options_of_srun_choose_nodes(tmp_path: Path) -> None:
    (tmp_path / "node").write_text("node=${SLURMD_NODENAME#*-}\necho ${node%%.*}\n")
    words = (one.replace("@", "sh node") for one in OPTIONS)
    lines = (f"{{ srun {one}; }} 2>>error | sort | tr '\\n' ' '; echo" for one in words)
    found = ran("-N 3 -n 6", "x=x\n" + "\n".join(lines), tmp_path)
    told = dict(zip(OPTIONS, (line.strip() for line in found), strict=True))
    assert told == OPTIONS, (tmp_path / "error").read_text()


@with_busybox
@pytest.mark.parametrize("shell", SHELLS)
def test_steps_side_by_side_use_the_cpus_of_all_nodes(shell: str, tmp_path: Path) -> None:
    """Never more on a node than it has. The fifth step waits for one of the first four."""
    (tmp_path / "step.sh").write_text(
        "mkdir -p $SLURMD_NODENAME; cd $SLURMD_NODENAME; touch $$; ls | wc -l\n"
        "until [ -e ../go ]; do sleep 0.05; done; rm $$\n"
    )
    body = """for i in 1 2 3 4 5; do srun -n 1 --exclusive sh step.sh & done
until [ -d fold-1. ] && [ $(ls fold-0. fold-1. | wc -w) = 6 ]; do sleep 0.05; done
touch go; wait"""
    counts = [int(one) for one in ran("-N 2 -n 4", body, tmp_path, shell)]
    assert len(counts) == 5
    assert max(counts) <= 2


@with_busybox
def test_what_a_step_reads_is_on_the_first_node(tmp_path: Path) -> None:
    """Tasks on other nodes read nothing. A reader that ends early ends the step."""
    body = "printf 'a b' | srun -n 1 cat; echo; printf c | srun sh -c 'cat | wc -c' | sort"
    lines = ran("-N 2", f"{body}; srun yes | head -n 1; srun -N 1 echo one", tmp_path)
    assert [line.strip() for line in lines] == ["a b", "0", "1", "y", "one"]


@with_busybox
def test_other_starters_reach_all_nodes(tmp_path: Path) -> None:
    """flux run, and an rsh for mpirun. The nodes have names."""
    request = once("-N 2 -n 4", "flux run -N 2 -n 4 sh -c 'echo $FLUX_TASK_RANK'", mark="#FLUX:")
    with ScriptPods(request, tmp_path) as pods:
        assert sorted(pods.lines()) == ["0", "1", "2", "3"]
    folder = tmp_path / "rsh"
    folder.mkdir()
    body = (
        "for host in $(scontrol show hostnames); do"
        " rsh -x $host 'echo $SLURMD_NODENAME; exit 3'; echo $?; done"
    )
    assert ran("-N 2", body, folder) == ["fold-0.", "3", "fold-1.", "3"]


@with_busybox
def test_scripts_of_pbs_and_lsf_find_all_nodes(tmp_path: Path) -> None:
    for mark, header, body, expected in (
        ("#PBS", "-N fold;-l nodes=2:ppn=2", "sort $PBS_NODEFILE | uniq -c; echo $PBS_NP",
         ["2 fold-0.", "2 fold-1.", "4"]),
        ("#BSUB", "-J fold;-n 4 -R 'span[ptile=2]'", "echo $LSB_HOSTS; echo $LSB_MCPU_HOSTS",
         ["fold-0. fold-0. fold-1. fold-1.", "fold-0. 2 fold-1. 2"]),
    ):  # fmt: skip
        folder = tmp_path / mark
        folder.mkdir()
        with ScriptPods(once(header, body, mark), folder) as pods:
            assert [line.strip() for line in pods.lines()] == expected, pods.errors
            assert pods.codes() == [0, 0]


@with_busybox
@pytest.mark.skipif(not RECORDED.exists(), reason="shared/slurm-oracle is not there")
def test_the_script_has_the_variables_of_slurm(tmp_path: Path) -> None:
    """Those of the recorded jobs of several nodes."""
    cases = [one for one in recorded_runs() if one["state"]["NumNodes"] != "1"]
    assert len(cases) >= 6
    for number, case in enumerate(cases):
        words = [one for one in case["argv"] if one not in {"-w", "n3"}]
        folder = tmp_path / str(number)
        folder.mkdir()
        # Of a range, Slurm takes all nodes that are free.
        header = " ".join(words).replace("2-4", case["state"]["NumNodes"])
        request = asked(header, "env; exit 1")
        late = tuple(range(1, request.layout.pods))
        with ScriptPods(request, folder, late=late) as pods:
            ours = dict(line.partition("=")[::2] for line in pods.lines())
        check_variables(ours, case)


# --- ends ---------------------------------------------------------------------------------------


@with_busybox
@pytest.mark.parametrize("shell", SHELLS)
def test_a_failed_task_ends_the_step_on_all_nodes(shell: str, tmp_path: Path) -> None:
    """With -K. The other tasks get TERM."""
    body = "srun -K sh -c '[ $SLURM_PROCID != 2 ] || exit 3; exec sleep 300'; echo $?"
    assert ran("-N 3", body, tmp_path, shell) == ["143"]


@with_busybox
async def test_signals_reach_the_tasks_of_all_nodes(tmp_path: Path) -> None:
    """The one of --signal, too. Kubernetes sends TERM to the first process of each pod."""
    task = "trap 'echo usr1; exit 7' USR1\n: >up.$SLURM_PROCID\nwhile :; do sleep 0.1; done"
    (tmp_path / "task.sh").write_text(task)
    with ScriptPods(asked("-N 2 -t 5 --signal=USR1@60", "srun sh task.sh"), tmp_path) as pods:
        for rank in (0, 1):
            await eventually((tmp_path / f"up.{rank}").exists, f"task {rank} runs")
        for pod in pods.pods.values():
            pod.send_signal(signal.SIGTERM)
        assert pods.lines() == ["usr1", "usr1"]
        assert pods.codes() == [7, 7]


@with_busybox
@pytest.mark.parametrize(
    ("body", "code"),
    [("srun true", 0), ("srun false", 1), ("exit 5", 5), ("kill -9 $$", 137), ("exec false", 1)],
)
def test_all_pods_end_with_the_result_of_the_script(body: str, code: int, tmp_path: Path) -> None:
    with ScriptPods(asked("-N 3", f"srun true\n{body}"), tmp_path) as pods:
        assert pods.codes() == [code] * 3


@with_busybox
async def test_a_script_that_fails_waits_for_no_pod_and_one_that_succeeds_for_all(
    tmp_path: Path,
) -> None:
    """A pod that comes late gets the result. Of a failure the Job is over at once."""
    with ScriptPods(asked("-N 3", "true"), tmp_path, late=(2,)) as pods:
        assert pods.pods[1].wait(WITHIN_S) == 0
        assert pods.pods[0].poll() is None
        pods.start(2)
        assert pods.codes() == [0] * 3
    folder = tmp_path / "failure"
    folder.mkdir()
    with ScriptPods(asked("-N 3", "srun -N 2 -n 2 true; exit 4"), folder, late=(2,)) as pods:
        assert pods.codes() == [4, 4]


@with_busybox
async def test_a_lost_pod_ends_its_part_of_the_step(tmp_path: Path) -> None:
    """The body goes on, as with srun -k. Later steps there are refused in words."""
    body = "srun sh -c ': >up.$SLURM_PROCID; [ $SLURM_PROCID = 0 ] || exec sleep 300'; echo $?"
    with ScriptPods(asked("-N 2", f"{body}; srun true; echo $?"), tmp_path) as pods:
        await eventually((tmp_path / "up.1").exists, "the task runs")
        pods.kill(1)
        assert pods.lines() == ["137", "1"]
        assert "fold-1. is lost" in pods.errors
        assert pods.pods[0].wait(WITHIN_S) == 0


@with_busybox
async def test_pods_end_with_the_first_one(tmp_path: Path) -> None:
    """With all that they run, if its node is lost."""
    body = "srun sh -c ': >up.$SLURM_PROCID; exec sleep 300'"
    with ScriptPods(asked("-N 2", body), tmp_path) as pods:
        for rank in (0, 1):
            await eventually((tmp_path / f"up.{rank}").exists, f"task {rank} runs")
        pods.kill(0)
        assert pods.pods[1].wait(WITHIN_S) == 1
        pods.kill(1)  # as a container that ends with its first process
        assert "lost the first pod" in pods.pods[1].communicate()[1]


# --- the connections ----------------------------------------------------------------------------


def proof(side: str, first: str, second: str, token: str = "secret") -> str:
    return hashlib.sha256(f"{token} {side} {first} {second} {token}\n".encode()).hexdigest()


def answer(port: int, make: Callable[[str], str], wish: str) -> str:
    """What the first pod says to a client that makes this proof and has this wish."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as made, made.makefile() as read:
        theirs = read.readline().strip()
        assert len(theirs) == 32
        made.sendall(f"{make(theirs)}\n".encode())
        told = read.readline().strip()
        if told:
            made.sendall(f"{wish}\n".encode())
            told += " " + read.readline().strip()
        return told


@with_busybox
async def test_only_a_pod_with_the_token_is_heard(tmp_path: Path) -> None:
    """A wrong proof, and the proof of an earlier connection, get no answer."""
    mine = "0" * 32
    body = "until [ -e over ]; do sleep 0.1; done"
    with ScriptPods(asked("-N 2", body), tmp_path, late=(1,)) as pods:
        await eventually(lambda: is_open(pods.port), "the first pod listens")
        seen: list[str] = []

        def right(theirs: str) -> str:
            seen.append(f"{mine} {proof('agent', theirs, mine)}")
            return seen[0]

        for make in (
            lambda theirs: f"{mine} {proof('agent', theirs, mine, 'guess')}",
            lambda theirs: f"{mine} {proof('first', theirs, mine)}",
            lambda _: "x" * 97,
        ):
            assert answer(pods.port, make, "node 1") == ""
        (tmp_path / "over").touch()
        await eventually(pods.file(0, "ended").exists, "the script has ended")
        assert answer(pods.port, right, "node 1").split()[1:] == ["end", "0"]
        assert answer(pods.port, right, "node 1") == ""


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@with_busybox
@pytest.mark.parametrize("token", ["secret", "guess"])
def test_an_agent_obeys_only_a_first_pod_with_the_token(token: str, tmp_path: Path) -> None:
    """Another one at its address cannot have it run a command."""
    mine = "1" * 32
    with (
        ScriptPods(asked("-N 2", "true"), tmp_path, late=(0, 1)) as pods,
        socket.create_server(("127.0.0.1", pods.port)) as impostor,
    ):
        pods.start(1)
        for _ in range(2):
            made, _ = impostor.accept()
            with made, made.makefile() as read:
                made.sendall(f"{mine}\n".encode())
                theirs, _, shown = read.readline().strip().partition(" ")
                assert shown == proof("agent", mine, theirs)
                made.sendall(f"{proof('first', theirs, mine, token)}\nend 9\n".encode())
                try:
                    wish = read.readline()
                except ConnectionError:
                    wish = ""
            if token == "secret":
                assert wish == "node 1\n"
                assert pods.pods[1].wait(WITHIN_S) == 9
                return
            assert wish == ""
        assert pods.pods[1].poll() is None


def test_what_goes_with_a_job_of_several_pods() -> None:
    """A Service and a Secret, which are deleted with it. Their pods ask for no more than before."""
    job = manifest(replace(asked("-N 2 -n 8 --mem=8G", "srun app"), service="steps-1", name="fold"))
    pod = job["spec"]["template"]["spec"]
    assert (job["spec"]["completions"], pod["subdomain"]) == (2, "steps-1")
    assert pod["initContainers"][0]["resources"] == {"requests": {"cpu": "4", "memory": "8Gi"}}
    (_, secret), (_, service) = companions_of(job)
    for one in (secret, service):
        assert one["metadata"]["name"] == "steps-1"
        assert one["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert len(secret["stringData"]["token"]) == 64
    assert service["spec"]["clusterIP"] == "None"
    assert companions_of(job)[0][1] != secret
    assert companions_of(manifest(once("-n 8"))) == []


def test_the_token_is_in_no_manifest() -> None:
    """A user who can read Jobs and pods must not be able to run commands in them."""
    text = json.dumps(manifest(replace(asked("-N 2", "srun app"), service="steps-1")))
    assert "FLUXQUEUE_TOKEN" in text
    assert '"secretName": "steps-1"' in text
    assert '"token": ' not in text


@pytest.mark.parametrize(
    ("header", "body", "refused"),
    [
        ("-n 2", "srun --mpi=pmi2 ./app", "start MPI programs by mpirun"),
        ("-N 2", "srun -n 4 --mpi pmix_v4 ./app", "start MPI programs by mpirun"),
        ("-N 2", "if true; then srun --multi-prog steps.conf; fi", "--multi-prog"),
        ("-N 2", "srun -m plane=4 ./app", "plane=4"),
        ("-N 2", "srun --distribution=arbitrary ./app", "arbitrary"),
        ("-n 2", "srun -m plane=4 ./app", ""),
        ("-N 2", "# srun --mpi=pmi2 ./app", ""),
        ("-N 2", "mpirun ./app; echo srun | grep --mpi=pmi2", ""),
        ("-N 2", "srun --mpi=none ./app --multi", ""),
    ],
)
def test_steps_that_no_pod_can_run_are_refused(header: str, body: str, refused: str) -> None:
    if refused:
        with pytest.raises(InvalidInput, match=refused):
            once(header, body)
    else:
        assert once(header, body).layout.tasks == 2
