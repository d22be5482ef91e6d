"""A sidecar injector, as service meshes have one: pods become larger than their template."""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import orjson
from aiohttp import web

from fluxqueue.cli.certs import LOOPBACK
from fluxqueue.kube.resources import MUTATING_WEBHOOKS, PODS
from fluxqueue.process.certs.folder import ensure
from tests.support.e2e.objects import Obj, bare_pod
from tests.support.e2e.space import Space
from tests.support.waiting import eventually

INJECT = "example.org/inject"
"""Label of pods that get a sidecar. Its value is the cpu request of that sidecar."""


@asynccontextmanager
async def injected_sidecars(space: Space, folder: Path) -> AsyncIterator[None]:
    """Inject sidecars into new pods of one namespace, inside the context."""
    files = ensure(folder, LOOPBACK, now=datetime.now(tz=UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    application = web.Application()
    application.router.add_post("/inject", _answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    name = f"inject-{space.name}"
    ca = base64.b64encode(files.ca.read_bytes()).decode()
    await space.client.create(MUTATING_WEBHOOKS, None, _configuration(space, name, port, ca))
    try:
        await eventually(lambda: _injects(space), "sidecars are injected")
        yield
    finally:
        await space.client.delete(MUTATING_WEBHOOKS, None, name)
        await runner.cleanup()


def _configuration(space: Space, name: str, port: int, ca: str) -> Obj:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
    webhook = {
        "name": "inject.example.org",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "clientConfig": {"url": f"https://127.0.0.1:{port}/inject", "caBundle": ca},
        "rules": [{**rule, "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space.name}},
        "objectSelector": {"matchExpressions": [{"key": INJECT, "operator": "Exists"}]},
    }
    return {"metadata": {"name": name}, "webhooks": [webhook]}


async def _answer(request: web.Request) -> web.Response:
    review = orjson.loads(await request.read())["request"]
    pod, answer = review["object"], {"uid": review["uid"], "allowed": True}
    names = [one["name"] for one in pod["spec"]["containers"]]
    if "mesh" not in names:
        cpu = pod["metadata"]["labels"][INJECT]
        sidecar = {"name": "mesh", "image": "mesh", "resources": {"requests": {"cpu": cpu}}}
        patch = [{"op": "add", "path": "/spec/containers/-", "value": sidecar}]
        written = base64.b64encode(orjson.dumps(patch)).decode()
        answer |= {"patchType": "JSONPatch", "patch": written}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
    return web.json_response(body)


async def _injects(space: Space) -> bool:
    probe = bare_pod("probe")
    probe["metadata"]["labels"] = {INJECT: "1", "fluxqueue/managed": "false"}
    made = await space.client.create(PODS, space.name, probe, dry_run=True)
    return len(made["spec"]["containers"]) == 2
