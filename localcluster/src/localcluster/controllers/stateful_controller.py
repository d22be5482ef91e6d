"""The StatefulSet controller: a thin loop over ``stateful``."""

from __future__ import annotations

from localcluster.client.informer import Key
from localcluster.client.resources import CONTROLLER_REVISIONS, PODS, STATEFULSETS
from localcluster.controllers import stateful as plans
from localcluster.controllers.claims import PodClaims
from localcluster.errors import ClientError, Conflict
from localcluster.loops.context import Context, QueueController
from localcluster.loops.informers import by_controller
from localcluster.loops.objects import controller_of, is_deleting, key_of, now, uid_of
from localcluster.loops.workqueue import WorkQueue
from localcluster.loops.writing import create_all, delete_object, message_of
from localcluster.obj import Obj

COMPONENT = "statefulset-controller"
NO_STORAGE = "volumeClaimTemplates are ignored: the embedded cluster has no storage"


class StatefulSetController(QueueController):
    """Reconciles StatefulSets and their pods."""

    def __init__(self, context: Context) -> None:
        self._client, self._events = context.client_of(COMPONENT), context.events
        self._sets = context.informers.get(STATEFULSETS)
        self._pods = context.informers.get(PODS)
        self._revisions = context.informers.get(CONTROLLER_REVISIONS)
        self._revisions_of = context.informers.index(CONTROLLER_REVISIONS, by_controller)
        self._claims = PodClaims(self._client, context.informers, STATEFULSETS)
        self._queue: WorkQueue[Key] = WorkQueue(COMPONENT, self._sync)
        self._sets.add_handler(self._changed)
        self._pods.add_handler(self._pod_changed)

    def _changed(self, old: Obj | None, new: Obj | None) -> None:
        if new is None:
            return
        self._queue.add(key_of(new))
        if old is None and new["spec"].get("volumeClaimTemplates"):
            self._events.record(COMPONENT, new, "Warning", "NotSimulated", NO_STORAGE)

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        pod = new or old
        owner = controller_of(pod) if pod is not None else None
        if pod is not None and owner is not None and owner["kind"] == STATEFULSETS.kind:
            self._queue.add((pod["metadata"]["namespace"], owner["name"]))

    async def _sync(self, key: Key) -> None:
        stateful = self._sets.get(*key)
        if stateful is None:
            return
        pods = await self._claims.claim(stateful)
        update = await self._find_revision(stateful)
        current = (stateful.get("status") or {}).get("currentRevision") or update
        failure: ClientError | None = None
        if not is_deleting(stateful):
            template = self._template_of(stateful, current)
            plan = plans.plan_stateful(stateful, pods, current, update, template, now())
            if plan.look_again_s is not None:
                self._queue.add_after(key, plan.look_again_s)
            failure = await self._carry_out(stateful, plan)
            pods = await self._claims.claim(stateful)
        status = plans.stateful_status(stateful, pods, current, update, now())
        if status != stateful.get("status"):
            body = {**stateful, "status": status}
            written = await self._client.replace(STATEFULSETS, *key, body, subresource="status")
            self._sets.observe(written)
        if failure is not None:
            raise failure

    async def _find_revision(self, stateful: Obj) -> str:
        """Return the name of the present template's ControllerRevision. Create it if it is new."""
        name = plans.revision_name(stateful)
        known = self._revisions_of.get(uid_of(stateful))
        if any(revision["metadata"]["name"] == name for revision in known):
            return name
        number = max((revision.get("revision", 0) for revision in known), default=0) + 1
        body = plans.revision_object(stateful, number)
        try:
            made = await self._client.create(
                CONTROLLER_REVISIONS, stateful["metadata"]["namespace"], body
            )
            self._revisions.observe(made)
        except Conflict:
            return name
        return name

    def _template_of(self, stateful: Obj, revision: str) -> Obj | None:
        for known in self._revisions_of.get(uid_of(stateful)):
            if known["metadata"]["name"] == revision:
                template: Obj = dict(known["data"]["spec"]["template"])
                template.pop("$patch", None)
                return template
        return None

    async def _carry_out(self, stateful: Obj, plan: plans.StatefulPlan) -> ClientError | None:
        name = stateful["metadata"]["name"]

        def report(pod: Obj, verb: str, reason: str) -> None:
            message = f"{verb} Pod {pod['metadata']['name']} in StatefulSet {name} successful"
            self._events.record(COMPONENT, stateful, "Normal", reason, message)

        for pod in plan.delete:
            if await delete_object(self._client, self._pods, pod):
                report(pod, "delete", "SuccessfulDelete")
        _, failure = await create_all(
            self._client,
            self._pods,
            plan.create,
            lambda pod: report(pod, "create", "SuccessfulCreate"),
        )
        if failure is not None:
            self._events.record(COMPONENT, stateful, "Warning", "FailedCreate", message_of(failure))
        return failure
