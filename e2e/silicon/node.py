"""Sets the labels of our own node with the pod's own token and nothing but the standard library."""

from __future__ import annotations

import json
import ssl
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Api:
    """Where the API server is and who we are there."""

    url: str
    token: Path | None = None
    ca: Path | None = None

    @classmethod
    def in_cluster(cls, environ: dict[str, str]) -> Api:
        """Return the API as a pod finds it.

        Raises:
            KeyError: not in a cluster.
        """
        host, port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
        host = f"[{host}]" if ":" in host else host
        return cls(f"https://{host}:{port}", ACCOUNT / "token", ACCOUNT / "ca.crt")

    def request(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Send one request and return the parsed answer.

        Raises:
            OSError: unreachable, or refused (urllib.error.HTTPError is one).
        """
        headers = {"Content-Type": kind}
        if self.token:  # read each time: the kubelet renews it
            headers["Authorization"] = f"Bearer {self.token.read_text().strip()}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310
        context = ssl.create_default_context(cafile=str(self.ca)) if self.ca else None
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:  # noqa: S310
            return json.load(answer)


def label_patch(present: dict[str, str], wanted: dict[str, str]) -> dict[str, str | None]:
    """Return the merge patch that turns `present` labels into `wanted` ones.

    Labels of slices that are no more are removed; labels of others (mig.config, gpu.deploy.*) stay untouched.
    """
    stale = {key for key in present if key.startswith("nvidia.com/mig-") and key not in wanted}
    changed = {key: value for key, value in wanted.items() if present.get(key) != value}
    return {**changed, **dict.fromkeys(sorted(stale), None)}


def set_labels(api: Api, node: str, wanted: dict[str, str]) -> int:
    """Make the node carry exactly these labels of ours; return how many changed.

    Raises:
        OSError: unreachable or refused.
    """
    path = f"/api/v1/nodes/{node}"
    patch = label_patch(api.request("GET", path)["metadata"].get("labels", {}), wanted)
    if patch:
        body = {"metadata": {"labels": patch}}
        api.request("PATCH", path, body, "application/merge-patch+json")
    return len(patch)
