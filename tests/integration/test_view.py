"""The view server over real rows: what it answers, to whom, how much at once, and while Postgres is
away. Its answers are held against its own OpenAPI document.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import jsonschema
import psycopg
import pytest
import pytest_asyncio

from fluxqueue.clock import ManualClock
from fluxqueue.db.database import Database
from fluxqueue.db.reader import DatabaseReader
from fluxqueue.db.reading.changes import Follower, last_line
from fluxqueue.errors import DatabaseUnavailable, InvalidSettings
from fluxqueue.view.openapi import document
from fluxqueue.view.request_places import RequestPlaces
from fluxqueue_devtools.localpg import LocalPostgres
from tests.support import steering
from tests.support.rows import Rows, settings_for, workload
from tests.support.sql import dicts
from tests.support.viewing import Answer, Viewing, filled, viewing
from tests.support.waiting import eventually

LISTS = (
    "/queue", "/jobs", "/forecast", "/nodes", "/accounting", "/accounting/runs",
    "/history?namespace=default&job=over", "/history/runs?namespace=default&job=over",
)  # fmt: skip


@pytest_asyncio.fixture
async def view(database_url: str, tmp_path: Path) -> AsyncIterator[Viewing]:
    """A server over these rows."""
    async with filled(database_url), viewing(database_url, tmp_path) as made:
        yield made


def _check(path: str, answer: Answer) -> None:
    """The answer is what the document says."""
    told = document()
    place = f"/api/v1{path.partition('?')[0]}"
    if place not in told["paths"]:
        place = "/api/v1/jobs/{jobid}"
    schema = told["paths"][place]["get"]["responses"]["200"]["content"]["application/json"]
    jsonschema.validate(answer.body, {**schema["schema"], "components": told["components"]})


async def test_answers_are_as_documented(view: Viewing) -> None:
    """Each list whole, then in pages of one that make up the same, and what is in them."""
    found = {}
    for path in (*LISTS, "/whoami", "/jobs/2"):
        found[path] = answer = await view.get(path)
        assert answer.code == 200, answer.body
        _check(path, answer)
    for path in LISTS:
        whole = found[path].body["items"]
        assert whole, path
        paged: list[Any] = []
        more = ""
        for _ in range(len(whole)):
            mark = "&" if "?" in path else "?"
            page = (await view.get(f"{path}{mark}limit=1{more}")).body
            paged += page["items"]
            more = f"&continue={page.get('continue')}"
        assert paged == whole, path
        assert "continue" not in page, path
    queue = found["/queue"].body["items"]
    assert [(one["name"], one["position"]) for one in queue] == [
        ("runs", None), ("next", 1), ("last", 2)
    ]  # fmt: skip
    assert queue[0]["nodes"] == "n[1-2]"
    assert found["/jobs"].names == ["last", "next", "runs", "over"]
    assert found["/nodes"].body["items"][0]["state"] == "allocated"
    assert found["/nodes"].body["items"][0]["resources"]["cpu"] == {
        "total": 4, "ours": 4, "others": 0, "free": 0
    }  # fmt: skip
    assert "next" in found["/forecast"].names
    (line, *_) = found[LISTS[6]].body["items"]
    assert (line["event"], line["actor"]) == ("Pending", "test")
    (total,) = found["/accounting"].body["items"]
    assert (total["user"], total["runs"]) == ("ada", 1)
    assert found["/jobs/2"].body["name"] == "runs"


@pytest.mark.cases_long("other parameters")
@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/queue?user=ada", ["runs", "last"]),
        ("/queue?namespace=other", ["next"]),
        ("/queue?state=Running,Allocated", ["runs"]),
        ("/queue?queue=batch", []),
        ("/jobs?state=Cancelled", ["over"]),
        ("/jobs?name=next-job", ["next"]),
        ("/accounting/runs?since=1h", ["over"]),
        ("/accounting/runs?until=2020-01-01", []),
        ("/accounting/runs?result=Completed", []),
        ("/history/runs?namespace=default&job=1", ["over"]),
        ("/history/runs?namespace=other&job=over", []),
    ],
)
async def test_what_is_asked_for(view: Viewing, path: str, names: list[str]) -> None:
    """Filters."""
    assert (await view.get(path)).names == names


async def test_sums_by_what_is_asked_for(view: Viewing) -> None:
    """Only these fields are there, beside the sums."""
    (found,) = (await view.get("/accounting?by=result,day")).body["items"]
    assert set(found) == {"result", "day", "runs", "cpuHours", "gpuHours", "waitSeconds"}
    assert found["result"] == "Cancelled"


@pytest.mark.cases_long("other parameters")
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/queue?colour=red", "colour = 'red': no such parameter"),
        ("/queue?user=a&user=b", "user: is given twice. Fix: give it once"),
        ("/queue?limit=0", "limit = '0': is not allowed. Fix: give 1 to 500"),
        ("/queue?limit=501", "limit"),
        ("/queue?state=Sleeping", "state = 'Sleeping': is not known"),
        ("/queue?continue=x", "continue: was not given by this server"),
        ("/queue?continue=WyJhIl0", "continue: belongs to another list"),
        ("/queue?namespace=", "namespace"),
        ("/accounting?since=soon", "since = 'soon': is not a time"),
        ("/accounting?by=colour", "by = 'colour'"),
        ("/history?job=a", "namespace: is missing"),
        ("/history?namespace=default", "job: is missing"),
    ],
)
async def test_bad_parameters_are_named(view: Viewing, path: str, said: str) -> None:
    """400 with the field, the value and the way out."""
    answer = await view.get(path)
    assert answer.code == 400
    assert said in answer.body["detail"]


async def test_nothing_without_a_token(view: Viewing) -> None:
    """401 with the way out, for what there is and for what there is not. The document is open."""
    for path in (*LISTS, "/whoami", "/changes", "/jobs/1", "/nowhere"):
        for who in ("", "forged"):
            answer = await view.get(path, who)
            assert answer.code == 401, path
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            assert "Authorization: Bearer TOKEN" in answer.body["detail"]
    answer = await view.get("/queue", "", **{"X-Fluxqueue-Authorization": "Bearer forged"})
    assert answer.code == 401
    proxied = {"X-Fluxqueue-Authorization": f"Bearer {view.tokens['admin']}"}
    assert (await view.get("/queue", "", **proxied)).code == 200
    assert (await view.get("/nowhere")).code == 404
    async with view.session.post(f"{view.url}/api/v1/queue") as told:
        assert told.status == 401
    async with view.session.get(f"{view.url}/openapi.json") as told:
        assert await told.json() == json.loads(json.dumps(document()))


async def test_everybody_sees_what_he_may_list(view: Viewing) -> None:
    """A user of one namespace, a user without rights. Nodes are a right of their own."""
    await view.let("ursula", ("fluxjobs", "other"))
    await view.let("nemo")
    assert (await view.get("/queue", "ursula")).names == ["next"]
    assert (await view.get("/queue", "ursula")).body["items"][0]["position"] == 1
    assert (await view.get("/jobs", "ursula")).names == ["next"]
    assert (await view.get("/forecast", "ursula")).names == ["next"]
    assert (await view.get("/accounting", "ursula")).body["items"] == []
    assert (await view.get("/jobs/3", "ursula")).code == 200
    for who, path, code in (
        ("ursula", "/queue?namespace=default", 403),
        ("ursula", "/queue?namespace=other,default", 403),
        ("ursula", "/queue?namespace=nowhere", 403),
        ("ursula", LISTS[6], 403),
        ("ursula", LISTS[7], 403),
        ("ursula", "/nodes", 403),
        ("ursula", "/changes?namespace=default", 403),
        ("ursula", "/jobs/1", 404),
        ("ursula", "/jobs/99", 404),
        ("nemo", "/queue?namespace=other", 403),
        ("nemo", "/changes", 403),
        ("nemo", "/jobs/3", 404),
    ):
        answer = await view.get(path, who)
        assert answer.code == code, (who, path, answer.body)
    refused = (await view.get("/queue?namespace=default", "ursula")).body["detail"]
    assert "ursula may not list fluxjobs in namespace default" in refused
    assert (await view.get("/queue", "nemo")).names == []
    assert (await view.get("/accounting", "nemo")).body["items"] == []
    assert (await view.get("/whoami", "nemo")).body["seesAllNamespaces"] is False
    missing, hidden = [(await view.get(f"/jobs/{n}", "ursula")).body["detail"] for n in (99, 1)]
    assert missing.replace("99", "1") == hidden, "it does not tell whether there is one"


async def test_rights_are_remembered_for_a_moment(database_url: str, tmp_path: Path) -> None:
    """One question for many requests, at once and one after the other. What is taken is taken."""
    clock = ManualClock()
    async with filled(database_url), viewing(database_url, tmp_path, clock) as view:
        await view.let("ursula", ("fluxjobs", "other"))
        view.api.asked.clear()
        await asyncio.gather(*(view.get("/queue?namespace=other", "ursula") for _ in range(20)))
        assert view.api.asked.count("tokenreviews") == 1
        assert view.api.asked.count("subjectaccessreviews") == 2  # everywhere? there?
        await view.let("ursula")
        assert (await view.get("/queue?namespace=other", "ursula")).code == 200
        clock.advance(16)
        assert (await view.get("/queue?namespace=other", "ursula")).code == 403
        assert len(view.server._keeper._people._asked) <= 2


async def test_what_has_not_changed_is_not_sent_again(view: Viewing) -> None:
    """An ETag of each answer, 304 for a client that has it."""
    first = await view.get("/queue")
    tag = first.headers["ETag"]
    again = await view.get("/queue", **{"If-None-Match": tag})
    assert (again.code, again.body, again.headers["ETag"]) == (304, None, tag)
    assert "no-cache" in first.headers["Cache-Control"]
    assert (await view.get("/queue?limit=1", **{"If-None-Match": tag})).code == 200
    assert (await view.get("/queue", "", **{"If-None-Match": tag})).code == 401


class Stream:
    """Reads server-sent events."""

    def __init__(self, content: Any) -> None:
        self._content = content

    async def next(self) -> dict[str, str]:
        """The next event, field by field."""
        found: dict[str, str] = {}
        async with asyncio.timeout(60):
            while True:
                line = (await self._content.readline()).decode().rstrip("\r\n")
                if not line and found:
                    return found
                name, _, value = line.partition(": ")
                if name and not line.startswith(":"):
                    found[name] = value


@asynccontextmanager
async def _following(view: Viewing, path: str, who: str, **more: str) -> AsyncIterator[Stream]:
    headers = {"Authorization": f"Bearer {view.tokens[who]}", **more}
    async with view.session.get(f"{view.url}/api/v1{path}", headers=headers) as told:
        assert told.status == 200, await told.text()
        assert told.content_type == "text/event-stream"
        yield Stream(told.content)


async def test_changes_are_told_as_they_happen(database_url: str, tmp_path: Path) -> None:
    """Each to users who may see it. A client that comes again gets what it has missed."""
    async with filled(database_url) as rows, viewing(database_url, tmp_path) as view:
        await view.let("ursula", ("fluxjobs", "other"))
        async with (
            _following(view, "/changes", "admin") as all_of_it,
            _following(view, "/changes", "ursula") as hers,
            _following(view, "/changes?user=bob", "admin") as bobs,
        ):
            await steering.hold(rows.database, "default", ["last"], "carol")
            await steering.hold(rows.database, "other", ["next"], "carol")
            seen = [await all_of_it.next() for _ in range(4)]
            assert [one["event"] for one in seen] == ["change"] * 4
            told = [json.loads(one["data"]) for one in seen]
            assert [(one["name"], one["event"], one["state"]) for one in told] == [
                ("last", "hold", "Held"), ("last", "Held", "Held"),
                ("next", "hold", "Held"), ("next", "Held", "Held"),
            ]  # fmt: skip
            schema = document()
            for one in told:
                jsonschema.validate(one, {**schema["components"]["schemas"]["Change"]})
            for stream in (hers, bobs):
                assert [json.loads((await stream.next())["data"])["name"] for _ in "ab"] == [
                    "next",
                    "next",
                ]
        last = seen[0]["id"]
        async with _following(view, "/changes", "admin", **{"Last-Event-ID": last}) as again:
            missed = [(await again.next())["id"] for _ in range(3)]
            assert missed == [one["id"] for one in seen[1:]]

        await eventually(
            lambda: not view.server._feed.followers and view.server._feed._reading is None,
            "the reading ends with the last follower",
        )
        answer = await view.get("/changes", "admin", **{"Last-Event-ID": "x"})
        assert answer.code == 400


async def test_a_follower_who_loses_his_rights_is_told_no_more(
    database_url: str, tmp_path: Path
) -> None:
    """While the user follows."""
    clock = ManualClock()
    async with filled(database_url) as rows, viewing(database_url, tmp_path) as view:
        view.server._keeper._rights._asked = type(view.server._keeper._rights._asked)(
            100, 15, timer=clock.monotonic_s
        )
        await view.let("ursula", ("fluxjobs", "other"))
        async with _following(view, "/changes", "ursula") as hers:
            await steering.hold(rows.database, "other", ["next"], "carol")
            await hers.next()
            await hers.next()
            await view.let("ursula")
            clock.advance(16)
            await steering.release(rows.database, "other", ["next"], "carol")
            view.api.asked.clear()

            await eventually(
                lambda: "subjectaccessreviews" in view.api.asked, "the change is looked at"
            )
            await view.let("ursula", ("fluxjobs", "other"))
            clock.advance(16)
            await steering.hold(rows.database, "other", ["next"], "dora")
            assert json.loads((await hers.next())["data"])["actor"] == "dora"


async def test_lines_that_come_late_are_not_left_out(rows_and_follower: Any) -> None:
    """Numbers are given out before the transactions that use them commit."""
    rows, follower = rows_and_follower
    async with rows.database.begin() as slow:
        await slow.execute(_LINE, event="slow")
        await rows.execute(_LINE, event="quick")
        assert [one.event for one in await follower.read(0.0)] == ["quick"]
        assert await follower.read(1.0) == []
    assert [one.event for one in await follower.read(2.0)] == ["slow"]
    assert await follower.read(3.0) == []
    assert not follower._missed
    async with rows.database.begin() as lost:
        await lost.execute(_LINE, event="lost")
        await lost.connection.rollback()
    await rows.execute(_LINE, event="after")
    assert [one.event for one in await follower.read(4.0)] == ["after"]
    assert follower._missed
    await follower.read(100.0)
    assert not follower._missed, "what is never written is given up"


_LINE = (
    "INSERT INTO history (uid, jobid, actor, event) SELECT uid, jobid, 'test', :event"
    " FROM fluxjobs LIMIT 1"
)


@pytest_asyncio.fixture
async def rows_and_follower(database_url: str) -> AsyncIterator[tuple[Rows, Follower]]:
    """One FluxJob, and a client that reads on from there."""
    async with Database(settings_for(database_url), role="test") as database:
        rows = Rows(database, settings=settings_for(database_url))
        await rows.see(workload("a"))
        yield rows, Follower(database, await last_line(database))


@pytest.mark.long("starts processes of its own, for seconds of processor time")
async def test_it_survives_the_database_being_away(
    own_postgres: LocalPostgres, tmp_path: Path
) -> None:
    """503 with Retry-After meanwhile. Then everything as before, followers included."""
    url = own_postgres.url
    async with (
        filled(url) as rows,
        viewing(url, tmp_path, db_pool_timeout_s=1.0) as view,
        _following(view, "/changes", "admin") as stream,
    ):
        assert (await view.get("/queue")).code == 200
        await asyncio.to_thread(own_postgres.stop)
        for _ in range(3):
            answer = await view.get("/queue")
            assert answer.code == 503
            assert int(answer.headers["Retry-After"]) > 0
            assert "database" in answer.body["detail"]
        assert (await view.get("/whoami")).code == 200
        await asyncio.to_thread(own_postgres.start)
        answers = await asyncio.gather(*(view.get("/queue") for _ in range(20)))
        assert {one.code for one in answers} == {200}
        with suppress(DatabaseUnavailable):  # the test's own connections do not know of it yet
            await rows.fetch("SELECT 1")
        await steering.hold(rows.database, "default", ["last"], "carol")
        assert json.loads((await stream.next())["data"])["name"] == "last"


async def test_it_cannot_write(view: Viewing) -> None:
    """Not even by a defect: its sessions are a role that may only look."""
    (found,) = await dicts(
        view.server._reader,
        "SELECT current_user AS who, current_setting('transaction_read_only') AS is_read_only",
    )
    assert found == {"who": "fluxqueue_reader", "is_read_only": "on"}


async def test_a_login_that_may_not_look_is_told_the_way_out(database_url: str) -> None:
    """Before a request: a user outside the role, and one that is put into it."""
    login = urlsplit(database_url)._replace(
        netloc=f"looks_only:x@{urlsplit(database_url).hostname}"
    )
    url = urlunsplit(login._replace(netloc=f"{login.netloc}:{urlsplit(database_url).port}"))
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute("CREATE ROLE looks_only LOGIN PASSWORD 'x'")
        try:
            async with DatabaseReader(settings_for(url), role="view") as reader:
                with pytest.raises(InvalidSettings, match="may not act as fluxqueue_reader"):
                    await reader.check()
            admin.execute("GRANT fluxqueue_reader TO looks_only")
            async with DatabaseReader(settings_for(url), role="view") as reader:
                await reader.check()
                assert await dicts(reader, "SELECT count(*) AS number FROM fluxjobs") == [
                    {"number": 0}
                ]
        finally:
            admin.execute("DROP ROLE looks_only")
    away = settings_for("postgresql://nobody@127.0.0.1:1/none")
    async with DatabaseReader(away, role="view") as reader:
        await reader.check()


async def test_too_much_at_once_is_put_off(view: Viewing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than kept waiting in memory."""
    usual = view.server._places
    view.server._places = RequestPlaces(0, 0)
    answer = await view.get("/queue")
    assert (answer.code, answer.headers["Retry-After"]) == (503, "1")
    monkeypatch.setattr("fluxqueue.view.change_stream.FOLLOWERS_MAX", 0)
    view.server._places = usual
    assert (await view.get("/changes")).code == 503


