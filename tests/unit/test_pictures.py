"""The pictures of the README are what the program draws and shows today.

``python docs/pictures.py`` draws them again.
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fluxqueue_devtools.demo.screen import _WIDTHS
from tests.support.wheel import ROOT

FOLDER = ROOT / "docs" / "pictures"
AGAIN = "python docs/pictures.py"


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """docs/pictures.py."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import pictures as found  # type: ignore[import-not-found]  # no package

    module: ModuleType = found
    return module


@pytest.mark.long("starts processes of its own, for seconds of processor time")
def test_the_policies_are_drawn_as_the_simulator_draws_them(
    pictures: ModuleType, tmp_path: Path
) -> None:
    """Byte for byte: the simulation has a seed, and the drawing has no date."""
    out = tmp_path / "policies.svg"
    subprocess.run([sys.executable, "-m", "fluxqueue", *pictures.SIM, str(out)], check=True)
    assert out.read_bytes() == (FOLDER / "policies.svg").read_bytes(), AGAIN


def test_the_page_of_policies_has_the_same_workload(pictures: ModuleType) -> None:
    page = (ROOT / "docs" / "admin" / "policies.md").read_text(encoding="utf-8")
    assert f"$ fluxqueue {' '.join(pictures.SIM[:-1])}\n" in page


def test_the_demo_is_a_whole_screen(pictures: ModuleType) -> None:
    """Every node has its bar, every column its heading, and no line is torn."""
    text = (FOLDER / "demo.svg").read_text(encoding="utf-8")
    shown = [html.unescape(one) for one in re.findall(r"<text[^>]*>([^<]*)</text>", text)]
    words = " ".join(shown).replace("\N{NO-BREAK SPACE}", " ")
    assert {f"node-{number}" for number in range(1, 21)} <= set(re.findall(r"node-\d+", words))
    for heading in (*_WIDTHS, "REASON"):
        assert heading in words, AGAIN
    assert re.search(r"200 mixed Jobs on 20 nodes", words)
    assert max(map(len, shown)) <= pictures.WIDTH
