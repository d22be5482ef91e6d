"""What a tenant with ``edit`` in one namespace may try in order to stop the queue for all others.

Each attack is a coroutine that gets the tenant and does its worst. ``test_attacks`` runs one after
the other while it probes. An attack asserts nothing by itself: probes, answers and logs are judged.
``make test`` runs each at a small part of its size, ``make adversary`` at the whole of it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from fluxqueue.kube.resources import (
    FLUX_NODE_POOLS,
    FLUXJOBS,
    JOBS,
    PLACEMENT_REVIEWS,
    PODS,
    REPLICASETS,
)
from tests.adversary.tenants import Tenant
from tests.support.e2e.group_members import member
from tests.support.e2e.objects import FOR_EVER, bare_pod, job
from tests.support.e2e.replica_sets import a_set
from tests.support.forger import flood
from tests.support.hostile_jobspecs import HOSTILE, above, series, slot
from tests.support.large_objects import LARGE

Obj = dict[str, Any]
Attack = Callable[[Tenant, float], Awaitable[None]]
"""Parameters: the tenant, and the size: 1 is the whole of it, less a part."""
ATTACKS: dict[str, Attack] = {}
POOL = "main"
STORM_S = 6.0
"""How long a storm of requests lasts at full size."""


def _attack(function: Attack) -> Attack:
    ATTACKS[function.__name__.strip("_").replace("_", "-")] = function
    return function


def _of(number: float, size: float) -> range:
    return range(max(8, int(number * size)))


def _noted(name: str, notes: dict[str, str], **more: Any) -> Obj:
    return job(name, cpu="100m", pool=POOL, wishes=notes, **more)


def _shaped(name: str, resources: Any, **more: Any) -> Obj:
    text = json.dumps(resources if isinstance(resources, dict) else {"resources": resources})
    return _noted(name, {"jobspec": text}, **more)


# --- what admission reads ------------------------------------------------------------------------

_PIECES = (
    "1h",
    "12",
    "+",
    ",",
    ":",
    "afterok:x",
    "now+",
    "1e9",
    "-",
    "٣",
    "0",
    "h",
    " ",
    ".",
    "[0-9]",
)
_KEYS = ("begin-time", "duration", "depends-on", "priority", "within", "queue", "group-users")


@_attack
async def nearly_right_texts(tenant: Tenant, size: float) -> None:
    """What a backtracking parser reads again and again: up to 200 kB, with one wrong end."""
    bodies = [
        _noted(f"text-{n}", {key: (piece * 200_000)[: int(200_000 * size)] + end})
        for n, (key, piece, end) in enumerate(
            itertools.product(_KEYS, _PIECES, ("x", "", "\u202e"))
        )
    ]
    random.Random(1).shuffle(bodies)
    await tenant.create_all(JOBS, bodies[: len(_of(len(bodies), size))], dry_run=True)


@_attack
async def moldable_jobspecs(tenant: Tenant, size: float) -> None:
    """Counts that are chosen together, as Jobs that are stored and as questions."""
    trees: list[Any] = [
        [
            above("node", series(1, 61 + n), slot(series(2, 53, "+", 3), f"m{n}"))
            for n in range(many)
        ]
        for many in (3, 17, 60, 220)
    ]
    trees += [[slot(series(1, 1 << 31, "^", 2))], [slot(series(3, 1 << 31, "*", 3))]]
    trees += list(HOSTILE.values())
    await tenant.create_all(JOBS, (_shaped(f"mold-{n}", tree) for n, tree in enumerate(trees)))
    for tree in trees[: int(len(trees) * size) + 3]:
        spec = tree if isinstance(tree, dict) else {"version": 9999, "resources": tree}
        await tenant.review(jobspec=spec)


@_attack
async def counts_of_a_tenant(tenant: Tenant, size: float) -> None:
    """Numbers that another scheduler counts up to: pods, slots, deadlines, priorities."""
    huge = (2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1)
    bodies = [
        job(
            f"count-{field.lower()}-{n}",
            pool=POOL,
            cpu="1",
            **{"parallelism": 1, "completions": 1, field: value},
        )
        for field in (
            "parallelism",
            "completions",
            "activeDeadlineSeconds",
            "backoffLimit",
            "ttlSecondsAfterFinished",
        )
        for n, value in enumerate((*huge, 0, -1))
    ]
    for n, value in enumerate(
        ("1000000000", "1e30", "9" * 60, "1E", "1n", "0.0000001", "9007199254740993k")
    ):
        bodies.append(job(f"amount-{n}", pool=POOL, cpu=value))
        bodies.append(
            job(f"memory-{n}", pool=POOL, requests={"memory": value, "ephemeral-storage": value})
        )
    for n, value in enumerate(("1", "-1", "0", "1.5", str(2**40), "9" * 400)):
        bodies.append(_noted(f"asked-{n}", {"duration": value, "priority": value}))
    for n, when in enumerate(
        (
            "0001-01-01T00:00:00Z",
            "9999-12-31T23:59:59-14:00",
            "1970-01-01T00:00:00+14:00",
            "+9999d",
            "2030-02-30T00:00:00Z",
            "2030-01-01T24:00:00Z",
        )
    ):
        bodies.append(_noted(f"when-{n}", {"begin-time": when}))
    for n, grace in enumerate((0, 2**31, 2**63 - 1)):
        bodies.append(job(f"grace-{n}", pool=POOL, pod={"terminationGracePeriodSeconds": grace}))
        bodies.append(job(f"deadline-{n}", pool=POOL, pod={"activeDeadlineSeconds": max(1, grace)}))
    await tenant.create_all(JOBS, bodies)


@_attack
async def large_objects(tenant: Tenant, size: float) -> None:
    """Objects of up to 3 MB, a few at once."""
    for name in sorted(LARGE)[:: 1 if size >= 1 else 9]:
        body = LARGE[name]()
        del body["metadata"]["namespace"], body["metadata"]["uid"]
        await tenant.create(JOBS, body, dry_run=True)


@_attack
async def deep_objects(tenant: Tenant, size: float) -> None:
    """Custom resources and annotations that are nested deeper than a reader may descend."""
    for depth in (30, 200, 900, 3_000, 9_900):
        for left, right in (('{"a":', "}"), ("[", "]"), ('{"manifest":', "}"), ('{"not":[', "]}")):
            inner = left * depth + "1" + right * depth
            text = (
                f'{{"apiVersion":"{PLACEMENT_REVIEWS.api_version}","kind":"PlacementReview",'
                f'"metadata":{{"generateName":"deep-"}},"spec":{{"jobspec":{inner}}}}}'
            )
            await tenant.create(PLACEMENT_REVIEWS, text.encode())
            if depth * len(left) < 200_000:
                await tenant.create(JOBS, _noted(f"deep-{depth}", {"jobspec": inner}))


@_attack
async def deep_managed_fields(tenant: Tenant, size: float) -> None:
    """The one part of a typed object that may be nested at will, and that watches bring along."""
    for depth in (50, 260, 1_030, 3_000, 9_000):
        names = [f"f:a{n}" for n in range(depth)]
        fields = "".join(f'{{"{name}":' for name in names) + "{}" + "}" * depth
        managed = (
            f'[{{"manager":"m","operation":"Update","apiVersion":"batch/v1","fieldsType":"FieldsV1",'
            f'"time":"2026-01-01T00:00:00Z","fieldsV1":{{"f:metadata":{fields}}}}}]'
        )
        body = json.dumps(job(f"managed-{depth}", cpu="100m", pool=POOL))
        text = body.replace('"metadata": {', '"metadata": {"managedFields": ' + managed + ", ", 1)
        await tenant.create(JOBS, text.encode())


@_attack
async def odd_texts(tenant: Tenant, size: float) -> None:
    """NUL, right-to-left, emoji, halves of characters, and names of 253 characters."""
    odd = (
        "\0",
        "a\0b",
        "\u202egnp.exe",
        "🦀" * 60,
        "\ud83d",
        "\udc00\ud800",
        "\ufeff",
        "é́" * 90,
        "%s%n{}",
        "';--",
        "\x1b[2J\x07",
        "\u2028",
    )
    for n, text in enumerate(odd):
        for key in ("duration", "depends-on", "group-users", "pod-group", "jobspec", text[:5]):
            await tenant.create(JOBS, _noted(f"odd-{n}", {key: text}))
        noted = job(f"noted-{n}", pool=POOL)
        noted["metadata"]["annotations"] = {"example.com/note": text}
        await tenant.create(JOBS, noted)
        await tenant.review(fluxJob=text)
        await tenant.review(manifest=noted, changes={"queue": text})
    for name in ("a" * 253, "a." * 126 + "a", "a" * 63, "0" * 63, "1"):
        await tenant.create(JOBS, job(name, pool=POOL))
        await tenant.create(PODS, bare_pod(name, nodeSelector={"pool": POOL}))


@_attack
async def untyped_reviews(tenant: Tenant, size: float) -> None:
    """Custom resources with fields of any type: they reach admission before their schema."""
    junk: tuple[Any, ...] = (
        None,
        True,
        -1,
        2**70,
        1e308,
        "",
        "\0",
        [],
        {},
        [[]],
        {"a": None},
        [{"x": []}],
        "n" * 9000,
    )
    for field in ("fluxJob", "jobspec", "manifest", "changes", "asker"):
        for value in junk:
            await tenant.create(
                PLACEMENT_REVIEWS, {"metadata": {"generateName": "t-"}, "spec": {field: value}}
            )
    for value in junk:
        for body in ({"spec": value}, {"spec": {}, "status": value}, {"metadata": value}):
            await tenant.create(PLACEMENT_REVIEWS, {"metadata": {"generateName": "t-"}, **body})


@_attack
async def slow_admissions_at_once(tenant: Tenant, size: float) -> None:
    """As many of the dearest requests as may be asked at once, as dry runs: nothing is stored."""
    dear = [
        _shaped(
            "dear",
            [
                above("node", series(1, 61), slot(series(2, 53, "+", 3), f"d{n}"))
                for n in range(200)
            ],
        ),
        job(
            "wide",
            pool=POOL,
            pod={"tolerations": [{"key": f"k{n}", "operator": "Exists"} for n in range(4_000)]},
        ),
        {**LARGE["20,000 variables"](), "metadata": {"name": "large"}},
    ]
    # Once, and not for each request: the probes share this process.
    bodies = [
        json.dumps({"apiVersion": JOBS.api_version, "kind": JOBS.kind, **one}).encode()
        for one in dear
    ]
    until = time.monotonic() + STORM_S * size

    async def again(number: int) -> None:
        while time.monotonic() < until:
            await tenant.create(JOBS, bodies[number % len(bodies)], dry_run=True)

    await asyncio.gather(*map(again, range(120)))


@_attack
async def forged_reviews(tenant: Tenant, size: float) -> None:
    """A pod asks the webhook itself, 120 times at once, in the names of thousands of tenants."""
    folder = tenant.space.world.stack.options.data_dir
    async with flood(int((folder / "webhook-port").read_text())):
        until = time.monotonic() + STORM_S * size
        while time.monotonic() < until:
            await tenant.create(JOBS, _noted("own", {}), dry_run=True)


@_attack
async def queues_that_do_not_exist(tenant: Tenant, size: float) -> None:
    """Three hundred Jobs, each in another queue."""
    for number in _of(300, size):
        await tenant.create(JOBS, _noted(f"q{number}", {"queue": f"made-up-{number}"}))


@_attack
async def logins_half_sent(tenant: Tenant, size: float) -> None:
    """Sixty-four logins without a body. The view server answers others meanwhile."""
    world, head = tenant.space.world, b"POST /login HTTP/1.1\r\nHost: %s\r\nOrigin: https://%s\r\n"
    head += b"Sec-Fetch-Site: same-origin\r\nX-Fluxqueue-Window: 1\r\nContent-Length: 20\r\n\r\n"
    await world.has_view()
    url = world.stack.view_url
    host = url.removeprefix("https://")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    writers = []
    try:
        for _ in range(64):
            opened = asyncio.open_connection(*host.split(":"), ssl=context)
            writers.append((await opened)[1])
            writers[-1].write(head % (host.encode(), host.encode()))
        until = time.monotonic() + STORM_S * size
        async with aiohttp.ClientSession() as session:
            while time.monotonic() < until:
                await tenant.create(JOBS, _noted("own", {}), dry_run=True)
                async with session.get(f"{url}/openapi.json", ssl=context) as told:
                    if told.status != 200:
                        tenant.faults.append(f"the view server says {told.status}")
    finally:
        for writer in writers:
            writer.transport.abort()


# --- what the queue decides ----------------------------------------------------------------------


@_attack
async def questions_at_once(tenant: Tenant, size: float) -> None:
    """Two hundred questions of one viewer, each of them dear."""
    tree = [above("node", series(1, 40), slot(series(1, 37), f"q{n}")) for n in range(14)]
    manifest = job("asked", pods=40, cpu="3", pool=POOL, wishes={"duration": "1h"})
    for n in _of(200, size):
        await tenant.review(
            **(
                {"jobspec": {"version": 9999, "resources": tree}}
                if n % 2
                else {"manifest": manifest}
            )
        )


@_attack
async def wide_requests(tenant: Tenant, size: float) -> None:
    """As many kinds of slots and pods as are taken, beside each other and nested."""
    for kinds in (333, 498, 499, 500):
        cores = [slot(1, f"w{n}", {"type": "core", "count": 1 + n % 3}) for n in range(kinds)]
        await tenant.create(JOBS, _shaped(f"wide-{kinds}", cores, pods=kinds))
    nested = [
        above("node", 1, *(slot(1 + n % 2, f"n{i}-{n}") for n in range(9))) for i in range(45)
    ]
    await tenant.create(JOBS, _shaped("nested", nested, pods=500))
    constraints: Any = {"properties": ["a"]}
    for _ in range(24):
        constraints = {"and": [constraints, {"not": [{"hostlist": ["n[1-9]"]}]}]}
    flat = {"and": [{"hostlist": [f"x{n}"]} for n in range(1_990)]}
    for n, one in enumerate((constraints, flat)):
        tree = {"resources": [slot(3)], "attributes": {"system": {"constraints": one}}}
        await tenant.create(JOBS, _shaped(f"ands-{n}", tree, pods=3))


@_attack
async def costly_requests(tenant: Tenant, size: float) -> None:
    """Each is one more puzzle: slots of nearly equal size of which not quite all fit."""
    chance = random.Random(3)
    for number in _of(200, size):
        sizes = [chance.choice((5, 6, 7, 7, 9, 11)) for _ in range(60 + number % 30)]
        cores = [slot(1, f"c{n}", {"type": "core", "count": c}) for n, c in enumerate(sizes)]
        body = _shaped(f"costly-{number}", cores, pods=len(sizes))
        body["spec"]["template"]["spec"].pop("nodeSelector")
        await tenant.create(JOBS, body)


@_attack
async def unequal_pods_of_a_group(tenant: Tenant, size: float) -> None:
    """Each pod asks for something else, so each is a kind of slot."""
    many = len(_of(400, size))
    pods = (member(f"u-{n}", "unequal", many, cpu=f"{n + 11}m") for n in range(many))
    await tenant.create_all(PODS, pods)


@_attack
async def group_that_never_completes(tenant: Tenant, size: float) -> None:
    """A thousand pods that wait for one more, which never comes."""
    many = len(_of(1000, size))
    await tenant.create_all(
        PODS, (member(f"g-{n}", "never", many + 1, cpu="10m") for n in range(many))
    )


@_attack
async def chains_and_circles(tenant: Tenant, size: float) -> None:
    """A long chain of dependencies, a circle, and Jobs that depend on a hundred others each."""
    many = len(_of(5000, size))
    await tenant.create(JOBS, job("link-0", cpu="100m", pool=POOL, run=FOR_EVER))
    await tenant.create_all(
        JOBS, (_noted(f"link-{n}", {"depends-on": f"afterok:link-{n - 1}"}) for n in range(1, many))
    )
    ring = 7
    await tenant.create_all(
        JOBS,
        (
            _noted(f"ring-{n}", {"depends-on": f"afterany:ring-{(n + 1) % ring}"})
            for n in range(ring)
        ),
    )
    await tenant.create(JOBS, _noted("self", {"depends-on": "afterok:self"}))
    names = ",".join(f"link-{n}" for n in range(100))
    await tenant.create_all(
        JOBS, (_noted(f"fan-{n}", {"depends-on": f"afterany:{names}"}) for n in _of(20, size))
    )


@_attack
async def small_jobs_that_all_fit(tenant: Tenant, size: float) -> None:
    """A thousand Jobs that start at once: each is a release of its own."""
    await tenant.create_all(
        JOBS, (job(f"small-{n}", cpu="1m", pool=POOL, run=FOR_EVER) for n in _of(1000, size))
    )


@_attack
async def many_jobs_at_once(tenant: Tenant, size: float) -> None:
    """Five thousand Jobs. Each is larger than what is left on the nodes that it may have."""
    await tenant.create_all(
        JOBS,
        (
            job(f"many-{n}", pods=1 + n % 5, cpu="13", pool=POOL, run=FOR_EVER)
            for n in _of(5000, size)
        ),
    )


@_attack
async def jobs_for_a_full_pool(tenant: Tenant, size: float) -> None:
    """Sixty Jobs for a node pool that may have no node. A Job for another pool gets its own."""
    client, space = tenant.space.client, tenant.space
    names = {name: f"{name}-{space.name}" for name in ("full", "open")}
    for name, most in (("full", 0), ("open", 1)):
        node = {"labels": {"pool": names[name]}, "allocatable": {"cpu": "8", "pods": "110"}}
        spec: Obj = {"node": node, "max": most, "provisioningTime": "30s"}
        spec["provider"] = {"placeholder": {}}
        head = {"apiVersion": FLUX_NODE_POOLS.api_version, "kind": FLUX_NODE_POOLS.kind}
        body = {**head, "metadata": {"name": names[name]}, "spec": spec}
        await client.create(FLUX_NODE_POOLS, None, body)
    bodies = [job(f"full-{n}", cpu="8", pool=names["full"]) for n in _of(60, max(size, 1))]
    await tenant.create_all(JOBS, bodies)
    await space.create(job("other", cpu="8", pool=names["open"]))
    await space.until_state("other", "Provisioning")
    for pool in names.values():
        await client.delete(FLUX_NODE_POOLS, None, pool)


@_attack
async def jobs_come_and_go(tenant: Tenant, size: float) -> None:
    """Created and deleted at once, some of them before anything has looked at them."""

    async def one(number: int) -> None:
        name = f"brief-{number}"
        await tenant.create(JOBS, job(name, pods=1 + number % 3, cpu="100m", pool=POOL))
        if number % 2:
            await asyncio.sleep(random.Random(number).random() * 0.2)
        await tenant.delete(JOBS, name)

    numbers = iter(_of(400, size))

    async def some() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(some() for _ in range(10)))


@_attack
async def pods_that_fail_at_once(tenant: Tenant, size: float) -> None:
    """Jobs with pods that fail as soon as they run, and are made again up to a thousand times."""
    run = {"duration": "1ms", "exit-code": "1"}
    await tenant.create_all(
        JOBS,
        (
            job(
                f"fail-{n}",
                pods=4,
                cpu="100m",
                pool=POOL,
                run=run,
                backoffLimit=1000,
                **({"completionMode": "Indexed", "backoffLimitPerIndex": 200} if n % 2 else {}),
            )
            for n in _of(40, size)
        ),
    )


@_attack
async def held_by_finalizers(tenant: Tenant, size: float) -> None:
    """Deleted Jobs and pods that stay, because the tenant's finalizers are on them."""
    for n in _of(40, size):
        body = job(f"stays-{n}", cpu="100m", pool=POOL)
        body["metadata"]["finalizers"] = ["example.com/stay"]
        body["spec"]["template"]["metadata"]["finalizers"] = ["example.com/stay"]
        await tenant.create(JOBS, body)
        pod = bare_pod(f"stays-{n}", cpu="100m", nodeSelector={"pool": POOL})
        pod["metadata"]["finalizers"] = ["example.com/stay"]
        await tenant.create(PODS, pod)
        await tenant.delete(JOBS, f"stays-{n}")
        await tenant.delete(PODS, f"stays-{n}")


