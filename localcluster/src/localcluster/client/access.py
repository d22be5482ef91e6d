"""Address and credentials of a control plane: ``Access``, and a kubeconfig as one.

It is used to add simulated nodes to another control plane. Callers with a configuration of their
own pass an object with these members. ``read_kubeconfig`` reads what test control planes write
(addresses, certificates and tokens). It refuses what it does not support.
"""

from __future__ import annotations

import base64
import binascii
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from localcluster.errors import InvalidSettings


class Access(Protocol):
    """Access to a control plane. ``server`` is an address without a slash at its end."""

    @property
    def server(self) -> str:
        """Return ``https://HOST:PORT``."""
        ...

    @property
    def tls_server_name(self) -> str | None:
        """Return the name in the server's certificate if it is not the address's."""
        ...

    def authorization_header(self) -> str | None:
        """Return the value of ``Authorization``, or None."""
        ...

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return TLS settings, or None for plain http."""
        ...


@dataclass(frozen=True, slots=True)
class StaticAccess:
    """Credentials that do not change."""

    server: str
    ca_pem: str | None = None
    token: str | None = field(default=None, repr=False)
    client_pem: str | None = field(default=None, repr=False)
    """The client's certificate and key, one after the other."""
    is_insecure: bool = False
    tls_server_name: str | None = None

    def authorization_header(self) -> str | None:
        """Return the token as a header, if there is one."""
        return f"Bearer {self.token}" if self.token else None

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return TLS with the given authority and certificate."""
        if not self.server.startswith("https:"):
            return None
        context = ssl.create_default_context(cadata=self.ca_pem)
        if self.client_pem:
            # mode 0600, deleted at once
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(self.client_pem)
                file.flush()
                context.load_cert_chain(file.name)
        if self.is_insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def read_kubeconfig(path: Path) -> StaticAccess:
    """Return the current context of a kubeconfig. Raises ``InvalidSettings``, one line."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        context = _named(document, "context", document["current-context"])
        cluster = _named(document, "cluster", context["cluster"])
        user = _named(document, "user", context["user"])
        for unread in ("exec", "auth-provider", "username"):
            if unread in user:
                raise InvalidSettings(
                    f"user {context['user']!r} has {unread!r}, which is not read here",
                    where=str(path),
                    hint="give a user with a token or a client certificate",
                )
        pair = [_text(user, key, path) for key in ("client-certificate", "client-key")]
        token = user.get("token")
        if not token and "tokenFile" in user:
            token = (path.parent / user["tokenFile"]).read_text(encoding="utf-8").strip()
        return StaticAccess(
            str(cluster["server"]).rstrip("/"),
            ca_pem=_text(cluster, "certificate-authority", path),
            token=token,
            client_pem="\n".join(part for part in pair if part) or None,
            is_insecure=bool(cluster.get("insecure-skip-tls-verify")),
            tls_server_name=cluster.get("tls-server-name"),
        )
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        what = " ".join(str(error).split()) or type(error).__name__
        raise InvalidSettings(f"unusable kubeconfig: {what}", where=str(path)) from error


def _named(document: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    for entry in document[f"{kind}s"]:
        if entry["name"] == name:
            found: dict[str, Any] = entry[kind]
            return found
    raise KeyError(f"no {kind} named {name}")


def _text(entry: dict[str, Any], key: str, path: Path) -> str | None:
    """Return PEM from the entry itself, or from a file beside the kubeconfig."""
    if data := entry.get(f"{key}-data"):
        return base64.b64decode(data).decode()
    if file := entry.get(key):
        text: str = (path.parent / file).read_text(encoding="utf-8")
        return text
    return None
