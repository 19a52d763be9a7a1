"""The listening socket, and the file descriptors that its connections need."""

import logging
import resource
import socket
from dataclasses import replace

from .connections import ConnectionLimits

BACKLOG = 1024
OWN_DESCRIPTORS = 256  # files, pipes and other connections of the process

logger = logging.getLogger(__name__)


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on `host` and `port`; port 0 is any free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    listening.setblocking(False)
    return listening


def within_descriptors(limits: ConnectionLimits, own: int = OWN_DESCRIPTORS) -> ConnectionLimits:
    """Return limits that the process has descriptors for, beside `own` of its own.

    The soft limit is raised as far as that needs and the hard limit allows. Only beyond that are there fewer
    connections than asked for.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = limits.connections + limits.spare + own
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return limits
    reachable = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    if reachable == needed:
        return limits
    fewer = max(reachable - limits.spare - own, 1)
    logger.warning(
        "%d connections instead of %d: the process may open %d files", fewer, limits.connections, reachable
    )
    return replace(limits, connections=fewer)
