"""Whether this machine has IPv6: some containers have none."""

import socket


def has_ipv6() -> bool:
    """Return whether a server can listen on the loopback address of IPv6."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False
