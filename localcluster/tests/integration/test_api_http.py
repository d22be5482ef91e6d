"""The API server over real HTTP and TLS: answers that clients branch on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from localcluster.obj import Obj
from localcluster.server import reads
from localcluster.server.server import ApiServer, ApiServerConfig
from tests.integration.conftest import TABLE, Api, kinds, until
from tests.support.waiting import WAIT_S

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


def config_map(name: str, value: str = "1", **meta: Any) -> Obj:
    """A ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **meta},
        "data": {"v": value},
    }


def pod(name: str, **spec: Any) -> Obj:
    """A pod that is not scheduled."""
    containers = [{"name": "main", "image": "registry.example/app:1"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": containers, "schedulerName": "nobody", **spec},
    }


class TestAccess:
    """Tokens, impersonation, paths."""

    async def test_no_token_no_answer(self, api: Api) -> None:
        """401 everywhere, health included."""
        for token in ("wrong", "a.b.c"):
            api.token = token
            for path in ("/healthz", "/version", PODS):
                reply = await api.call("GET", path)
                assert (reply.code, reply.body["reason"]) == (401, "Unauthorized")

    async def test_a_service_account_token_is_that_user(self, api: Api) -> None:
        """Issued by TokenRequest, dead with its account."""
        accounts = "/api/v1/namespaces/default/serviceaccounts"
        body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "w"}}
        await api.ok("POST", accounts, body)
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        made = await api.ok("POST", f"{accounts}/w/token", request)
        api.token = made["status"]["token"]
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        who = await api.ok("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
        assert who["status"]["userInfo"]["username"] == "system:serviceaccount:default:w"
        assert (await api.call("GET", PODS)).code == 403
        await Api(api.server, api.session).ok("DELETE", f"{accounts}/w")
        assert (await api.call("GET", PODS)).code == 401

    @pytest.mark.parametrize(
        ("method", "path", "code"),
        [
            ("GET", "/api/v1/unknowns", 404),
            ("GET", "/apis/batch/v9/jobs", 404),
            ("GET", f"{PODS}/nope", 404),
            ("GET", f"{PODS}/nope/nothing", 404),
            ("GET", "/nonexistent", 404),
            ("GET", f"{PODS}/a/exec", 501),
            ("GET", "/api/v1/resourcequotas", 501),
            ("GET", "/apis/batch/v1/cronjobs", 501),
            ("POST", "/apis/batch/v1/namespaces/default/cronjobs", 501),
            ("GET", "/apis/metrics.k8s.io/v1beta1/pods", 501),
            ("PUT", PODS, 405),
            ("POST", f"{PODS}/a", 405),
            ("OPTIONS", PODS, 405),
            ("DELETE", "/api/v1/pods", 405),
            ("POST", "/api/v1/pods", 405),
        ],
    )
    async def test_paths_and_methods(self, api: Api, method: str, path: str, code: int) -> None:
        """What is not there and what is not offered."""
        body = pod("a") if method in ("PUT", "POST") else None
        assert (await api.call(method, path, body)).code == code


class TestWrites:
    """Create, update, patch and their conflicts."""

    async def test_optimistic_concurrency(self, api: Api) -> None:
        """A stale PUT or PATCH is 409. Without a version a config map is overwritten."""
        first = await api.ok("POST", MAPS, config_map("a"))
        second = await api.ok("PATCH", f"{MAPS}/a", {"data": {"v": "2"}}, patch="merge")
        assert int(second["metadata"]["resourceVersion"]) > int(
            first["metadata"]["resourceVersion"]
        )
        assert (await api.call("PUT", f"{MAPS}/a", first)).body["reason"] == "Conflict"
        stale = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}}
        assert (await api.call("PATCH", f"{MAPS}/a", stale, patch="merge")).code == 409
        assert (await api.ok("PUT", f"{MAPS}/a", config_map("a", "3")))["data"] == {"v": "3"}

    async def test_concurrent_patches_all_take_effect(self, api: Api) -> None:
        """Patches without a version never conflict with each other."""
        await api.ok("POST", MAPS, config_map("a"))

        async def add(index: int) -> None:
            body = {"data": {f"k{index}": "x"}}
            await api.ok("PATCH", f"{MAPS}/a", body, patch="merge")

        await asyncio.gather(*(add(index) for index in range(30)))
        assert len((await api.ok("GET", f"{MAPS}/a"))["data"]) == 31

    async def test_generated_names(self, api: Api) -> None:
        """Five random characters. Two creations differ."""
        body = config_map("", generateName="job-")
        del body["metadata"]["name"]
        names = {(await api.ok("POST", MAPS, body))["metadata"]["name"] for _ in range(5)}
        assert len(names) == 5
        assert all(len(name) == len("job-") + 5 for name in names)

    async def test_a_patch_without_effect_is_silent(self, api: Api) -> None:
        """No new version, no event."""
        made = await api.ok("POST", MAPS, config_map("a"))
        events = await api.watch(MAPS, resourceVersion=made["metadata"]["resourceVersion"])
        same = await api.ok("PATCH", f"{MAPS}/a", {"data": {"v": "1"}}, patch="merge")
        assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
        await api.ok("DELETE", f"{MAPS}/a")
        await until(lambda: events, "the deletion")
        assert kinds(events) == ["DELETED a"]

    async def test_status_is_apart(self, api: Api) -> None:
        """The main path keeps status, /status keeps spec."""
        await api.ok("POST", PODS, {**pod("p"), "status": {"phase": "Running"}})
        status = {"spec": {"nodeName": "x"}, "status": {"phase": "Running"}}
        got = await api.ok("PATCH", f"{PODS}/p/status", status, patch="strategic")
        assert got["status"]["phase"] == "Running"
        assert "nodeName" not in got["spec"]
        both = {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Failed"}}
        got = await api.ok("PATCH", f"{PODS}/p", both, patch="merge")
        assert (got["metadata"]["labels"], got["status"]["phase"]) == ({"a": "b"}, "Running")

    async def test_binding(self, api: Api) -> None:
        """Once. A gated pod never."""
        await api.ok("POST", PODS, pod("p"))
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "p"},
            "target": {"kind": "Node", "name": "n"},
        }
        assert (await api.ok("POST", f"{PODS}/p/binding", body))["status"] == "Success"
        assert (await api.ok("GET", f"{PODS}/p"))["spec"]["nodeName"] == "n"
        assert (await api.call("POST", f"{PODS}/p/binding", body)).code == 409
        await api.ok("POST", PODS, pod("g", schedulingGates=[{"name": "x/y"}]))
        gated = {**body, "metadata": {"name": "g"}}
        assert (await api.call("POST", f"{PODS}/g/binding", gated)).code == 409

    async def test_dry_run_changes_nothing(self, api: Api) -> None:
        """Create, patch and delete answer as if."""
        made = await api.ok("POST", MAPS, config_map("d"), dryRun="All")
        assert made["metadata"]["uid"]
        assert "resourceVersion" not in made["metadata"]
        assert (await api.call("GET", f"{MAPS}/d")).code == 404
        await api.ok("POST", MAPS, config_map("a"))
        got = await api.ok("PATCH", f"{MAPS}/a", {"data": {"v": "9"}}, patch="merge", dryRun="All")
        assert got["data"] == {"v": "9"}
        await api.ok("DELETE", f"{MAPS}/a", dryRun="All")
        assert (await api.ok("GET", f"{MAPS}/a"))["data"] == {"v": "1"}
        assert (await api.call("DELETE", f"{MAPS}/a", dryRun="Some")).code == 422

    async def test_field_validation(self, api: Api) -> None:
        """Unknown and repeated fields: refused, warned about, or ignored."""
        body = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","name":"y"},"dat":{}}'
        strict = await api.call("POST", MAPS, body, fieldValidation="Strict")
        assert strict.code == 400
        warned = await api.call("POST", MAPS, body)
        assert warned.code == 201
        assert warned.body["metadata"]["name"] == "y"
        assert '299 - "duplicate field \\"metadata.name\\""' in warned.warnings
        assert '299 - "unknown field \\"dat\\""' in warned.warnings
        await api.ok("DELETE", f"{MAPS}/y")
        assert (await api.call("POST", MAPS, body, fieldValidation="Ignore")).warnings == []


