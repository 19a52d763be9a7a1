"""Read an engine's /metrics over HTTP, bounded in size and time; every failure is an error of one line."""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

import httpx
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tangram.capacity.diagnosis.scrape import ALL_NAMES, MetricSample, Scrape
from tangram.catalog import InputError
from tangram.cli.input_documents import file_bytes

MAX_BYTES = 32 * 2**20  # pages of vLLM can have megabytes; of Tangram's engine, below 100 KiB
# Of the lines that are parsed, at a microsecond per byte: sixteen engines with all histograms have 1 MiB.
MAX_PARSED = 4 * 2**20
MAX_LINE = 8_000  # characters; the line of cache settings has 2,000
TIMEOUT_S = 10.0
MAX_TOKEN_BYTES = 16_384
_OTHERS = {"sglang:": "SGLang", "trtllm_": "TensorRT-LLM", "tgi_": "TGI", "nv_inference_": "Triton"}
# Plain text first: in OpenMetrics, newer clients escape the colon of the names.
_ACCEPT = "text/plain;version=0.0.4,application/openmetrics-text;q=0.5,*/*;q=0.1"


@dataclass(frozen=True, slots=True)
class TimedScrape:
    """One page, and when it arrived (seconds of a monotonic clock)."""

    scrape: Scrape
    at: float


class MetricsPage:
    """A URL that is read twice over one connection."""

    def __init__(self, url: str, token_file: Path | None = None) -> None:
        """Raise `InputError` for an invalid URL or token file."""
        self.url = checked_url(url)
        headers = {"Accept": _ACCEPT, "Accept-Encoding": "identity"}
        if token_file is not None:
            headers["Authorization"] = f"Bearer {_token(token_file)}"
        self._client = httpx.Client(
            headers=headers,
            timeout=TIMEOUT_S,
            follow_redirects=True,  # vLLM answers /metrics with a redirect to /metrics/
            max_redirects=5,
            trust_env=not _is_loopback(self.url),  # a proxy cannot reach a loopback address
        )

    def __enter__(self) -> "MetricsPage":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def read(self) -> TimedScrape:
        """Fetch and parse the page. Raises `InputError`."""
        try:
            body, content_type, at = self._fetch()
        except httpx.TimeoutException:
            raise InputError("--url", f"{self.url} did not answer within {TIMEOUT_S:g} s") from None
        except httpx.TooManyRedirects:
            raise InputError("--url", f"{self.url} has a redirect loop") from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, UnicodeError) as error:
            raise InputError("--url", f"{self.url} cannot be read: {_cause(error)}") from None
        return TimedScrape(parsed(body, content_type), at)

    def _fetch(self) -> tuple[bytes, str, float]:
        began = monotonic()
        with self._client.stream("GET", self.url) as response:
            _check_status(self.url, response)
            at = monotonic()
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise InputError("--url", f"the page is larger than {MAX_BYTES // 2**20} MiB")
                if monotonic() - began > TIMEOUT_S:
                    raise httpx.ReadTimeout("too slow")
            return bytes(body), response.headers.get("Content-Type", ""), at


def checked_url(url: str) -> str:
    """Return the URL, with /metrics where it has no path. Raises `InputError`."""
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError as error:
        raise InputError("--url", f"{url!r} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError("--url", f"{url!r} is not a URL like http://host:8000/metrics")
    if not port_is_fine:
        raise InputError("--url", f"{url!r}: no server listens on port 0")
    if parts.username or parts.password:
        raise InputError(
            "--url", "a password in a URL is visible in process lists and logs; use --token-file"
        )
    return url if parts.path not in ("", "/") else parts._replace(path="/metrics").geturl()


def parsed(body: bytes, content_type: str = "") -> Scrape:
    """Parse the metrics of a page that the diagnosis reads. Raises `InputError`."""
    text = body.decode("utf-8", errors="replace")
    _check_kind(text, content_type)
    lines = list(_diagnosis_lines(text))
    openmetrics = "openmetrics" in content_type.lower()
    page = "".join(f"{line}\n" for line in lines) + ("# EOF\n" if openmetrics else "")
    try:
        return Scrape.of(_samples(list((parse_openmetrics if openmetrics else parse_text)(page))))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        raise InputError("--url", f"the page breaks the Prometheus text format: {_short(error)}") from None


def _samples(families: list[Metric]) -> Iterator[MetricSample]:
    for family in families:
        for sample in family.samples:
            try:
                value = float(sample.value)
            except OverflowError:  # an integer of hundreds of digits
                value = float("inf")
            yield MetricSample(sample.name, sample.labels, value)


def _diagnosis_lines(text: str) -> Iterator[str]:
    """Yield the lines that the diagnosis reads; other lines may have any size and form."""
    size = 0
    for raw in text.split("\n"):
        line = raw.strip()
        if len(line) > MAX_LINE or not line.removeprefix("# TYPE ").startswith(ALL_NAMES):
            continue
        size += len(line)
        if size > MAX_PARSED:
            raise InputError("--url", f"the page has over {MAX_PARSED // 2**20} MiB of engine metrics")
        yield line


def _check_kind(text: str, content_type: str) -> None:
    start = text.lstrip()[:200].lower()
    if "html" in content_type.lower() or start.startswith(("<!doctype", "<html", "<?xml")):
        raise InputError("--url", "that is a web page, not metrics; the path is usually /metrics")
    if "vllm:" in text:
        return
    if "json" in content_type.lower() or start.startswith("{"):
        raise InputError("--url", "that is JSON, not metrics; the path is usually /metrics")
    for prefix, engine in _OTHERS.items():
        if prefix in text:
            raise InputError("--url", f"that looks like {engine}; diagnose reads vLLM's names (vllm:…)")
    raise InputError("--url", "the page has no metric named vllm:…, the only names that diagnose reads")


def _check_status(url: str, response: httpx.Response) -> None:
    status = response.status_code
    if status == 200:
        return
    meaning = {
        401: "the engine requires a token: --token-file",
        403: "the token is not allowed to read metrics",
        404: "the path does not exist; it is usually /metrics",
    }.get(status, "expected 200")
    raise InputError("--url", f"{url} answered {status}: {meaning}")


def _token(path: Path) -> str:
    raw = file_bytes(path, "--token-file", 1 << 20)
    token = raw.strip()
    if not token or len(raw) > MAX_TOKEN_BYTES or not all(33 <= byte < 127 for byte in token):
        raise InputError("--token-file", f"{path} does not hold one line of visible ASCII characters")
    return token.decode("ascii")


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _cause(error: BaseException) -> str:
    """Return the innermost cause: httpx wraps the error of the operating system twice."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__ or error
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    return _short(getattr(error, "strerror", None) or error)


def _short(message: object) -> str:
    """One line of at most 120 characters."""
    text = " ".join(str(message).split()) or type(message).__name__
    return text if len(text) <= 120 else text[:119] + "…"
