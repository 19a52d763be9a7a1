"""Which headers a setting or a file may add to the queries to Prometheus."""

import re

MAX_HEADERS = 32
MAX_VALUE_CHARS = 16 << 10
# What HTTP itself needs: a request with other values is another request.
_RESERVED = frozenset(
    {"host", "connection", "content-length", "content-type", "content-encoding", "transfer-encoding"}
    | {"te", "trailer", "upgrade", "expect", "accept-encoding", "keep-alive", "proxy-connection"}
)
_SECRET = frozenset({"authorization", "proxy-authorization", "cookie"})
NAME_CHARACTERS = r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}"  # a token of RFC 9110
VALUE_CHARACTERS = r"[!-~]([ -~]*[!-~])?"  # no line break: it would begin another header
_NAME, _VALUE = re.compile(NAME_CHARACTERS), re.compile(VALUE_CHARACTERS)


def header_problem(name: str, value: str) -> str:
    """Return why this header cannot be sent, "" if it can. The text never contains the value."""
    if not _NAME.fullmatch(name):
        return "the name of a header has letters, digits and hyphens"
    if name.lower() in _RESERVED:
        return f"{name} is a header that the query itself sets"
    if len(value) > MAX_VALUE_CHARS or not _VALUE.fullmatch(value):
        return f"the value of {name} must be printable ASCII, and not empty"
    return ""


def is_secret(name: str) -> bool:
    """Say whether a header of this name proves an identity, so that its value belongs in a Secret."""
    return name.lower() in _SECRET
