"""A script that runs once: its shape, its variables, srun in a real shell, and its notes."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fluxqueue.client.batch.batch_step import RUN, environment_of
from fluxqueue.client.batch.job_manifest import read_command
from fluxqueue.client.batch.job_options import shape_options
from fluxqueue.client.batch.script_notes import notes_on
from fluxqueue.client.batch.script_request import ScriptRequest
from fluxqueue.errors import InvalidInput
from tests.support.batch_scripts import (
    RECORDED,
    check_variables,
    command,
    environment,
    manifest,
    once,
    read,
    recorded_runs,
    sbatch,
    shape,
)

SHELLS = [one for one in ("dash", "bash", "busybox") if shutil.which(one)]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("-n 4 -N 1", "1 cpu=4"),
        ("-n 8", "1 cpu=8"),
        ("-n 8 --mem=16G", "1 cpu=8 mem=16384"),
        ("-n 8 --gres=gpu:2", "1 cpu=8 gpu=2"),
        ("-n 4 --gpus-per-node=2", "1 cpu=4 gpu=2"),
        ("-n 4 -G 2", "1 cpu=4 gpu=2"),
        ("-n 4 --gpus-per-task=1", "1 cpu=4 gpu=4"),
        ("--ntasks-per-gpu=2 -G 2", "1 cpu=4 gpu=2"),
        ("--ntasks-per-gpu=1 -n 4", "1 cpu=4 gpu=4"),
        ("-n 4 -c 3 --mem-per-cpu=1G", "1 cpu=12 mem=12288"),
        ("-n 2 --cpus-per-gpu=6 -G 2", "1 cpu=12 gpu=2"),
        ("-n 2 --mem-per-gpu=4G -G 2", "1 cpu=2 mem=8192 gpu=2"),
        ("--ntasks-per-node=4", "1 cpu=4"),
        ("-n 4 --mem=0", "1x1 cpu=4 mem=all"),
        ("-n 4 --exclusive", "1 cpu=4 whole"),
        ("-a 0-7 -n 4", "1 cpu=4 array=8 limit=8"),
        ("-w n1 -n 4", "1 cpu=4"),
        ("-N 2 -n 8", "2x1 cpu=4"),
        ("-N 2 -n 7 -c 2 --mem=8G", "2x1 cpu=8 mem=8192"),
        ("-N 2 -n 8 --gres=gpu:3 --mem=0", "2x1 cpu=4 mem=all gpu=3"),
        ("-N 2 -n 3 --gpus-per-task=1", "2x1 cpu=2 gpu=2"),
        ("-N 2 -G 4 --exclusive", "2x1 cpu=1 gpu=2 whole"),
        ("-N 2 -G 3", "!3 devices cannot be shared out"),
        ("-n 8 --ntasks-per-node=2", "4x1 cpu=2"),
        ("-a 0-7 -N 2", "!an array of jobs with 2 pods each"),
    ],
)
def test_the_tasks_of_a_node_are_one_pod(header: str, expected: str) -> None:
    """It has their cpus, memory and GPUs."""
    if expected.startswith("!"):
        with pytest.raises(InvalidInput, match=expected[1:]):
            once(header)
    else:
        assert shape(once(header)) == expected


def test_the_site_and_the_command_line_say_where_a_script_runs(tmp_path: Path) -> None:
    script, site = tmp_path / "a.sh", tmp_path / "site.yaml"
    script.write_text("#!/bin/sh\n#SBATCH -n 4 --uenv=x --hint nomultithread\n")
    site.write_text("body: each-pod\nignore: [--hint, uenv]\n")
    found = read_command([str(script)], site_file=str(site))
    assert (found.layout.pods, found.ignored) == (4, ("--uenv", "--hint"))
    site.write_text("ignore: [hint, uenv]\n")
    assert read_command([str(script)], site_file=str(site)).layout.pods == 1
    options = shape_options({"each_pod": True, "tasks": 3})
    assert read_command([str(script)], site_file=str(site), **options).layout.pods == 3
    assert read_command(["--", "app"][1:], **shape_options({"tasks": 3})).layout.pods == 3
    options = shape_options({"cpus": 16, "memory": "8Gi", "gpus": 2})
    assert shape(read_command([str(script)], site_file=str(site), **options)) == "1 cpu=16 gpu=2"
    for wrong, words in (("ignore: hint", "is not a list"), ("body: twice", "once nor each-pod")):
        site.write_text(wrong)
        with pytest.raises(InvalidInput, match=words):
            read_command([str(script)], site_file=str(site))


# --- variables ----------------------------------------------------------------------------------


def run(
    request: ScriptRequest, tmp_path: Path, program: str = "", shell: str = "sh", **more: str
) -> subprocess.CompletedProcess[str]:
    """Run the command of its container here. ``program`` replaces the script."""
    return subprocess.run(
        command(request, tmp_path, program, shell), env=environment(request, tmp_path, **more),
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.skipif(not RECORDED.exists(), reason="shared/slurm-oracle is not there")
def test_a_batch_step_has_the_variables_of_slurm(tmp_path: Path) -> None:
    """Those of the recorded jobs of one node, with their values but for names and hyperthreads."""
    cases = [one for one in recorded_runs() if one["state"]["NumNodes"] == "1"]
    assert len(cases) >= 4
    for case in cases:
        request = once(" ".join(case["argv"]))
        array = {"JOB_COMPLETION_INDEX": "1"} if request.array else {}
        done = run(request, tmp_path, "env", **array)
        ours = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
        check_variables(ours, case)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("-N 2 -n 6 -c 3 -J Big_1", {"NTASKS": "6", "CPUS_PER_TASK": "3", "JOB_NUM_NODES": "2",
                                     "NNODES": "2", "JOB_NAME": "Big_1", "PROCID": "0",
                                     "TASKS_PER_NODE": "3(x2)", "LOCALID": "0",
                                     "CPUS_ON_NODE": "9", "JOB_CPUS_PER_NODE": "9(x2)"}),
        ("-N 2", {"NTASKS": None, "LOCALID": "0", "TASKS_PER_NODE": "1(x2)"}),
        ("-N 2 -n 5", {"TASKS_PER_NODE": "3,2"}),
        ("-n 5 --mem=4G", {"NTASKS": "5", "NNODES": "1", "CPUS_PER_TASK": None,
                           "CPUS_ON_NODE": "5", "MEM_PER_NODE": "4096", "PROCID": "0"}),
        ("-c 4 --mem-per-cpu=1G", {"NTASKS": None, "CPUS_PER_TASK": "4", "MEM_PER_CPU": "1024",
                                   "ARRAY_JOB_ID": None, "ARRAY_TASK_STEP": None}),
        ("-a 1-9:2 -p gpu -A physics", {"ARRAY_TASK_COUNT": "5", "ARRAY_TASK_STEP": "2",
                                        "JOB_PARTITION": "gpu", "JOB_ACCOUNT": "physics"}),
        ("-a 1,5,6 --gres=gpu:2", {"ARRAY_TASK_STEP": "1", "GPUS_ON_NODE": "2", "GPUS": None}),
        ("--gpus-per-task=1 -n 2", {"GPUS_PER_TASK": "1", "GPUS_ON_NODE": "2"}),
    ],
)  # fmt: skip
def test_values_of_variables(header: str, expected: Mapping[str, str | None]) -> None:
    found = {one["name"]: one.get("value") for one in environment_of(once(header))}
    for name, value in expected.items():
        assert found.get(f"SLURM_{name}") == value, name


def test_each_task_of_an_array_has_an_id_of_its_own(tmp_path: Path) -> None:
    """Files that are named after it do not collide."""
    request = once("-a 3,5")
    lines = "echo $SLURM_JOB_ID $SLURM_JOBID $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID"
    told = [run(request, tmp_path, lines, JOB_COMPLETION_INDEX=one).stdout for one in "01"]
    assert told == ["170000003 170000003 17 3\n", "170000005 170000005 17 5\n"]


def test_the_submit_folder_is_where_the_script_begins(tmp_path: Path) -> None:
    done = run(
        once(""), tmp_path, 'cd "$SLURM_SUBMIT_DIR" && pwd && scontrol show hostnames || true'
    )
    assert done.stdout.splitlines()[0] == str(Path.cwd())


def test_scripts_of_pbs_and_lsf_find_their_variables(tmp_path: Path) -> None:
    lines = "echo $PBS_JOBID $PBS_NP $PBS_NUM_NODES $NCPUS $(wc -l <$PBS_NODEFILE) $PBS_QUEUE"
    done = run(once("-l nodes=1:ppn=4 -q long", mark="#PBS"), tmp_path, lines)
    assert done.stdout.split() == ["17", "4", "1", "4", "4", "long"], done.stderr
    lines = "echo $LSB_JOBID $LSB_DJOB_NUMPROC $LSB_JOBINDEX $(echo $LSB_HOSTS | wc -w)"
    done = run(once("-n 3 -J x", mark="#BSUB"), tmp_path, lines)
    assert done.stdout.split() == ["17", "3", "0", "3"], done.stderr


# --- srun ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", SHELLS)
def test_srun_starts_the_tasks_of_a_step(shell: str, tmp_path: Path) -> None:
    """All of them, with their ranks, labels and the highest exit code."""
    request = once("-n 4", "srun app")
    told = "echo $SLURM_PROCID/$SLURM_NTASKS/$SLURM_STEP_ID; echo oops >&2; exit $SLURM_LOCALID"
    lines = f"srun -l sh -c '{told}'; echo $?; srun -n1 echo $SLURM_JOB_ID"
    lines += "; printf 'a b' | srun -n 1 cat; echo; srun -n 2 hostname | wc -l"
    done = run(request, tmp_path, lines, shell)
    lines = done.stdout.splitlines()
    assert sorted(lines[:4]) == [f"{one}: {one}/4/0" for one in range(4)]
    assert [line.strip() for line in lines[4:]] == ["3", "17", "a b", "2"]
    assert sorted(done.stderr.splitlines()) == [f"{one}: oops" for one in range(4)]


@pytest.mark.parametrize("shell", SHELLS)
def test_steps_side_by_side_use_no_more_cpus_than_the_script_has(
    shell: str, tmp_path: Path
) -> None:
    """As in Slurm, a step waits. One that needs more than all of them is refused."""
    seen = tmp_path / "seen"
    seen.mkdir()
    step = f"touch {seen}/$$; ls {seen} | wc -l; sleep 0.2; rm {seen}/$$"
    lines = (
        f"for i in 1 2 3 4 5 6; do srun -n1 --exclusive sh -c '{step}' & done; wait; srun -n 3 id"
    )
    done = run(once("-n 2", "srun app"), tmp_path, lines, shell)
    counts = [int(one) for one in done.stdout.split()]
    assert len(counts) == 6
    assert max(counts) <= 2
    assert "3 tasks of 1 cpus are more than the 2 of the script" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize("shell", SHELLS)
def test_a_killed_step_gives_its_cpus_back(shell: str, tmp_path: Path) -> None:
    """Even kill -9 of srun itself, which can clear nothing up."""
    until_begun = "until [ -s $FLUXQUEUE_RUN/steps/0 ]; do sleep 0.1; done"
    lines = f"srun -n 2 sleep 60 & {until_begun}; kill -9 $!; srun -n 2 echo next"
    lines += "; for task in $FLUXQUEUE_RUN/tasks/*; do kill ${task##*/}; done"
    done = run(once("-n 2", "srun app"), tmp_path, lines, shell)
    assert done.stdout.split() == ["next", "next"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-n2 -c2 --mpi=none --cpu-bind=cores -u sh -c 'echo $SLURM_CPUS_PER_TASK'", "2 2"),
        ("--ntasks 2 --gpus-per-task=2 sh -c 'echo $CUDA_VISIBLE_DEVICES' | sort", "0,1 2,3"),
        ("-n 2 -J name -o out-%t.txt hostname; cat out-0.txt out-1.txt | wc -l", "2"),
        ("-D / -n1 pwd", "/"),
        ("-n 2 -K sh -c 'test $SLURM_PROCID = 1 || exit 3; sleep 60' 2>/dev/null; echo $?", "143"),
        ("--overlap -n 9 true; echo $?", "0"),
        ("-N 2 true; echo $?", "1"),
        ("--multi-prog x; echo $?", "1"),
        ("-n many true; echo $?", "1"),
        ("; echo $?", "1"),
        ("-n1 -- printf %s -n", "-n"),
    ],
)
def test_options_of_srun(words: str, expected: str, tmp_path: Path) -> None:
    """What changes a step is kept or refused. What binds processes is the kernel's matter."""
    done = run(once("-n 4 -c 1", "srun app"), tmp_path, f"cd {tmp_path}; srun {words}")
    assert done.stdout.split() == expected.split(), done.stderr