class TestApply:
    """Server-side apply over HTTP."""

    async def apply(self, api: Api, manager: str, data: Obj, **more: str) -> Any:
        """Apply a config map."""
        body = {**config_map("a"), "data": data}
        return await api.call(
            "PATCH", f"{MAPS}/a", body, patch="apply", fieldManager=manager, **more
        )

    async def test_create_conflict_force_give_up(self, api: Api) -> None:
        """The life of a field with two managers."""
        assert (await self.apply(api, "alice", {"x": "1", "y": "1"})).code == 201
        clash = await self.apply(api, "bob", {"x": "2"})
        assert clash.code == 409
        assert clash.body["details"]["causes"] == [
            {
                "reason": "FieldManagerConflict",
                "message": 'conflict with "alice"',
                "field": ".data.x",
            }
        ]
        forced = await self.apply(api, "bob", {"x": "2"}, force="true")
        assert forced.body["data"] == {"x": "2", "y": "1"}
        given_up = await self.apply(api, "alice", {})
        assert given_up.body["data"] == {"x": "2"}, "y goes, x is bob's"

    async def test_an_update_is_an_owner_too(self, api: Api) -> None:
        """Fields written by PATCH conflict with an apply that wants another value."""
        await api.ok("POST", MAPS, config_map("a"))
        await api.ok(
            "PATCH", f"{MAPS}/a", {"data": {"w": "1"}}, patch="merge", fieldManager="carol"
        )
        clash = await self.apply(api, "alice", {"w": "2"})
        assert clash.body["message"] == (
            'Apply failed with 1 conflict: conflict with "carol" using v1: .data.w'
        )
        assert (await self.apply(api, "alice", {"w": "1"})).code == 200, "equal values are shared"

    async def test_without_manager(self, api: Api) -> None:
        """fieldManager is required."""
        body = config_map("a")
        assert (await api.call("PATCH", f"{MAPS}/a", body, patch="apply")).code == 422


