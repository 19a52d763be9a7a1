"""A fixed number of replicas: sized for the peak, for the mean, or the best in hindsight."""

from tangram.simulator.controllers.controller import ControllerView


class StaticReplicas:
    """A number of replicas that never changes."""

    interval_s = 3600.0

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas

    def decide(self, view: ControllerView) -> int:
        """Return the fixed number."""
        return self.replicas
