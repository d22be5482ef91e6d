"""``fluxqueue demo``: the whole system on one machine, shown at work and then checked.

It starts what ``fluxqueue up`` starts in a temporary folder, plays four scenes and checks every
invariant. The exit code is 1 if anything was lost or leaked. The folder with the logs is then kept.
"""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import signal
import tempfile
import webbrowser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluxqueue_devtools.stack_options import ClusterShape, StackOptions

if TYPE_CHECKING:
    from fluxqueue.db.database import Database
    from fluxqueue.kube.client import KubeClient
    from fluxqueue_devtools.demo.screen import Screen
    from fluxqueue_devtools.demo.verdict import DemoOutcome
    from fluxqueue_devtools.stack import Stack

DEFAULT_SEED = 2026
CHECK_PATIENCE_S = 15.0
NODE_GRACE_S = "120"
"""Seconds, so that a busy machine does not lose its simulated nodes while they are silent."""


@dataclasses.dataclass(slots=True)
class DemoWindow:
    """The page of ``--web``. It stays open after the scenes, until Ctrl-C."""

    is_wanted: bool
    opens: bool
    _waits: asyncio.Event | None = None

    def close(self) -> bool:
        """End the wait for Ctrl-C. Return whether the scenes are over, so that there is one."""
        if self._waits is None:
            return False
        self._waits.set()
        return True

    @asynccontextmanager
    async def shown(self, stack: Stack, screen: Screen) -> AsyncIterator[None]:
        """Show the page while the scenes play, and then until Ctrl-C."""
        if not self.is_wanted:
            yield
            return
        from fluxqueue_devtools.up import open_window

        async with open_window(stack) as address:
            screen.say(f"page  {address}")
            if self.opens:
                await asyncio.to_thread(webbrowser.open, address)
            yield
            self._waits = asyncio.Event()
            screen.say("the page stays open until Ctrl-C")
            await self._waits.wait()


def demo(
    jobs: Annotated[int, typer.Option(min=2, help="Jobs of the third scene")] = 200,
    seed: Annotated[
        int, typer.Option(help="random seed for the Jobs of the third scene")
    ] = DEFAULT_SEED,
    data_dir: Annotated[
        Path | None, typer.Option(help="keep database, cluster and logs in this new folder")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="plain lines, no live display")] = False,
    web: Annotated[
        bool, typer.Option("--web", help="show it in the window, too, until Ctrl-C")
    ] = False,
    opens: Annotated[
        bool, typer.Option("--open/--no-open", help="with --web: open the page in a browser")
    ] = True,
) -> None:
    """Show the whole system at work. Exit code 1 if anything was lost or leaked."""
    from rich.console import Console

    from fluxqueue_devtools.demo.screen import choose_screen

    folder = (data_dir or Path(tempfile.mkdtemp(prefix="fluxqueue-demo-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # the database server may run as another user, and must reach its data
    screen = choose_screen(Console(), is_plain=plain)
    window = DemoWindow(is_wanted=web, opens=opens)
    has_gone_well = False
    try:
        has_gone_well = asyncio.run(_until_signal(folder, jobs, seed, screen, window))
    finally:
        if has_gone_well and data_dir is None:
            shutil.rmtree(folder, ignore_errors=True)
        elif not has_gone_well:
            typer.echo(f"logs: {folder / 'logs'}")
    if not has_gone_well:
        raise typer.Exit(1)


async def _until_signal(
    folder: Path, jobs: int, seed: int, screen: Screen, window: DemoWindow
) -> bool:
    """Play until the end. SIGTERM stops all parts in order, as Ctrl-C does."""
    playing = asyncio.ensure_future(_play(folder, jobs, seed, screen, window))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, playing.cancel)
    if window.is_wanted:
        # The scenes are over by then, so the parts stop in order and the result counts.
        loop.add_signal_handler(signal.SIGINT, lambda: window.close() or playing.cancel())
    try:
        return await playing
    except asyncio.CancelledError:
        typer.echo("interrupted")
        return False


async def _play(folder: Path, jobs: int, seed: int, screen: Screen, window: DemoWindow) -> bool:
    from fluxqueue_devtools.demo.manifests import node_arguments
    from fluxqueue_devtools.stack import Stack

    options = StackOptions(
        data_dir=folder,
        shape=ClusterShape(nodes=0),
        cluster_arguments=("--quick", "--node-grace", NODE_GRACE_S, *node_arguments()),
        has_view=window.is_wanted,
    )
    clock = asyncio.get_running_loop().time
    begun_s = clock()
    with screen:
        screen.say(
            "starting Postgres, a simulated cluster of 21 nodes, webhook, controller, worker"
        )
        async with Stack(options) as stack:
            screen.say(f"ready after {clock() - begun_s:.1f} s")
            async with window.shown(stack, screen):
                problems, largest = await _scenes(stack, jobs, seed, screen)
    for problem in problems:
        typer.echo(f"PROBLEM {problem}")
    typer.echo(str(largest))
    return not problems


async def _scenes(
    stack: Stack, jobs: int, seed: int, screen: Screen
) -> tuple[list[str], DemoOutcome]:
    """Play all scenes. Return the problems, and the largest outcome with the leaks of all."""
    from fluxqueue.clock import SystemClock
    from fluxqueue.db.database import Database
    from fluxqueue.kube.client import KubeClient
    from fluxqueue.kube.config import load_kubeconfig
    from fluxqueue.process.settings import Settings
    from fluxqueue_devtools.demo.manifests import batch_scene, pi_scene, pool_scene, retry_scene
    from fluxqueue_devtools.demo.play import Play
    from fluxqueue_devtools.demo.watching import Watching

    clock = SystemClock()
    problems: list[str] = []
    outcomes: list[DemoOutcome] = []
    async with (
        Database(Settings(database_url=stack.database_url), role="demo") as database,
        KubeClient(load_kubeconfig(str(stack.kubeconfig)), timeout_s=60.0) as client,
        Watching(client, clock) as watching,
    ):
        play = Play(database, client, clock, watching, screen)
        scenes = (pi_scene(), retry_scene(), batch_scene(jobs, seed), pool_scene())
        for number, scene in enumerate(scenes, 1):
            screen.say(f"\n{number}. {scene.title}")
            outcome = await play.run(scene)
            for line in await play.story(scene):
                screen.say(f"   {line}")
            screen.say(f"   {outcome}")
            problems += [f"scene {number}: {problem}" for problem in outcome.problems]
            outcomes.append(outcome)
        problems += await _check(database, client, screen)
    for name, part in stack.parts.items():
        if part.restarts:  # nothing is lost: a part that crashes is restarted
            screen.say(f"{name} crashed and was restarted {part.restarts} times")
    leaked = sum(outcome.leaked for outcome in outcomes)
    largest = max(outcomes, key=lambda one: one.jobs)
    return problems, dataclasses.replace(largest, leaked=leaked)


async def _check(database: Database, client: KubeClient, screen: Screen) -> list[str]:
    """Check every invariant on rows and cluster after the scenes."""
    from fluxqueue.checking import Severity, check
    from fluxqueue.clock import SystemClock

    findings = await check(database, client, SystemClock(), patience_s=CHECK_PATIENCE_S, unseen_s=0)
    broken = [finding for finding in findings if finding.severity is Severity.BROKEN]
    screen.say(f"\ninvariants checked: {len(broken)} broken")
    return [f"check: {f.invariant}: {f.subject}: {f.detail}" for f in broken]
