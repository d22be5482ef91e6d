"""Write the table of docs/reference/metrics.md from the code: ``python docs/metrics_table.py``.

Names, labels and words are those of ``fluxqueue.process.metrics`` and
``fluxqueue_webhook.review_metrics``. A test compares.
"""

from __future__ import annotations

import re
from pathlib import Path

from fluxqueue.process.metrics import DESCRIBED, Described
from fluxqueue_webhook.review_metrics import AdmissionMetrics

PAGE = Path(__file__).with_name("reference") / "metrics.md"
BEGIN, END = "<!-- written by docs/metrics_table.py -->\n", "<!-- end of the table -->"


def webhook_metrics() -> list[Described]:
    """What the webhook tells of itself, labels included, from what it renders."""
    counted = AdmissionMetrics()
    counted.count("Job", "admitted", 0.001)
    text = counted.render()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    found = []
    for name, words in re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE):
        series = re.search(rf"^{name}\{{(.*)\}}", text, re.MULTILINE)
        labels = tuple(re.findall(r'(\w+)="', series[1])) if series else ()
        found.append(Described(name, kinds[name], labels, words))
    return found


def table() -> str:
    """The table, a line for each."""
    lines = ["| Metric | Kind | Labels | Meaning |", "|---|---|---|---|"]
    for one in [*DESCRIBED, *webhook_metrics()]:
        labels = ", ".join(one.labels) or "–"
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.text.rstrip('.')} |")
    return "\n".join(lines) + "\n"


def page_with(text: str) -> str:
    """The page with ``text`` between its marks."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}{text}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page_with(table()), encoding="utf-8")
