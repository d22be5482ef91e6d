"""``python -m tests.conformance [-v] [-n] [NAME ...]``: replay and print differences.

``-v`` prints each difference, ``-n`` runs without controllers. No name means all scenarios.
"""

from __future__ import annotations

import asyncio
import sys
import time

from tests.conformance.claims import CLAIMS
from tests.conformance.cluster import RECORDINGS, replay_cluster


async def main(names: list[str], *, is_verbose: bool, is_controlled: bool) -> int:
    """Each scenario on a cluster of its own. The number of those that differ."""
    differing = 0
    for name in names:
        started = time.monotonic()
        claim = CLAIMS.get(name)
        by_object = claim.by_object if claim is not None else is_controlled
        skipped = frozenset(claim.differences) if claim is not None else frozenset()
        async with replay_cluster(is_controlled=is_controlled) as cluster:
            try:
                found = await cluster.replay(name, by_object=by_object, skip_steps=skipped)
            except Exception as error:  # noqa: BLE001 - a tool that reports on all scenarios
                found = [f"failed: {error!r}"]
        found = claim.read(found) if claim is not None else found
        differing += bool(found)
        word = "DIFF" if found else "OK  "
        print(f"{word} {name} {len(found)} {time.monotonic() - started:.1f}s", flush=True)
        if is_verbose:
            for line in found:
                print(f"    {line[:3000]}")
    print(f"{len(names) - differing} of {len(names)} as recorded")
    return differing


if __name__ == "__main__":
    chosen = [a for a in sys.argv[1:] if not a.startswith("-")]
    if not chosen:
        chosen = sorted(path.stem for path in RECORDINGS.glob("*.json"))
    sys.exit(
        asyncio.run(
            main(
                chosen,
                is_verbose="-v" in sys.argv,
                is_controlled="-n" not in sys.argv,
            )
        )
        > 0
    )
