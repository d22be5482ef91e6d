"""The options of commands that ask the view server (``client.view_server``)."""

from __future__ import annotations

from typing import Annotated

import typer

from fluxqueue.client.view_server import TOKEN_VARIABLE, URL_VARIABLE

ViewUrl = Annotated[
    str, typer.Option("--view", envvar=URL_VARIABLE, help="URL of the view server (default: "
                      "from the cluster)")
]  # fmt: skip
Token = Annotated[
    str,
    typer.Option(
        "--token", envvar=TOKEN_VARIABLE, help="bearer token (default: that of the kubeconfig)"
    ),
]
