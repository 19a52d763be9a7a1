"""All mirrored objects at one instant. Pure."""

from dataclasses import dataclass

from tangram.kube.kinds import Identity, Object, identity_of, uid_of


@dataclass(frozen=True, slots=True)
class MirrorView:
    """The objects of every mirror at one instant, by kind."""

    llm_deployments: tuple[Object, ...] = ()
    nodes: tuple[Object, ...] = ()
    pods: tuple[Object, ...] = ()
    services: tuple[Object, ...] = ()
    deployments: tuple[Object, ...] = ()
    jobs: tuple[Object, ...] = ()
    model_claims: tuple[Object, ...] = ()
    gpu_pools: tuple[Object, ...] = ()
    engine_runtimes: tuple[Object, ...] = ()
    gpu_nodes: tuple[Object, ...] = ()
    cluster_queues: tuple[Object, ...] = ()
    resource_flavors: tuple[Object, ...] = ()
    resource_quotas: tuple[Object, ...] = ()
    priority_classes: tuple[Object, ...] | None = ()  # None: the operator may not list them

    def owners(self) -> frozenset[Identity]:
        """Return the identities of all LLMDeployments: an owner reference to any other is ignored."""
        return frozenset(identity_of(obj) for obj in self.llm_deployments if uid_of(obj))
