"""Airflow: runs the DAG of ``airflow_work`` with its own database, as ``airflow dags test``.

A user who marks or clears a task is SIGTERM here. A supervisor of Airflow sends it to a task that
runs. A deferred task is cancelled by the triggerer, in the code of Airflow (``_InTriggerer``).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from common import main, remember, terminate

HERE = Path(__file__).parent
HOME = Path(os.environ["HOME"]) / "airflow"
DATABASE = "airflow.db"
LOOK_S = 0.2


class _InTriggerer:
    """A trigger as the triggerer runs and cancels it, in the place where a DAG test runs it."""

    def __init__(self, trigger: Any) -> None:
        self._trigger = trigger

    async def run(self) -> AsyncIterator[Any]:
        """Yield the event of the trigger. Its task is over if a user has cleared it."""
        from airflow.jobs.triggerer_job_runner import TriggerRunner

        remember()
        runner: Any = TriggerRunner()
        work = asyncio.create_task(runner.run_trigger(1, self._trigger))
        runner.triggers[1] = {"task": work, "name": "work", "events": 0}
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, runner.to_cancel.append, 1)
        while not work.done():
            await runner.cancel_triggers()
            await asyncio.wait({work}, timeout=LOOK_S)
        if work.cancelled():
            raise SystemExit("the deferred task was cleared")
        work.result()
        yield runner.events[0].event


def _run_inline_trigger(trigger: Any, ti: Any) -> Any:
    from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor

    return InProcessTestSupervisor.run_trigger_in_process(trigger=_InTriggerer(trigger), ti=ti)


def _database() -> Path:
    """Return a database of Airflow without DAGs, which is made once for the environment."""
    kept = Path(sys.prefix) / DATABASE
    if not kept.exists():
        airflow = str(Path(sys.executable).with_name("airflow"))
        subprocess.run([airflow, "db", "migrate"], check=True)
        # Whole when it has its name: other programs start at the same time.
        os.replace(HOME / DATABASE, kept)  # noqa: PTH105
    return kept


def run(name: str) -> bool:
    """Make the database and the DAG, and run the task in this process."""
    os.environ |= {
        "AIRFLOW_HOME": str(HOME),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(HOME / "dags"),
        "ENGINE_NAME": name,
        "PYTHONPATH": str(HERE),
    }
    (HOME / "dags").mkdir(parents=True)
    (HOME / "dags" / "engine.py").write_text(
        "# airflow DAG\nfrom airflow_work import dag\n", encoding="utf-8"
    )
    shutil.copy(_database(), HOME / DATABASE)
    sys.path.insert(0, str(HOME / "dags"))
    from airflow.sdk.definitions import dag as of_airflow
    from airflow_work import dag

    of_airflow._run_inline_trigger = _run_inline_trigger
    if not os.environ["ENGINE_VARIANT"].endswith("-deferrable"):
        remember()
    return str(dag.test().state) == "success"


main(run, terminate)
