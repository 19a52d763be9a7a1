"""The webhook's certificate, key and path, read from a folder and again when a Secret in it is renewed."""

import logging
import math
import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 20  # a Secret holds no more
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_PATH = re.compile(r"[a-z0-9]{16,128}")
_SEQUENCE, _VERSION, _UTC_TIME = 0x30, 0xA0, 0x17  # tags of ASN.1
_LONG_LENGTH = 0x80


class WebhookCertificate:
    """The TLS context of new connections. `path` is secret: it tells the API server from other clients."""

    def __init__(self, folder: Path, now: Callable[[], float], loaded: Callable[[float], None]) -> None:
        """`loaded` takes the expiry of each certificate, in seconds since the epoch; NaN: there is none."""
        self.context: ssl.SSLContext | None = None
        self.path = ""
        self._folder, self._now, self._loaded = folder, now, loaded
        self._read: tuple[bytes, ...] = ()
        self._expires, self._problem = math.nan, ""

    def in_force(self) -> ssl.SSLContext:
        """Return the context of the next connection. Raises OSError where there is none."""
        if self.context is None:
            raise OSError(f"{self._folder} holds no certificate")
        return self.context

    def refresh(self) -> None:
        """Read the files again. What cannot be used is logged once; the last certificate stays in force."""
        try:
            problem = self._load()
        except (OSError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
        if not problem and self._now() >= self._expires:
            problem = f"it expired at {datetime.fromtimestamp(self._expires, UTC).isoformat()}"
        if problem and problem != self._problem:
            log.warning("the webhook's certificate in %s cannot be used: %s", self._folder, problem)
        self._problem = problem
        self._loaded(self._expires)

    def _load(self) -> str:
        """Load what has changed; return what is wrong with it. Raises OSError and ValueError."""
        certificate, key, path = (self._folder / name for name in ("tls.crt", "tls.key", "path"))
        read = tuple(map(_bounded, (certificate, key, path)))
        if read == self._read:
            return ""
        text = read[2].decode("ascii").strip()
        if not _PATH.fullmatch(text):
            return "path must be 16 to 128 small letters and digits"
        expires = expiry(read[0].decode("ascii"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(certificate, key)
        self.context, self.path, self._expires, self._read = context, text, expires, read
        return ""


def _bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ValueError(f"{path.name} is larger than {MAX_BYTES >> 20} MiB")
    return raw


def expiry(pem: str) -> float:
    """Return `notAfter` of the first certificate, in seconds since the epoch. Raises ValueError.

    The ssl module reads it of a peer's certificate alone. Source: RFC 5280, section 4.1.
    """
    block = _PEM.search(pem)
    if block is None:
        raise ValueError("tls.crt holds no certificate")
    der = ssl.PEM_cert_to_DER_cert(block.group())
    try:
        ((_, certificate),) = _elements(der)
        (_, to_be_signed), *_ = _elements(certificate)
        fields = _elements(to_be_signed)
        _, validity = fields[4 if fields[0][0] == _VERSION else 3]
        tag, text = _elements(validity)[1]
        # UTCTime has two digits for the year; strptime reads 69 to 99 as the last century.
        form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
        return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC).timestamp()
    except (IndexError, ValueError) as error:
        raise ValueError("tls.crt holds a certificate that cannot be read") from error


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """Split DER into elements of (tag, contents). Raises ValueError and IndexError."""
    elements, at = [], 0
    while at < len(der):
        tag, length, begin = der[at], der[at + 1], at + 2
        if length >= _LONG_LENGTH:
            begin += length - _LONG_LENGTH
            length = int.from_bytes(der[at + 2 : begin], "big")
        at = begin + length
        if at > len(der):
            raise ValueError("an element is longer than its sequence")
        elements.append((tag, der[begin:at]))
    return elements
