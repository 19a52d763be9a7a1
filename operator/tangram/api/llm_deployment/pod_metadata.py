"""`spec.metadata`: labels and annotations that users add to engine pods, and the keys that are refused.

The right to write an LLMDeployment must give no other right. Programs with more rights than users have read
keys of pods: the kubelet's runtimes and device injectors, networks, webhooks that inject containers and
credentials, backup programs that run commands, schedulers and autoscalers. Their domains are one list.
"""

import re
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue, StrictStr

from tangram.api.common.base import APIModel
from tangram.api.common.labels import (
    LABEL_KEY,
    LABEL_VALUE,
    LONGEST_KEY,
    LONGEST_LABEL,
    LONGEST_NAME,
    is_label_key,
    is_label_value,
)
from tangram.api.common.values import rule, validations

MAX_ENTRIES = 16
MAX_CHARACTERS = 8192  # of all annotations together, keys included; Kubernetes takes 256 KiB

# With each domain all of its subdomains.
RESERVED_DOMAINS = (
    # Tangram's own, and what its pods carry for Prometheus and llm-d's router
    *("tangram.dev", "prometheus.io", "llm-d.ai"),
    # Kubernetes: seccomp and AppArmor, bandwidth, deletion cost, CDI devices, the recommended labels, Kueue
    *("kubernetes.io", "k8s.io", "x-k8s.io", "openshift.io"),
    # container runtimes: devices, limits and hooks by annotation
    *("containerd.io", "crio.io", "nri.io", "noderesource.dev", "kubevirt.io"),
    # GPUs and other devices, schedulers and autoscalers
    *("nvidia.com", "amd.com", "intel.com", "hami.io", "run.ai", "volcano.sh", "koordinator.sh"),
    *("apache.org", "karpenter.sh", "k8s.aws", "keda.sh"),
    # networks: other interfaces and addresses, and ways round policies
    *("cncf.io", "multus-cni.io", "projectcalico.org", "cilium.io", "ovn.org", "antrea.io", "spidernet.io"),
    *("networkservicemesh.io", "tailscale.com", "submariner.io"),
    # webhooks that inject containers, libraries or volumes
    *("istio.io", "linkerd.io", "kuma.io", "openservicemesh.io", "solo.io", "dapr.io", "getambassador.io"),
    *("opentelemetry.io", "datadoghq.com", "dynatrace.com", "appdynamics.com", "newrelic.com", "splunk.com"),
    *("elastic.apm", "fluid.io", "knative.dev", "kserve.io", "kubeflow.org", "ray.io", "nginx.com"),
    # webhooks that inject credentials
    *("hashicorp.com", "banzaicloud.io", "bank-vaults.io", "1password.io", "1password.com", "infisical.com"),
    *("akeyless.io", "cyberark.com", "spiffe.io", "workload.identity", "cert-manager.io"),
    # clouds: roles, network interfaces, virtual nodes, FUSE sidecars
    *("amazonaws.com", "azure.com", "microsoft.com", "google.com", "gke.io", "gke-gcsfuse"),
    *("aliyun.com", "alibabacloud.com", "tencent.com", "volcengine.com", "huawei.com", "oraclecloud.com"),
    *("ibm.com",),
    # programs that run commands in pods, or delete them
    *("velero.io", "k8up.io", "kanister.io", "kasten.io", "chaos-mesh.org", "litmuschaos.io"),
    # admission and its exemptions
    *("gatekeeper.sh", "openpolicyagent.org", "kyverno.io", "kubewarden.io", "sigstore.dev", "stackrox.io"),
    *("aquasec.com", "sysdig.com", "falco.org", "crowdstrike.com"),
    # what follows the objects of a release by their labels
    *("argoproj.io", "helm.sh", "fluxcd.io"),
)
# Without a prefix: what Services, policies and controllers commonly select pods by, and pod identities.
RESERVED_NAMES = (
    *("app", "k8s-app", "name", "run", "component", "role", "tier", "release", "service"),
    *("pod-template-hash", "controller-revision-hash", "controller-uid", "job-name", "aadpodidbinding"),
)
_DOMAINS, _NAMES = (
    "|".join(text.replace(".", "[.]") for text in texts) for texts in (RESERVED_DOMAINS, RESERVED_NAMES)
)
# Without a prefix, a dot is the runtimes' own: io.kubernetes.cri-o.Devices, io.katacontainers.config...
RESERVED_KEY = rf"^(([^/]*[.])?({_DOMAINS})/.*|[^/]*[.][^/]*|{_NAMES})$"
_RESERVED = re.compile(RESERVED_KEY.removesuffix("$") + r"\Z")

