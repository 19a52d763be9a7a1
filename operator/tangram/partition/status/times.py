"""Times as the API writes them: RFC 3339, UTC, whole seconds."""

from datetime import UTC, datetime


def api_time(moment: datetime) -> str:
    """Return a time as a status holds it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_api_time(text: str | None) -> datetime | None:
    """Return a time of a status; None where it is absent, or was edited into something else."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