@_attack
async def owners_in_a_circle(tenant: Tenant, size: float) -> None:
    """ReplicaSets that own each other, an owner that is its own, and owners that do not exist."""
    uids = {}
    for name in ("ring-a", "ring-b", "own"):
        body = a_set(REPLICASETS, name, replicas=2)
        answer = await tenant.create(REPLICASETS, body)
        uids[name] = (answer.body.get("metadata") or {}).get("uid", "none")
    for name, above_it in (("ring-a", "ring-b"), ("ring-b", "ring-a"), ("own", "own")):
        owner = _owner("apps/v1", "ReplicaSet", above_it, uids[above_it])
        await tenant.patch(REPLICASETS, name, {"metadata": {"ownerReferences": [owner]}})
    for n, (version, kind) in enumerate(
        (
            ("apps/v1", "ReplicaSet"),
            ("example.com/v1", "Thing"),
            ("batch/v1", "Job"),
            ("v1", "Node"),
            ("", ""),
            ("a/b/c", "x"),
            ("v1", "../../x"),
        )
    ):
        pod = bare_pod(f"of-{n}", cpu="10m", nodeSelector={"pool": POOL})
        pod["metadata"]["labels"] = {"fluxqueue/managed": "true"}
        pod["metadata"]["ownerReferences"] = [_owner(version, kind, f"none-{n}/..", uids["ring-a"])]
        await tenant.create(PODS, pod)


