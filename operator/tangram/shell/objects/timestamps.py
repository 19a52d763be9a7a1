"""Timestamps as Kubernetes writes them. Pure."""

from datetime import datetime


def epoch(timestamp: str | None, default: float) -> float:
    """Return RFC 3339 as seconds since 1970; `default` where there is none, or none that can be read."""
    if not timestamp:
        return default
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return default
