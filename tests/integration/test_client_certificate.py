"""A real API server shows its certificate to the webhook, as docs/admin/security.md says."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fluxqueue.errors import ApiError, ApiUnavailable
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import JOBS, MUTATING_WEBHOOKS, NAMESPACES
from fluxqueue.kube.webhook_configuration import WebhookConfiguration, WebhookEndpoint
from fluxqueue.process.certs.folder import ensure
from fluxqueue.workload import labels
from fluxqueue_webhook.server import ServerConfig, WebhookServer
from tests.support.control_plane import ControlPlane, Options, missing_reason
from tests.support.waiting import eventually
from tests.support.workloads import batch_job

pytestmark = pytest.mark.real_cluster


def _admission_configuration(folder: Path, user: str, certificate: Path) -> Path:
    """The files of steps 2 and 3. JSON is YAML, too."""
    own = {"client-certificate": f"{certificate}/tls.crt", "client-key": f"{certificate}/tls.key"}
    kubeconfig = folder / "webhooks.yaml"
    users = [{"name": user, "user": own}]
    kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "users": users}))
    group = "apiserver.config.k8s.io/v1"
    plugin = {
        "apiVersion": group,
        "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": str(kubeconfig),
    }
    plugins = [{"name": "MutatingAdmissionWebhook", "configuration": plugin}]
    found = folder / "admission.yaml"
    found.write_text(
        json.dumps({"apiVersion": group, "kind": "AdmissionConfiguration", "plugins": plugins})
    )
    return found


@pytest.mark.long("two control planes start")
async def test_an_api_server_with_a_certificate_is_admitted(tmp_path: Path) -> None:
    """Another one is refused: the webhook takes its requests for those of anyone."""
    if reason := missing_reason():
        pytest.skip(reason)
    now = datetime.now(tz=UTC)
    files = ensure(tmp_path / "serving", ["localhost", "127.0.0.1"], now=now)
    api = ensure(tmp_path / "api", ["kube-apiserver"], now=now).folder
    config = ServerConfig(cert_dir=files.folder, client_ca=api / "ca.crt", port=0)
    async with WebhookServer(config) as webhook:
        with_it = _admission_configuration(tmp_path, f"127.0.0.1:{webhook.port}", api)
        flag = [f"--admission-control-config-file={with_it}"]
        for flags, is_admitted in ((flag, True), ([], False)):
            options = Options(extra_args={"kube-apiserver": flags})
            async with (
                ControlPlane(options=options) as plane,
                KubeClient(plane.config) as client,
            ):
                space = {"metadata": {"name": "team", "labels": {labels.MANAGED: "true"}}}
                await client.create(NAMESPACES, None, space)
                endpoint = WebhookEndpoint(url=webhook.url)
                hooks = WebhookConfiguration(endpoint, files.ca.read_bytes()).build()
                await client.create(MUTATING_WEBHOOKS, None, hooks)
                said = ""

                async def is_called(client: KubeClient = client) -> bool:
                    nonlocal said
                    job = batch_job()
                    job["metadata"] = {"generateName": "j-", "namespace": "team"}
                    job["spec"].pop("suspend", None)
                    try:
                        made = await client.create(JOBS, "team", job)
                    except (ApiError, ApiUnavailable) as error:
                        said = str(error)
                        return True
                    return bool(made["spec"].get("suspend"))

                await eventually(is_called, "the webhook is called")
                assert ("failed calling webhook" in said) is not is_admitted, said
                said = ""
