"""What people write and read: `LLMDeployment` as models. The CRD in `crds/` is generated from them."""

from tangram.api.facts import facts_from_status, parse_report
from tangram.api.parse import parse
from tangram.api.source import ModelSource, model_source

__all__ = ["ModelSource", "facts_from_status", "model_source", "parse", "parse_report"]
