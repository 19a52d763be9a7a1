"""How long replicas take to start: lognormal, and the same luck for each scaling law that is compared.

The quantile of each delay is a hash of the seed, the LLMDeployment, the shape and the ordinal of the pod
(common random numbers): the third pod that one law starts is as slow as the third that another law starts.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from statistics import NormalDist

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Delay:
    """A lognormal delay."""

    mean_s: float
    cv: float = 0.0

    def quantile(self, share: float) -> float:
        """Return the seconds that this share of all delays (between 0 and 1) does not exceed."""
        if not self.cv or not self.mean_s:
            return self.mean_s
        variance = math.log1p(self.cv * self.cv)
        return self.mean_s * math.exp(math.sqrt(variance) * _NORMAL.inv_cdf(share) - variance / 2)


@dataclass(frozen=True, slots=True)
class StartTimes:
    """The parts of a start, in their order. None of the defaults is measured."""

    scheduling_s: float = 1.0
    image_pull: Delay = Delay(60.0, 0.3)  # on a node without the image
    weight_load: Delay = Delay(40.0, 0.3)
    warm_up: Delay = Delay(20.0, 0.2)  # kernels, CUDA graphs, the first probe that succeeds
    endpoint_lag_s: float = 2.0  # from readiness to the first request, and from deletion to the last one

    @classmethod
    def of_mean(cls, seconds: float) -> "StartTimes":
        """Return start times with this mean on nodes that all have the image, in the proportions of the
        defaults.
        """
        usual = cls()
        share = seconds / usual.mean_s
        return cls(
            usual.scheduling_s * share,
            Delay(0.0),
            replace(usual.weight_load, mean_s=usual.weight_load.mean_s * share),
            replace(usual.warm_up, mean_s=usual.warm_up.mean_s * share),
            usual.endpoint_lag_s * share,
        )

    @property
    def mean_s(self) -> float:
        """The mean from an order to the first request, on a node that has the image."""
        return self.scheduling_s + self.weight_load.mean_s + self.warm_up.mean_s + self.endpoint_lag_s


def luck(seed: int, *names: object) -> float:
    """Return a number in (0, 1) that depends on the seed and the names alone."""
    text = "\0".join(map(str, (seed, *names)))
    digest = hashlib.sha256(text.encode()).digest()
    return ((int.from_bytes(digest[:8], "big") >> 11) + 0.5) / (1 << 53)
