"""What a simulation returns."""

from dataclasses import dataclass

from tangram.fleet import Shape
from tangram.simulator.control.control_loop import ReplicaCount
from tangram.simulator.result.attainment import Attainment, ViolatedPeriod
from tangram.simulator.result.device_use import DeviceUse

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class DeploymentResult:
    """One LLMDeployment in one run."""

    name: str
    attainment: Attainment
    use: DeviceUse
    counts: tuple[ReplicaCount, ...]  # replicas over time: one entry for each change
    violated: tuple[ViolatedPeriod, ...]
    reversals_per_day: float
    blind_actions: int
    blind_scale_downs: int
    usd: tuple[float, ...] = ()  # of devices, by window of attainment
    shape_uses: tuple[tuple[Shape, DeviceUse], ...] = ()  # parts of `use`, in the order of first use

    @property
    def longest_recovery_s(self) -> float:
        """The longest time from the first violated window of a burst to the first of three clean ones."""
        return max((period.recovery_s for period in self.violated), default=0.0)


@dataclass(frozen=True, slots=True)
class RunResult:
    """All LLMDeployments of one run."""

    duration_s: float
    deployments: tuple[DeploymentResult, ...]
    plans: int  # that were computed
    planning_faults: tuple[str, ...]  # errors of the planner, which left an LLMDeployment as it was

    @property
    def usd(self) -> float:
        """Cost of all devices."""
        return sum(deployment.use.usd for deployment in self.deployments)
