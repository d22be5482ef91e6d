"""The address and credentials of the cluster: ``ClusterConfig`` and its loaders.

Each process calls a loader once before it creates a ``KubeClient``. The ``kubernetes`` package
parses kubeconfig files (merging, exec plugins, inline data). It is imported only when a loader
runs, because the import takes about a second. Loaders never change the user's files.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fluxqueue.errors import InvalidSettings
from fluxqueue.kube.kubernetes_package import import_without_validator
from fluxqueue.kube.proxy import proxy_for

IN_CLUSTER_HOST_ENV = "KUBERNETES_SERVICE_HOST"
IN_CLUSTER_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Address and credentials of one API server.

    ``token`` and the content of ``token_file`` are bare bearer tokens. ``authorization`` returns a
    whole ``Authorization`` header value, for credential plugins that make a new one. The first of
    ``authorization``, ``token_file`` and ``token`` that is set wins.
    """

    server: str
    ca_file: Path | None = None
    ca_pem: str | None = None
    client_cert_file: Path | None = None
    client_key_file: Path | None = None
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    authorization: Callable[[], str | None] | None = field(default=None, repr=False)
    is_insecure: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    namespace: str = "default"

    def authorization_header(self) -> str | None:
        """Return the present ``Authorization`` value.

        It reads files, so callers cache it for a minute. Raises InvalidSettings if a token file
        cannot be read.
        """
        if self.authorization is not None:
            return self.authorization()
        token = self.token
        if self.token_file is not None:
            try:
                token = self.token_file.read_text(encoding="utf-8").strip()
            except OSError as error:
                raise InvalidSettings(
                    f"cannot read the token: {error.strerror}", where=str(self.token_file)
                ) from error
        return f"Bearer {token}" if token else None

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS settings for this server, None for plain http. Raises InvalidSettings."""
        if not self.server.startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(
                cafile=str(self.ca_file) if self.ca_file else None, cadata=self.ca_pem
            )
            if self.client_cert_file is not None:
                context.load_cert_chain(self.client_cert_file, self.client_key_file)
        except (OSError, ssl.SSLError) as error:
            raise InvalidSettings(
                f"cannot load the certificates: {error}",
                where=str(self.ca_file or self.client_cert_file or "certificate-authority-data"),
            ) from error
        if self.is_insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def load_config(kubeconfig: str | None = None, context: str | None = None) -> ClusterConfig:
    """Return the configuration that kubectl would use here, or the pod's own in a cluster.

    Parameters
    ----------
    kubeconfig : A path, or several joined by ``:`` that are merged. None means ``$KUBECONFIG`` or
        ``~/.kube/config``. Inside a pod without these it means the service account.

    Raises
    ------
    InvalidSettings
        Nothing usable was found. The message is one line.
    """
    is_unspecified = kubeconfig is None and context is None and not os.environ.get("KUBECONFIG")
    if is_unspecified and os.environ.get(IN_CLUSTER_HOST_ENV):
        return load_in_cluster()
    return load_kubeconfig(kubeconfig, context)


def load_kubeconfig(path: str | None = None, context: str | None = None) -> ClusterConfig:
    """Read a kubeconfig. See ``load_config`` for the parameters. Raises InvalidSettings."""
    source = path or os.environ.get("KUBECONFIG") or "~/.kube/config"
    files = [Path(part).expanduser() for part in source.split(os.pathsep) if part]
    if not any(file.is_file() for file in files):
        raise InvalidSettings(
            "no such kubeconfig file",
            where=source,
            hint="set KUBECONFIG, give --kubeconfig, or start a cluster with `fluxqueue demo`",
        )
    try:
        return _parse_kubeconfig(os.pathsep.join(str(file) for file in files), context)
    except InvalidSettings:
        raise
    except Exception as error:  # the loader raises any exception for a malformed file
        message = " ".join(str(error).split()) or type(error).__name__
        raise InvalidSettings(
            f"unusable kubeconfig: {message}",
            where=f"{source}, context {context}" if context else source,
        ) from error


def _parse_kubeconfig(source: str, context: str | None) -> ClusterConfig:
    """Parse with the kubernetes package, and convert the result."""
    import_without_validator()
    from kubernetes.client import Configuration
    from kubernetes.config import kube_config as untyped

    kube_config: Any = untyped  # the package has no annotations
    loaded = Configuration()
    loaded.proxy = None  # the package ignores NO_PROXY when it reads the environment
    kube_config.load_kube_config(
        source, context=context, client_configuration=loaded, persist_config=False
    )
    contexts, active = kube_config.list_kube_config_contexts(source)
    chosen = next((c for c in contexts if c["name"] == context), active)

    def authorization() -> str | None:
        if loaded.refresh_api_key_hook is not None:
            loaded.refresh_api_key_hook(loaded)
        value: str | None = loaded.api_key.get("BearerToken")
        return value

    return ClusterConfig(
        server=str(loaded.host).rstrip("/"),
        ca_file=_optional_path(loaded.ssl_ca_cert),
        client_cert_file=_optional_path(loaded.cert_file),
        client_key_file=_optional_path(loaded.key_file),
        authorization=authorization if authorization() else None,
        is_insecure=not loaded.verify_ssl,
        tls_server_name=loaded.tls_server_name or None,
        proxy_url=proxy_for(str(loaded.host), loaded.proxy, os.environ),
        namespace=chosen["context"].get("namespace") or "default",
    )


def load_in_cluster() -> ClusterConfig:
    """Return the service account of this pod. Raises InvalidSettings outside a pod."""
    import_without_validator()
    from kubernetes.client import Configuration
    from kubernetes.config import ConfigException
    from kubernetes.config import incluster_config as untyped

    incluster_config: Any = untyped
    loaded = Configuration()
    try:
        incluster_config.load_incluster_config(client_configuration=loaded)
    except (ConfigException, OSError) as error:
        raise InvalidSettings(
            f"no in-cluster configuration: {error}", hint="give --kubeconfig outside a cluster"
        ) from error
    try:
        namespace = IN_CLUSTER_NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except OSError:
        namespace = "default"  # the file is optional: some mounts leave it out
    return ClusterConfig(
        server=str(loaded.host),
        proxy_url=proxy_for(str(loaded.host), None, os.environ),
        ca_file=_optional_path(loaded.ssl_ca_cert),
        token_file=Path(incluster_config.SERVICE_TOKEN_FILENAME),
        namespace=namespace,
    )


def _optional_path(value: str | None) -> Path | None:
    return Path(value) if value else None
