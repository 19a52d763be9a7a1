"""Names and labels as Kubernetes has them. RE2 (in CEL) and Python read the patterns alike."""

import re

DNS_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
LABEL_KEY = rf"^({DNS_SUBDOMAIN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"
LONGEST_NAME = 253  # of an object, and of the prefix of a key: a DNS subdomain
LONGEST_LABEL = 63  # value of a label, and the part of a key after the prefix
LONGEST_KEY = LONGEST_NAME + 1 + LONGEST_LABEL  # with a slash between them
_KEY, _VALUE = (re.compile(pattern.removesuffix("$") + r"\Z") for pattern in (LABEL_KEY, LABEL_VALUE))


def is_label_key(text: str) -> bool:
    """Whether `text` is an optional DNS prefix and '/', then letters, digits and - _ . between them."""
    return len(text) <= LONGEST_KEY and text.find("/") <= LONGEST_NAME and _KEY.match(text) is not None


def is_label_value(text: str) -> bool:
    """Whether `text` is empty, or letters, digits and - _ . between them, 63 at most."""
    return _VALUE.match(text) is not None
