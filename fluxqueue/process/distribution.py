"""The name under which package indexes know this project, and its extras.

Every message that advises an installation takes the command from here. On package indexes the name
``fluxqueue`` belongs to another project, so no message may advise it.
"""

from __future__ import annotations

DISTRIBUTION = "fluxqueue-k8s"
"""The name in ``pyproject.toml``. The command and the import name are ``fluxqueue``."""


def install_command(extra: str) -> str:
    """Return the shell command that installs this project with one of its extras."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
