"""Credentials, and the TLS context that follows from them."""

import ssl
from typing import Protocol


class AuthError(Exception):
    """There are no usable credentials; the message names the searched files."""


class Credentials(Protocol):
    """The address of the API server, with the token and certificates for it."""

    server: str
    ca_path: str | None
    cert_path: str | None
    key_path: str | None
    insecure: bool

    def token(self, *, fresh: bool = False) -> str | None:
        """Return the bearer token; `fresh` (after a 401) reads it again."""


def ssl_context(credentials: Credentials) -> ssl.SSLContext | None:
    """Return the TLS context for `credentials`, None for plain HTTP."""
    if not credentials.server.startswith("https://"):
        return None
    context = ssl.create_default_context(cafile=credentials.ca_path)
    if credentials.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if credentials.cert_path:
        context.load_cert_chain(credentials.cert_path, credentials.key_path)
    return context
