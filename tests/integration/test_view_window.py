"""What the window asks of the view server: map, places, queues, waits, its files and its login."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import jsonschema
import pytest
import pytest_asyncio

from fluxqueue.db.database import Database
from fluxqueue.db.store.rule_rows import RuleRowKind, RuleSeen, save_rules
from fluxqueue.view.openapi import document
from fluxqueue.view.same_site import ACTING, SAFE
from fluxqueue.view.sessions import COOKIE
from tests.support.rows import settings_for
from tests.support.viewing import EVERYWHERE, Answer, Viewing, filled, viewing

OURS = {ACTING: "1"}


@pytest_asyncio.fixture
async def view(database_url: str, tmp_path: Path) -> AsyncIterator[Viewing]:
    """A server over two nodes: ``runs`` has both, ``next`` and ``last`` wait, ``over`` ended."""
    async with filled(database_url), viewing(database_url, tmp_path) as made:
        yield made


def _check(path: str, answer: Answer) -> None:
    assert answer.code == 200, answer.body
    told = document()
    schema = told["paths"][f"/api/v1{path}"]["get"]["responses"]["200"]["content"]
    jsonschema.validate(
        answer.body, {**schema["application/json"]["schema"], "components": told["components"]}
    )


async def test_the_map_has_all_nodes(view: Viewing) -> None:
    """With what they have and what unmanaged pods use."""
    answer = await view.get("/map")
    _check("/map", answer)
    assert [one["name"] for one in answer.body["nodes"]] == ["n1", "n2"]
    assert answer.body["nodes"][0]["resources"]["cpu"] == [4, 0]
    assert answer.body["levels"][:2] == ["region", "zone"]


async def test_the_queue_has_shapes_and_parts_of_priorities(view: Viewing) -> None:
    """Columns of the window, in the words of the scheduler."""
    answer = await view.get("/queue")
    _check("/queue", answer)
    jobs = {one["name"]: one for one in answer.body["items"]}
    assert jobs["runs"]["shape"].startswith("8 slots of "), jobs["runs"]["shape"]
    parts = jobs["next"]["priorityParts"]
    assert parts["bounded"] + parts["queue"] + parts["fairShare"] == jobs["next"]["priority"]


async def test_the_map_has_nodes_under_way(view: Viewing, database_url: str) -> None:
    """Those that were asked for and have yet to come, at the place that their pool names."""
    spec = {
        "node": {
            "labels": {"pool": "gpu", "topology.kubernetes.io/zone": "z1"},
            "allocatable": {"cpu": "8", "example.com/gpu": "4"},
        },
        "max": 4,
        "provisioningTime": "1m",
        "provider": {"placeholder": {}},
    }
    assert (await view.get("/map")).body["coming"] == []
    async with (
        Database(settings_for(database_url), role="test") as database,
        database.begin() as tx,
    ):
        await save_rules(tx, RuleRowKind.POOL, [RuleSeen("gpu", "u", 1, spec)], ())
        for number, (count, ended) in enumerate(((3, None), (2, "withdrawn"))):
            await tx.execute(
                "INSERT INTO node_requests (pool, uid, queue, count, asked_at, ready_at, ended)"
                " VALUES ('gpu', :uid, 'default', :count, 1000, 1060, :ended)",
                uid=f"job-{number}",
                count=count,
                ended=ended,
            )
        await tx.execute(
            "INSERT INTO pool_nodes (node, pool, request)"
            " SELECT 'n1', 'gpu', min(number) FROM node_requests"
        )
    answer = await view.get("/map")
    _check("/map", answer)
    coming = answer.body["coming"]
    assert [one["pool"] for one in coming] == ["gpu", "gpu"], "one of three has come"
    assert coming[0]["resources"] == {"cpu": [8000, 0], "example.com/gpu": [4, 0]}
    assert coming[0]["path"][answer.body["levels"].index("zone")] == "z1"
    assert coming[0]["expectedAt"] == "1970-01-01T00:17:40Z"


async def test_places_are_where_work_runs_ran_and_will_run(view: Viewing) -> None:
    """Ended ones only if they are asked for."""
    answer = await view.get("/places")
    _check("/places", answer)
    by_name = {one["name"]: one for one in answer.body["items"]}
    assert {name: one["kind"] for name, one in by_name.items()} == {
        "runs": "running", "next": "promised",
    }  # fmt: skip
    assert by_name["runs"]["nodes"] == {
        "n1": {"cpu": 4}, "n2": {"cpu": 4},
    }  # fmt: skip
    assert set(by_name["next"]["nodes"]) == {"n1", "n2"}
    assert by_name["next"]["startsAt"] >= by_name["runs"]["until"]
    answer = await view.get("/places?since=1h")
    assert {one["name"] for one in answer.body["items"]} == {"runs", "next", "over"}


async def test_places_come_page_by_page(view: Viewing) -> None:
    """Each of them once."""
    names, path = [], "/places?since=1h&limit=1"
    while path:
        answer = await view.get(path)
        names += answer.names
        more = answer.body.get("continue")
        path = f"/places?since=1h&limit=1&continue={more}" if more else ""
    assert sorted(names) == ["next", "over", "runs"]


async def test_work_of_others_has_no_name(view: Viewing) -> None:
    """Its nodes are taken all the same, as the list of nodes shows."""
    await view.let("carl", ("fluxjobs", "default"), ("nodes", EVERYWHERE))
    answer = await view.get("/places", "carl")
    _check("/places", answer)
    hidden = [one for one in answer.body["items"] if one["name"] is None]
    assert [one["kind"] for one in hidden] == ["promised"]
    for key in ("jobid", "namespace", "user", "queue", "state"):
        assert hidden[0][key] is None
    use = await view.get("/queues/use", "carl")
    assert {one["user"] for one in use.body["items"]} == {"ada"}


@pytest.mark.parametrize("path", ["/map", "/places"])
async def test_nodes_need_the_right_to_nodes(view: Viewing, path: str) -> None:
    """As the list of nodes does."""
    await view.let("dora", ("fluxjobs", EVERYWHERE))
    answer = await view.get(path, "dora")
    assert answer.code == 403
    assert "may not list nodes" in answer.body["detail"]


async def test_queues_and_their_users(view: Viewing) -> None:
    """What waits, what runs, and with how much."""
    rules = await view.get("/queues")
    _check("/queues", rules)
    use = await view.get("/queues/use")
    _check("/queues/use", use)
    found = {one["user"]: (one["running"], one["waiting"], one["cpu"]) for one in use.body["items"]}
    assert found == {"ada": (1, 1, 8), "bob": (0, 1, 0)}


async def test_waits_by_time_and_size(view: Viewing) -> None:
    """Runs that had nodes. An unknown step is refused."""
    waits = await view.get("/accounting/waits?step=day")
    _check("/accounting/waits", waits)
    (one,) = waits.body["items"]
    assert (one["sizeClass"], one["runs"]) == ("1 node", 1)
    assert 0 <= one["waitSeconds"] <= one["waitP95Seconds"] < 60
    bad = await view.get("/accounting/waits?step=year")
    assert bad.code == 400
    assert "hour, day" in bad.body["detail"]


# --- the page and its login ----------------------------------------------------------------------


async def test_the_page_needs_no_login_and_tells_nothing(view: Viewing) -> None:
    """Its answers carry the headers of safety, compressed where that pays."""
    for path in ("/", "/window/app.js", "/window/vendor/uplot.js", "/window/icon.svg"):
        async with view.session.get(view.url + path) as told:
            assert told.status == 200
            assert {key: told.headers[key] for key in SAFE} == SAFE
            tag = told.headers["ETag"]
        async with view.session.get(view.url + path, headers={"If-None-Match": tag}) as told:
            assert told.status == 304


@pytest.mark.cases_long("other paths")
@pytest.mark.parametrize(
    "path",
    ["/window/../server.py", "/window/%2e%2e/server.py", "/window/none.js", "/window//etc/passwd",
     "/window/vendor"],
)  # fmt: skip
async def test_no_other_file_can_be_read(view: Viewing, path: str) -> None:
    """The paths are a table, and no disk is asked."""
    from yarl import URL

    async with view.session.get(URL(view.url + path, encoded=True)) as told:
        assert told.status in {401, 404}
        assert "ViewServer" not in await told.text()


async def _login(view: Viewing, token: object, **headers: str) -> tuple[int, str, str]:
    given = {**OURS, **headers}
    async with view.session.post(f"{view.url}/login", json={"token": token}, headers=given) as told:
        return told.status, told.headers.get("Set-Cookie", ""), await told.text()


async def test_a_login_is_a_cookie_that_scripts_cannot_read(view: Viewing) -> None:
    """It counts for requests of the page, and for those only."""
    code, cookie, _ = await _login(view, view.tokens["admin"])
    assert code == 204
    for part in (COOKIE, "HttpOnly", "Secure", "SameSite=Strict", "Path=/"):
        assert part in cookie
    assert "Domain" not in cookie
    kept = {"Cookie": cookie.partition(";")[0]}
    view.session.cookie_jar.clear()
    assert (await view.get("/whoami", "", **kept, **OURS)).code == 200
    foreign = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
    assert (await view.get("/whoami", "", **kept, **foreign)).code == 403
    assert (await view.get("/whoami", "", **kept, Origin="https://evil.example")).code == 403
    async with view.session.post(f"{view.url}/api/v1/jobs/1/hold", headers=kept) as told:
        assert told.status == 403
        assert ACTING in await told.text()


@pytest.mark.cases_long("other tokens")
@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("", "is not a token"),
        ("two words", "is not a token"),
        ('a"b', "is not a token"),
        ("a;b=c", "is not a token"),
        ("é", "is not a token"),
        ("a\r\nSet-Cookie: x=y", "is not a token"),
        (None, "is not a token"),
        ("x" * 5000, "a cookie holds 3800"),
    ],
)
async def test_what_is_no_token_is_refused(view: Viewing, token: object, words: str) -> None:
    """In words, without a cookie."""
    code, cookie, text = await _login(view, token)
    assert (code, cookie) == (400, "")
    assert words in text


async def test_another_site_cannot_log_a_browser_in(view: Viewing) -> None:
    """Otherwise a user would act with the rights of another user."""
    code, cookie, _ = await _login(view, view.tokens["admin"], Origin="https://evil.example")
    assert (code, cookie) == (403, "")


async def test_a_token_that_has_ended_ends_the_session(view: Viewing) -> None:
    """The page then shows its login."""
    _, cookie, _ = await _login(view, "unknown")
    kept = {"Cookie": cookie.partition(";")[0]}
    view.session.cookie_jar.clear()
    assert (await view.get("/whoami", "", **kept, **OURS)).code == 401
    async with view.session.post(f"{view.url}/logout", headers={**kept, **OURS}) as told:
        assert told.status == 204
        assert "Max-Age=0" in told.headers["Set-Cookie"]


@pytest.mark.parametrize("body", [b"[]", b"{", b"7", b"x" * 20_000])
async def test_bodies_are_bounded_objects(view: Viewing, body: bytes) -> None:
    """Each other one is refused with 400."""
    headers = {"Authorization": f"Bearer {view.tokens['admin']}"}
    answer = await view.get("/queue")
    number = answer.body["items"][0]["jobid"]
    for verb in ("priority", "explain"):
        async with view.session.post(
            f"{view.url}/api/v1/jobs/{number}/{verb}", data=body, headers=headers
        ) as told:
            assert told.status == 400, await told.text()


@pytest.mark.cases_long("other paths")
@pytest.mark.parametrize("pod", ["", "../secrets/x", "a/b", "a?b", ".hidden", "x" * 300, "é"])
async def test_a_log_is_of_a_pod(view: Viewing, pod: str) -> None:
    """A name cannot change the path of the request to the API server."""
    from urllib.parse import quote

    number = (await view.get("/queue")).body["items"][0]["jobid"]
    answer = await view.get(f"/jobs/{number}/log?pod={quote(pod, safe='')}")
    assert answer.code == 400
    assert "is not a name" in answer.body["detail"]
