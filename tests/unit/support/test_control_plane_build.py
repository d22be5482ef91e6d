"""How a control plane is built: versions, the generated module, what is said without Go.

The building itself is not tested here: it takes minutes, and what uses the programs tests it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.control_plane_build import build as builder
from tests.control_plane_build.build import PROGRAMS, BuildFailed, build, main

GO_MOD = """module k8s.io/kubernetes

go 1.26.0

require (
	go.etcd.io/etcd/client/v3 v3.7.0
	k8s.io/api v0.0.0
	k8s.io/kube-openapi v0.0.0-20260101-abc
	k8s.io/utils v0.1.0
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/mount-utils => ./staging/src/k8s.io/mount-utils
)
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1.37.2", ("1.37.2", True)),
        ("v1.36.3", ("1.36.3", True)),
        ("1.38.0-beta.0", ("1.38.0-beta.0", True)),
        ("1.37", ("1.37", False)),
    ],
)
def test_a_version_is_read(text: str, found: tuple[str, bool]) -> None:
    assert builder.parse_version(text) == found


@pytest.mark.parametrize("text", ["", "1", "latest", "1.37.x", "1.37.2; true", "../1.37.2"])
def test_what_is_no_version_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(BuildFailed, match=r"is no version of Kubernetes. Fix: give a release"):
        builder.parse_version(text)


def test_a_minor_means_its_newest_release() -> None:
    versions = ["v1.36.9", "v1.37.2", "v1.37.10", "v1.37.11-rc.0", "v1.38.0-beta.0"]
    assert builder.newest_of("1.37", versions) == "1.37.10"
    with pytest.raises(BuildFailed, match=r"no release of 1.38"):
        builder.newest_of("1.38", versions)


def test_staging_modules_have_the_version_of_the_release_and_others_their_own() -> None:
    text = builder.module_text("1.37.2", GO_MOD)
    assert "require k8s.io/kubernetes v1.37.2" in text
    assert re.findall(r"\t(\S+) => (\S+) (\S+)", text) == [
        ("k8s.io/api", "k8s.io/api", "v0.37.2"),
        ("k8s.io/mount-utils", "k8s.io/mount-utils", "v0.37.2"),
    ]
    assert "v0.38.0-beta.0" in builder.module_text("1.38.0-beta.0", GO_MOD)


def test_programs_report_their_version() -> None:
    assert "version.gitVersion=v1.38.0-beta.0" in builder.link_flags("1.38.0-beta.0")
    assert "version.gitMinor=38" in builder.link_flags("1.38.0-beta.0")


def test_without_go_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["1.37.2", "--into", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "go is not on PATH" in err
    assert "Fix: install Go" in err


def test_what_is_built_already_needs_no_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = tmp_path / "1.37.2" / "bin"
    programs.mkdir(parents=True)
    for name in PROGRAMS:
        (programs / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["1.37.2", "--into", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"KUBEBUILDER_ASSETS={programs}\n"
    (programs / "etcd").unlink()
    with pytest.raises(BuildFailed, match="go is not on PATH"):
        build("1.37.2", tmp_path)


def test_the_words_of_go_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy without the module answers on stdout. What it says names the cause."""
    for name, text in {
        "go": "echo no such module >&2; exit 1",
        "nice": 'shift 2; exec "$@"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildFailed, match=r"(?s)mod download failed:.no such module.Fix: check"):
        build("1.37.2", tmp_path / "cache")
    assert not (tmp_path / "cache" / "1.37.2").exists()


def test_the_cache_is_outside_the_tree() -> None:
    assert builder.cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/fluxqueue/control-planes")
    assert builder.cache_folder({"HOME": "/h"}) == Path("/h/.cache/fluxqueue/control-planes")
