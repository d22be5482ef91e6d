"""Kubeconfig files as kubectl reads them: merging, relative paths, credentials of every kind."""

from __future__ import annotations

import base64
import json
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from fluxqueue.errors import InvalidSettings
from fluxqueue.kube import kubeconfig
from fluxqueue.kube.config import ClusterConfig, load_kubeconfig
from fluxqueue.process.certs.pairs import make_ca, make_serving

DAY = timedelta(days=1)
V1 = "client.authentication.k8s.io/v1"


def in_base64(text: str | bytes) -> str:
    """As the fields that end with -data have it."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def write(path: Path, user: dict[str, Any], **cluster: Any) -> str:
    """One context ``site`` with these entries. Returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "current-context": "site",
        "contexts": [{"name": "site", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api.site.test", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


def load(path: Path, user: dict[str, Any], **cluster: Any) -> ClusterConfig:
    """The configuration of one user and cluster."""
    return load_kubeconfig(write(path, user, **cluster))


def plugin(folder: Path, *statuses: dict[str, Any]) -> dict[str, Any]:
    """A credential plugin: each run prints the next status, then the last one again and again."""
    for number, status in enumerate(statuses):
        credential = {"apiVersion": V1, "kind": "ExecCredential", "status": status}
        (folder / f"answer-{number}").write_text(json.dumps(credential))
    program = folder / "login"
    program.write_text(
        f"""#!/bin/sh
cd '{folder}'
printf '%s\\n' "$KUBERNETES_EXEC_INFO $SITE $*" >> asked
runs=$(wc -l < asked)
last={len(statuses) - 1}
[ "$runs" -le "$last" ] && last=$((runs - 1))
cat "answer-$last"
"""
    )
    program.chmod(0o755)
    return {
        "apiVersion": V1,
        "command": str(program),
        "args": ["get", "token"],
        "env": [{"name": "SITE", "value": "north"}],
        "interactiveMode": "IfAvailable",
    }


def runs(folder: Path) -> list[str]:
    """What each run of the plugin was asked."""
    file = folder / "asked"
    return file.read_text().splitlines() if file.exists() else []


def at(delta: timedelta) -> str:
    """A time of Kubernetes, this long from now."""
    return (datetime.now(tz=UTC) + delta).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- files ---------------------------------------------------------------------------------------


def test_the_first_file_with_a_name_wins(tmp_path: Path) -> None:
    """Each file may hold a part: context here, cluster and user there."""
    (tmp_path / "one").write_text(
        yaml.safe_dump(
            {
                "contexts": [
                    {"name": "b", "context": {"cluster": "c", "user": "u", "namespace": "n"}}
                ],
                "clusters": [{"name": "c", "cluster": {"server": "https://first.test"}}],
            }
        )
    )
    second = write(tmp_path / "two", {"token": "second"})
    both = os.pathsep.join((str(tmp_path / "one"), str(tmp_path / "absent"), second))
    config = load_kubeconfig(both, "b")
    assert (config.server, config.namespace) == ("https://first.test", "n")
    assert config.authorization_header() == "Bearer second"
    # The first file that names a current context decides.
    assert load_kubeconfig(both).namespace == "default"


def test_paths_are_relative_to_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the command runs."""
    monkeypatch.chdir(tmp_path)
    user = {"client-certificate": "me.crt", "client-key": "/keys/me", "tokenFile": "t"}
    path = tmp_path / "far" / "config"
    config = load(path, user, **{"certificate-authority": "pki/ca.crt"})
    assert config.ca_file == tmp_path / "far" / "pki" / "ca.crt"
    assert config.client_cert_file == tmp_path / "far" / "me.crt"
    assert config.client_key_file == Path("/keys/me")
    (tmp_path / "far" / "t").write_text("rotated")
    assert config.authorization_header() == "Bearer rotated"


def test_a_token_file_wins_over_a_token(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("of the file")
    config = load(tmp_path / "config", {"token": "stale", "tokenFile": "t"})
    assert config.authorization_header() == "Bearer of the file"


def test_inline_data_win_over_files(tmp_path: Path) -> None:
    """And open a TLS context, though ``ssl`` reads certificates from files only."""
    now = datetime.now(tz=UTC)
    ca = make_ca(now=now, validity=DAY)
    pair = make_serving(ca, ["me"], now=now, validity=DAY)
    user = {
        "client-certificate": "absent",
        "client-certificate-data": in_base64(pair.certificate_pem),
        "client-key-data": in_base64(pair.key_pem),
    }
    cluster = {
        "certificate-authority": "absent",
        "certificate-authority-data": in_base64(ca.certificate_pem),
        "tls-server-name": "kubernetes",
    }
    config = load(tmp_path / "config", user, **cluster)
    context = config.ssl_context()
    assert context is not None
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1
    assert config.tls_server_name == "kubernetes"
    assert "PRIVATE KEY" not in repr(config)


def test_name_and_password(tmp_path: Path) -> None:
    config = load(tmp_path / "config", {"username": "ann", "password": "pw"})
    assert config.authorization_header() == f"Basic {in_base64('ann:pw')}"


def test_a_user_without_credentials_is_anonymous(tmp_path: Path) -> None:
    assert load(tmp_path / "config", {}).authorization_header() is None


@pytest.mark.parametrize(
    ("user", "cluster", "said"),
    [
        ({"as": "root"}, {}, "users[].user.as"),
        ({"as-groups": ["system:masters"]}, {}, "users[].user.as-groups"),
        ({"auth-provider": {"name": "gcp"}}, {}, "'gcp' is not supported"),
        ({"client-key-data": "%%%"}, {}, "client-key-data"),
        ({}, {"certificate-authority-data": "x"}, "certificate-authority-data"),
        ({}, {"server": ""}, "clusters[].cluster.server"),
        ({"exec": {"apiVersion": V1, "command": "no-such-login"}}, {}, "no-such-login cannot run"),
        ({"exec": {"apiVersion": "x/v1alpha1", "command": "true"}}, {}, "'x/v1alpha1'"),
        ({"exec": {"apiVersion": V1, "command": "true"}}, {}, "printed no credential"),
        ({"exec": {"apiVersion": V1, "command": "false"}}, {}, "failed with exit code 1"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_field(
    user: dict[str, Any], cluster: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """In one line. A field that would change the user is never left out in silence."""
    with pytest.raises(InvalidSettings) as caught:
        load(tmp_path / "config", user, **cluster)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "clusters: [1]",
        "users: [{user: {token: t}}]",
        "contexts: [{name: site, context: [1]}]",
        "current-context: site\ncontexts: [{name: site, context: {cluster: gone}}]",
        "\x00",
        "a: &x [*x]\n- b",
    ],
)
def test_a_damaged_file_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(InvalidSettings, match=r"config: unusable kubeconfig") as caught:
        load_kubeconfig(str(tmp_path / "config"))
    assert "\n" not in str(caught.value)


def test_an_install_hint_is_shown(tmp_path: Path) -> None:
    """For a plugin that is not there."""
    command = {"apiVersion": V1, "command": "absent-login", "installHint": "see\nthe wiki"}
    with pytest.raises(InvalidSettings, match=r"absent-login cannot run.*Fix: see the wiki"):
        load(tmp_path / "config", {"exec": command})


# --- credential plugins --------------------------------------------------------------------------


def test_a_plugin_is_asked_with_its_arguments_and_the_cluster(tmp_path: Path) -> None:
    """As ``client.authentication.k8s.io`` describes it."""
    spec = {**plugin(tmp_path, {"token": "made"}), "provideClusterInfo": True}
    (tmp_path / "ca").write_text("PEM")
    cluster = {
        "certificate-authority": "ca",
        "extensions": [
            {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
        ],
    }
    config = load(tmp_path / "config", {"exec": spec}, **cluster)
    assert config.authorization_header() == "Bearer made"
    (asked,) = runs(tmp_path)
    info, end = json.JSONDecoder().raw_decode(asked)
    assert asked[end:] == " north get token"
    assert (info["apiVersion"], info["kind"]) == (V1, "ExecCredential")
    assert info["spec"]["cluster"] == {
        "server": "https://api.site.test",
        "certificate-authority-data": in_base64("PEM"),
        "config": {"audience": "x"},
    }


def test_a_command_with_a_slash_is_relative_to_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path.parent)
    spec = {**plugin(tmp_path, {"token": "made"}), "command": "./login"}
    assert load(tmp_path / "config", {"exec": spec}).authorization_header() == "Bearer made"


def test_a_credential_is_kept_until_it_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients ask once a minute, so a plugin that takes a second is not run each time."""
    monkeypatch.setattr(kubeconfig, "ASKED_AGAIN_S", -1.0)
    statuses = (
        {"token": "first", "expirationTimestamp": at(timedelta(seconds=5))},
        {"token": "second", "expirationTimestamp": at(timedelta(hours=1))},
        {"token": "third"},
    )
    config = load(tmp_path / "config", {"exec": plugin(tmp_path, *statuses)})
    assert len(runs(tmp_path)) == 1
    assert [config.authorization_header() for _ in range(3)] == ["Bearer second"] * 3
    assert len(runs(tmp_path)) == 2


def test_a_refused_credential_is_renewed(tmp_path: Path) -> None:
    """A client that asks again at once was answered 401: the token was revoked."""
    spec = plugin(tmp_path, {"token": "first"}, {"token": "second"})
    config = load(tmp_path / "config", {"exec": spec})
    assert config.authorization_header() == "Bearer first"
    assert config.authorization_header() == "Bearer second"


def test_a_plugin_may_give_a_certificate(tmp_path: Path) -> None:
    now = datetime.now(tz=UTC)
    pair = make_serving(make_ca(now=now, validity=DAY), ["me"], now=now, validity=DAY)
    status = {
        "clientCertificateData": pair.certificate_pem.decode(),
        "clientKeyData": pair.key_pem.decode(),
    }
    config = load(tmp_path / "config", {"exec": plugin(tmp_path, status)})
    assert config.authorization_header() is None
    assert config.client_cert_pem == status["clientCertificateData"]
    assert config.ssl_context() is not None


def test_a_plugin_that_needs_a_terminal_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In CI and in pods there is none."""
    monkeypatch.setattr("sys.stdin", None)
    spec = {**plugin(tmp_path, {"token": "t"}), "interactiveMode": "Always"}
    with pytest.raises(InvalidSettings, match="needs a terminal"):
        load(tmp_path / "config", {"exec": spec})
    assert runs(tmp_path) == []
