"""Files of the chart that the program uses, too. They have one source, in ``chart/files``.

``kube.roles`` and ``kube.admission_policies`` call it. A wheel carries the files in
``fluxqueue/files``.
"""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from fluxqueue.errors import InvalidSettings


def read_packaged(name: str) -> str:
    """Return the text of a file of ``chart/files``.

    Raises
    ------
    InvalidSettings
        The installation lacks the file.
    """
    packaged = importlib.resources.files("fluxqueue") / "files" / name
    source = Path(__file__).resolve().parents[2] / "chart" / "files" / name
    for place in (packaged, source):
        if place.is_file():
            return place.read_text(encoding="utf-8")
    raise InvalidSettings(
        f"{name} is missing",
        where=str(packaged),
        hint="install fluxqueue from its wheel or its source tree",
    )
