"""How this process reaches sources: by a proxy, and with certificate authorities beside the public ones.

All clients read the environment variables that are set here, as curl does: no source has settings of its own.
"""

import os
import ssl
from pathlib import Path

from tangram.sources.checkpoint.errors import SourceError, SourceReason

_OF_DEBIAN = "/etc/ssl/certs/ca-certificates.crt"  # of the image, where OpenSSL knows a folder alone
_LONGEST_BUNDLE = 1 << 20  # bytes, of a whole ConfigMap


def use_proxy(proxy: str, no_proxy: str) -> None:
    """Send requests to `proxy`, but for the hosts and domains of `no_proxy` (separated by commas)."""
    os.environ |= {"HTTPS_PROXY": proxy, "HTTP_PROXY": proxy, "NO_PROXY": no_proxy}


def trust(bundle: Path, combined: Path) -> None:
    """Trust the certificates of `bundle`, too; write all of them to `combined`. Raises SourceError."""
    if not bundle.is_file():
        raise _no_bundle(f"is not there, or has no key {bundle.name}: create it in this namespace")
    with bundle.open("rb") as file:
        own = file.read(_LONGEST_BUNDLE + 1)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=own.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise _no_bundle(f"has no certificates in PEM below key {bundle.name}: correct it") from None
    known = (ssl.get_default_verify_paths().cafile, _OF_DEBIAN)
    public = next((Path(path).read_bytes() for path in known if path and Path(path).is_file()), b"")
    combined.write_bytes(public + b"\n" + own)
    os.environ["SSL_CERT_FILE"] = str(combined)


def trusted_certificates() -> bytes | None:
    """Return all certificates that are trusted, None where the public ones alone are."""
    path = os.environ.get("SSL_CERT_FILE")
    return Path(path).read_bytes() if path else None


def _no_bundle(problem: str) -> SourceError:
    text = f"the ConfigMap that models.caBundle of the chart names {problem}"
    return SourceError(SourceReason.UNREACHABLE, text, is_transient=True)
