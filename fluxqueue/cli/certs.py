"""``fluxqueue certs``: make the webhook's CA and serving certificate in a folder.

``fluxqueue.cli.main`` calls it. Repeating it is harmless: a set that is still good is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def certs(
    folder: Annotated[Path, typer.Argument(help="folder for the files, created if missing")],
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="DNS name or address of the webhook, may be repeated [default: loopback]"
        ),
    ] = None,
    service: Annotated[str | None, typer.Option(help="name of the webhook's Service")] = None,
    namespace: Annotated[str, typer.Option(help="namespace of that Service")] = "fluxqueue-system",
    days: Annotated[
        int, typer.Option(min=1, max=3650, help="days that the serving certificate is valid")
    ] = 365,
) -> None:
    """Make the webhook's CA and certificate (ca.crt, tls.crt, tls.key), or keep valid ones."""
    from fluxqueue.process.certs.pairs import service_names

    names = [*(name or ()), *(service_names(service, namespace) if service else ())]
    typer.echo(run(folder, names or LOOPBACK, days=days))


def run(folder: Path, names: Sequence[str] = LOOPBACK, *, days: int = 365) -> str:
    """Make or keep the certificates, and return which in one line.

    Parameters
    ----------
    names : The DNS names and addresses under which the webhook is called.
    days : The lifetime of the serving certificate in days.

    Raises
    ------
    InvalidInput
        A name is not valid, or the folder cannot be written.
    """
    from fluxqueue.process.certs.folder import ensure

    now = datetime.now(tz=UTC)
    files = ensure(folder, names, now=now, validity=timedelta(days=days))
    verb = "wrote" if files.is_new else "kept"
    return f"{verb} {files.ca.name}, {files.certificate.name} and {files.key.name} in {folder}"
