"""The chart's service accounts on a cluster, and what its audit log says they did.

Used by the end-to-end tests: the parts run as local processes under kubeconfigs of these accounts.
A right that is missing shows as a refusal in the audit log, one too many as never used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluxqueue.errors import Conflict, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    ApiResource,
)
from tests.chart.rendering import Document, render
from tests.support.control_plane import ControlPlane, Options, features_here
from tests.support.control_plane_keys import write_private
from tests.support.embedded_plane import Plane, embedded_plane

NAME, NAMESPACE = "fq", "fluxqueue-system"
PARTS = ("controller", "worker", "view", "uninstall")
SECRET = f"{NAME}-webhook-certificate"

_ADMISSION = ("admissionregistration.k8s.io", "v1")
_KINDS = {
    one.kind: one
    for one in (
        SERVICE_ACCOUNTS,
        CLUSTER_ROLES,
        CLUSTER_ROLE_BINDINGS,
        ROLES,
        ROLE_BINDINGS,
        MUTATING_WEBHOOKS,
        ApiResource(*_ADMISSION, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False),
        ApiResource(
            *_ADMISSION,
            "validatingadmissionpolicybindings",
            "ValidatingAdmissionPolicyBinding",
            False,
        ),
    )
}

ENVIRON = {
    "FLUXQUEUE_NAMESPACE": NAMESPACE,
    "FLUXQUEUE_CERT_SECRET": SECRET,
    "FLUXQUEUE_CERT_SERVICE": f"{NAME}-webhook",
    "FLUXQUEUE_CERT_CONFIGURATION": NAME,
    "FLUXQUEUE_REVIEW_KEEP_S": "10",
}
"""What the chart sets: the controller keeps the certificates of the chart's own configuration. And
old reviews are taken away while a test looks."""

GROUPED = "FLUXQUEUE_BIND_GANGS"
"""Set to ``group`` in the shell, it applies to the parts, and to their rights here."""


def user_of(part: str) -> str:
    """The user name of a part's service account."""
    return f"system:serviceaccount:{NAMESPACE}:{NAME}-{part}"


@contextmanager
def audited_plane(kind: str, folder: Path) -> Iterator[Plane]:
    """A cluster without nodes, embedded or real, that writes down what our accounts ask."""
    if kind == "real":
        with _audited_control_plane(folder) as running:
            yield running
    else:
        arguments = ("--quick", "--nodes", "0", "--audit-log", str(audit_log(folder)))
        with embedded_plane(folder / "cluster", arguments) as embedded:
            yield embedded


@contextmanager
def _audited_control_plane(folder: Path) -> Iterator[ControlPlane]:
    """A control plane that writes down what our accounts ask, in ``audit_log(folder)``."""
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Metadata", "users": [user_of(part) for part in PARTS]},
            {"level": "None"},
        ],
    }
    (folder / "policy.json").write_text(json.dumps(policy))
    audit_log(folder).parent.mkdir(exist_ok=True)
    flags = [
        f"--audit-policy-file={folder / 'policy.json'}",
        f"--audit-log-path={audit_log(folder)}",
    ]
    # Everything that the accounts may read must be served.
    options = Options(feature=features_here().groups, extra_args={"kube-apiserver": flags})
    with ControlPlane(options=options) as running:
        yield running


def audit_log(folder: Path) -> Path:
    """Where the API server writes: beside the parts' logs, which tests keep."""
    return folder / "logs" / "audit.log"


def documents(*, follows_pools: bool = False) -> list[Document]:
    """The chart's accounts, rights, policies and webhook configuration, hooks included.

    ``follows_pools``: discovered node pools follow their source, which the chart leaves off.
    """
    # The tests submit work in namespaces without a label.
    webhook = {"namespaces": "optOut"}
    scaled = [{"group": "cluster.x-k8s.io", "resource": "machinedeployments"}]
    values = {
        "fullnameOverride": NAME,
        "settings": {name: os.environ[name] for name in (GROUPED,) if name in os.environ},
        "view": {"enabled": True},
        "webhook": webhook,
        "nodePools": {
            "scale": scaled,
            "provisioningRequests": True,
            "capacityBuffers": True,
            "protect": "gangs",
            "follow": follows_pools,
        },
    }
    rendered = render(values, namespace=NAMESPACE)
    return [one for one in rendered if one["kind"] in _KINDS]


async def install(
    client: KubeClient, *, without: Set[str] = frozenset(), follows_pools: bool = False
) -> None:
    """Create all of them, but for kinds that are left out.

    The chart's webhook is never asked, because it has no address here.
    """
    with suppress(Conflict):
        await client.create(NAMESPACES, None, {"metadata": {"name": NAMESPACE}})
    for one in documents(follows_pools=follows_pools):
        if one["kind"] in without:
            continue
        if one["kind"] == MUTATING_WEBHOOKS.kind:
            for webhook in one["webhooks"]:
                webhook["objectSelector"] = {"matchLabels": {"fluxqueue/nobody": "has-this"}}
        with suppress(Conflict):
            await client.create(_KINDS[one["kind"]], one["metadata"].get("namespace"), one)


