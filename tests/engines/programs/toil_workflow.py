"""Toil: a workflow of one job function on its batch system for Kubernetes.

The leader runs here. The pods run real workers, which share a job store of files with the leader.
"""

from __future__ import annotations

import os
from pathlib import Path

from common import POOL, SECONDS, interrupt, main, remember
from toil.common import Toil
from toil.exceptions import FailedJobsException
from toil.job import Job as ToilJob
from toil.version import currentCommit
from toil_work import work

HOME = Path(os.environ["HOME"])


def run(_: str) -> bool:
    """Run the workflow, as a user's script does."""
    remember()
    # An image with this tag is not looked up in a registry.
    os.environ["TOIL_APPLIANCE_SELF"] = f"host:{currentCommit}"
    options = ToilJob.Runner.getDefaultOptions(f"file:{HOME / 'store'}")
    options.batchSystem = "kubernetes"
    options.workDir = str(HOME)
    options.retryCount = 2
    options.maxLocalJobs = 1
    # Only a node that joins later has 32 processors.
    cores = 32 if POOL == "late" else 4
    root = ToilJob.wrapJobFn(work, float(SECONDS), cores=cores, memory="64Mi", disk="64Mi")
    try:
        with Toil(options) as toil:
            return bool(toil.start(root) == "worked")
    except FailedJobsException as error:
        print(error)
        return False


main(run, interrupt)
