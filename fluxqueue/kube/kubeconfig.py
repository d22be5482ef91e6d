"""Kubeconfig files, read as kubectl reads them: merged, with relative paths and credential plugins.

``config.py`` calls ``read`` once and turns the result into a ``ClusterConfig``. It never changes
the files. It opens no connection, and starts only the credential plugin that the file names.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fluxqueue.errors import InvalidSettings
from fluxqueue.fluxjob.times import from_rfc3339

EXEC_VERSIONS = (
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
)
EXEC_TIMEOUT_S = 120.0
"""Longest run of a credential plugin. It may open a browser to log in."""
EXPIRY_SKEW_S = 30.0
"""A credential is renewed this long before it expires: clocks differ, and requests take time."""
ASKED_AGAIN_S = 30.0
"""A client asks once a minute. If it asks sooner, the API server has refused the credential."""

_LISTS = {"clusters": "cluster", "users": "user", "contexts": "context"}
_PATHS = {
    "clusters": ("certificate-authority",),
    "users": ("client-certificate", "client-key", "tokenFile"),
}
_IMPERSONATION = ("as", "as-uid", "as-groups", "as-user-extra")


@dataclass(frozen=True, slots=True)
class Entries:
    """The cluster, user and context that apply, each as in the file. Paths are absolute."""

    cluster: Mapping[str, Any]
    user: Mapping[str, Any]
    context: Mapping[str, Any]


def read(files: Iterable[Path], context: str | None) -> Entries:
    """Merge kubeconfig files and return the entries of one context.

    The first file that has a name wins, as in kubectl. Paths are relative to their file.

    Parameters
    ----------
    files : Those that exist, in the order of ``$KUBECONFIG``.
    context : A name, or None for the first ``current-context``.

    Raises
    ------
    InvalidSettings
        A file is not a kubeconfig, or a name is missing. ``where`` is the field.
    """
    current, merged = "", {name: dict[str, Any]() for name in _LISTS}
    for file in files:
        document = _document(file)
        current = current or str(document.get("current-context") or "")
        for name, inner in _LISTS.items():
            for key, one in _named(document, name, inner):
                for path in _PATHS.get(name, ()):
                    if one.get(path):
                        one[path] = str(file.parent.absolute() / Path(str(one[path])).expanduser())
                if name == "users" and isinstance(one.get("exec"), dict):
                    one["exec"] = _with_path(one["exec"], file.parent)
                merged[name].setdefault(key, one)
    name = context or current
    if not name:
        raise InvalidSettings("no context is set", where="current-context", hint="use --context")
    chosen = _get(merged["contexts"], name, "contexts")
    cluster = _get(merged["clusters"], str(chosen.get("cluster") or ""), "clusters")
    user = str(chosen.get("user") or "")
    return Entries(cluster, _get(merged["users"], user, "users") if user else {}, chosen)


def _document(file: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        message = " ".join(str(error).split())
        raise InvalidSettings(f"is neither YAML nor JSON: {message}") from error
    except OSError as error:
        raise InvalidSettings(f"cannot be read: {error.strerror}") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise InvalidSettings("is not a mapping")
    return found


def _named(document: Mapping[str, Any], name: str, inner: str) -> Iterable[tuple[str, Any]]:
    """Yield name and content of the entries of one list."""
    entries = document.get(name) or []
    if not isinstance(entries, list):
        raise InvalidSettings("is not a list", where=name)
    for number, one in enumerate(entries):
        content = one.get(inner) if isinstance(one, dict) else None
        if not isinstance(one, dict) or not one.get("name") or not isinstance(content or {}, dict):
            raise InvalidSettings(f"needs a name and a {inner}", where=f"{name}[{number}]")
        yield str(one["name"]), dict(content or {})


def _get(entries: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    if name not in entries:
        known = ", ".join(sorted(entries)) or "none"
        raise InvalidSettings(f"has no entry {name!r}", where=where, hint=f"there: {known}")
    found: Mapping[str, Any] = entries[name]
    return found


def _with_path(plugin: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Resolve a command with a slash against the folder of its file, as kubectl does."""
    command = str(plugin.get("command") or "")
    if os.sep in command and not Path(command).is_absolute():
        command = str(folder.absolute() / command)
    return {**plugin, "command": command}


