"""The API: `LLMDeployment`, `GPUPool`, `FleetPlan`, `GPUNode` as models, and how they become data of plans.

In: objects of the API server or of files. Out: intents, pools, status blocks, and the CRDs in `crds/`.
"""

from tangram.api.common.priority import (
    PriorityClasses,
    classes_of_files,
    parse_priority_class,
    priority_classes,
    with_priority,
)
from tangram.api.engine_runtime import parse_engine_runtime, runtime_in_force
from tangram.api.gpu_node import GPUNode, InvalidGPUNode, parse_gpu_node
from tangram.api.llm_deployment.accepted_spec import accepted_block, last_accepted
from tangram.api.llm_deployment.back_offs import back_off_block, back_offs_from_status
from tangram.api.llm_deployment.evaluation import (
    evaluation_block,
    evaluations_from_status,
    parse_evaluation,
)
from tangram.api.llm_deployment.facts import facts_from_status, parse_pin, parse_report, pin_from_status
from tangram.api.llm_deployment.parse import parse
from tangram.api.llm_deployment.source import ModelSource, model_source
from tangram.api.pool import parse_pool, pool_in_force
from tangram.api.quota import parse_quota

__all__ = [
    "GPUNode",
    "InvalidGPUNode",
    "ModelSource",
    "PriorityClasses",
    "accepted_block",
    "back_off_block",
    "back_offs_from_status",
    "classes_of_files",
    "evaluation_block",
    "evaluations_from_status",
    "facts_from_status",
    "last_accepted",
    "model_source",
    "parse",
    "parse_engine_runtime",
    "parse_evaluation",
    "parse_gpu_node",
    "parse_pin",
    "parse_pool",
    "parse_priority_class",
    "parse_quota",
    "parse_report",
    "pin_from_status",
    "pool_in_force",
    "priority_classes",
    "runtime_in_force",
    "with_priority",
]
