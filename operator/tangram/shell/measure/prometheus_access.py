"""What a Prometheus demands of its clients: a token, headers, the authority that signed its certificate.

All of it is in files that the kubelet mounts and replaces while the operator runs, so each round reads them
again. No message of this module contains what a file holds.
"""

import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tangram.shell.query_headers import MAX_HEADERS, header_problem
from tangram.shell.settings import PrometheusSettings

MAX_FILE_BYTES = 64 << 10
_TOKEN = re.compile(r"[\x21-\x7e]+")


class PrometheusAccessError(Exception):
    """A file cannot be used; the message names the setting and the file, never what the file holds."""


@dataclass(frozen=True, slots=True)
class PrometheusAccess:
    """The headers of each query and the authority of the server's certificate, as the files are now."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    authority: str | None = field(default=None, repr=False)  # PEM; None: the public authorities

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the context that trusts `authority` alone, None without one."""
        if self.authority is None:
            return None
        try:
            return ssl.create_default_context(cadata=self.authority)
        except (ssl.SSLError, ValueError) as error:
            raise PrometheusAccessError("prometheus.caFile holds no certificate in PEM") from error


def read_access(settings: PrometheusSettings) -> PrometheusAccess:
    """Read all files of `settings`. Raises PrometheusAccessError."""
    headers = dict(settings.headers)
    if settings.headers_file is not None:
        text = _text("headersFile", settings.headers_file)
        headers |= _without_duplicates(headers, _header_lines(text, settings.headers_file))
    if settings.bearer_token_file is not None:
        token = _text("bearerTokenFile", settings.bearer_token_file).strip()
        if not _TOKEN.fullmatch(token):
            raise PrometheusAccessError(
                f"prometheus.bearerTokenFile {settings.bearer_token_file} does not hold one token"
            )
        bearer = [("Authorization", f"Bearer {token}")]
        headers |= _without_duplicates(headers, bearer)
    authority = None if settings.ca_file is None else _text("caFile", settings.ca_file)
    return PrometheusAccess(headers, authority)


def _header_lines(text: str, path: Path) -> Iterator[tuple[str, str]]:
    """Yield the headers of a file: a line each, `Name: value`, beside blank lines and comments."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if len(lines) > MAX_HEADERS:
        raise PrometheusAccessError(f"prometheus.headersFile {path} has more than {MAX_HEADERS} headers")
    for number, line in lines:
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not colon or header_problem(name, value):
            raise PrometheusAccessError(
                f"prometheus.headersFile {path}, line {number}, is not `Name: value` in printable ASCII with "
                "a name that the query does not set itself"
            )
        yield name, value


def _without_duplicates(present: Mapping[str, str], more: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return `more` as a mapping. Raises PrometheusAccessError where a header would have two values."""
    names, added = {name.lower() for name in present}, {}
    for name, value in more:
        if name.lower() in names:
            raise PrometheusAccessError(f"prometheus: the header {name} has more than one value")
        names.add(name.lower())
        added[name] = value
    return added


def _text(setting: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise PrometheusAccessError(
            f"prometheus.{setting} {path} cannot be read: {error.strerror}"
        ) from error
    if len(raw) > MAX_FILE_BYTES:
        raise PrometheusAccessError(f"prometheus.{setting} {path} is larger than {MAX_FILE_BYTES >> 10} KiB")
    try:
        return raw.decode("ascii" if setting != "caFile" else "utf-8")
    except UnicodeDecodeError:  # without its cause, which quotes the bytes
        raise PrometheusAccessError(f"prometheus.{setting} {path} is not text") from None
