"""Labels as Kubernetes has them: keys, and values. RE2 (in CEL) and Python read the patterns alike."""

import re

DNS_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
LABEL_KEY = rf"^({DNS_SUBDOMAIN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"
LONGEST_KEY = 317  # a DNS prefix of 253 characters, a slash, and a name of 63
LONGEST_PREFIX = 253
_KEY, _VALUE = (re.compile(pattern.removesuffix("$") + r"\Z") for pattern in (LABEL_KEY, LABEL_VALUE))


def is_label_key(text: str) -> bool:
    """Whether `text` is an optional DNS prefix and '/', then letters, digits and - _ . between them."""
    return len(text) <= LONGEST_KEY and text.find("/") <= LONGEST_PREFIX and _KEY.match(text) is not None


def is_label_value(text: str) -> bool:
    """Whether `text` is empty, or letters, digits and - _ . between them, 63 at most."""
    return _VALUE.match(text) is not None