def _owner(version: str, kind: str, name: str, uid: str) -> Obj:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}


# --- what is steered -----------------------------------------------------------------------------


async def _storm(each: Callable[[int], Awaitable[Any]], size: float, per_s: float = 50.0) -> None:
    began, number = time.monotonic(), 0
    while time.monotonic() - began < STORM_S * size:
        await each(number)
        number += 1
        await asyncio.sleep(max(0.0, began + number / per_s - time.monotonic()))


@_attack
async def spec_changes(tenant: Tenant, size: float) -> None:
    """Hold and release, begin times and requeues of FluxJobs, fifty in a second."""
    names = [f"steered-{n}" for n in range(4)]
    await tenant.create_all(
        JOBS, (job(name, cpu="100m", pool=POOL, run=FOR_EVER) for name in names)
    )
    for name in names:
        await tenant.space.until_state(name, "Running")
    changes: tuple[Obj, ...] = (
        {"hold": True},
        {"hold": False},
        {"beginTime": "2099-01-01T00:00:00Z"},
        {"beginTime": None},
        {"requeue": "x"},
        {"queue": "none-such"},
        {"priority": 2**31},
    )

    async def one(number: int) -> None:
        await tenant.patch(
            FLUXJOBS, f"{names[number % 4]}-job", {"spec": changes[number % len(changes)]}
        )

    await _storm(one, size)


