"""``fluxqueue history`` and ``acct``: by the kubeconfig alone, from the view server it finds."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from fluxqueue.db.database import Database
from fluxqueue.errors import ApiUnavailable
from fluxqueue.kube.installation import VIEW_NAME, VIEW_NAMESPACE, forget_view, put, tell_view
from fluxqueue.kube.resources import CONFIGMAPS
from tests.support import steering
from tests.support.pool_model import request
from tests.support.rows import Rows, settings_for, workload
from tests.support.typing_verbs import Told, Typist
from tests.support.viewing import Viewing, viewing


@dataclass
class Desk:
    """A shell with a cluster that names a view server."""

    typist: Typist
    view: Viewing

    async def type(self, *words: str) -> Told:
        """Run one command line."""
        return await self.typist.type(*words)


@pytest_asyncio.fixture
async def desk(database_url: str, tmp_path: Path) -> AsyncIterator[Desk]:
    """``over`` of ada was cancelled, in ``default`` and in ``other``. ``a`` is held by carol."""
    async with (
        Database(settings_for(database_url), role="test") as database,
        viewing(database_url, tmp_path) as view,
    ):
        rows = Rows(database, settings=settings_for(database_url))
        gone = [
            workload(uid, request(cpu=1), user_name="ada", workload_name="over", namespace=where)
            for uid, where in (("over-1", "default"), ("over-2", "other"))
        ]
        await rows.see(*gone, workload("a", user_name="bob"))
        await rows.see(*(_leaving(one) for one in gone))
        await rows.reconcile("over-1", "over-2")
        await steering.hold(database, "default", ["a"], "carol")
        kubeconfig = tmp_path / "kubeconfig"
        view.cluster.write_kubeconfig(kubeconfig)
        await tell_view(view.client, view.url, view.authority)
        yield Desk(Typist(view.client, kubeconfig), view)


def _leaving(seen: object) -> object:
    from dataclasses import replace

    return replace(seen, is_deleting=True)  # type: ignore[type-var]


async def test_what_happened_to_a_job(desk: Desk) -> None:
    """By name or jobid, in forms for people and programs. Unknown is no empty table."""
    told = await desk.type("history", "a")
    assert told.code == 0, told.err
    assert told.lines[0] == ["AT", "JOBID", "ACTOR", "EVENT", "WHAT"]
    assert [line[2:4] for line in told.lines[1:]] == [
        ["test", "Pending"], ["carol", "hold"], ["carol", "Held"]
    ]  # fmt: skip
    lines = json.loads((await desk.type("history", "3", "-o", "json")).out)
    assert [one["event"] for one in lines] == ["Pending", "hold", "Held"]
    rows = list(csv.DictReader(io.StringIO((await desk.type("history", "a", "-o", "csv")).out)))
    assert [row["actor"] for row in rows] == ["test", "carol", "carol"]
    assert yaml.safe_load((await desk.type("history", "3", "-o", "yaml")).out) == lines
    unknown = await desk.type("history", "nobody")
    assert (unknown.code, unknown.out) == (1, "")
    assert "nobody: not found" in unknown.err


async def test_who_used_how_much(desk: Desk) -> None:
    """Sums, runs, one workload's runs. By namespace, user, period. Table, CSV and JSON."""
    told = await desk.type("acct")
    assert told.lines[0] == [
        "USER", "QUEUE", "NAMESPACE", "RUNS", "CPU-HOURS", "GPU-HOURS", "MEAN-WAIT"
    ]  # fmt: skip
    assert [line[:4] for line in told.lines[1:]] == [["ada", "default", "default", "1"]]
    found = json.loads((await desk.type("acct", "-A", "--by", "user", "-o", "json")).out)
    assert [(one["user"], one["runs"]) for one in found] == [("ada", 2)]
    runs = await desk.type("acct", "-A", "--runs", "-o", "csv", "--since", "1h")
    assert {row["namespace"] for row in csv.DictReader(io.StringIO(runs.out))} == {
        "default",
        "other",
    }
    assert len((await desk.type("acct", "-A", "--runs", "--limit", "1")).lines) == 2
    one = await desk.type("acct", "over", "-n", "other", "-o", "wide")
    assert [line[0] for line in one.lines[1:]] == ["other"]
    assert json.loads((await desk.type("acct", "-u", "bob", "-o", "json")).out) == []
    empty = await desk.type("acct", "--until", "2020-01-01")
    assert (empty.code, empty.out) == (0, "")
    assert "no runs found" in empty.err


async def test_it_says_how_to_reach_what_is_not_there(desk: Desk) -> None:
    """No view server, one that is away, one that cannot learn who asks, one that refuses."""
    refused = await desk.type("acct", "--by", "colour")
    assert refused.code == 2
    assert "by = 'colour': is not known" in refused.err
    token = await desk.view.let("ursula", ("fluxjobs", "other"))
    hers = await desk.type("history", "a", "--token", token)
    assert hers.code == 1
    assert "may not list fluxjobs in namespace default" in hers.err
    assert (await desk.type("history", "over", "-n", "other", "--token", token)).code == 0
    masked = await desk.type("history", "a", "--as", "ursula")
    assert masked.code == 2
    assert "--token" in masked.err
    kubeconfig = yaml.safe_load(desk.typist.kubeconfig.read_text())
    kubeconfig["users"][0]["user"] = {}
    bare = desk.typist.kubeconfig.with_name("bare")
    bare.write_text(json.dumps(kubeconfig))
    nobody = await desk.type("history", "a", "--kubeconfig", str(bare))
    assert nobody.code == 2
    assert "kubectl create token" in nobody.err
    # Where no URL is known the API server's own proxy is the way. This one has none, and says so.
    data = {"url": None, "ca.crt": None, "service": "https:fq-view:https", "namespace": "fq"}
    body = {"metadata": {"name": VIEW_NAME}, "data": data}
    await put(desk.view.client, CONFIGMAPS, body, namespace=VIEW_NAMESPACE)
    with pytest.raises(ApiUnavailable, match=r"501 .*/services/https:fq-view:https/proxy/api/v1/"):
        await desk.type("history", "a")
    with pytest.raises(ApiUnavailable, match="certificate"):  # as cli.main prints it
        await desk.type("history", "a", "--view", desk.view.url)
    await forget_view(desk.view.client)
    nowhere = await desk.type("history", "a")
    assert nowhere.code == 1
    assert "view.enabled=true" in nowhere.err
    assert (await desk.type("history", "a", "-o", "xml")).code == 2


@pytest.mark.cases_long("other words, each in a process of its own")
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("acct", "over", "-u", "ada"), "leave the other options out"),
        (("acct", "-o", "xml"), "invalid output format 'xml'"),
        (("acct", "--since", "someday"), "since = 'someday': is not a time"),
        (("history", "a", "--view", "notaurl"), "--view = 'notaurl'"),
        (("history", "a", "--view", "http://view.example.org"), "by https only"),
        (("history", "a", "--token", "forged"), "--token: the view server does not know this"),
    ],
)
async def test_bad_input(desk: Desk, words: tuple[str, ...], complaint: str) -> None:
    """Exit code 2, and what is wrong."""
    told = await desk.type(*words)
    assert told.code == 2
    assert complaint in told.err


async def test_a_view_server_that_is_down_is_named(desk: Desk) -> None:
    """And not taken for the API server."""
    with pytest.raises(ApiUnavailable, match=r"the view server does not answer: .*127\.0\.0\.1:9"):
        await desk.type("history", "a", "--view", "https://127.0.0.1:9")  # as cli.main prints it
