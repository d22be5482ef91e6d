"""Where a control plane is and how to prove who we are: ``Access``, and a kubeconfig as one.

Called where simulated nodes are given to a control plane elsewhere. Whoever has a configuration of
an own with these members gives that; ``read_kubeconfig`` reads what test control planes write
(addresses, certificates and tokens), and refuses what it cannot honour.
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
    """``server`` is an address without a slash at its end."""

    @property
    def server(self) -> str:
        """``https://HOST:PORT``."""
        ...

    @property
    def tls_server_name(self) -> str | None:
        """The name in the server's certificate where it is not the address's."""
        ...

    def authorization_header(self) -> str | None:
        """The value of ``Authorization``, None for none."""
        ...

    def ssl_context(self) -> ssl.SSLContext | None:
        """TLS settings; None for plain http."""
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
        """The token, if there is one."""
        return f"Bearer {self.token}" if self.token else None

    def ssl_context(self) -> ssl.SSLContext | None:
        """TLS with the authority and certificate given."""
        if not self.server.startswith("https:"):
            return None
        context = ssl.create_default_context(cadata=self.ca_pem)
        if self.client_pem:
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # 0600, and gone at once
                file.write(self.client_pem)
                file.flush()
                context.load_cert_chain(file.name)
        if self.is_insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def read_kubeconfig(path: Path) -> StaticAccess:
    """The current context of a kubeconfig. Raises ``InvalidSettings``, one line."""
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
    """PEM that stands in the entry itself or in a file beside the kubeconfig."""
    if data := entry.get(f"{key}-data"):
        return base64.b64decode(data).decode()
    if file := entry.get(key):
        text: str = (path.parent / file).read_text(encoding="utf-8")
        return text
    return None