async def test_one_user_cannot_take_all_streams(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others follow on. A stream that ends makes room for the next."""
    monkeypatch.setattr("fluxqueue.view.change_stream.FOLLOWERS_EACH", 2)
    async with filled(database_url), viewing(database_url, tmp_path) as view:
        await view.let("ursula", ("fluxjobs", "other"))
        async with _following(view, "/changes", "ursula"):
            async with _following(view, "/changes", "ursula"):
                answer = await view.get("/changes", "ursula")
                assert (answer.code, "2 streams" in answer.body["detail"]) == (503, True)
                async with _following(view, "/changes", "admin"):
                    pass

            await eventually(lambda: view.server._feed.followers == 1, "the second has ended")
            async with _following(view, "/changes", "ursula"):
                pass


async def test_a_key_that_no_statement_takes_is_refused(view: Viewing) -> None:
    """A NUL, or a number beyond 64 bits, in what a page is to begin behind."""
    for key in (["\0"], ["a", "b\0"], [2**63], [-(2**70)], [True, "\0"]):
        token = base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")
        for path in ("/nodes", "/queue", "/accounting", "/jobs"):
            answer = await view.get(f"{path}?continue={token}")
            assert answer.code == 400, (path, key, answer.body)


async def test_more_namespaces_than_are_asked_about(
    view: Viewing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user without a view of all says which one is meant."""
    monkeypatch.setattr("fluxqueue.view.http_server.NAMESPACES_MAX", 1)
    await view.let("ursula", ("fluxjobs", "other"))
    answer = await view.get("/queue", "ursula")
    assert answer.code == 403
    assert "?namespace=a,b" in answer.body["detail"]
    assert (await view.get("/queue?namespace=other", "ursula")).names == ["next"]
    assert (await view.get("/queue")).code == 200


def test_the_document_is_valid() -> None:
    """By the OpenAPI initiative's own schema, references included."""
    from openapi_spec_validator import validate

    validate(document())
