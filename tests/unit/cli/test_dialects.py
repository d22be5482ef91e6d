"""Scripts of PBS and LSF: their shapes, and what is refused."""

from __future__ import annotations

import pytest

from fluxqueue.errors import InvalidInput
from tests.support.batch_scripts import once, shape

PBS = (
    ("-l nodes=1:ppn=8", "1 cpu=8"),
    ("-l nodes=2:ppn=4", "2x1 cpu=4"),
    ("-l nodes=2:ppn=4:gpus=4", "2x1 cpu=4 gpu=4"),
    ("-l nodes=3", "3x1 cpu=1"),
    ("-l select=2:ncpus=8:mpiprocs=4:mem=16gb", "2x1 cpu=8 mem=16384"),
    ("-l select=1:ncpus=16:ngpus=2:mem=64gb", "1 cpu=16 mem=65536 gpu=2"),
    ("-l select=4:ncpus=8:mpiprocs=8 -l place=scatter:excl", "4x1 cpu=8 whole"),
    ("-l ncpus=6,mem=12gb", "1 cpu=6 mem=12288"),
    ("-l procs=12", "1 cpu=12"),
    ("-l nodes=1:ppn=4,pmem=2gb", "1 cpu=4 mem=8192"),
    ("-l nodes=2:ppn=2,mem=8gb", "2x1 cpu=2 mem=4096"),
    ("-l mem=1000", "1 cpu=1 mem=1"),
    ("-J 0-9", "1 cpu=1 array=10 limit=10"),
    ("-t 1-8%2", "1 cpu=1 array=8 limit=2"),
    ("-N md;-o out;-j oe;-m abe;-V;-q long;-A proj", "1 cpu=1"),
    ("-l nodes=1:ppn=2+2:ppn=4", "!cannot be kept"),
    ("-l nodes=2:intel", "!'intel' of a node"),
    ("-l select=2:ncpus=3:mpiprocs=2", "!make ncpus a multiple of mpiprocs"),
    ("-l select=many", "!select=many cannot be kept"),
    ("-l file=10gb", "!the resource 'file=10gb'"),
    ("-l mem=much", "!is not an amount of memory"),
    ("-l place=group=rack", "!use #SBATCH --within"),
    ("-l walltime=soon", "!is not a duration"),
    ("-r maybe", "!is neither y nor n"),
    ("-W stagein=x", "!-W stagein cannot be kept"),
    ("-I", "!submit --attach"),
    ("-y 3", "!is not a known directive"),
    ("-a noon", "!is no begin time"),
    ("-l", "!-l needs a value"),
)
LSF = (
    ("-n 8", "1 cpu=8"),
    ("-n 8 -R 'span[hosts=1]'", "1 cpu=8"),
    ("-n 8 -R 'span[ptile=4]'", "2x1 cpu=4"),
    ("-n 4 -R 'rusage[mem=2000] span[hosts=1]'", "1 cpu=4 mem=8000"),
    ("-n 4 -R 'rusage[mem=4GB]'", "1 cpu=4 mem=16384"),
    ("-n 2 -M 1048576", "1 cpu=2 mem=2048"),
    ("-gpu 'num=2:mode=exclusive_process'", "1 cpu=1 gpu=2"),
    ("-J 'sweep[1-10:3]%2'", "1 cpu=1 array=4 limit=2"),
    ("-x -n 4", "1 cpu=4 whole"),
    ("-n 4,8 -oo out -eo err -B -N -u a@b -q long", "1 cpu=4"),
    ("-R 'select[type==any]'", "!cannot be kept"),
    ("-R 'span[ptile=4] && x'", "!cannot be kept"),
    ("-m host1", "!use #SBATCH --nodelist"),
    ("-gpu 'num=2:gmodel=A100'", "!use num=N"),
    ("-w 'done(1) || done(2)'", "!joined by &&"),
    ("-W soon", "!is not a duration"),
    ("-Is", "!submit --attach"),
    ("-Z", "!is not a known directive"),
)


