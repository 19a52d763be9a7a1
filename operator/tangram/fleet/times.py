"""Times as Kubernetes writes them."""

from datetime import UTC, datetime


def rfc3339(seconds: float) -> str:
    """Return seconds since the epoch as RFC 3339 in UTC, whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(seconds: float) -> str:
    """Return seconds since the epoch as RFC 3339 in UTC, with microseconds (a MicroTime of Kubernetes)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def epoch(text: str) -> float:
    """Return the seconds since the epoch of an RFC 3339 time. Raises ValueError for any other text."""
    return datetime.fromisoformat(text).timestamp()


def epoch_or(text: str | None, default: float) -> float:
    """Return the seconds since the epoch of an RFC 3339 time, `default` where it is missing or invalid."""
    try:
        return epoch(text) if text else default
    except ValueError:
        return default
