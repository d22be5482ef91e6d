"""The window in a real browser: every view with data, changes as they come, and what it may do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import pytest
import pytest_asyncio

from fluxqueue.cli.user.local_proxy import LocalProxy, Upstream
from fluxqueue.client.view_server import view_address
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_kubeconfig
from fluxqueue.kube.resources import FLUXJOBS, SERVICE_ACCOUNTS
from tests.support.browser import Page, browsing, missing_browser
from tests.support.e2e.objects import FOR_EVER, job
from tests.support.e2e.pools import Pools
from tests.support.e2e.queues import Queues
from tests.support.e2e.space import Space

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long("a browser is started for each test"),
    pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser())),
]
T = TypeVar("T")
WAITING = ("Pending", "Reserved", "Unsatisfiable")

SEEN_S = 5.0
"""A change is shown within a second on an idle machine. Tests share theirs with others."""


async def _in_thread(act: Callable[[], T]) -> T:
    return await asyncio.to_thread(act)


@pytest_asyncio.fixture(loop_scope="session")
async def page(space: Space) -> AsyncIterator[Page]:
    """A browser that has opened the window through the local proxy, as the administrator."""
    await space.world.has_view()
    config = load_kubeconfig(str(space.world.kubeconfig))
    async with KubeClient(config) as client:
        root, headers, tls = await view_address(client)
        async with LocalProxy(Upstream(root, headers, tls)) as proxy:
            with browsing() as made:
                await _in_thread(lambda: made.open(proxy.address()))
                await _in_thread(lambda: made.says("live", "header"))
                yield made
                complaints = made.complaints()
                await _in_thread(lambda: made.open("about:blank"))
    assert not complaints


def _go(page: Page, view: str) -> None:
    page.run("location.hash = arguments[0]", f"#/{view}")


async def test_every_view_shows_what_is_there(space: Space, page: Page) -> None:
    """The map, the queue, time, queues and people, and the job."""
    await space.create(job("shown", pods=2, cpu="8", run=FOR_EVER, wishes={"duration": "1h"}))
    await space.until_state("shown", "Running")
    await space.create(job("behind", pods=9, cpu="16", wishes={"duration": "1h"}))
    await space.until_state("behind", *WAITING)
    number = (await space.fluxjob("shown"))["status"]["jobid"]  # type: ignore[index]

    def look() -> None:
        page.says("7 nodes", ".bar")
        page.until(lambda one: one.run("return document.querySelector('canvas').dataset.frameMs"),
                   "the map is not drawn")  # fmt: skip
        _go(page, f"queue?find={space.name}")
        _go(page, "queue")
        page.says("shown", "tbody")
        page.says("behind", "tbody")
        _go(page, "time")
        page.until(lambda one: one.run("return document.querySelector('canvas').dataset.frameMs"),
                   "the chart is not drawn")  # fmt: skip
        _go(page, "people")
        page.says("default", ".cards")
        _go(page, f"job/{number}")
        page.says("Running", ".timeline")
        page.says("shown-", "table")
        page.click("table button", "log")
        page.until(lambda one: "reads" not in one.text("pre.log"), "the log is not read")
        page.click("summary", "Jobspec")
        page.says("resources", "details pre")

    await _in_thread(look)
    await space.delete("behind")
    await space.delete("shown")


SEEN_COLUMNS = """
return [...document.querySelectorAll("thead th")]
  .filter((one) => one.getBoundingClientRect().left < innerWidth - 40)
  .map((one) => one.className.trim())
