"""The window for all users: axe-core has no serious finding in any view, dark and light."""

from __future__ import annotations

import asyncio
import hashlib
import lzma
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.browser import Page, browsing, missing_browser
from tests.support.viewing import viewing
from tests.support.wheel import ROOT

AXE = Path(__file__).parents[1] / "support/axe"
GRAVE = ("moderate", "serious", "critical")
VIEWS = ("map", "queue", "time", "people", "machine", "job", "dialog")

pytestmark = [
    pytest.mark.long("a browser looks at each view in both themes"),
    pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser())),
]


def _axe() -> str:
    """Return the script, as published."""
    script = lzma.decompress((AXE / "axe.min.js.xz").read_bytes())
    told = re.search(r"`([0-9a-f]{64})`", (AXE / "README.md").read_text())
    assert told is not None
    assert hashlib.sha256(script).hexdigest() == told[1]
    return script.decode()


@pytest_asyncio.fixture
async def address(database_url: str, tmp_path: Path) -> AsyncIterator[str]:
    """A view server without rows."""
    async with viewing(database_url, tmp_path) as made:
        yield made.url


@pytest.fixture(scope="module")
def recorded() -> Iterator[str]:
    """The page with a recorded day."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        from recorded_window import (  # type: ignore[import-not-found]  # no package
            recorded_window,
        )

        with recorded_window() as address:
            yield address


def _findings(page: Page, script: str) -> list[str]:
    """Return what axe-core finds that keeps people from using the page."""
    page.run(script)
    found = page.driver.execute_async_script(
        "const done = arguments[0];"
        "axe.run(document, {resultTypes: ['violations']})"
        ".then((told) => done(told.violations), (error) => done([{id: String(error),"
        " impact: 'critical', nodes: []}]))"
    )
    return [_words(one) for one in found if one["impact"] in GRAVE]


def _words(finding: dict[str, Any]) -> str:
    places = [f"{one['target']}: {one['failureSummary']}" for one in finding["nodes"][:3]]
    return "\n".join([f"{finding['id']} ({len(finding['nodes'])} places)", *places])


def _show(page: Page, view: str) -> None:
    """Go to a view, and wait until it has its data."""
    if view == "job":
        page.run("location.hash = '#/queue'")
        page.click("td.name a")
        page.says("submitted", "article")
        return
    if view == "dialog":
        # The recorded day shows the time of the clock, and at some hours nothing waits.
        page.click(".actions button", "Cancel")
        page.says("Back", "dialog")
        return
    page.run("location.hash = arguments[0]", f"#/{view}")
    if view == "machine":
        page.click("form button", "Replay")
        page.says("use of cores", "table")
    drawn = {"queue": "tbody td", "people": ".card"}.get(view, "canvas[data-frame-ms]")
    page.until(lambda one: one.run("return document.querySelector(arguments[0])", drawn), view)


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_no_view_has_a_serious_finding(address: str, recorded: str, theme: str) -> None:
    """Neither has the login."""
    script = _axe()

    def look() -> dict[str, list[str]]:
        found = {}
        with browsing() as page:
            page.driver.execute_cdp_cmd(
                "Emulation.setEmulatedMedia",
                {"features": [{"name": "prefers-color-scheme", "value": theme}]},
            )
            page.open(f"{address}/")
            page.says("Token of your account")
            found["login"] = _findings(page, script)
            page.open(recorded)
            page.says("recorded day", "header")
            for view in VIEWS:
                _show(page, view)
                found[view] = _findings(page, script)
            page.click("dialog button", "Back")
            page.run("document.querySelector('h1').append(document.createElement('img'))")
            (planted,) = _findings(page, script)
            assert planted.startswith("image-alt"), "axe-core finds nothing at all"
            assert not page.complaints()
        return found

    found = await asyncio.to_thread(look)
    said = [f"{view}: {one}" for view, several in found.items() for one in several]
    assert not said, "\n".join(said)


async def test_the_page_says_what_is_promised_and_why_others_wait(recorded: str) -> None:
    """With the words of the scheduler, the nodes of a promise, and more of the past on request."""
    shown = "return document.querySelector('canvas').dataset.frameMs"
    asked = "return (await import('/window/state.js')).state.historyS"

    def look() -> tuple[str, int, int]:
        with browsing() as page:
            page.open(f"{recorded}#/queue")
            page.says("promise", "tbody")
            page.says("has a reservation; waits for n[", "tbody")
            page.says("held by job", "tbody")
            page.says("estimate", "tbody")
            page.says("slots of 4 cpu, 1", "tbody")
            page.run(
                "[...document.querySelectorAll('tbody tr')].find("
                "(row) => row.innerText.includes('Reserved')).querySelector('a').click()"
            )
            page.says("Promised nodes", "article")
            page.until(lambda one: one.run(shown), "the small map is not drawn")
            page.says("Promised", ".timeline")
            page.run("location.hash = '#/time'")
            page.says("promise", ".legend")
            before = page.run(asked)
            page.until(lambda one: one.run(shown), "the chart is not drawn")
            page.run(
                "for (let n = 0; n < 3; n++) document.querySelector('canvas').dispatchEvent("
                "new WheelEvent('wheel', {deltaY: 900, bubbles: true, cancelable: true}))"
            )
            page.until(lambda one: one.run(asked) > before, "no more of the past is read")
            page.run("location.hash = '#/people'")
            page.says("Use of all cores and GPUs", ".charts")
            page.says("running jobs: ", ".card:last-child")
            assert not page.complaints()
            return page.text(".cards"), before, page.run(asked)

    cards, before, after = await asyncio.to_thread(look)
    assert "gpu" in cards
    assert after > before == 6 * 3600


async def test_the_map_has_a_word_for_each_state_of_a_node(recorded: str) -> None:
    """As the list of nodes has them, each with a sign in the legend."""
    script = (
        "const done = arguments[0], node = (isUp, isOpen, taints) => ({isUp, isOpen, taints});"
        "import('/window/map.js').then(({stateOf}) => done([stateOf(node(true, true, 0), true),"
        " stateOf(node(false, true, 0), true), stateOf(node(false, false, 2), false),"
        " stateOf(node(true, false, 0), true), stateOf(node(true, false, 1), false),"
        " stateOf(node(true, true, 3), true), stateOf({pool: 'gpu'}, false)]))"
    )
    coming = (
        "const done = arguments[0], at = '2026-05-01T10:00:00Z',"
        " some = ['a', 'b', 'b'].map((pool) => ({pool, expectedAt: at}));"
        "import('/window/map.js').then(({comingWords}) => done(comingWords(some)))"
    )

    def look() -> tuple[list[str], str, str, str]:
        with browsing() as page:
            page.open(recorded)
            page.says("51 nodes", ".bar")
            states = page.driver.execute_async_script(script)
            told = page.driver.execute_async_script(coming)
            return states, told, page.text(".legend"), page.text(".bar span")

    states, told, legend, counts = await asyncio.to_thread(look)
    assert states == ["open", "down", "down", "draining", "drained", "tainted", "provisioning"]
    assert re.fullmatch(r"1 node of pool a, expected .+, 2 nodes of pool b, expected .+", told)
    for word in ("down", "draining", "drained", "tainted", "provisioning"):
        assert word in legend
    assert "1 down, 1 drained, 1 tainted" in counts
