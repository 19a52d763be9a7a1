"""Keys of labels: those of engine pods, and those that nodes have."""

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "tangram"
COMPONENT_LABEL = "app.kubernetes.io/component"
ENGINE_COMPONENT = "engine"
OWNER_LABEL = "tangram.dev/llmdeployment"
NVIDIA_PREFIX = "nvidia.com/"  # of labels and of extended resources
PRODUCT_LABEL = "nvidia.com/gpu.product"
COUNT_LABEL = "nvidia.com/gpu.count"
ZONE_LABEL = "topology.kubernetes.io/zone"


def engine_selector(name: str) -> str:
    """Return the label selector, as text, of exactly the engine pods of LLMDeployment `name`."""
    labels = {MANAGED_BY_LABEL: MANAGED_BY, COMPONENT_LABEL: ENGINE_COMPONENT, OWNER_LABEL: name}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