"""


async def test_a_telephone_shows_start_and_reason_first(space: Space, page: Page) -> None:
    """Without a move to the side, and with most of the height for the jobs."""
    await space.create(job("behind", pods=9, cpu="16", wishes={"duration": "1h"}))
    await space.until_state("behind", *WAITING)

    def look() -> tuple[list[str], float]:
        page.run("localStorage.clear()")
        page.driver.set_window_size(390, 844)
        try:
            _go(page, "map")
            _go(page, "queue")
            page.says("behind", "tbody")
            above = page.run("return document.querySelector('.table').getBoundingClientRect().top")
            return page.run(SEEN_COLUMNS), above / page.run("return innerHeight")
        finally:
            page.driver.set_window_size(1280, 800)

    seen, above = await _in_thread(look)
    assert seen[:3] == ["name", "start", "reason"]
    assert above < 0.3
    await space.delete("behind")


async def test_nodes_under_way_are_on_the_map(space: Space, page: Page) -> None:
    """With their pool and the expected time, as long as they are asked for."""
    pools = Pools(space)
    pool = await pools.make("map", is_known=False)
    await space.create(job("grows", pods=2, cpu="6", pool=pool))
    await space.until_state("grows", "Provisioning")

    def look() -> None:
        _go(page, "map")
        page.says("2 provisioning", ".bar")
        page.says(f"2 nodes of pool {pool}, expected", ".coming")
        _go(page, "queue")
        page.says("Provisioning", "tbody")

    await _in_thread(look)
    await space.delete("grows")
    await _in_thread(lambda: _go(page, "map"))
    await _in_thread(
        lambda: page.until(
            lambda one: "provisioning," not in one.text(".bar") and pool not in one.text(".bar"),
            "it is still shown",
        )
    )
    await pools.remove()


async def test_a_change_is_seen_at_once(space: Space, page: Page) -> None:
    """Without a reload."""
    await _in_thread(lambda: _go(page, "queue"))
    await _in_thread(lambda: page.says("Priority", "thead"))
    await space.create(job("soon", cpu="1", run=FOR_EVER))
    began = time.monotonic()
    await _in_thread(lambda: page.says("soon", "tbody"))
    assert time.monotonic() - began < SEEN_S
    await space.delete("soon")
    await _in_thread(
        lambda: page.until(lambda one: "soon" not in one.text("tbody"), "it is still shown")
    )


async def test_actions_do_what_they_say(space: Space, page: Page) -> None:
    """After a confirmation, and not without one."""
    await space.create(job("steered", cpu="1", wishes={"begin-time": "2099-01-01T00:00:00Z"}))
    await space.until_state("steered", *WAITING)
    number = (await space.fluxjob("steered"))["status"]["jobid"]  # type: ignore[index]

    def back_out() -> None:
        _go(page, f"job/{number}")
        page.click(".actions button", "Hold")
        page.click("dialog button", "Back")
        page.click(".actions button", "Hold")
        page.click("dialog button", "Hold")
        page.says("hold requested", ".actions")

    await _in_thread(back_out)
    await space.until_state("steered", "Held")

    def change() -> None:
        page.click(".actions button", "Release")
        page.click("dialog button", "Release")
        page.says("release requested", ".actions")

    await _in_thread(change)
    await space.until_state("steered", *WAITING)

    def cancel() -> None:
        page.click(".actions button", "Cancel")
        page.click("dialog button", "Cancel")
        page.says("cancel requested", ".actions")

    await _in_thread(cancel)
    await space.until_gone(FLUXJOBS, "steered-job")


HOSTILE: dict[str, str] = {
    "script": "<script>document.title='taken'</script>",
    "image": "<img src=x onerror=\"document.title='taken'\">",
    "turned": "\u202egpj.exe",
    "emoji": "🦀 crab",
    "long": "x" * 253,
}


async def test_hostile_texts_are_shown_as_text(space: Space, page: Page) -> None:
    """Texts of users in a reason, a history and an Event."""
    for name, text in HOSTILE.items():
        body: dict[str, Any] = job(name, pods=9, cpu="16")
        body["metadata"]["annotations"]["fluxqueue/comment"] = text
        body["spec"]["template"]["spec"]["containers"][0]["command"] = [text]
        await space.create(body)
        await space.until_state(name, *WAITING)
    numbers = [(await space.fluxjob(name))["status"]["jobid"] for name in HOSTILE]  # type: ignore[index]

    def look() -> None:
        _go(page, "queue")
        for name in HOSTILE:
            page.says(name, "tbody")
        for number in numbers:
            _go(page, f"job/{number}")
            page.says("History")
            assert page.run("return document.title") == "fluxqueue"
        # The page's own filter is an address that anyone can send to a user.
        _go(page, "queue?find=" + "%3Cimg%20src%3Dx%20onerror%3D%22document.title%3D1%22%3E")
        page.says("No job matches", ".table")
        assert page.run("return document.title") == "fluxqueue"

    await _in_thread(look)
    for name in HOSTILE:
        await space.delete(name)


async def test_a_login_with_a_token(space: Space) -> None:
    """A wrong one is refused in words. A right one shows the page, and is in no address."""
    await space.world.has_view()
    told = await space.client.create(SERVICE_ACCOUNTS, space.name, {"metadata": {"name": "vera"}})
    assert told
    token = (
        await space.client.create(
            SERVICE_ACCOUNTS, space.name, {"spec": {}}, name="vera", subresource="token"
        )
    )["status"]["token"]

    def log_in() -> None:
        with browsing() as page:
            page.open(space.world.stack.view_url)
            page.type("#token", "wrong")
            page.click(".login button")
            page.says("does not know this token")
            page.run("document.querySelector('#token').value = ''")
            page.type("#token", token)
            page.click(".login button")
            page.says("vera", "header")
            assert token not in page.driver.current_url
            assert page.run("return document.cookie") == ""
            assert not page.complaints()

    await _in_thread(log_in)


async def test_explain_answers_in_the_page(space: Space, page: Page) -> None:
    """With the time, the jobs in the way, and what another request would get."""
    await space.create(job("there", pods=2, cpu="16", pool="main", run=FOR_EVER,
                           wishes={"duration": "1h"}))  # fmt: skip
    await space.until_state("there", "Running")
    await space.create(job("asked", pods=4, cpu="16", pool="main", wishes={"duration": "10m"}))
    await space.until_state("asked", *WAITING)
    number = (await space.fluxjob("asked"))["status"]["jobid"]  # type: ignore[index]

    def ask() -> str:
        _go(page, f"job/{number}")
        page.says("Why, and when", "article")
        page.click("article section button", "Explain")
        page.until(
            lambda one: "asks …" not in one.text("article") and one.run(_ANSWER), "no answer"
        )
        return str(page.run(_ANSWER))

    answer = await _in_thread(ask)
    assert answer.startswith("Later · "), answer
    assert "4 are needed" in answer
    await _in_thread(lambda: page.says("In the way: there", "article"))
    there = (await space.fluxjob("there"))["status"]["jobid"]  # type: ignore[index]
    assert page.run(
        "return document.querySelector(arguments[0])", f"article p a[href='#/job/{there}']"
    )
    await space.delete("asked")
    await space.delete("there")


_CARD = (
    "return [...document.querySelectorAll('.card')]"
    ".find((one) => one.innerText.includes(arguments[0]))?.innerText"
)
_ANSWER = (
    "return [...document.querySelectorAll('article section')]"
    ".find((one) => one.innerText.startsWith('Why'))?.querySelector('button ~ p')?.innerText"
)


async def test_limits_of_a_queue_are_shown(space: Space, page: Page) -> None:
    """As bars against use, and in words for each user."""
    queues = Queues(space)
    limits = {"total": {"jobs": 4, "cpu": "20"}, "perUser": {"jobs": 3}, "perJob": {"nodes": 2}}
    await queues.make("bounded", limits=limits)
    await space.create(queues.job("in-it", "bounded", cpu="2", run=FOR_EVER))
    await space.until_state("in-it", "Running")

    def look() -> None:
        _go(page, "people")
        page.says(queues.name("bounded"), ".cards")
        for words in ("1 of 4", "2 of 20", "jobs 3", "nodes 2"):
            page.until(
                lambda one, words=words: words in str(one.run(_CARD, queues.name("bounded"))),  # type: ignore[misc]
                f"{words!r} is not in the card",
            )

    await _in_thread(look)
    await space.delete("in-it")
    await queues.delete("bounded")


async def test_the_time_machine_replays_the_last_hour(space: Space, page: Page) -> None:
    """In both charts, with the differences, through the local proxy."""
    await space.create(job("recorded", pods=2, cpu="4"))
    await space.until_state("recorded", "Completed")

    def look() -> None:
        _go(page, "machine")
        page.says("What would have been", "main")
        # In one step: the page may be drawn anew in between, with the number that it knows.
        page.run(
            "const one = document.querySelector('form input.more'); one.value = '3';"
            " one.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        page.click("form button", "Replay")
        page.says("3 more nodes like", "table caption")
        page.says("use of cores", "table")
        page.until(lambda one: len(one.run("return [...document.querySelectorAll("
                   "'.both canvas[data-frame-ms]')]")) == 2, "both charts")  # fmt: skip

    await _in_thread(look)
    await space.delete("recorded")
