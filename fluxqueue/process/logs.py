"""Log setup: one line per event, text for a terminal, JSON for a cluster.

Each process entry point calls it once. A log call has a constant message, and puts its data in
``extra=`` (``action=`` plus ids). So lines are found by event, not by sentence.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import orjson

ERROR_MAX = 200
"""Characters shown of data that is not an HTTP request."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {k: v for k, v in vars(record).items() if k not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Render ``record`` with its extra fields."""
        line: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class TextFormatter(logging.Formatter):
    """Time, level, logger, message, then ``key=value`` pairs."""

    def format(self, record: logging.LogRecord) -> str:
        """Render ``record`` with its extra fields."""
        pairs = " ".join(f"{key}={value}" for key, value in _extras(record).items())
        text = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {record.name}: "
        text += record.getMessage() + (f"  {pairs}" if pairs else "")
        return text + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def tell_refusal_shortly(record: logging.LogRecord) -> bool:
    """Shorten the log of data that is not an HTTP request. A filter for the web servers.

    The client has been answered (400). A traceback would explain nothing, because nothing of ours
    failed.
    """
    error = record.exc_info[1] if record.exc_info else None
    if type(error).__module__ == "aiohttp.http_exceptions":
        record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
        record.exc_info = record.exc_text = None
        record.error = " ".join(str(error).split())[:ERROR_MAX]
    return True


def set_up(level: str = "INFO", *, as_json: bool = False) -> None:
    """Send all logs to standard error in one format, and quieten noisy libraries."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("procrastinate", "kopf", "aiohttp.access", "alembic", "kopf.activities"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.getLogger("aiohttp.server").addFilter(tell_refusal_shortly)
