"""The Deployment controller: a thin loop over ``rollout``."""

from __future__ import annotations

from localcluster.client.informer import Key
from localcluster.client.resources import DEPLOYMENTS, REPLICASETS
from localcluster.controllers import rollout
from localcluster.errors import Conflict
from localcluster.loops.context import Context, QueueController
from localcluster.loops.informers import by_controller
from localcluster.loops.objects import controller_of, is_deleting, key_of, now, uid_of
from localcluster.loops.workqueue import WorkQueue
from localcluster.loops.writing import delete_object
from localcluster.obj import Obj

COMPONENT = "deployment-controller"


class DeploymentController(QueueController):
    """Reconciles Deployments and their ReplicaSets."""

    def __init__(self, context: Context) -> None:
        self._client, self._events = context.client_of(COMPONENT), context.events
        self._deployments = context.informers.get(DEPLOYMENTS)
        self._sets = context.informers.get(REPLICASETS)
        self._sets_of = context.informers.index(REPLICASETS, by_controller)
        self._queue: WorkQueue[Key] = WorkQueue(COMPONENT, self._sync)
        self._deployments.add_handler(self._changed)
        self._sets.add_handler(self._set_changed)

    def _set_changed(self, old: Obj | None, new: Obj | None) -> None:
        rs = new or old
        owner = controller_of(rs) if rs is not None else None
        if rs is not None and owner is not None and owner["kind"] == DEPLOYMENTS.kind:
            self._queue.add((rs["metadata"]["namespace"], owner["name"]))

    async def _sync(self, key: Key) -> None:
        deployment = self._deployments.get(*key)
        if deployment is None:
            return
        sets = self._sets_of.get(uid_of(deployment))
        new = rollout.new_replica_set(deployment, sets)
        if not is_deleting(deployment):
            new = await self._roll(deployment, new, sets)
            sets = self._sets_of.get(uid_of(deployment))
        deployment = self._deployments.get(*key) or deployment
        status = rollout.deployment_status(deployment, new, sets, now())
        if status != deployment.get("status"):
            deployment = await self._write_status(deployment, status)
        left_s = rollout.deadline_left_s(deployment, now())
        if left_s is not None:
            self._queue.add_after(key, max(left_s, 0.1))

    async def _roll(self, deployment: Obj, new: Obj | None, sets: list[Obj]) -> Obj | None:
        """Create and resize ReplicaSets. Return the new one."""
        old = [rs for rs in sets if new is None or uid_of(rs) != uid_of(new)]
        if deployment["spec"].get("paused"):
            if new is not None and not any(rs["spec"].get("replicas") for rs in old):
                return await self._resize(deployment, new, deployment["spec"]["replicas"])
            return new
        wanted = rollout.new_set_size(deployment, new, old)
        revision = max((rollout.revision_of(rs) for rs in old), default=0) + 1
        if new is None:
            new = await self._create(deployment, wanted, revision)
            if new is None:
                return None
            status = rollout.created_status(deployment, new["metadata"]["name"], now())
            deployment = await self._write_status(deployment, status, revision)
        else:
            new = await self._set_revision(new, max(revision, rollout.revision_of(new)))
            new = await self._resize(deployment, new, wanted)
        deployment = await self._note_revision(deployment, rollout.revision_of(new))
        sizes = rollout.old_set_sizes(deployment, new, old)
        for rs in old:
            if rs["metadata"]["name"] in sizes:
                await self._resize(deployment, rs, sizes[rs["metadata"]["name"]])
        for rs in rollout.surplus_sets(deployment, old):
            await delete_object(self._client, self._sets, rs)
        return new

    async def _create(self, deployment: Obj, replicas: int, revision: int) -> Obj | None:
        body = rollout.make_replica_set(deployment, replicas, revision)
        namespace, name = key_of(body)
        try:
            created = await self._client.create(REPLICASETS, namespace, body)
        except Conflict:
            found = await self._client.get(REPLICASETS, namespace, name)
            owner = controller_of(found)
            if owner is None or owner["uid"] != uid_of(deployment):
                await self._count_collision(deployment)
                return None
            created = found
        self._sets.observe(created)
        if replicas:
            self._report(deployment, name, 0, replicas)
        return created

    async def _count_collision(self, deployment: Obj) -> None:
        """Increase the collision count, because another object has the name.

        A higher count gives another hash next time.
        """
        status = dict(deployment.get("status") or {})
        status["collisionCount"] = (status.get("collisionCount") or 0) + 1
        await self._write_status(deployment, status)

    async def _resize(self, deployment: Obj, rs: Obj, replicas: int) -> Obj:
        present = rs["spec"].get("replicas", 1)
        wanted = rollout.size_annotations(deployment)
        annotations = rs["metadata"].get("annotations") or {}
        is_annotated = all(annotations.get(key) == value for key, value in wanted.items())
        if present == replicas and is_annotated:
            return rs
        body = {
            "metadata": {
                "annotations": wanted,
                "resourceVersion": rs["metadata"]["resourceVersion"],
            },
            "spec": {"replicas": replicas},
        }
        written = await self._client.patch(REPLICASETS, *key_of(rs), body)
        self._sets.observe(written)
        if present != replicas:
            self._report(deployment, rs["metadata"]["name"], present, replicas)
        return written

    async def _set_revision(self, rs: Obj, revision: int) -> Obj:
        if rollout.revision_of(rs) == revision:
            return rs
        body = {"metadata": {"annotations": {rollout.REVISION: str(revision)}}}
        written = await self._client.patch(REPLICASETS, *key_of(rs), body)
        self._sets.observe(written)
        return written

    async def _note_revision(self, deployment: Obj, revision: int) -> Obj:
        """Write the annotation together with a status.

        On the main path it would count as a new spec.
        """
        if rollout.revision_of(deployment) == revision:
            return deployment
        return await self._write_status(deployment, deployment.get("status") or {}, revision)

    async def _write_status(self, deployment: Obj, status: Obj, revision: int = 0) -> Obj:
        metadata = deployment["metadata"]
        if revision:
            noted = (metadata.get("annotations") or {}) | {rollout.REVISION: str(revision)}
            metadata = {**metadata, "annotations": noted}
        body = {**deployment, "metadata": metadata, "status": status}
        written = await self._client.replace(
            DEPLOYMENTS, *key_of(deployment), body, subresource="status"
        )
        self._deployments.observe(written)
        return written

    def _report(self, deployment: Obj, name: str, before: int, after: int) -> None:
        verb = "up" if after > before else "down"
        message = f"Scaled {verb} replica set {name} from {before} to {after}"
        self._events.record(COMPONENT, deployment, "Normal", "ScalingReplicaSet", message)
