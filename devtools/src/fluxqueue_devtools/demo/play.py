"""Plays scenes on a running stack: submits the Jobs, shows what happens, judges the end.

``fluxqueue demo`` calls it with a database and a client. It uses the queue only as a user does (it
creates Jobs, and reads FluxJobs and rows) and decides nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from fluxqueue.clock import Clock
from fluxqueue.db.database import Database
from fluxqueue.db.reading.figures import FluxJobLine, fluxjob_lines, node_lines, run_figures
from fluxqueue.errors import Conflict, DatabaseUnavailable, InvalidSettings
from fluxqueue.fluxjob.states import FINAL, PROVISIONING
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import FLUX_NODE_POOLS, JOBS, NAMESPACES
from fluxqueue_devtools.demo.manifests import Scene, Submission
from fluxqueue_devtools.demo.screen import SMALL_SCENE, Frame, Screen
from fluxqueue_devtools.demo.verdict import DemoOutcome, judge
from fluxqueue_devtools.demo.watching import Watching

FRAME_S, LARGE_FRAME_S = 0.25, 0.5
BURST_MIN = 8
SETTLE_S = 10.0
"""How long the last effects may take after the last FluxJob has ended (seconds)."""


class Play:
    """One run of the demo."""

    def __init__(
        self,
        database: Database,
        client: KubeClient,
        clock: Clock,
        watching: Watching,
        screen: Screen,
    ) -> None:
        self._database, self._client, self._clock = database, client, clock
        self._watching, self._screen = watching, screen
        self._submitted_at_s: dict[str, float] = {}

    async def run(self, scene: Scene) -> DemoOutcome:
        """Play one scene to its end or its time-out, and judge it.

        Raises
        ------
        InvalidSettings
            The scene has been played in this cluster before.
        ApiUnavailable, ApiError, DatabaseUnavailable
            The cluster or the database cannot be reached.
        """
        await self._make_namespace(scene.namespace)
        if scene.node_pool is not None:
            await self._client.create(FLUX_NODE_POOLS, None, scene.node_pool)
        started_s = self._clock.monotonic_s()
        submitting = asyncio.create_task(self._submit_all(scene, started_s))
        try:
            await self._follow(scene, submitting, started_s)
            await submitting
        finally:
            submitting.cancel()
        return await self._judge(scene)

    async def _make_namespace(self, name: str) -> None:
        try:
            await self._client.create(NAMESPACES, None, {"metadata": {"name": name}})
        except Conflict as error:
            raise InvalidSettings(
                "this scene has been played here before",
                where="--data-dir",
                value=name,
                hint="choose a fresh folder",
            ) from error

    async def _submit_all(self, scene: Scene, started_s: float) -> None:
        """Submit at the scene's times: one Job after another like a user, or a burst at once."""
        for at_s, group in itertools.groupby(scene.submissions, key=lambda one: one.at_s):
            await self._clock.sleep(max(0.0, started_s + at_s - self._clock.monotonic_s()))
            together = list(group)
            if len(together) < BURST_MIN:
                for one in together:
                    await self._submit(scene.namespace, one)
            else:
                self._screen.say(f"   a burst of {len(together)} Jobs")
                await asyncio.gather(*(self._submit(scene.namespace, one) for one in together))

    async def _submit(self, namespace: str, one: Submission) -> None:
        self._submitted_at_s[one.name] = self._clock.monotonic_s()
        await self._client.create(JOBS, namespace, one.manifest)

    async def _follow(self, scene: Scene, submitting: asyncio.Task[None], started_s: float) -> None:
        """Show the scene until everything has ended as it must, or its time is over."""
        while (elapsed_s := self._clock.monotonic_s() - started_s) < scene.timeout_s:
            try:
                lines = await fluxjob_lines(self._database, scene.namespace)
                self._screen.show(await self._frame(scene, lines, elapsed_s))
            except DatabaseUnavailable as error:
                # A user may test what happens when a process is killed, and kill this one too.
                self._screen.say(f"   the database is away: {error}")
                lines = []
            is_over = _is_over(scene, lines) and not self._left(scene)
            if submitting.done() and (is_over or submitting.exception()):
                return
            await self._clock.sleep(LARGE_FRAME_S if len(lines) > SMALL_SCENE else FRAME_S)
        self._screen.say(f"   given up after {scene.timeout_s:g} s")

    def _left(self, scene: Scene) -> list[str]:
        """Return the new nodes of the scene that are still there."""
        seen = self._watching.nodes
        return [one for one in scene.new_nodes if one in seen and seen[one].gone_s is None]

    async def _frame(self, scene: Scene, lines: Sequence[FluxJobLine], elapsed_s: float) -> Frame:
        account = self._watching.ledger.accounts[scene.namespace]
        nodes = [
            node
            for node in await node_lines(self._database)
            if node.node in scene.nodes or node.allocated_m
        ]
        return Frame(elapsed_s, lines, nodes, account.together, len(account.pods))

    async def _judge(self, scene: Scene) -> DemoOutcome:
        """Return the outcome. Wait a moment first, because the watches lag behind the rows."""
        until_s = self._clock.monotonic_s() + SETTLE_S
        while True:
            outcome = judge(
                scene,
                await run_figures(self._database, scene.namespace),
                await fluxjob_lines(self._database, scene.namespace),
                await node_lines(self._database),
                self._watching.ledger,
                self._told_after_s(scene),
                self._watching.nodes,
                [one.name for one in scene.submissions if self._coming_reason(scene, one.name)],
            )
            if not outcome.problems or self._clock.monotonic_s() > until_s:
                return outcome
            await self._clock.sleep(FRAME_S)

    def _told_after_s(self, scene: Scene) -> dict[str, float]:
        """Return the seconds until a FluxJob was seen as Unsatisfiable, by the Job's name."""
        found = {}
        for one in scene.submissions:
            said_s = self._watching.said_at_s.get((scene.namespace, one.name, "Unsatisfiable"))
            if said_s is not None:
                found[one.name] = said_s - self._submitted_at_s[one.name]
        return found

    def _coming_reason(self, scene: Scene, name: str) -> str | None:
        """Return the reason with which a Job waited for nodes to come, None if it did not."""
        return self._watching.reason.get((scene.namespace, name, PROVISIONING))

    def _node_story(self, scene: Scene) -> list[str]:
        """Return when the new nodes were asked for, came and went."""
        told = []
        for one in scene.submissions:
            reason = self._coming_reason(scene, one.name)
            if reason is not None:
                said_s = self._watching.said_at_s[scene.namespace, one.name, PROVISIONING]
                after_s = said_s - self._submitted_at_s[one.name]
                told.append(f"{one.name} was Provisioning after {after_s:.2f} s: {reason}")
        seen = [self._watching.nodes[one] for one in scene.new_nodes if one in self._watching.nodes]
        gone = [one.gone_s for one in seen if one.gone_s is not None]
        if scene.new_nodes and seen:
            first_s = min(self._submitted_at_s.get(one.name, 0.0) for one in scene.submissions)
            came = (
                f"{len(seen)} nodes came within {max(one.came_s for one in seen) - first_s:.1f} s"
            )
            went = f", and {len(gone)} had gone after {max(gone) - first_s:.1f} s" if gone else ""
            told.append(f"watched: {came}{went}")
        return told

    async def story(self, scene: Scene) -> list[str]:
        """Return what was seen of the pods, and the reason and delay of each impossible Job."""
        lines = await fluxjob_lines(self._database, scene.namespace)
        after_s = self._told_after_s(scene)
        account = self._watching.ledger.accounts[scene.namespace]
        told = [
            f"{line.name} was called Unsatisfiable after {after_s[line.name]:.2f} s: {line.reason}"
            for line in lines
            if line.state == "Unsatisfiable" and line.name in after_s
        ]
        seen = (
            f"watched: {account.succeeded.total()} pods succeeded, {account.failed} failed;"
            f" never more than {account.together_peak} at once"
        )
        return [*told, *self._node_story(scene), seen]


def _is_over(scene: Scene, lines: Sequence[FluxJobLine]) -> bool:
    """Return whether nothing more will happen. Unsatisfiable is an end only where expected."""
    states = {line.name: line.state for line in lines}
    return all(states.get(one.name) in {one.must_end, *FINAL} for one in scene.submissions)
