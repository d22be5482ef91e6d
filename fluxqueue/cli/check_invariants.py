"""``fluxqueue check``: the invariants against a live database and cluster.

Exit code 0 if all hold (warnings may be printed), 1 if one is broken. Exit code 2 if the database
or the cluster is not given correctly. It reads only.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluxqueue.errors import InvalidSettings
from fluxqueue.process.settings import Settings

if TYPE_CHECKING:
    from fluxqueue.checking import Finding

DEFAULT_PATIENCE_S = 10.0


def check(
    database_url: Annotated[
        str, typer.Option(help="postgresql://... (default: DATABASE_URL, then the one of `up`)")
    ] = "",
    kubeconfig: Annotated[
        Path | None, typer.Option(help="default: KUBECONFIG, then the one of `up`, then kubectl's")
    ] = None,
    patience_s: Annotated[
        float,
        typer.Option(
            "--patience",
            min=0,
            help="seconds that a difference between rows and cluster must last to count",
        ),
    ] = DEFAULT_PATIENCE_S,
    as_json: Annotated[bool, typer.Option("--json", help="print a JSON list")] = False,
) -> None:
    """Check all invariants against database and cluster. Exit code 1 if one is broken."""
    from fluxqueue.checking import Severity

    settings = _settings(database_url, kubeconfig)
    findings = asyncio.run(_check(settings, patience_s))
    if as_json:
        typer.echo(json.dumps([finding.to_json() for finding in findings], indent=2))
    else:
        for line in describe(findings):
            typer.echo(line)
    if any(finding.severity is Severity.BROKEN for finding in findings):
        raise typer.Exit(1)


def describe(findings: list[Finding]) -> list[str]:
    """Return the findings for people: broken invariants, then warnings, then the totals."""
    from fluxqueue.checking import Severity

    broken = [finding for finding in findings if finding.severity is Severity.BROKEN]
    warnings = [finding for finding in findings if finding.severity is Severity.WARNING]
    figures = [finding for finding in findings if finding.severity is Severity.FIGURE]
    lines = [
        f"{finding.severity:<8} {finding.invariant}: {finding.subject}: {finding.detail}"
        for finding in (*broken, *warnings, *figures)
    ]
    if broken:
        return [*lines, f"{len(broken)} broken, {len(warnings)} warnings"]
    suffix = f", {len(warnings)} warnings" if warnings else ""
    return [*lines, f"all invariants hold{suffix}"]


def database_settings(database_url: str) -> Settings:
    """Return the environment with a database: ``database_url``, or that of a running ``up``.

    Raises
    ------
    InvalidSettings
        No database is named, and none is running.
    """
    settings, folder = Settings.from_env(os.environ), default_data_dir()
    url = database_url or settings.database_url or _left_by_up(folder / "database-url")
    if not url:
        raise InvalidSettings(
            "no database is configured",
            where="DATABASE_URL",
            hint="set it, use --database-url, or run in the folder of `fluxqueue up`",
        )
    return dataclasses.replace(settings, database_url=url)


def default_data_dir() -> Path:
    """Return the default folder of ``up`` for database, cluster and logs."""
    return Path(os.environ.get("FLUXQUEUE_DATA_DIR", ".fluxqueue"))


def _settings(database_url: str, kubeconfig: Path | None) -> Settings:
    """Return the environment, completed by what a running ``fluxqueue up`` left in its folder."""
    settings, folder = database_settings(database_url), default_data_dir()
    config = str(kubeconfig or settings.kubeconfig)
    if not config and (folder / "kubeconfig").is_file():
        config = str(folder / "kubeconfig")
    return dataclasses.replace(settings, kubeconfig=config)


def _left_by_up(file: Path) -> str:
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


async def _check(settings: Settings, patience_s: float) -> list[Finding]:
    from fluxqueue.checking import Finding, check_starts
    from fluxqueue.checking import check as check_invariants
    from fluxqueue.clock import SystemClock
    from fluxqueue.db import migrate
    from fluxqueue.db.database import Database
    from fluxqueue.kube.client import KubeClient
    from fluxqueue.kube.config import load_config
    from fluxqueue.workload.owner_kind_settings import parse_owner_kinds

    # First: on another schema the other comparisons could only fail.
    if differences := await asyncio.to_thread(migrate.lacking, settings.database_url):
        subject = f"database at revision {migrate.current(settings.database_url) or 'none'}"
        return [Finding("schema does not fit this code", subject, one) for one in differences]
    config = load_config(settings.kubeconfig or None)
    async with Database(settings, role="check") as database, KubeClient(config) as client:
        found = await check_invariants(
            database,
            client,
            SystemClock(),
            patience_s=patience_s,
            unseen_s=int(settings.resync_interval_s),
            default_cpu_m=settings.default_cpu_m,
            owner_kinds=parse_owner_kinds(settings.owner_kinds),
        )
        return [*found, *await check_starts(database)]
