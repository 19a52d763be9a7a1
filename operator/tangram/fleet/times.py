"""Times as Kubernetes writes them."""

from datetime import UTC, datetime


def rfc3339(seconds: float) -> str:
    """Return seconds since the epoch as RFC 3339 in UTC, whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def epoch(text: str) -> float:
    """Return the seconds since the epoch of such a time."""
    return datetime.fromisoformat(text).timestamp()
