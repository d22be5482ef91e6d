"""``fluxqueue uninstall``: remove the queue from the cluster, and start what waits for it.

It is also the chart's hook before removal. Exit code 0 if nothing waits for fluxqueue any more, 1
if something could not be started (repeat it), 2 for input that must change.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluxqueue.cli.user.printing import say
from fluxqueue.process.settings import Settings

if TYPE_CHECKING:
    from fluxqueue.controller.removal import UninstallOptions, UninstallReport

SHOWN_MAX = 10
POLICY = "ValidatingAdmissionPolicy"
RESUME = """kubectl patch job NAME -p '{"spec":{"suspend":false}}'"""


def uninstall(
    configuration: Annotated[
        str, typer.Option(help="name of the MutatingWebhookConfiguration to remove")
    ] = "fluxqueue",
    secret: Annotated[
        str, typer.Option(help="Secret with the webhook's certificates, if the controller made it")
    ] = "",
    leave_suspended: Annotated[
        bool, typer.Option("--leave-suspended", help="leave waiting Jobs suspended")
    ] = False,
    remove_policies: Annotated[
        bool,
        typer.Option(
            "--remove-policies",
            help="first remove the chart's admission policies, which let only our parts ungate",
        ),
    ] = False,
    keep_view: Annotated[
        bool,
        typer.Option(
            "--keep-view",
            help="keep the ConfigMap with the view server's address (a chart's is always kept)",
        ),
    ] = False,
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait",
            min=0,
            help="seconds to stay and ungate later pods of running Jobs",
        ),
    ] = 0.0,
    kubeconfig: Annotated[Path | None, typer.Option(help="default: kubectl's")] = None,
) -> None:
    """Remove the webhook configuration and start everything that waits for fluxqueue."""
    from fluxqueue.controller.removal import UninstallOptions
    from fluxqueue.process import logs
    from fluxqueue.workload.owner_kind_settings import parse_owner_kinds

    settings = Settings.from_env(os.environ)
    logs.set_up(settings.log_level, as_json=settings.log_json)
    options = UninstallOptions(
        configuration=configuration,
        secret=(settings.own_namespace, secret) if secret else None,
        leave_suspended=leave_suspended,
        remove_policies=remove_policies,
        keep_view=keep_view,
        wait_s=wait_s,
        owner_kinds=parse_owner_kinds(settings.owner_kinds),
    )
    report = asyncio.run(_run(settings, str(kubeconfig or settings.kubeconfig), options))
    for line in describe(report, options):
        say(line)
    if not report.is_complete:
        raise typer.Exit(1)


async def _run(settings: Settings, kubeconfig: str, options: UninstallOptions) -> UninstallReport:
    from fluxqueue.clock import SystemClock
    from fluxqueue.controller.removal import uninstall as run
    from fluxqueue.kube.client import KubeClient
    from fluxqueue.kube.config import load_config

    config = load_config(kubeconfig or None)
    async with KubeClient(
        config, concurrency=settings.kube_concurrency, timeout_s=settings.kube_timeout_s
    ) as client:
        return await run(client, SystemClock(), options)


def describe(report: UninstallReport, options: UninstallOptions) -> list[str]:
    """Return the report for people: what was done, what remains, and how to remove it."""
    from fluxqueue.kube.installation import OUR_KINDS, VIEW_NAME, VIEW_NAMESPACE

    state = "removed" if report.webhook_removed else "was not there"
    verb = "left suspended" if options.leave_suspended else "unsuspended"
    lines = [
        f"webhook configuration {options.configuration}: {state}",
        f"Jobs released: {len(report.jobs)} ({verb}, except held ones)",
        f"pods ungated: {len(report.pods)}",
    ]
    if report.nodes:
        lines.append(f"nodes that autoscalers may remove again: {len(report.nodes)}")
    if options.remove_policies:
        lines.append(f"admission policies and bindings removed: {report.policies_removed}")
    if options.secret is not None:
        state = "removed" if report.secret_removed else "not there, or not ours"
        lines.append(f"Secret {'/'.join(options.secret)}: {state}")
    if report.view_forgotten:
        lines.append(
            f"ConfigMap {VIEW_NAMESPACE}/{VIEW_NAME} with the view server's address: removed"
        )
    if report.held:
        lines.append(
            f"stays suspended: {len(report.held)} held Jobs:"
            f" {_some(sorted(report.held))} ({RESUME} starts one)"
        )
    lines += [f"could not be released: {name}: {error}" for name, error in report.failed.items()]
    if any(POLICY in error for error in report.failed.values()):
        lines.append("the gate is guarded by an admission policy: repeat with --remove-policies")
    if report.running:
        lines.append(
            f"remains: {len(report.running)} running Jobs. Their later pods will have the gate,"
            " because Kubernetes does not allow changes of their templates:"
            f" {_some(report.running)}. Repeat this command with --wait, or ungate them by hand"
        )
    definitions = " ".join(f"{one.plural}.{one.group}" for one in OUR_KINDS)
    lines.append(
        f"remains: FluxJobs, FluxQueues and their definitions (kubectl delete crd {definitions}),"
        " and the volume of the database, if the chart created one"
    )
    return lines


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN_MAX
    return ", ".join(sorted(names)[:SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
