"""Log lines: one JSON object each, or plain text. Nothing here ever sees a Secret: we neither read nor log
any.
"""

import json
import logging
import sys
from datetime import UTC, datetime

# aiohttp and httpx log URLs of each request at INFO; kopf tells every event it saw.
_QUIET = {
    "httpx": logging.WARNING,
    "httpcore": logging.WARNING,
    "aiohttp": logging.WARNING,
    "kopf": logging.WARNING,
}


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the trace if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(form: str, level: int = logging.INFO) -> None:
    """Send all logs to stderr in this form: `json` or `plain`."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else plain)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(least)
