"""When something starts: PlacementReviews, ``fluxqueue explain``, and what each user sees."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fluxqueue.errors import ApiError
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import (
    CLUSTER_ROLES,
    JOBS,
    PLACEMENT_REVIEWS,
    PRIORITY_CLASSES,
    ROLE_BINDINGS,
)
from tests.support.e2e.explaining import RBAC, ask
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.objects import FOR_EVER, Obj, job
from tests.support.e2e.space import Space
from tests.support.typing_verbs import Typist
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


async def _status(space: Space, client: KubeClient | None = None, **spec: Any) -> Obj:
    status: Obj = (await ask(space, client, **spec))["status"]
    return status


def _variants(status: Obj) -> dict[str, str]:
    return {one["text"]: one["verdict"] for one in status.get("variants", ())}


def _shell(space: Space) -> Typist:
    return Typist(space.client, space.world.kubeconfig)


async def test_the_answer_is_what_then_happens(space: Space) -> None:
    """Now on these nodes, later at that time, never: and so it is when it is submitted."""
    one_hour = {"duration": "1h"}
    fits = job("fits", pods=2, cpu="16", pool="main", run=FOR_EVER, wishes=one_hour)
    said = await _status(space, manifest=fits)
    assert said["verdict"] == "Now"
    await space.create(fits)
    ran = await space.until_state("fits", "Running")
    assert ran["status"]["nodes"] == said["nodes"]
    again = await _status(space, fluxJob="fits-job")
    assert (again["verdict"], again["reason"], again["nodes"]) == (
        "Now",
        "HasItsNodes",
        said["nodes"],
    )

    wide = job("wide", pods=4, cpu="16", pool="main", run=FOR_EVER, wishes=one_hour)
    said = await _status(space, manifest=wide)
    assert (said["verdict"], said["certainty"]) == ("Later", "Promised")
    (blocker,) = said["blockers"]
    assert (blocker["name"], blocker["nodes"], blocker["state"]) == ("fits", 2, "Running")
    assert _variants(said)["with 2 pods instead of 4"] == "Now"
    (kind,) = said["kinds"]
    checks = {one["name"]: (one["nodes"], one["freeNodes"]) for one in kind["checks"]}
    assert checks["pool=main"] == (4, 4)
    assert checks["16 cpu"] == (5, 3)
    assert (kind["wanted"], kind["together"]["units"], kind["together"]["freeUnits"]) == (4, 4, 2)
    await space.create(wide)
    waits = await space.until_state("wide", "Reserved")
    assert waits["status"]["expectedStart"] == said["expectedStart"]
    again = await _status(space, fluxJob="wide-job")
    assert (again["verdict"], again["expectedStart"]) == ("Later", said["expectedStart"])
    assert again["queue"]["position"] == 1

    behind = job("behind", pods=3, cpu="10", pool="main", run=FOR_EVER, wishes={"duration": "2h"})
    said = await _status(space, manifest=behind)
    assert (said["verdict"], said["queue"]["position"]) == ("Later", 2)
    never = job("never", cpu="17", pool="main")
    said = await _status(space, manifest=never)
    assert (said["verdict"], said["reason"]) == ("Never", "Unsatisfiable")
    assert "with 16 cpu for each pod instead of 17" in _variants(said)
    await space.create(never)
    await space.until_state("never", "Unsatisfiable")
    await assert_invariants(space.world)


async def test_backfilling_and_changes(space: Space) -> None:
    """A shorter run fits before a promise, so says the variant, the change, and the queue."""
    await space.create(
        job("first", cpu="10", pool="single", run=FOR_EVER, wishes={"duration": "1h"})
    )
    await space.until_state("first", "Running")
    await space.create(job("head", cpu="16", pool="single", wishes={"duration": "1h"}))
    await space.until_state("head", "Reserved")
    small = job("small", cpu="4", pool="single", run=FOR_EVER, wishes={"duration": "3h"})
    said = await _status(space, manifest=small)
    assert (said["verdict"], said["reason"]) == ("Later", "PromisedToOthers")
    assert [one["name"] for one in said["blockers"]] == ["head"]
    (shorter,) = [one for one in said["variants"] if one["field"] == "durationSeconds"]
    assert shorter["verdict"] == "Now"
    assert 3300 < int(shorter["value"]) <= 3600
    changed = await _status(space, manifest=small, changes={"durationSeconds": 1800})
    assert changed["verdict"] == "Now"
    await space.create(small)
    await space.until_state("small", "Pending")
    same = await _status(space, fluxJob="small-job", changes={"durationSeconds": 1800})
    assert same["verdict"] == "Now"
    elsewhere = await _status(space, fluxJob="small-job", changes={"queue": "nowhere"})
    assert (elsewhere["verdict"], elsewhere["reason"]) == ("Never", "RefusedByQueue")
    await space.create(job("kept", cpu="4", pool="single", wishes={"hold": "true"}))
    await space.until_state("kept", "Held")
    held = await _status(space, fluxJob="kept-job")
    assert (held["verdict"], held["reason"]) == ("Later", "Held")
    assert list(_variants(held)) == ["if it is released"]
    short = dict(small, metadata={"name": "s", "annotations": {"fluxqueue/duration": "30m"}})
    await space.create(short)
    await space.until_state("s", "Running")
    await assert_invariants(space.world)


async def test_what_cannot_be_asked_is_refused(space: Space) -> None:
    """With field, value and way out: at admission, or in the status where only rows know it."""
    for spec, words in (
        ({}, "give .*fluxJob"),
        (
            {"manifest": {"apiVersion": "v1", "kind": "Service"}},
            r"spec\.manifest\.kind.*give a Job",
        ),
        ({"jobspec": {"resources": "many"}}, r"spec\.jobspec"),
        ({"fluxJob": "a", "changes": {"within": "galaxy"}}, r"spec\.changes\.within.*one of"),
        (
            {"fluxJob": "a", "changes": {"requests": {"cpu": "lots"}}},
            r"spec\.changes\.requests\.cpu",
        ),
    ):
        with pytest.raises(ApiError, match=words):
            await ask(space, **spec)
    missing = await _status(space, fluxJob="nothing-job")
    assert "verdict" not in missing
    assert missing["reason"] == "NotFound"
    assert "spec.fluxJob = 'nothing-job'" in missing["message"]
    made = await space.client.create(
        PLACEMENT_REVIEWS,
        space.name,
        {
            "apiVersion": PLACEMENT_REVIEWS.api_version,
            "kind": PLACEMENT_REVIEWS.kind,
            "metadata": {"name": "fixed"},
            "spec": {"manifest": job("x"), "asker": {"username": "somebody-else"}},
        },
    )
    assert made["spec"]["asker"]["username"] != "somebody-else"
    with pytest.raises(ApiError, match="create another"):
        await space.client.patch(
            PLACEMENT_REVIEWS, space.name, "fixed", {"spec": {"fluxJob": "other"}}
        )
    await space.client.delete(PLACEMENT_REVIEWS, space.name, "fixed")


async def test_explain_in_words_and_exit_codes(space: Space, tmp_path: Path) -> None:
    """0 now, 3 later, 4 never, 2 what is not there. Prose and tables, JSON for programs."""
    shell = _shell(space)
    await space.create(
        job("full", cpu="16", pool="single", run=FOR_EVER, wishes={"duration": "1h"})
    )
    await space.until_state("full", "Running")
    await space.create(job("waits", cpu="16", pool="single", wishes={"duration": "1h"}))
    await space.until_state("waits", "Reserved")
    here = ("-n", space.name)
    now = await shell.type("explain", "full", *here)
    assert (now.code, now.lines[0][0]) == (0, "full")
    later = await shell.type("explain", "waits", *here)
    assert later.code == 3, later
    assert "later" in later.out
    assert "number 1 of 1 in queue default" in later.out
    assert ["IN", "THE", "WAY"] in [line[:3] for line in later.lines]
    assert any(line[:1] == ["full"] for line in later.lines)
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job("never", cpu="99")))
    never = await shell.type("explain", "-f", str(file), *here)
    assert (never.code, "never without a change" in never.out) == (4, True)
    file.write_text(json.dumps(job("gone", cpu="1", pool="main")))
    fits = await shell.type("explain", "-f", str(file), "-o", "json", *here)
    assert fits.code == 0
    assert json.loads(fits.out)["status"]["verdict"] == "Now"
    assert (await shell.type("explain", "-f", str(file), "--request", "cpu=99", *here)).code == 4
    assert (await shell.type("explain", "nobody", *here)).code == 2
    bad = await shell.type("explain", "-f", str(file), "--within", "galaxy", *here)
    assert bad.code == 1
    assert "is no level of this cluster" in bad.err
    dry = await shell.type(
        "submit", "--image", "x", "--cpus", "1", "--dry-run", *here, "--", "true"
    )
    assert dry.code == 0, dry.err
    assert ": now" in dry.out
    assert not (await space.client.list(PLACEMENT_REVIEWS, space.name)).items
    assert len((await space.client.list(JOBS, space.name)).items) == 2


async def test_too_many_are_told_to_come_again(space: Space) -> None:
    """Endless questions get so many answers, then the seconds after which to ask."""
    eager = await _let_ask(space, "eager")

    async def ask(number: int) -> None:
        body = {
            "apiVersion": PLACEMENT_REVIEWS.api_version,
            "kind": PLACEMENT_REVIEWS.kind,
            "metadata": {"name": f"eager-{number}"},
            "spec": {"manifest": job("x")},
        }
        await eager.create(PLACEMENT_REVIEWS, space.name, body)

    # At once: the allowance grows with time, and a slow machine must not give more of it.
    await asyncio.gather(*map(ask, range(40)))

    async def all_told() -> list[Obj] | None:
        found = (await space.client.list(PLACEMENT_REVIEWS, space.name)).items
        told = [one["status"] for one in found if (one.get("status") or {}).get("answeredAt")]
        return told if len(told) == 40 else None

    told = await eventually(all_told, "all are answered")
    assert told is not None
    refused = [one for one in told if one["reason"] == "TooMany"]
    assert 10 <= len(refused) < 40
    for one in refused:
        assert one["retryAfterSeconds"] >= 1
        assert f"try again in {one['retryAfterSeconds']} s" in one["message"]
    assert all(one["verdict"] == "Now" for one in told if one not in refused)


async def _let_ask(space: Space, user: str) -> KubeClient:
    """A user that may make reviews in this namespace, and nothing else."""
    rule = {
        "apiGroups": [PLACEMENT_REVIEWS.group],
        "resources": ["placementreviews"],
        "verbs": ["create"],
    }
    role = {"metadata": {"name": f"{space.name}-asks"}, "rules": [rule]}
    await space.client.create(CLUSTER_ROLES, None, role)
    binding = {
        "metadata": {"name": f"asks-{user}"},
        "subjects": [{"kind": "User", "name": user, "apiGroup": RBAC}],
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": f"{space.name}-asks"},
    }
    await space.client.create(ROLE_BINDINGS, space.name, binding)
    acting = space.client.acting_as(user)

    async def may_ask() -> bool:
        """The API server reads rights some time after they are written."""
        body = {
            "apiVersion": PLACEMENT_REVIEWS.api_version,
            "kind": PLACEMENT_REVIEWS.kind,
            "metadata": {"name": "may-i"},
            "spec": {"manifest": job("x")},
        }
        try:
            await acting.create(PLACEMENT_REVIEWS, space.name, body, dry_run=True)
        except ApiError:
            return False
        return True

    await eventually(may_ask, f"{user} may ask")
    return acting


async def test_the_class_of_a_manifest_gives_its_priority(space: Space) -> None:
    """As it does once it is submitted. What its author writes wins, and only lowers it."""
    name = f"{space.name}-class"
    made = {"apiVersion": PRIORITY_CLASSES.api_version, "kind": "PriorityClass", "value": 70}
    await space.client.create(PRIORITY_CLASSES, None, made | {"metadata": {"name": name}})
    urgent, critical = job("urgent"), job("critical")
    urgent["spec"]["template"]["spec"]["priorityClassName"] = name
    critical["spec"]["template"]["spec"]["priorityClassName"] = "system-node-critical"

    async def priority(manifest: object, **more: object) -> int:
        found = await _status(space, manifest=manifest, **more)
        return int(found["queue"]["priority"])

    assert [await priority(one) for one in (job("plain"), urgent, critical)] == [0, 70, 0]
    assert await priority(urgent, changes={"priority": 7}) == 0
    urgent["metadata"]["annotations"] = {"fluxqueue/priority": "-5"}
    assert await priority(urgent) == -5
