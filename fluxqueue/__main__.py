"""``python -m fluxqueue``: the same as the ``fluxqueue`` command."""

from fluxqueue.cli.main import main

main()