@pytest.mark.parametrize(
    ("mark", "header", "expected"),
    [*(("#PBS", *one) for one in PBS), *(("#BSUB", *one) for one in LSF)],
)
def test_a_header_gives_its_shape_or_is_refused(mark: str, header: str, expected: str) -> None:
    if expected.startswith("!"):
        with pytest.raises(InvalidInput) as refusal:
            once(header, mark=mark)
        assert expected[1:] in str(refusal.value)
        assert "job.sh:2" in str(refusal.value)
    else:
        assert shape(once(header, mark=mark)) == expected


@pytest.mark.parametrize(
    ("mark", "header", "name", "value"),
    [
        ("#PBS", "-l walltime=1:30:00", "duration", "5400s"),
        ("#PBS", "-l walltime=90", "duration", "120s"),
        ("#PBS", "-W depend=afterok:12.server:13.server.site", "depends_on", "afterok:12:13"),
        ("#PBS", "-q long@server", "queue", "long"),
        ("#PBS", "-a 203001310800", "begin", "2030-01-31T08:00:00+02:00"),
        ("#PBS", "-a 01310800.30", "begin", "2031-01-31T08:00:30+02:00"),
        ("#PBS", "-a 1600", "begin", "2030-05-15T16:00:00+02:00"),
        ("#PBS", "-v A=b,C=d", "environment", (("A", "b"), ("C", "d"))),
        ("#PBS", "-l select=1:ncpus=4:ompthreads=4", "environment", (("OMP_NUM_THREADS", "4"),)),
        ("#PBS", "-h", "is_held", True),
        ("#PBS", "-p 5", "priority", "5"),
        ("#PBS", "-d /work", "folder", "/work"),
        ("#PBS", "-W block=true", "waits", True),
        ("#BSUB", "-W 1:30", "duration", "5400s"),
        ("#BSUB", "-W 45/host", "duration", "2700s"),
        ("#BSUB", '-w "done(12) && ended(prep)"', "depends_on", "afterok:12,afterany:prep"),
        ("#BSUB", "-w 12", "depends_on", "afterok:12"),
        ("#BSUB", "-b 6:1:8:00", "begin", "2030-06-01T08:00:00+02:00"),
        ("#BSUB", "-b 2030:6:1:8:00", "begin", "2030-06-01T08:00:00+02:00"),
        ("#BSUB", "-sp 7", "priority", "7"),
        ("#BSUB", "-cwd /work", "folder", "/work"),
        ("#BSUB", "-P physics", "account", "physics"),
        ("#BSUB", "-H", "is_held", True),
        ("#BSUB", "-J md", "name", "md"),
    ],
)
def test_values_of_directives(mark: str, header: str, name: str, value: object) -> None:
    assert getattr(once(header, mark=mark), name) == value


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("#SBATCH -n 8", "#PBS -N foo -l walltime=1:00:00"), ("foo", "3600s", 8)),
        (("#PBS -N foo", "#SBATCH -n 8 -J bar"), ("foo", "", 8)),
        (("#PBS -N foo", "#SBATCH -n 8 --ignore-pbs"), ("", "", 8)),
        (("#PBS -l nodes=1:intel", "#SBATCH -n 8 --ignore-pbs"), ("", "", 8)),
        (("#BSUB -J foo -W 5", "#SBATCH -n 8"), ("foo", "300s", 8)),
    ],
)
def test_slurm_reads_lines_of_pbs_and_lsf_too(
    lines: tuple[str, ...], expected: tuple[str, str, int]
) -> None:
    found = once("", "\n".join((*lines, "app")))
    assert (found.name, found.duration, found.layout.tasks) == expected


def test_a_line_that_only_slurm_would_skip_is_refused_with_the_way_to_skip_it() -> None:
    with pytest.raises(InvalidInput, match="--ignore-pbs"):
        once("-n 8", "#PBS -l nodes=1:intel\napp")