@_attack
async def annotations_change(tenant: Tenant, size: float) -> None:
    """Good and bad values after admission, on waiting Jobs, fifty in a second."""
    names = [f"noted-{n}" for n in range(4)]
    await tenant.create_all(JOBS, (_noted(name, {"hold": "true"}) for name in names))
    values = (
        "true",
        "false",
        "",
        "1h",
        "+2h",
        "x" * 5000,
        "afterok:link-0",
        "\u202e",
        "[1]",
        "{",
        None,
    )
    keys = ("hold", "duration", "begin-time", "depends-on", "jobspec", "priority", "within")

    async def one(number: int) -> None:
        note = {f"fluxqueue/{keys[number % len(keys)]}": values[number % len(values)]}
        await tenant.patch(JOBS, names[number % 4], {"metadata": {"annotations": note}})

    await _storm(one, size)


@_attack
async def fluxjobs_deleted(tenant: Tenant, size: float) -> None:
    """A FluxJob is deleted as soon as it is there, and replaced by what the tenant wants."""

    async def one(number: int) -> None:
        name = f"gone-{number}"
        await tenant.create(JOBS, job(name, cpu="100m", pool=POOL, run=FOR_EVER))
        found = await tenant.send("GET", FLUXJOBS.path(tenant.space.name, f"{name}-job"))
        if found.is_taken:
            for spec in (
                7,
                {},
                {"workload": {"uid": "u", "name": "x", "kind": "Pod", "apiVersion": "v1"}},
            ):
                body = {**found.body, "spec": spec}
                await tenant.send("PUT", FLUXJOBS.path(tenant.space.name, f"{name}-job"), body)
        await tenant.delete(FLUXJOBS, f"{name}-job")

    await _storm(one, size, per_s=15)
