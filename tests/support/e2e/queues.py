"""FluxQueues of a test, which go with it."""

from __future__ import annotations

from typing import Any

from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import FLUXQUEUES
from tests.support.e2e.objects import Obj, job
from tests.support.e2e.space import Space
from tests.support.waiting import eventually


def queue(name: str, **spec: Any) -> Obj:
    return {
        "apiVersion": FLUXQUEUES.api_version,
        "kind": FLUXQUEUES.kind,
        "metadata": {"name": name},
        "spec": spec,
    }


class Queues:
    """Queues of one test, removed after it. Names carry the namespace, because queues have none."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.made: set[str] = set()

    def name(self, short: str) -> str:
        """The full name."""
        return f"{self.space.name}-{short}"

    async def make(self, short: str, **spec: Any) -> None:
        """Create a queue that takes jobs of the test's namespace only."""
        allowed = {"allowedNamespaces": {"names": [self.space.name]}}
        await self.space.client.create(
            FLUXQUEUES, None, queue(self.name(short), **{**allowed, **spec})
        )
        self.made.add(short)

    async def change(self, short: str, **spec: Any) -> None:
        """Change some fields, as ``kubectl patch`` does."""
        await self.space.client.patch(
            FLUXQUEUES, None, self.name(short), {"spec": spec}, kind=PatchKind.MERGE
        )

    async def delete(self, short: str) -> None:
        """Delete a queue."""
        await self.space.client.delete(FLUXQUEUES, None, self.name(short))
        self.made.discard(short)

    async def status(self, short: str) -> Obj:
        """What the queue shows."""
        found = await self.space.client.get(FLUXQUEUES, None, self.name(short))
        return dict(found.get("status") or {})

    async def until_observed(self, short: str) -> None:
        """Wait until its status is of its latest change."""

        async def is_so() -> bool:
            found = await self.space.client.get(FLUXQUEUES, None, self.name(short))
            observed = (found.get("status") or {}).get("observedGeneration")
            return bool(observed == found["metadata"]["generation"])

        await eventually(is_so, f"what changed of {short} is observed")

    async def until_status(self, short: str, **counts: int) -> None:
        """Wait until the queue shows these counts."""

        async def look() -> bool:
            status = await self.status(short)
            return all(status.get(name) == count for name, count in counts.items())

        await eventually(look, f"queue {short} with {counts}")

    def job(self, name: str, short: str, **more: Any) -> Obj:
        """A Job that chooses a queue."""
        body = job(name, **more)
        body["metadata"]["labels"] = {"fluxqueue/queue": self.name(short)}
        return body
