"""What kubectl asks of its plugins: the entry point ``kubectl_complete-fluxqueue``.

kubectl completes ``kubectl fluxqueue ...`` by running it with the words typed so far, and reads
Cobra's protocol: a word a line, with a tab what it means, then ``:`` and a bit set. The words come
from where a shell's own completion has them (``fluxqueue --install-completion``).
"""

from __future__ import annotations

import os
import shlex
import sys

NO_FILES = 4
"""Cobra's ShellCompDirectiveNoFileComp: offer no names of files beside."""
_VARIABLE = "_FLUXQUEUE_COMPLETE"


def for_kubectl() -> None:
    """Offer words, and say that no more are to be offered."""
    from fluxqueue.cli.main import app

    # What fish is told, a word and a tab and its meaning, is what Cobra's protocol wants.
    os.environ[_VARIABLE] = "complete_fish"
    os.environ["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    os.environ["_TYPER_COMPLETE_ARGS"] = shlex.join(["fluxqueue", *(sys.argv[1:] or [""])])
    try:
        app(prog_name="fluxqueue", complete_var=_VARIABLE)
    except SystemExit:
        print(f":{NO_FILES}", flush=True)