async def remove(client: KubeClient) -> None:
    """Delete what ``install`` created, except the namespace."""
    for one in documents():
        with suppress(NotFound):
            meta = one["metadata"]
            await client.delete(_KINDS[one["kind"]], meta.get("namespace"), meta["name"])


async def write_kubeconfigs(
    client: KubeClient, control_plane: Plane, folder: Path
) -> dict[str, Path]:
    """Ask for tokens of the accounts as a kubelet does, and write a kubeconfig for each part."""
    made = {}
    for part in PARTS:
        answer = await client.create(
            SERVICE_ACCOUNTS,
            NAMESPACE,
            {"spec": {"expirationSeconds": 6 * 3600}},
            name=f"{NAME}-{part}",
            subresource="token",
        )
        made[part] = folder / f"{part}.kubeconfig"
        text = json.dumps(control_plane.kubeconfig(answer["status"]["token"]))
        write_private(made[part], text)
    return made


# --- what was granted and what was used ----------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource (``pods``, ``fluxjobs/status``). ``names`` empty: all objects."""

    group: str
    resource: str
    verb: str
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = f" {','.join(self.names)}" if self.names else ""
        return f"{self.verb} {self.resource}{'.' + self.group if self.group else ''}{names}"


@dataclass(frozen=True, slots=True)
class Use:
    """One request of an account, as the audit log has it."""

    part: str
    group: str
    resource: str
    verb: str
    name: str
    is_allowed: bool
    namespace: str = ""

    def needs(self, right: Right) -> bool:
        """Whether it was allowed by ``right``, or would be."""
        return (self.group, self.resource, self.verb) == (
            right.group,
            right.resource,
            right.verb,
        ) and (not right.names or self.name in right.names)


def granted(part: str) -> set[Right]:
    """What the chart grants an account through its bindings."""
    found = documents()
    roles = {
        (one["kind"], one["metadata"]["name"]): one
        for one in found
        if one["kind"] in {"Role", "ClusterRole"}
    }
    rights: set[Right] = set()
    for one in found:
        subjects = one.get("subjects") or ()
        if any(subject["name"] == f"{NAME}-{part}" for subject in subjects):
            role = roles[one["roleRef"]["kind"], one["roleRef"]["name"]]
            rights.update(_rights_of(role))
    return rights


def _rights_of(role: Mapping[str, Any]) -> Iterator[Right]:
    for rule in role["rules"]:
        for group in rule.get("apiGroups", ()):
            for resource in rule.get("resources", ()):
                for verb in rule["verbs"]:
                    yield Right(group, resource, verb, tuple(rule.get("resourceNames", ())))


def read_uses(folder: Path) -> list[Use]:
    """What our accounts asked, oldest first. Requests that name no resource are left out."""
    parts = {user_of(part): part for part in PARTS}
    lines = audit_log(folder).read_text().splitlines()
    return [
        _use(event, parts[event["user"]["username"]])
        for event in map(json.loads, lines)
        if event["user"]["username"] in parts and "objectRef" in event
    ]


def _use(event: Mapping[str, Any], part: str) -> Use:
    ref = event["objectRef"]
    subresource = f"/{ref['subresource']}" if ref.get("subresource") else ""
    decision = (event.get("annotations") or {}).get("authorization.k8s.io/decision")
    return Use(
        part=part,
        group=ref.get("apiGroup", ""),
        resource=ref.get("resource", "") + subresource,
        verb=event["verb"],
        name=ref.get("name", ""),
        is_allowed=decision != "forbid",
        namespace=ref.get("namespace", ""),
    )


def missing(uses: Iterable[Use]) -> set[str]:
    """Requests that were refused for want of a right, in words."""
    return {
        f"{one.part}: {Right(one.group, one.resource, one.verb)} {one.name}".rstrip()
        for one in uses
        if not one.is_allowed
    }


def unused(uses: Iterable[Use], part: str, served: Set[tuple[str, str]]) -> set[str]:
    """Rights of an account, on what is ``served``, that no request of its needed, in words."""
    own = [one for one in uses if one.part == part and one.is_allowed]
    return {
        f"{part}: {right}"
        for right in granted(part)
        if (right.group, right.resource) in served and not any(one.needs(right) for one in own)
    }


async def served(client: KubeClient) -> set[tuple[str, str]]:
    """Group and name of every resource and subresource of the cluster (``pods``, ``pods/log``)."""
    groups = (await client.request("GET", "/apis"))["groups"]
    paths = [("", "/api/v1")] + [
        (group["name"], f"/apis/{version['groupVersion']}")
        for group in groups
        for version in group["versions"]
    ]
    return {
        (group, one["name"])
        for group, path in paths
        for one in (await client.request("GET", path))["resources"]
    }