RESERVED_HELP = (
    "must have no key that gives pods a right or lets others select them: docs/engine-pods.md lists the "
    "domains and names that are refused; write the key under a domain of your own, such as example.com/KEY"
)
KEYS_HELP = (
    "must have keys as Kubernetes has them: an optional DNS prefix and '/', then up to 63 letters, digits "
    "and - _ . between them"
)
VALUES_HELP = "must have values of up to 63 letters, digits and - _ . between them"
LENGTH_HELP = f"must have at most {MAX_CHARACTERS} characters together, keys included"


def _pairs(pairs: dict[str, str]) -> dict[str, str]:
    if not all(map(is_label_key, pairs)):
        raise ValueError(KEYS_HELP)
    reserved = sorted(key for key in pairs if _RESERVED.match(key))
    if reserved:
        raise ValueError(f"{RESERVED_HELP} (not {reserved[0]})")
    return pairs


def _labels(labels: dict[str, str]) -> dict[str, str]:
    if not all(map(is_label_value, labels.values())):
        raise ValueError(VALUES_HELP)
    return labels


def _annotations(annotations: dict[str, str]) -> dict[str, str]:
    if sum(len(key) + len(value) for key, value in annotations.items()) > MAX_CHARACTERS:
        raise ValueError(LENGTH_HELP)
    return annotations


def _map(longest_value: int, *rules: dict[str, JsonValue]) -> dict[str, JsonValue]:
    keys = (
        f"self.all(key, key.size() <= {LONGEST_KEY} && key.indexOf('/') <= {LONGEST_NAME} && "
        f"key.matches(r'{LABEL_KEY}'))"
    )
    reserved = f"!self.exists(key, key.matches(r'{RESERVED_KEY}'))"
    return {
        **validations(rule(keys, KEYS_HELP), rule(reserved, RESERVED_HELP), *rules),
        "additionalProperties": {"type": "string", "maxLength": longest_value},
    }


class PodMetadataSpec(APIModel):
    """Labels and annotations of engine pods."""

    labels: Annotated[dict[StrictStr, StrictStr], AfterValidator(_pairs), AfterValidator(_labels)] = Field(
        default_factory=dict,
        max_length=MAX_ENTRIES,
        description="Labels that engine pods carry beside Tangram's own, for cost reports or dashboards; at "
        "most 16. Keys of Kubernetes, Tangram and programs that act on pods are refused. A change replaces "
        "the pods.",
        json_schema_extra=_map(
            LONGEST_LABEL, rule(f"self.all(key, self[key].matches(r'{LABEL_VALUE}'))", VALUES_HELP)
        ),
    )
    annotations: Annotated[
        dict[StrictStr, StrictStr], AfterValidator(_pairs), AfterValidator(_annotations)
    ] = Field(
        default_factory=dict,
        max_length=MAX_ENTRIES,
        description="Annotations that engine pods carry beside Tangram's own; at most 16, of 8192 characters "
        "together. Keys of Kubernetes, Tangram and programs that act on pods are refused. A change replaces "
        "the pods.",
        json_schema_extra=_map(
            MAX_CHARACTERS,
            rule(f"self.map(key, key.size() + self[key].size()).sum() <= {MAX_CHARACTERS}", LENGTH_HELP),
        ),
    )
