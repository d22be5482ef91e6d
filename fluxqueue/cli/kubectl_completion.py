"""Completion for kubectl plugins: the entry point ``kubectl_complete-fluxqueue``.

To complete ``kubectl fluxqueue ...``, kubectl runs it with the words typed so far. The answer is
Cobra's protocol: one word per line with its description after a tab, then ``:`` and a bit set. The
words are those of the shell completion (``fluxqueue --install-completion``).
"""

from __future__ import annotations

import os
import shlex
import sys

NO_FILES = 4
"""Cobra's ShellCompDirectiveNoFileComp: do not offer file names."""
_VARIABLE = "_FLUXQUEUE_COMPLETE"


def for_kubectl() -> None:
    """Print the words, and tell kubectl to offer no file names."""
    from fluxqueue.cli.main import app

    # The format for fish (word, tab, description) is what Cobra's protocol needs.
    os.environ[_VARIABLE] = "complete_fish"
    os.environ["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    os.environ["_TYPER_COMPLETE_ARGS"] = shlex.join(["fluxqueue", *(sys.argv[1:] or [""])])
    try:
        app(prog_name="fluxqueue", complete_var=_VARIABLE)
    except SystemExit:
        print(f":{NO_FILES}", flush=True)
