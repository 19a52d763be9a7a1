"""The listening socket, and the file descriptors that its connections need."""

import errno
import logging
import resource
import socket
from dataclasses import replace

from .connections import ConnectionLimits

BACKLOG = 1024  # the kernel allows at most its somaxconn
OWN_DESCRIPTORS = 256  # files, pipes and other connections of the process
_NO_IPV6 = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT}

logger = logging.getLogger(__name__)


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on `host` and `port`; port 0 is any free one. Raises OSError.

    An empty host, and `::`, are every address of IPv6 and IPv4 by one socket, or of IPv4 alone where the
    kernel has no IPv6. Any other host is the first of its addresses.
    """
    if host in {"", "::"}:
        return _every_address(port)
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return _listen((str(address[0]), port), family)


def _every_address(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return _listen(("::", port), socket.AF_INET6, dual_stack=True)
        except OSError as error:  # IPv6 that is switched off by sysctl still has sockets
            if error.errno not in _NO_IPV6:
                raise
    logger.info("the kernel has no IPv6: only IPv4 is listened on")
    return _listen(("0.0.0.0", port), socket.AF_INET)  # noqa: S104  (a pod's port is meant to be reached)


def _listen(
    address: tuple[str, int], family: socket.AddressFamily, *, dual_stack: bool = False
) -> socket.socket:
    listening = socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=dual_stack)
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
