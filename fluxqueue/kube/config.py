"""The address and credentials of the cluster: ``ClusterConfig`` and its loaders.

Each process calls a loader once before it creates a ``KubeClient``. ``kubeconfig.py`` reads the
files. Loaders never change the user's files.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from fluxqueue.errors import InvalidSettings
from fluxqueue.kube import kubeconfig as files
from fluxqueue.kube.proxy import proxy_for

IN_CLUSTER_HOST_ENV = "KUBERNETES_SERVICE_HOST"
IN_CLUSTER_PORT_ENV = "KUBERNETES_SERVICE_PORT"
IN_CLUSTER_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


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
    client_cert_pem: str | None = field(default=None, repr=False)
    client_key_pem: str | None = field(default=None, repr=False)
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
            self._load_client_certificate(context)
        except (OSError, ssl.SSLError) as error:
            raise InvalidSettings(
                f"cannot load the certificates: {error}",
                where=self._place_of_certificates(),
                hint="name files that exist, in PEM",
            ) from error
        if self.is_insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _place_of_certificates(self) -> str:
        """Return the entries of certificates that this configuration has, for a message."""
        inline = (
            ("certificate-authority-data", self.ca_pem),
            ("client-certificate-data", self.client_cert_pem),
        )
        files_of = [str(one) for one in (self.ca_file, self.client_cert_file) if one]
        return ", ".join([*files_of, *(name for name, one in inline if one)])

    def _load_client_certificate(self, context: ssl.SSLContext) -> None:
        """Load certificate and key, from files or from text. ``ssl`` reads files only."""
        with tempfile.TemporaryDirectory(prefix="fluxqueue-") as folder:  # only we may read it
            paths = []
            for name, given, text in (
                ("cert", self.client_cert_file, self.client_cert_pem),
                ("key", self.client_key_file, self.client_key_pem),
            ):
                path = given
                if text is not None:
                    path = Path(folder) / name
                    path.write_text(text, encoding="utf-8")
                paths.append(path)
            certificate, key = paths
            if certificate is not None:
                context.load_cert_chain(certificate, key)


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
    found = [Path(part).expanduser() for part in source.split(os.pathsep) if part]
    found = [file for file in found if file.is_file()]
    if not found:
        raise InvalidSettings(
            "no such kubeconfig file",
            where=source,
            hint="set KUBECONFIG, give --kubeconfig, or start a cluster with `fluxqueue up`",
        )
    try:
        return _from_entries(files.read(found, context))
    except InvalidSettings as error:
        raise InvalidSettings(
            f"unusable kubeconfig: {error}",
            where=f"{source}, context {context}" if context else source,
        ) from error


def _from_entries(entries: files.Entries) -> ClusterConfig:
    """Convert the entries of one context. Raises InvalidSettings."""
    cluster, user = entries.cluster, entries.user
    if not cluster.get("server"):
        raise InvalidSettings("is missing", where="clusters[].cluster.server")
    files.refuse_unsupported(user)
    server = _url(str(cluster["server"]).rstrip("/"), "clusters[].cluster.server")
    # Inline data win over files, as in kubectl.
    ca_pem = files.pem(cluster, "certificate-authority")
    certificate = files.pem(user, "client-certificate")
    key = files.pem(user, "client-key")
    authorization: Callable[[], str | None] | None = None
    static = files.static_authorization(user)
    if user.get("exec") and not static and not user.get("tokenFile"):
        plugin = files.ExecPlugin(user["exec"], files.cluster_info(cluster))
        if pair := plugin.certificate():
            certificate, key = pair
        authorization = plugin
    elif static:
        authorization = lambda: static  # noqa: E731  a header value that never changes
    return ClusterConfig(
        server=server,
        ca_file=None if ca_pem else _optional_path(cluster.get("certificate-authority")),
        ca_pem=ca_pem,
        client_cert_file=None if certificate else _optional_path(user.get("client-certificate")),
        client_key_file=None if key else _optional_path(user.get("client-key")),
        client_cert_pem=certificate,
        client_key_pem=key,
        # A token file is read again and again, so it wins over the token of the same entry.
        authorization=None if user.get("tokenFile") else authorization,
        token_file=_optional_path(user.get("tokenFile")),
        is_insecure=bool(cluster.get("insecure-skip-tls-verify")),
        tls_server_name=cluster.get("tls-server-name") or None,
        proxy_url=proxy_for(server, cluster.get("proxy-url"), os.environ),
        namespace=entries.context.get("namespace") or "default",
    )


def _url(text: str, where: str) -> str:
    """Return an address that can be called. Raises InvalidSettings."""
    try:
        parts = urlsplit(text)
        is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
        is_usable = is_usable and parts.port != 0
    except ValueError:  # a port above 65535, or an open bracket
        is_usable = False
    if not is_usable:
        raise InvalidSettings(
            f"{text[:200]!r} is not an address", where=where, hint="such as https://HOST:6443"
        )
    return text


def load_in_cluster() -> ClusterConfig:
    """Return the service account of this pod. Raises InvalidSettings outside a pod."""
    host, port = os.environ.get(IN_CLUSTER_HOST_ENV), os.environ.get(IN_CLUSTER_PORT_ENV)
    token, ca = IN_CLUSTER_FOLDER / "token", IN_CLUSTER_FOLDER / "ca.crt"
    missing = [] if host and port else [f"{IN_CLUSTER_HOST_ENV} and _PORT are not set"]
    missing += [f"{file} is missing" for file in (token, ca) if not file.is_file()]
    if missing:
        raise InvalidSettings(
            f"no in-cluster configuration: {missing[0]}", hint="give --kubeconfig outside a cluster"
        )
    server = f"https://[{host}]:{port}" if ":" in str(host) else f"https://{host}:{port}"
    try:
        namespace = (IN_CLUSTER_FOLDER / "namespace").read_text(encoding="utf-8").strip()
    except OSError:
        namespace = "default"  # the file is optional: some mounts leave it out
    return ClusterConfig(
        server=server,
        proxy_url=proxy_for(server, None, os.environ),
        ca_file=ca,
        token_file=token,
        namespace=namespace,
    )


def _optional_path(value: str | None) -> Path | None:
    return Path(value) if value else None
