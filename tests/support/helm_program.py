"""``helm template`` as a program, for the pages that call it: Helm's own code by its Python SDK.

    python -m tests.support.helm_program template NAME CHART [--set KEY=VALUE ...]

No other verb: they need a cluster that pulls images.
"""

from __future__ import annotations

import sys
from pathlib import Path

import helm_python


def main(words: list[str]) -> None:
    """Print what Helm renders, hooks and all."""
    verb, name, chart, *options = words
    if verb != "template" or any(word != "--set" for word in options[::2]):
        sys.exit(f"helm_program: cannot {' '.join(words)}")
    values = helm_python.parse_set_string_values(",".join(options[1::2])) if options else {}
    with helm_python.Chart.load(Path(chart)) as loaded:
        files = loaded.render(values, name=name, namespace="default")
    print("\n---\n".join(text for path, text in files.items() if path.endswith(".yaml")))


if __name__ == "__main__":
    main(sys.argv[1:])
