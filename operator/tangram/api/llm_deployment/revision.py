"""Find the generation since which only spec.replicas has changed.

An autoscaler writes spec.replicas every few seconds, and each write is a new generation. What is true of the
rest of the spec (rolled out, in back-off, measured) stays true meanwhile, so it refers to this generation.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tangram.fleet import Revision

_DIGITS = 12


def revision(obj: Mapping[str, Any]) -> Revision:
    """Return the revision of an LLMDeployment: as its status records it where the spec is still the same,
    else that of the present generation. A status that cannot be read counts as none.
    """
    present = int(obj["metadata"].get("generation", 1))
    spec = {key: value for key, value in (obj.get("spec") or {}).items() if key != "replicas"}
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"), default=str)
    spec_hash = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
    recorded = _recorded(obj.get("status"))
    is_same = recorded is not None and recorded.hash == spec_hash and 0 < recorded.generation <= present
    return recorded if recorded is not None and is_same else Revision(present, spec_hash)


def _recorded(status: object) -> Revision | None:
    block = status.get("revision") if isinstance(status, Mapping) else None
    if not isinstance(block, Mapping):
        return None
    generation, spec_hash = block.get("generation"), block.get("hash")
    if not isinstance(generation, int) or isinstance(generation, bool) or not isinstance(spec_hash, str):
        return None
    return Revision(generation, spec_hash)