def test_in_each_pod_srun_starts_its_program_once(tmp_path: Path) -> None:
    """A narrower step leaves the last pods out."""
    request = sbatch("-N 2")
    assert request.layout.pods == 2
    for rank, expected in (("0", ["all", "one"]), ("1", ["all"])):
        lines = "srun echo all; srun -n 1 echo one"
        assert run(request, tmp_path, lines, SLURM_PROCID=rank).stdout.split() == expected


def test_flux_run_starts_tasks_too(tmp_path: Path) -> None:
    request = once("-n 2", "flux run app", mark="#FLUX:")
    done = run(request, tmp_path, "flux run -n 2 sh -c 'echo $FLUX_TASK_RANK' | sort; flux jobs")
    assert done.stdout.split() == ["0", "1"]
    assert "only 'flux run' works" in done.stderr


def test_srun_is_found_by_a_login_shell(tmp_path: Path) -> None:
    """It sets its own PATH. Lines keep their numbers."""
    request = once("-n 2", "srun echo $LINENO")
    script = request.script.text.replace("/bin/bash", "/bin/bash -l")
    request = replace(request, command=("/bin/bash", "-l", "-c", script))
    done = run(request, tmp_path)
    assert done.stdout.split() == ["3", "3"], done.stderr


EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "batch"
TORCHRUN = """#!/bin/sh
count=${2#--nproc-per-node=}
for rank in $(seq 0 $((count - 1))); do
    RANK=$rank WORLD_SIZE=$count LOCAL_RANK=$rank python3 "$3" &
done
wait
"""
"""PyTorch takes gigabytes, so its launcher is played: one process for each rank, told by variables.

That of a real image finds the same words and the same variables of Slurm.
"""


