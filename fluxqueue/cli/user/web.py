"""``fluxqueue web``: the window on the cluster and its queue in a browser.

It works with the credentials of the kubeconfig. ``local_proxy`` passes the requests of
the browser on.
"""

from __future__ import annotations

import asyncio
import contextlib
import webbrowser
from typing import Annotated

import typer

from fluxqueue.cli.user.access import Access, ClusterAccess, with_access
from fluxqueue.cli.user.view import Token, ViewUrl


@with_access(is_namespaced=False)
def web(
    access: Access,
    view: ViewUrl = "",
    token: Token = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="on this machine (0: any)")] = 0,
    opens: Annotated[
        bool, typer.Option("--open/--no-open", help="open the page in a browser")
    ] = True,
) -> None:
    """Open the window on the cluster and its queue in a browser.

    The page acts with your rights. Ctrl-C closes it.
    """

    async def work(cluster: ClusterAccess) -> None:
        from fluxqueue.cli.user.local_proxy import LocalProxy, Upstream
        from fluxqueue.client.view_server import view_address

        root, headers, tls = await view_address(
            cluster.client, view, token, impersonated=cluster.impersonated
        )
        async with LocalProxy(Upstream(root, headers, tls), port) as proxy:
            address = proxy.address()
            typer.echo(address)
            if opens:
                await asyncio.to_thread(webbrowser.open, address)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    access.run(work)
