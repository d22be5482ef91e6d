"""``fluxqueue install``: the definitions and the webhook configuration, without a chart.

``fluxqueue.cli.main`` calls it. docker-compose.yml and clusters without Helm use it. It corrects
what is there and may be repeated. ``fluxqueue uninstall`` removes it again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fluxqueue.errors import InvalidSettings
from fluxqueue.process.settings import Settings


def install(
    webhook_url: Annotated[
        str, typer.Option(help="https://host:port where the cluster reaches the webhook")
    ] = "",
    webhook_ca: Annotated[
        Path | None, typer.Option(help="certificate of the CA that signed the webhook's")
    ] = None,
    view_url: Annotated[
        str, typer.Option(help="https://host:port where users reach the view server")
    ] = "",
    view_ca: Annotated[
        Path | None, typer.Option(help="certificate of the CA that signed the view server's")
    ] = None,
    own_user: Annotated[
        list[str] | None,
        typer.Option(
            help="account of controller and worker, the only ones that may start queued work."
            " Repeat for several (default: the user of this KUBECONFIG)"
        ),
    ] = None,
    definitions_only: Annotated[
        bool,
        typer.Option(
            "--definitions-only", help="neither namespace nor webhook (the chart's hook uses this)"
        ),
    ] = False,
) -> None:
    """Install the definitions, and the webhook and view server if given, with KUBECONFIG."""
    settings = Settings.from_env(os.environ)
    if definitions_only:
        asyncio.run(_put_definitions(settings))
        typer.echo("installed the definitions of this version")
        return
    configuration = _configuration(webhook_url, webhook_ca, settings)
    view = _view(view_url, view_ca)
    has_policies = asyncio.run(_install(settings, configuration, view, own_user or []))
    typer.echo("installed the FluxJob definition")
    if configuration is not None:
        typer.echo(f"installed the webhook configuration {configuration['metadata']['name']}")
        typer.echo(
            "installed the admission policies that guard queued work"
            if has_policies
            else "no admission policies: this cluster does not serve them (Kubernetes 1.30 does)"
        )
    if view is not None:
        typer.echo(f"published the view server's address {view_url} for command lines")


def _configuration(url: str, ca: Path | None, settings: Settings) -> dict[str, Any] | None:
    from fluxqueue.kube.webhook_configuration import WebhookConfiguration, WebhookEndpoint
    from fluxqueue.workload.aliases import parse_aliases
    from fluxqueue.workload.owner_kind_settings import parse_owner_kinds
    from fluxqueue.workload.submitter import read_submitters

    if not url and ca is None:
        return None
    if not url.startswith("https://"):
        raise InvalidSettings(
            "the API server calls webhooks by https only",
            where="--webhook-url",
            value=url,
            hint="for example https://webhook.example.org:8443",
        )
    if ca is None:
        raise InvalidSettings(
            "the API server needs the CA of the webhook's certificate",
            where="--webhook-ca",
            hint="use the ca.crt that `fluxqueue certs` has made",
        )
    pem = _read(ca, "--webhook-ca")
    return WebhookConfiguration(
        WebhookEndpoint(url=url),
        pem,
        own_namespace=settings.own_namespace,
        owner_kinds=parse_owner_kinds(settings.owner_kinds),
        submitters=read_submitters(settings),
        aliases=parse_aliases(settings.aliases, settings.queue_names),
    ).build()


def _view(url: str, ca: Path | None) -> tuple[str, str] | None:
    """Return the URL of the view server and its CA, empty for the CAs of the client's system."""
    if not url and ca is None:
        return None
    if not url.startswith("https://"):
        raise InvalidSettings(
            "tokens are sent to the view server by https only",
            where="--view-url",
            value=url,
            hint="for example https://view.example.org:8443",
        )
    return url, "" if ca is None else _read(ca, "--view-ca").decode()


def _read(ca: Path, option: str) -> bytes:
    try:
        return ca.read_bytes()
    except OSError as error:
        raise InvalidSettings(
            f"cannot read the CA's certificate: {error.strerror}", where=option, value=ca
        ) from error


async def _put_definitions(settings: Settings) -> None:
    from fluxqueue.kube.client import KubeClient
    from fluxqueue.kube.config import load_config
    from fluxqueue.kube.installation import put_definitions

    async with KubeClient(
        load_config(settings.kubeconfig or None), timeout_s=settings.kube_timeout_s
    ) as client:
        await put_definitions(client)


async def _install(
    settings: Settings,
    configuration: Mapping[str, Any] | None,
    view: tuple[str, str] | None,
    own_users: list[str],
) -> bool:
    """Install everything. Return whether the policies are in force."""
    from fluxqueue.kube.admission_policies import build_policies
    from fluxqueue.kube.client import KubeClient
    from fluxqueue.kube.config import load_config
    from fluxqueue.kube.installation import (
        install_definitions,
        install_pod_policies,
        install_policies,
        install_webhook,
        read_user,
        tell_view,
    )
    from fluxqueue.workload.owner_kind_settings import parse_owner_kinds
    from fluxqueue.workload.submitter import read_submitters

    has_policies = False
    async with KubeClient(
        load_config(settings.kubeconfig or None), timeout_s=settings.kube_timeout_s
    ) as client:
        await install_definitions(client, settings.own_namespace)
        if configuration is not None:
            await install_webhook(client, configuration)
            users = own_users or [await read_user(client)]
            policies = build_policies(
                users,
                own_namespace=settings.own_namespace,
                submitters=read_submitters(settings),
                owner_kinds=parse_owner_kinds(settings.owner_kinds),
            )
            has_policies = await install_policies(client, policies)
            await install_pod_policies(client, drops_managed_fields=settings.drops_managed_fields)
        if view is not None:
            await tell_view(client, *view)
    return has_policies
