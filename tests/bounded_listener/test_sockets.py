"""Engine and operator are reached at every address of their pods, in clusters of IPv4, IPv6 and both."""

import errno
import socket
from typing import Any

import pytest

from tangram.shell.settings import Settings
from tangram_engine.__main__ import _parser
from tangram_http.sockets import listening_socket
from tests.support.ipv6 import has_ipv6

BY_IPV4, BY_IPV6 = "127.0.0.1", "::1"


def reached(host: str) -> list[str]:
    """The addresses of this machine at which a listener on `host` is reached."""
    with listening_socket(host, 0) as listening:
        port = listening.getsockname()[1]
        found = []
        families = [(socket.AF_INET, BY_IPV4)] + [(socket.AF_INET6, BY_IPV6)] * has_ipv6()
        for family, address in families:
            with socket.socket(family) as client:
                client.settimeout(10)
                if client.connect_ex((address, port)) == 0:
                    found.append(address)
        return found


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("", [BY_IPV4, BY_IPV6]),
        ("::", [BY_IPV4, BY_IPV6]),
        ("0.0.0.0", [BY_IPV4]),
        (BY_IPV4, [BY_IPV4]),
        (BY_IPV6, [BY_IPV6]),
    ],
)
def test_a_host_is_reached_at_its_addresses(host: str, addresses: list[str]) -> None:
    expected = [address for address in addresses if address != BY_IPV6 or has_ipv6()]
    if host == BY_IPV6 and not expected:
        pytest.skip("this machine has no IPv6")
    assert reached(host) == expected


def test_the_default_of_serve_is_every_address() -> None:
    options = _parser().parse_args(["serve", "--model", "m", "--served-model-name", "m"])
    assert options.host == ""


def test_the_default_of_the_operator_is_every_address() -> None:
    assert Settings.model_fields["listen_host"].default == ""


def test_a_kernel_without_ipv6_has_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    assert reached("") == [BY_IPV4]


@pytest.mark.parametrize("number", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT])
def test_where_ipv6_is_switched_off_there_is_ipv4(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    create = socket.create_server

    def without_ipv6(address: Any, *, family: int, **options: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(number, "no IPv6")
        return create(address, family=family, **options)

    monkeypatch.setattr(socket, "create_server", without_ipv6)
    assert reached("") == [BY_IPV4]


def test_a_port_that_is_taken_is_an_error() -> None:
    with listening_socket("", 0) as taken, pytest.raises(OSError, match="in use"):
        listening_socket("", taken.getsockname()[1])
