"""Loading of kubeconfig files and service accounts."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fluxqueue.errors import InvalidSettings
from fluxqueue.kube.config import ClusterConfig, load_config, load_in_cluster, load_kubeconfig


def _write(path: Path, **user: Any) -> str:
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "one",
                "contexts": [
                    {
                        "name": "one",
                        "context": {"cluster": "c", "user": "u", "namespace": "team"},
                    },
                    {"name": "two", "context": {"cluster": "d", "user": "u"}},
                ],
                "clusters": [
                    {
                        "name": "c",
                        "cluster": {
                            "server": "https://one.example:6443",
                            "certificate-authority-data": base64.b64encode(b"PEM").decode(),
                        },
                    },
                    {
                        "name": "d",
                        "cluster": {
                            "server": "https://two.example",
                            "insecure-skip-tls-verify": True,
                        },
                    },
                ],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return str(path)


def test_current_context(tmp_path: Path) -> None:
    """Server, CA, token and namespace of the current context."""
    config = load_kubeconfig(_write(tmp_path / "k", token="secret"))
    assert config.server == "https://one.example:6443"
    assert config.namespace == "team"
    assert not config.is_insecure
    assert config.ca_pem == "PEM"
    assert config.authorization_header() == "Bearer secret"
    assert "secret" not in repr(config)


def test_named_context(tmp_path: Path) -> None:
    """Another context: no namespace means default, verification is off."""
    config = load_kubeconfig(_write(tmp_path / "k", token="t"), "two")
    assert (config.server, config.namespace) == ("https://two.example", "default")
    assert config.is_insecure


def test_exec_plugin(tmp_path: Path) -> None:
    """Credential plugins are run. tests/unit/kube/test_kubeconfig.py has the details."""
    plugin = tmp_path / "plugin"
    plugin.write_text(
        "#!/bin/sh\necho '"
        '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",'
        '"status":{"token":"made"}}\'\n'
    )
    plugin.chmod(0o755)
    command = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": str(plugin),
        "interactiveMode": "Never",
    }
    config = load_kubeconfig(_write(tmp_path / "k", exec=command))
    assert config.authorization_header() == "Bearer made"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "kind: Config", "contexts: 3\ncurrent-context: x\nclusters: []"]
)
def test_unreadable_files_are_one_clear_line(tmp_path: Path, text: str) -> None:
    """Whatever the parser trips over, the user sees the file's name and one line."""
    path = tmp_path / "broken"
    path.write_text(text)
    with pytest.raises(InvalidSettings) as caught:
        load_kubeconfig(str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "server",
    [
        "https://h:99999",
        "https://[::1:6443",
        "foo://h",
        "h:6443",
        "https://",
        "/api",
        "https://h:x",
    ],
)
def test_an_address_that_is_none_is_named(tmp_path: Path, server: str) -> None:
    """Before anything is sent, which would end in a traceback."""
    path = _write(tmp_path / "k", token="t")
    text = Path(path).read_text(encoding="utf-8")
    file = tmp_path / "other"
    found = re.search(r"\"?server\"?: *\"?([^\",}\s]+)", text)
    assert found is not None
    file.write_text(text.replace(found[1], server), encoding="utf-8")
    with pytest.raises(InvalidSettings, match=r"cluster\.server.*is not an address.*https://HOST"):
        load_kubeconfig(str(file))


def test_unknown_context(tmp_path: Path) -> None:
    """The message names the context."""
    with pytest.raises(InvalidSettings, match="context nope"):
        load_kubeconfig(_write(tmp_path / "k", token="t"), "nope")


def test_missing_file_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file: the path and the way out."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(InvalidSettings, match=r"absent: no such kubeconfig file.*KUBECONFIG"):
        load_config()


def test_outside_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """The in-cluster loader refuses clearly where there is no service account."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InvalidSettings, match="no in-cluster configuration"):
        load_in_cluster()


def test_inside_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mounted service account. An address of IPv6 gets its brackets."""
    for name, text in (("token", "t\n"), ("ca.crt", "PEM"), ("namespace", "team\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("fluxqueue.kube.config.IN_CLUSTER_FOLDER", tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    for host, server in (
        ("10.0.0.1", "https://10.0.0.1:443"),
        ("fd00::1", "https://[fd00::1]:443"),
    ):
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
        config = load_config()
        assert (config.server, config.namespace) == (server, "team")
        assert config.authorization_header() == "Bearer t"
        assert config.ca_file == tmp_path / "ca.crt"
    (tmp_path / "token").unlink()
    with pytest.raises(InvalidSettings, match=r"token is missing.*--kubeconfig"):
        load_config()


def test_token_file_is_read_each_time(tmp_path: Path) -> None:
    """Rotated service-account tokens are picked up. A vanished file is reported."""
    file = tmp_path / "token"
    config = ClusterConfig("https://x", token_file=file)
    file.write_text("a\n")
    assert config.authorization_header() == "Bearer a"
    file.write_text("b\n")
    assert config.authorization_header() == "Bearer b"
    file.unlink()
    with pytest.raises(InvalidSettings, match="cannot read the token"):
        config.authorization_header()


def test_bad_certificate_authority(tmp_path: Path) -> None:
    """A CA file that is none is a settings error, not an SSL traceback later."""
    file = tmp_path / "ca"
    file.write_text("no certificate")
    with pytest.raises(InvalidSettings, match="cannot load the certificates"):
        ClusterConfig("https://x", ca_file=file).ssl_context()
