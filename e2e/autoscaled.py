"""LLMDeployments whose replicas follow a load, and what the cluster's Prometheus holds about them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from e2e.cluster.base import ClusterError
from e2e.demo import install
from e2e.kube import Kube, instant

PROMETHEUS = "/api/v1/namespaces/tangram-monitoring/services/prometheus:9090/proxy/api/v1"
WINDOW = "20s"
REQUIRED = 0.9  # share of requests within the objective
_LABELS = '{{tangram_dev_llmdeployment="{name}"{more}}}'
_COUNT = "sum(rate(vllm:time_to_first_token_seconds_{part}{labels}[{window}]))"


@dataclass(frozen=True, slots=True)
class Autoscaled:
    """One LLMDeployment of the tiny model. Requests beyond `slots` per replica wait.

    The objective is some seconds: requests that wait for others miss it, and those that wait for a busy
    processor of this machine do not.
    """

    kube: Kube
    name: str
    slots: int
    most: int
    ttft_s: float = 2.5

    def manifest(self) -> dict[str, Any]:
        ttft = {"percentile": round(100 * REQUIRED), "milliseconds": round(1000 * self.ttft_s)}
        return {
            "apiVersion": "tangram.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": self.name, "namespace": "default"},
            "spec": {
                "model": {"uri": "image:///models/tangram-tiny"},
                "engine": {"maxRunningRequests": self.slots},
                "objectives": {"ttft": ttft},
                "placement": {"mig": "Required"},
                "scaling": {"minReplicas": 1, "maxReplicas": self.most},
            },
        }

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.kube.get("llmdep", self.name).get("status", {})
        return status

    def replicas(self) -> tuple[int, int]:
        """Return (ready, desired) replicas."""
        return install.replicas(self.kube, self.name)

    def load(
        self, image: str, name: str, *, clients: int, tokens: int, every_s: float = 0, seconds: int = 3000
    ) -> None:
        """Start a load of this name on it (`install.load`)."""
        install.load(
            self.kube,
            image,
            name=name,
            model=self.name,
            concurrency=clients,
            tokens=tokens,
            every_s=every_s,
            seconds=seconds,
        )

    def complete(self) -> bool:
        """Tell whether all desired replicas are ready."""
        ready, desired = self.replicas()
        return ready == desired

    def changes(self) -> list[dict[str, Any]]:
        """Return the last changes of the number of desired replicas, newest first."""
        changes: list[dict[str, Any]] = self.status().get("scaling", {}).get("decisions", [])
        return changes

    def allow(self, most: int) -> None:
        """Set `scaling.maxReplicas`."""
        patch = json.dumps({"spec": {"scaling": {"maxReplicas": most}}})
        self.kube.kubectl("patch", "llmdep", self.name, "--type=merge", "-p", patch)

    def requests_per_second(self) -> float:
        """Return the rate of first tokens over the last window; 0 where Prometheus knows none."""
        return last(self.kube, self._count("count")) or 0.0

    def meets_objective(self) -> bool | None:
        """Tell whether the objective is met over the last window; None without requests."""
        share = last(self.kube, self.attainment_query)
        return None if share is None else share >= REQUIRED

    @property
    def attainment_query(self) -> str:
        return f"{self._count('bucket', le=str(self.ttft_s))} / {self._count('count')}"

    def _count(self, part: str, **labels: str) -> str:
        more = "".join(f',{key}="{value}"' for key, value in labels.items())
        return _COUNT.format(part=part, labels=_LABELS.format(name=self.name, more=more), window=WINDOW)


def last(kube: Kube, query: str) -> float | None:
    """Return the value of an expression now, None where it has none or is not a number."""
    answer = ask_prometheus(kube, "query", query=query)
    value = float(answer[0]["value"][1]) if answer else math.nan
    return None if math.isnan(value) else value


def ask_prometheus(kube: Kube, what: str, **parameters: str) -> list[dict[str, Any]]:
    """Return the result of a query to the cluster's Prometheus, through the API server.

    Raises:
        ClusterError: it does not answer.
    """
    text = kube.kubectl("get", "--raw", f"{PROMETHEUS}/{what}?{urlencode(parameters, quote_via=quote)}")
    answer = json.loads(text)
    if answer["status"] != "success":
        raise ClusterError(f"Prometheus: {answer.get('error')}")
    result: list[dict[str, Any]] = answer["data"]["result"]
    return result


def load_ended_at(kube: Kube, name: str) -> datetime:
    """Return when the last request of a load had its answer."""
    return instant(kube.get("job", name)["status"]["completionTime"])
