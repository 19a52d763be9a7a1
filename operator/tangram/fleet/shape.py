"""One way to serve a model: a whole GPU or a MIG slice of a SKU, with tensor parallelism and precision."""

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

from tangram.runtimes.runtime import BUNDLED

WHOLE_GPU = "gpu"
DeviceKind = tuple[str, str]  # (SKU, resource) of a GPU or slice
QUANTISED = ("fp8", "int4")  # formats that the engine converts a 16-bit checkpoint to when it loads it


def resource_name(profile: str) -> str:
    """Return the extended resource of NVIDIA's device plugin (mixed strategy) for `profile`.

    `+` in a profile becomes `.`, a minus stays: `1g.10gb+me` -> `nvidia.com/mig-1g.10gb.me`.
    """
    return "nvidia.com/gpu" if profile == WHOLE_GPU else "nvidia.com/mig-" + profile.replace("+", ".")


class ShapeKey(NamedTuple):
    """The hardware of one replica: a slice, or `gpus` whole GPUs of one node."""

    sku: str
    profile: str
    gpus: int = 1

    def __str__(self) -> str:
        text = self.sku if self.profile == WHOLE_GPU else f"{self.sku}:{self.profile}"
        return text if self.gpus == 1 else f"{text} x{self.gpus}"


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """Hardware and precision of one replica. Two replicas of one shape are interchangeable."""

    sku: str  # key of the catalog, e.g. H100-80GB-SXM
    profile: str  # WHOLE_GPU or a MIG profile as NVIDIA prints it, e.g. 1g.10gb
    tensor_parallel: int = 1
    precision: str = "bf16"  # of the weights: as the checkpoint stores them, or QUANTISED
    runtime: str = BUNDLED  # name of the EngineRuntime
    pipeline_parallel: int = 1  # stages, each of `tensor_parallel` GPUs

    @property
    def key(self) -> ShapeKey:
        """The hardware, whatever the precision, and however the model is split over its GPUs."""
        return ShapeKey(self.sku, self.profile, self.gpus)

    @property
    def resource(self) -> str:
        """Extended resource that one replica asks for (`gpus` of them)."""
        return resource_name(self.profile)

    @property
    def split(self) -> tuple[int, int]:
        """How the model is split: GPUs that share each layer, stages."""
        return self.tensor_parallel, self.pipeline_parallel

    @property
    def gpus(self) -> int:
        """GPUs of one replica; 1 for a slice."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def devices(self) -> tuple[str, str, int]:
        """What one replica stands on: SKU, resource and number of devices."""
        return self.sku, self.resource, self.gpus

    @property
    def device_kind(self) -> DeviceKind:
        """SKU and extended resource of the devices that its replicas stand on."""
        return self.sku, self.resource

    @property
    def variant(self) -> str:
        """Short, stable, DNS-safe name of this shape: the suffix of its Deployment's name."""
        text = f"{self.sku}/{self.profile}/tp{self.tensor_parallel}/{self.precision}"
        if self.runtime != BUNDLED:
            text += f"/{self.runtime}"
        if self.pipeline_parallel > 1:
            text += f"/pp{self.pipeline_parallel}"
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def __str__(self) -> str:
        """Return the text of messages, e.g. `H100-80GB-SXM:1g.10gb`; whole GPUs without a profile."""
        base = self.sku if self.profile == WHOLE_GPU else f"{self.sku}:{self.profile}"
        tensor = f"TP{self.tensor_parallel}" if self.tensor_parallel > 1 else ""
        pipeline = f"PP{self.pipeline_parallel}" if self.pipeline_parallel > 1 else ""
        return " ".join(filter(None, (base, tensor, pipeline)))

    @property
    def described(self) -> str:
        """The text where formats and runtimes may differ: those that are not usual follow, `L4 int4 vllm`."""
        form = self.precision if self.precision in QUANTISED else ""
        runtime = "" if self.runtime == BUNDLED else self.runtime
        return " ".join(filter(None, (str(self), form, runtime)))
