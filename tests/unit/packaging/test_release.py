"""``.ci/release.py``: one version everywhere, and the changelog's section as the release's text."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from fluxqueue import __version__
from tests.support.wheel import ROOT

release: dict[str, Any] = runpy.run_path(str(ROOT / ".ci" / "release.py"))
main = release["main"]

CHANGELOG = """\
# Changelog

## Unreleased

### Added

- A new thing ([page](docs/new1.md), [site](https://example.org/)).

## 0.0.9 - 2026-01-02

- An old thing.
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The files that name the version, with a changelog of our own."""
    for name in release["PLACES"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    return tmp_path


def test_every_file_of_this_tree_names_one_version() -> None:
    """The pattern of each file finds it."""
    assert set(map(frozenset, release["versions"](ROOT).values())) == {frozenset({__version__})}


def test_a_release_is_set_then_checked(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before `set` every file is named. After it none is, and nothing else has changed."""
    assert main(["check", "v7.8.9"], root) == 1
    named = {line.partition(":")[0] for line in capsys.readouterr().err.splitlines()}
    assert named == {*release["PLACES"], "CHANGELOG.md"}

    assert main(["set", "7.8.9", "--date", "2026-12-24"], root) == 0
    assert main(["check", "v7.8.9"], root) == 0
    for name in release["PLACES"]:
        before = (ROOT / name).read_text(encoding="utf-8")
        assert (root / name).read_text(encoding="utf-8").replace("7.8.9", __version__) == before
    text = (root / "CHANGELOG.md").read_text()
    assert text == CHANGELOG.replace("## Unreleased\n", "## Unreleased\n\n## 7.8.9 - 2026-12-24\n")


def test_one_file_with_another_version_is_named(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second version within one file counts, too."""
    main(["set", "7.8.9", "--date", "2026-12-24"], root)
    chart = root / "chart" / "Chart.yaml"
    chart.write_text(chart.read_text().replace('appVersion: "7.8.9"', 'appVersion: "7.8.8"'))
    assert main(["check", "7.8.9"], root) == 1
    assert capsys.readouterr().err == "chart/Chart.yaml: 7.8.8, 7.8.9 is not 7.8.9.\n"


def test_notes_are_one_section_with_links_that_work_elsewhere(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GitHub shows them outside the repository, so links name the tag."""
    main(["set", "7.8.9", "--date", "2026-12-24"], root)
    assert main(["notes", "v7.8.9"], root) == 0
    assert capsys.readouterr().out == (
        "### Added\n\n- A new thing ([page](https://github.com/converged-computing/fluxqueue/blob/"
        "v7.8.9/docs/new1.md), [site](https://example.org/)).\n"
    )
    assert main(["notes", "0.0.9"], root) == 0
    assert capsys.readouterr().out == "- An old thing.\n"
    assert main(["notes", "7.8.7"], root) == 1
    assert capsys.readouterr().err == "CHANGELOG.md: no section for 7.8.7\n"


def test_a_version_is_released_once_and_is_three_numbers(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a second section nor a version that Helm or pip would read otherwise."""
    with pytest.raises(SystemExit, match="has a section already"):
        main(["set", "0.0.9"], root)
    for word in ("1.2", "1.2.3rc1", "v1.2.3-rc.1", ""):
        with pytest.raises(SystemExit) as refused:
            main(["set", word], root)
        assert refused.value.code == 2
    assert "it must be X.Y.Z" in capsys.readouterr().err