class TestListAndWatch:
    """Selectors, pages, streams, expiry."""

    async def test_pages_show_one_moment(self, api: Api) -> None:
        """Changes between two pages are not seen."""
        for name in "abcde":
            await api.ok("POST", MAPS, config_map(name))
        first = await api.ok("GET", MAPS, limit="2")
        assert first["metadata"]["remainingItemCount"] == 3
        await api.ok("DELETE", f"{MAPS}/d")
        token = first["metadata"]["continue"]
        rest = await api.ok("GET", MAPS, **{"continue": token})
        assert [i["metadata"]["name"] for i in rest["items"]] == ["c", "d", "e"]
        assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        assert "kind" not in rest["items"][0], "items of built-in lists have no type"

    async def test_history_then_live_without_a_gap(self, api: Api) -> None:
        """A watch from a list's version sees every later event once, in order."""
        await api.ok("POST", MAPS, config_map("a"))
        listed = await api.ok("GET", MAPS)
        await api.ok("POST", MAPS, config_map("b"))
        events = await api.watch(MAPS, resourceVersion=listed["metadata"]["resourceVersion"])
        for index in range(20):
            await api.ok("PATCH", f"{MAPS}/a", {"data": {"v": f"x{index}"}}, patch="merge")
        await until(lambda: len(events) == 21, "all events")
        assert kinds(events) == ["ADDED b", *["MODIFIED a"] * 20]
        assert [e["object"]["data"]["v"] for e in events[1:]] == [f"x{i}" for i in range(20)]

    async def test_initial_events_end_with_a_bookmark(self, api: Api) -> None:
        """sendInitialEvents, as informers of newer clients ask."""
        await api.ok("POST", MAPS, config_map("a"))
        events = await api.watch(
            MAPS,
            sendInitialEvents="true",
            resourceVersionMatch="NotOlderThan",
            allowWatchBookmarks="true",
        )
        await until(lambda: len(events) == 2, "object and bookmark")
        assert [e["type"] for e in events] == ["ADDED", "BOOKMARK"]
        marks = events[1]["object"]["metadata"]["annotations"]
        assert marks == {"k8s.io/initial-events-end": "true"}

    async def test_bookmarks_come_while_nothing_happens(
        self, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Their version is the newest of the server."""
        monkeypatch.setattr(reads, "BOOKMARK_EVERY_S", 0.05)
        events = await api.watch(MAPS, allowWatchBookmarks="true", resourceVersion="0")
        other = await api.ok("POST", PODS, pod("elsewhere"))
        version = other["metadata"]["resourceVersion"]

        def is_told() -> bool:
            return any(e["object"]["metadata"]["resourceVersion"] == version for e in events)

        await until(is_told, "a bookmark at the newest version")

    async def test_a_watch_ends_at_its_timeout(self, api: Api) -> None:
        """The stream simply ends."""
        events = await api.watch(MAPS, timeoutSeconds="1", resourceVersion="999999999")
        await api.ok("POST", MAPS, config_map("a"))
        await until(lambda: events, "the end")
        assert events == [{"type": "END"}], "a watch from the future tells nothing"

    async def test_expired(self, api: Api, server: ApiServer) -> None:
        """Old watches get one ERROR event and end, old exact lists 410."""
        made = await api.ok("POST", MAPS, config_map("a"))
        await api.ok("POST", MAPS, config_map("b"))
        server.store.compact()
        events = await api.watch(MAPS, resourceVersion=made["metadata"]["resourceVersion"])
        await until(lambda: len(events) == 2, "error and end")
        assert (events[0]["type"], events[0]["object"]["code"]) == ("ERROR", 410)
        reply = await api.call(
            "GET",
            MAPS,
            resourceVersion=made["metadata"]["resourceVersion"],
            resourceVersionMatch="Exact",
        )
        assert (reply.code, reply.body["reason"]) == (410, "Expired")

    async def test_a_list_from_the_future(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        """504 with Retry-After once the wait is over."""
        monkeypatch.setattr(reads, "FUTURE_WAIT_S", 0.1)
        reply = await api.call("GET", MAPS, resourceVersion="999999999")
        assert (reply.code, reply.headers["Retry-After"]) == (504, "1")

    async def test_field_selector_watch_of_a_node(self, api: Api) -> None:
        """What a node agent does: pods appear when they are bound."""
        events = await api.watch("/api/v1/pods", fieldSelector="spec.nodeName=n")
        await api.ok("POST", PODS, pod("p"))
        await api.ok("POST", PODS, pod("q", nodeName="n"))
        binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
        typed = {"apiVersion": "v1", "kind": "Binding", **binding}
        await api.ok("POST", f"{PODS}/p/binding", typed)
        await until(lambda: len(events) == 2, "both pods")
        assert kinds(events) == ["ADDED q", "ADDED p"]


class TestForms:
    """Tables, metadata only, YAML."""

    async def test_table(self, api: Api) -> None:
        """Columns and rows. A watch names the columns once."""
        await api.ok("POST", PODS, pod("p"))
        await api.ok("POST", PODS, pod("q"))
        shown = await api.ok("GET", PODS, accept=TABLE)
        assert shown["kind"] == "Table"
        names = [c["name"] for c in shown["columnDefinitions"]]
        assert names[:5] == ["Name", "Ready", "Status", "Restarts", "Age"]
        assert [row["cells"][0] for row in shown["rows"]] == ["p", "q"]
        assert shown["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
        events = await api.watch(PODS, accept=TABLE)
        await until(lambda: len(events) == 2, "both rows")
        assert events[0]["object"]["columnDefinitions"]
        assert events[1]["object"]["columnDefinitions"] is None

    async def test_metadata_only_and_yaml(self, api: Api) -> None:
        """Forms chosen by Accept. An unknown one is 406."""
        await api.ok("POST", MAPS, config_map("a"))
        accept = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
        assert "data" not in await api.ok("GET", f"{MAPS}/a", accept=accept)
        text = await api.ok("GET", f"{MAPS}/a", accept="application/yaml")
        assert 'data:\n  v: "1"\n' in text
        assert (await api.call("GET", MAPS, accept="text/html")).code == 406

    async def test_yaml_body(self, api: Api) -> None:
        """YAML is accepted, other media types are 415."""
        body = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: y-map}\ndata: {a: '1'}\n"
        made = await api.ok("POST", MAPS, body, content_type="application/yaml")
        assert made["data"] == {"a": "1"}
        assert (await api.call("POST", MAPS, body, content_type="text/plain")).code == 415


class TestDeletion:
    """What the answer is and what stays."""

    async def test_answers(self, api: Api) -> None:
        """A Status for a config map, the object for a pod or when a finalizer holds it."""
        made = await api.ok("POST", MAPS, config_map("a"))
        gone = await api.ok("DELETE", f"{MAPS}/a")
        assert gone["details"] == {
            "name": "a",
            "kind": "configmaps",
            "uid": made["metadata"]["uid"],
        }
        await api.ok("POST", PODS, pod("p"))
        shown = await api.ok("DELETE", f"{PODS}/p")
        assert shown["metadata"]["deletionGracePeriodSeconds"] == 0
        await api.ok("POST", MAPS, config_map("held", finalizers=["example.com/x"]))
        held = await api.ok("DELETE", f"{MAPS}/held")
        assert held["metadata"]["deletionTimestamp"]
        again = await api.call("POST", MAPS, config_map("held"))
        assert again.body["message"].startswith("object is being deleted: ")
        await api.ok("PATCH", f"{MAPS}/held", {"metadata": {"finalizers": None}}, patch="merge")
        assert (await api.call("GET", f"{MAPS}/held")).code == 404

    async def test_preconditions(self, api: Api) -> None:
        """Another uid or version is 409."""
        await api.ok("POST", MAPS, config_map("a"))
        for wrong in ({"uid": "nope"}, {"resourceVersion": "1"}):
            reply = await api.call("DELETE", f"{MAPS}/a", {"preconditions": wrong})
            assert reply.code == 409

    async def test_a_job_warns_that_it_orphans(self, api: Api) -> None:
        """DELETE without a policy."""
        template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "j"},
            "spec": {"template": template},
        }
        jobs = "/apis/batch/v1/namespaces/default/jobs"
        await api.ok("POST", jobs, body)
        reply = await api.call("DELETE", f"{jobs}/j")
        assert reply.body["metadata"]["finalizers"] == ["orphan"]
        assert "child pods are preserved by default" in reply.warnings[0]

    async def test_collection(self, api: Api) -> None:
        """Only what the selector means, each with its own event."""
        for name, value in (("a", "1"), ("b", "1"), ("c", "2")):
            await api.ok("POST", MAPS, config_map(name, labels={"set": value}))
        events = await api.watch(MAPS)
        listed = await api.ok("DELETE", MAPS, labelSelector="set=1")
        assert [i["metadata"]["name"] for i in listed["items"]] == ["a", "b"]
        await until(lambda: len(events) == 5, "deletions")
        assert kinds(events)[3:] == ["DELETED a", "DELETED b"]


async def test_a_second_start_goes_on(tmp_path: Path) -> None:
    """Objects, definitions, token and authority outlive the process."""
    first = ApiServer(ApiServerConfig(data_dir=tmp_path))
    async with first:
        info = first.machinery.registry.lookup("", "v1", "configmaps")
        assert info is not None
        entry = first.store.create(info.storage, config_map("kept", namespace="default"))
    async with ApiServer(ApiServerConfig(data_dir=tmp_path)) as second:
        assert second.store.get("", "configmaps", "default", "kept") == entry.obj
        assert second.store.rv >= entry.rv
        assert (second.token, second.ca_pem) == (first.token, first.ca_pem)
        spaces = second.store.list("", "namespaces")
        assert sorted(s["metadata"]["name"] for s in spaces)[0] == "default"


async def test_stop_ends_watches(api: Api, server: ApiServer) -> None:
    """A server that stops does not wait for its watchers."""
    events = await api.watch(MAPS)
    async with asyncio.timeout(WAIT_S):
        await server.stop()
    await until(lambda: events and events[-1] == {"type": "END"}, "the end of the stream")


async def test_a_taken_port_is_an_error_that_leaves_nothing_open(
    server: ApiServer, tmp_path: Path
) -> None:
    """The journal of the server that could not start can be opened by the next one."""
    with pytest.raises(OSError, match="address already in use"):
        await ApiServer(ApiServerConfig(data_dir=tmp_path, port=server.port)).start()
    async with ApiServer(ApiServerConfig(data_dir=tmp_path)) as other:
        assert other.store.list("", "namespaces")
