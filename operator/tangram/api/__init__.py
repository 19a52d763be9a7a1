"""What people write and read: `LLMDeployment`, `GPUPool` and `FleetPlan` as models. The CRDs in `crds/` are
generated from them.
"""

from tangram.api.back_offs import back_off_block, back_offs_from_status
from tangram.api.facts import facts_from_status, parse_report
from tangram.api.parse import parse
from tangram.api.pool import parse_pool
from tangram.api.source import ModelSource, model_source

__all__ = [
    "ModelSource",
    "back_off_block",
    "back_offs_from_status",
    "facts_from_status",
    "model_source",
    "parse",
    "parse_pool",
    "parse_report",
]
