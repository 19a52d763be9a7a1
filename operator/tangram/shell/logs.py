"""Log lines, as JSON objects or plain text. The operator neither reads nor logs Secrets."""

import json
import logging
from datetime import UTC, datetime

from tangram_http.log_limit import LimitedLogHandler

# aiohttp and httpx log the URL of each request at INFO; kopf logs every event, and warns at each start that
# its thread takes no signals.
_QUIET = {
    "httpx": logging.WARNING,
    "httpcore": logging.WARNING,
    "aiohttp": logging.WARNING,
    "kopf": logging.ERROR,
}


class NoRefusals(logging.Filter):
    """Drops kopf's error about each review that is refused: the author reads it, and a metric counts it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is logged."""
        return "failed permanently" not in str(record.msg)


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


def configure(log_format: str) -> None:
    """Send the logs of all loggers to stderr in the format `json` or `plain`, so many lines of each kind."""
    handler = LimitedLogHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else plain)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name, level in _QUIET.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger("kopf.objects").addFilter(NoRefusals())