def pem(entry: Mapping[str, Any], key: str) -> str | None:
    """Return the text of ``KEY-data``, None if it is absent. Raises InvalidSettings."""
    encoded = entry.get(f"{key}-data")
    if not encoded:
        return None
    try:
        return base64.b64decode(str(encoded), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise InvalidSettings("is not PEM in base64", where=f"{key}-data") from error


def refuse_unsupported(user: Mapping[str, Any]) -> None:
    """Refuse what would make requests as another user, or without a credential.

    Raises
    ------
    InvalidSettings
        It names the field and the way out.
    """
    for key in _IMPERSONATION:
        if user.get(key):
            raise InvalidSettings("is not supported", where=f"users[].user.{key}", hint="use --as")
    provider = user.get("auth-provider") or {}
    if provider and not (provider.get("config") or {}).get("id-token"):
        raise InvalidSettings(
            f"{provider.get('name')!r} is not supported",
            where="users[].user.auth-provider",
            hint="use a credential plugin (exec), as kubectl has since 1.26",
        )


def static_authorization(user: Mapping[str, Any]) -> str | None:
    """Return the ``Authorization`` value that the entry itself contains, or None."""
    if token := user.get("token"):
        return f"Bearer {token}"
    if provider := user.get("auth-provider"):
        return f"Bearer {provider['config']['id-token']}"
    if user.get("username") and user.get("password"):
        pair = f"{user['username']}:{user['password']}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"
    return None


@dataclass(slots=True)
class ExecPlugin:
    """A credential plugin (``client.authentication.k8s.io``). Calling it returns a header value.

    The credential is kept until shortly before it expires. Raises InvalidSettings if the plugin
    cannot run, fails, or prints something else.
    """

    spec: Mapping[str, Any]
    cluster: Mapping[str, Any]
    _status: dict[str, Any] = field(default_factory=dict, repr=False)
    _until_s: float = 0.0
    _asked_s: float = float("-inf")

    def __call__(self) -> str | None:
        """Return ``Bearer TOKEN``, or None if the credential is a certificate."""
        token = self.status().get("token")
        return f"Bearer {token}" if token else None

    def certificate(self) -> tuple[str, str] | None:
        """Return the client certificate and its key in PEM, or None. The first call runs it."""
        status = self._status or self._renew()
        pair = status.get("clientCertificateData"), status.get("clientKeyData")
        return (str(pair[0]), str(pair[1])) if all(pair) else None

    def status(self) -> dict[str, Any]:
        """Return the present credential, and run the plugin if it needs another one."""
        now_s = time.time()
        is_refused = now_s - self._asked_s < ASKED_AGAIN_S
        self._asked_s = now_s
        if not self._status or is_refused or now_s >= self._until_s - EXPIRY_SKEW_S:
            self._renew()
        return self._status

    def _renew(self) -> dict[str, Any]:
        try:
            found = json.loads(self._run())
            status = found["status"]
            until = status.get("expirationTimestamp")
            until_s = float(from_rfc3339(until)) if until else float("inf")
            if not status.get("token") and not status.get("clientCertificateData"):
                raise KeyError("token")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._failed("printed no credential") from error
        self._status, self._until_s = status, until_s
        return self._status

    def _run(self) -> str:
        """Run the plugin. Its messages go to our standard error, for instance the address to open.

        A plugin may ask on the terminal, so it has our standard input if that is a terminal.
        """
        version = str(self.spec.get("apiVersion") or "")
        if version not in EXEC_VERSIONS:
            raise self._failed(f"has apiVersion {version!r}", f"use {EXEC_VERSIONS[0]}")
        mode = self.spec.get("interactiveMode") or "IfAvailable"
        is_interactive = mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
        if mode == "Always" and not is_interactive:
            raise self._failed("needs a terminal")
        asked: dict[str, Any] = {"interactive": is_interactive}
        if self.spec.get("provideClusterInfo"):
            asked["cluster"] = dict(self.cluster)
        info = {"apiVersion": version, "kind": "ExecCredential", "spec": asked}
        more = {str(one["name"]): str(one["value"]) for one in self.spec.get("env") or ()}
        command = [str(self.spec.get("command")), *map(str, self.spec.get("args") or ())]
        try:
            done = subprocess.run(
                command,
                env={**os.environ, **more, "KUBERNETES_EXEC_INFO": json.dumps(info)},
                stdin=None if is_interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                timeout=EXEC_TIMEOUT_S,
                check=False,
            )
        except OSError as error:
            hint = " ".join(str(self.spec.get("installHint") or "").split())
            raise self._failed(f"cannot run: {error.strerror}", hint) from error
        except subprocess.TimeoutExpired as error:
            raise self._failed(f"has not ended within {EXEC_TIMEOUT_S:.0f} s") from error
        if done.returncode != 0:
            raise self._failed(f"failed with exit code {done.returncode}")
        return done.stdout

    def _failed(self, why: str, hint: str = "") -> InvalidSettings:
        command = self.spec.get("command")
        return InvalidSettings(
            f"the credential plugin {command} {why}", where="users[].user.exec", hint=hint
        )


def cluster_info(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cluster as a credential plugin reads it (``ExecCredential.spec.cluster``)."""
    data = cluster.get("certificate-authority-data")
    file = cluster.get("certificate-authority")
    if file and not data:
        data = base64.b64encode(Path(file).read_bytes()).decode()
    extensions = {one.get("name"): one.get("extension") for one in cluster.get("extensions") or ()}
    found = {
        "server": cluster.get("server"),
        "tls-server-name": cluster.get("tls-server-name"),
        "insecure-skip-tls-verify": cluster.get("insecure-skip-tls-verify"),
        "certificate-authority-data": data,
        "proxy-url": cluster.get("proxy-url"),
        "config": extensions.get("client.authentication.k8s.io/exec"),
    }
    return {key: one for key, one in found.items() if one is not None}
