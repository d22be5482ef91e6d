"""Keeps autoscalers from removing nodes that are needed, by the holder of the matcher's role.

At intervals it compares the nodes that must stay with those that it has annotated, and writes the
difference. The annotations of the nodes are its only memory, so a crash leaves nothing behind. It
acts only in clusters with node pools or an autoscaler, and decides nothing (``scheduler``).
"""

from __future__ import annotations

import logging

from fluxqueue.db.store.node_pools import read_starting
from fluxqueue.errors import ApiError, ApiUnavailable, Conflict, NotFound
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import NODES
from fluxqueue.nodepools.plan.node_protection import (
    NodeNeeds,
    Protect,
    ProtectedNodes,
    protecting_notes,
    releasing_notes,
)
from fluxqueue.process import metrics
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.keeping import keep
from fluxqueue.worker.schedule import CycleRunner
from fluxqueue.workload.labels import PROTECTED
from fluxqueue.workload.objects import Object

logger = logging.getLogger(__name__)

LOOP = "protection"
"""The name of this loop where the times of loops are reported."""

TURN_S = 2.0
"""The interval in seconds between two turns."""

REFUSED_S = 300.0
"""The pause in seconds after the API server has refused a change: the right is missing."""

READ_AGAIN_S = 1800.0
"""The interval in seconds at which the annotations of all nodes are read again.

Another program may have removed some of them.
"""


class NodeProtector:
    """Annotate the nodes that autoscalers must leave alone, while the term lasts."""

    def __init__(self, context: WorkerContext, matcher: CycleRunner) -> None:
        self._context, self._matcher = context, matcher
        self._protect = Protect(context.settings.protect_nodes)
        self._nodes: ProtectedNodes | None = None
        self.pause_s = TURN_S
        self._read_at_s = 0.0

    async def run(self) -> None:
        """Run until cancelled. If nothing is protected, no node is ever read."""
        if self._protect is not Protect.NEVER:
            clock = self._context.clock
            await keep(self._context, LOOP, self.try_turn, lambda: clock.sleep(self.pause_s))

    async def try_turn(self) -> None:
        """Run a turn. Without the right, the next one comes after a longer pause."""
        self.pause_s = TURN_S
        try:
            await self.turn()
        except ApiUnavailable:
            raise
        except ApiError as error:
            hint = "set nodePools.protect of the chart, or FLUXQUEUE_PROTECT_NODES=never"
            extra = {"action": LOOP, "error": str(error), "hint": hint}
            logger.warning("nodes are not protected from autoscalers", extra=extra)
            self.pause_s = REFUSED_S

    async def turn(self) -> int:
        """Protect and release nodes. Return the number of nodes that were changed.

        Raises
        ------
        ApiError
            The API server refuses it.
        """
        needs = await self._needs()
        if needs is None:
            return 0
        clock = self._context.clock
        if self._nodes is None or clock.monotonic_s() >= self._read_at_s + READ_AGAIN_S:
            self._nodes = await self._read()
            self._read_at_s = clock.monotonic_s()
        wanted, over = self._nodes.changes(needs, clock.now_s())
        changed = 0
        for name in wanted:
            changed += await self._change(self._nodes, name, is_needed=True)
        for name in over:
            changed += await self._change(self._nodes, name, is_needed=False)
        metrics.NODES_PROTECTED.set(len(self._nodes.marked))
        return changed

    async def _needs(self) -> NodeNeeds | None:
        """Return which nodes must stay, None while that is not known."""
        starting = await read_starting(self._context.database)
        return await self._matcher.node_needs(self._protect, starting)

    async def _read(self) -> ProtectedNodes:
        """Read which nodes bear our annotations. Only their names are kept."""
        found = ProtectedNodes()

        def look(node: Object) -> None:
            meta = node["metadata"]
            notes = meta.get("annotations") or {}
            if PROTECTED in notes:
                found.marked.add(meta["name"])
                if protecting_notes(notes):
                    found.incomplete.add(meta["name"])

        await self._context.client.collect(NODES, keep=look, metadata_only=True)
        return found

    async def _change(self, nodes: ProtectedNodes, name: str, *, is_needed: bool) -> bool:
        """Change one node, and note it. Return whether it was written."""
        try:
            is_written = await self._write(name, is_needed=is_needed)
        except NotFound:
            nodes.note(name, is_marked=False)
            return False
        except Conflict:
            return False  # the next turn sees the node as it is then
        nodes.note(name, is_marked=is_needed)
        return is_written

    async def _write(self, name: str, *, is_needed: bool) -> bool:
        client = self._context.client
        meta = (await client.get_metadata(NODES, None, name))["metadata"]
        notes = meta.get("annotations") or {}
        changes = protecting_notes(notes) if is_needed else releasing_notes(notes)
        if not changes:
            return False
        # The version makes sure that these are the present annotations: others may set theirs.
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "annotations": changes}}
        await client.patch(NODES, None, name, patch, kind=PatchKind.MERGE, metadata_only=True)
        extra = {"action": LOOP, "node": name, "is_protected": is_needed}
        logger.info("node protected" if is_needed else "node released", extra=extra)
        return True
