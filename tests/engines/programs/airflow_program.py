"""Airflow: runs the DAG of ``airflow_work`` with its own database, as ``airflow dags test``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from common import main

HERE = Path(__file__).parent
HOME = Path(os.environ["HOME"]) / "airflow"


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
    airflow = str(Path(sys.executable).with_name("airflow"))
    for words in (("db", "migrate"), ("dags", "reserialize")):
        subprocess.run([airflow, *words], check=True)
    sys.path.insert(0, str(HOME / "dags"))
    from airflow_work import dag

    return str(dag.test().state) == "success"


def cancel(name: str) -> None:
    """A user clears the task in Airflow's web interface, which the suite does not have."""
    raise SystemExit(4)


main(run, cancel)