def of_example(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run an example in a folder of its own, with the programs that stand beside Python."""
    request = read_command([str(EXAMPLES / name)])
    programs = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    # Open MPI refuses root, which many images run as.
    root = {f"OMPI_ALLOW_RUN_AS_ROOT{one}": "1" for one in ("", "_CONFIRM")}
    return subprocess.run(
        command(request, folder, "", ""), env=environment(request, folder, PATH=programs, **root),
        capture_output=True, text=True, check=False, timeout=100, cwd=folder,
    )  # fmt: skip


@pytest.mark.skipif(
    not (Path(sys.executable).parent / "mpirun").exists(),
    reason="no wheel of Open MPI is installed",
)
def test_the_example_of_mpirun_runs(tmp_path: Path) -> None:
    """The real one sees variables of Slurm, and more ranks than this machine has cores."""
    done = of_example("mpi.sh", tmp_path)
    assert done.stdout == "3.141593 by 4 ranks\n", done.stderr


def test_the_example_of_multiprocessing_runs(tmp_path: Path) -> None:
    done = of_example("pool.sh", tmp_path)
    assert done.stdout == "328350\n", done.stderr


def test_the_example_of_torchrun_starts_a_process_for_each_gpu(tmp_path: Path) -> None:
    (tmp_path / "torchrun").write_text(TORCHRUN)
    (tmp_path / "torchrun").chmod(0o755)
    (tmp_path / "train.py").write_text(
        "import os\nprint(*(os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'OMP_NUM_THREADS')))\n"
    )
    done = of_example("torchrun.sh", tmp_path)
    assert sorted(done.stdout.splitlines()) == ["0 2 4", "1 2 4"], done.stderr


IN_STEP = """cat >step.sh <<'END'
trap 'echo usr1; exit 7' USR1
echo ready
while :; do sleep 0.1; done
END
srun -n1 sh step.sh"""


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("B:USR1@60", "trap 'echo usr1; kill $!; exit 7' USR1; sleep 60 & echo ready; wait"),
        ("USR1@60", IN_STEP),
    ],
    ids=["script", "steps"],
)
def test_the_signal_that_was_asked_for_comes(header: str, body: str, tmp_path: Path) -> None:
    """Kubernetes sends TERM to the first process of the pod."""
    request = once(f"-t 5 --signal={header}", body)
    words = command(request, tmp_path, "", "")
    pod = subprocess.Popen(
        words,
        env=environment(request, tmp_path),
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert pod.stdout is not None
    assert pod.stdout.readline() == "ready\n"
    pod.send_signal(signal.SIGTERM)
    assert pod.communicate(timeout=30)[0].split() == ["usr1"]
    assert pod.returncode == 7


def test_the_pod_has_a_folder_for_srun_only_if_it_is_used() -> None:
    with_steps = manifest(once("-n 2"))["spec"]["template"]["spec"]
    assert with_steps["volumes"] == [{"name": "fluxqueue-run", "emptyDir": {}}]
    assert with_steps["containers"][0]["volumeMounts"][0]["mountPath"] == RUN
    plain = manifest(once("-c 4", "python train.py"))["spec"]["template"]["spec"]
    assert "volumes" not in plain
    assert manifest(read("#FLUX: -n 2"))["spec"]["completions"] == 2


# --- notes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "body", "told"),
    [
        ("-n 4 --mem=1G", "srun app", "runs once, in one pod for 4 tasks. srun starts them"),
        ("-N 2 --mem=1G", "srun app", "runs once, on the first of 2 nodes. srun reaches all"),
        ("-N 2 -n 7 --mem=1G", "srun app", "keeps 4 cpus on each node"),
        ("-n 1 --mem=1G", "app", ""),
        ("-c 2", "app", "asks for no memory"),
        ("--mem=1G", "cd $SLURM_SUBMIT_DIR; echo ${SLURM_JOB_ID} $SLURM_RESTART_COUNT",
         "not set here: SLURM_RESTART_COUNT"),
        ("--mem=1G", "echo ${SLURM_RESTART_COUNT:-0}", ""),
        ("--mem=1G", "SLURM_OWN=1; echo $SLURM_OWN", ""),
        ("--mem=1G", "# $SLURM_RESTART_COUNT, sbatch next.sh", ""),
        ("--mem=1G", "sbatch next.sh; squeue -u me", "calls sbatch, squeue, which works only if"),
        ("--mem=1G", "module load gcc", "calls module"),
        ("--mem=1G", "scontrol show hostnames $SLURM_JOB_NODELIST", ""),
        ("--mem=1G", "scontrol requeue $SLURM_JOB_ID", "calls scontrol"),
        ("--mem=1G -d aftercorr:4", "app", "waits for the whole array"),
        ("-G 4 --mem=1G", "app", "takes all its GPUs from one node"),
        ("--mem=1G -w n1 -N 1-4", "app", "exactly the nodes"),
    ],
)  # fmt: skip
def test_notes_at_submission(header: str, body: str, told: str) -> None:
    found = notes_on(once(header, body))
    assert (told in "\n".join(found)) if told else not found, found


def test_variables_of_sbatch_in_the_shell_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Slurm, over the script. Options of the command line win over them."""
    script = tmp_path / "a.sh"
    script.write_text("#!/bin/sh\n#SBATCH -t 30 -p main\n")
    for name, value in (
        ("TIMELIMIT", "5"), ("PARTITION", "debug"), ("ARRAY_INX", "0-3"), ("JOB_NAME", "env"),
        ("EXCLUSIVE", ""), ("GPUS", "2"), ("OUTPUT", "x"), ("NO_SUCH", "x"),
    ):  # fmt: skip
        monkeypatch.setenv(f"SBATCH_{name}", value)
    found = read_command([str(script)])
    assert (found.duration, found.queue, found.array, found.name) == (
        "300s",
        "debug",
        (0, 1, 2, 3),
        "env",
    )
    assert found.is_exclusive
    monkeypatch.setenv("SBATCH_RESERVATION", "maint")
    with pytest.raises(InvalidInput, match="SBATCH_RESERVATION"):
        read_command([str(script)])


def test_a_script_may_come_by_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``sbatch < file`` and ``generate | fluxqueue submit -``."""
    monkeypatch.setattr("sys.stdin", io.StringIO("#!/bin/sh\n#SBATCH -n 4 -J piped\napp\n"))
    found = read_command(["-", "one"])
    assert (found.name, found.layout.tasks, found.command[-1]) == ("piped", 4, "one")


def test_a_lost_node_starts_a_script_again_unless_it_says_otherwise() -> None:
    """As in Slurm and PBS. Scripts of LSF and Flux, and commands, must ask for it."""
    for header, mark, expected in (
        ("-n 1", "#SBATCH", True), ("--requeue", "#SBATCH", True),
        ("--no-requeue", "#SBATCH", False), ("-r y", "#PBS", True), ("-r n", "#PBS", False),
        ("-N x", "#PBS", True),
        ("-n 1", "#BSUB", False), ("-r", "#BSUB", True), ("-n 1", "#FLUX:", False),
    ):  # fmt: skip
        assert once(header, mark=mark).restarts_on_loss is expected, (header, mark)
    assert any("a lost node ends the job" in one for one in notes_on(once("-n 1", mark="#BSUB")))
