"""The labels that say which pods are engines of an LLMDeployment."""

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGED_BY = "tangram"
COMPONENT_LABEL = "app.kubernetes.io/component"
ENGINE_COMPONENT = "engine"
OWNER_LABEL = "tangram.dev/llmdeployment"


def engine_selector(name: str) -> str:
    """Return the label selector, as text, of exactly the engine pods of LLMDeployment `name`."""
    labels = {MANAGED_BY_LABEL: MANAGED_BY, COMPONENT_LABEL: ENGINE_COMPONENT, OWNER_LABEL: name}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
