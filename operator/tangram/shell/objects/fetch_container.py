"""The init container that fetches a checkpoint, or its headers, before another container reads it. Pure.

It alone has the author's Secret, and a volume that it may write; the engine mounts that volume read-only.
"""

from tangram.api import ModelSource
from tangram.api.llm_deployment.source import FETCHED, MODEL_MOUNT
from tangram.fleet import PinnedRevision
from tangram.kube.kinds import Object
from tangram.shell.settings import Settings

NAME = "fetch"
SECRET = "source-secret"  # noqa: S105 - a volume
SECRET_FOLDER = "/etc/tangram/source-secret"  # noqa: S105
CA_BUNDLE = "ca-bundle"  # a volume
_CA_FOLDER, _CA_KEY = "/etc/tangram/ca-bundle", "ca.crt"
SIZE_OPTION = "--size"
TERMINATION_LOG = "/dev/termination-log"
# Keys of the Secret, by the scheme of the source, as in `tangram.sources.open_source`.
SECRET_KEYS = {
    "hf": ("token", "HF_TOKEN"),
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    "oci": (".dockerconfigjson",),
}
_SECRET_MODE = 0o440
_SLOWEST_RATE = 10_000_000  # bytes per second, of a poor connection to a hub
HEADERS_SIZE = 1 << 30  # bytes of files without tensors
# Beside the files: names, and the blocks of a file system that are not full.
_SPARE_SHARE, _SPARE = 1.01, 64 << 20


def await_container(
    source: ModelSource, pin: PinnedRevision, resources: Object, settings: Settings
) -> Object:
    """Return the container that ends once the Job of a claim has fetched `source` at `pin` into it."""
    args = [
        *("await", "--uri", source.at(pin.revision), "--to", FETCHED),
        *(SIZE_OPTION, str(pin.size), "--termination-log", TERMINATION_LOG),
    ]
    mounts: list[Object] = [{"name": "model", "mountPath": MODEL_MOUNT, "readOnly": True}]
    return _container(args, mounts, resources, settings)


def fetch_container(
    source: ModelSource, pin: PinnedRevision | None, secret: str, resources: Object, settings: Settings
) -> Object:
    """Return the container that fetches all of `source` at `pin`, or without a pin its headers.

    `secret`: name of the Secret in the namespace of the pod; empty: none.
    """
    revision = source.revision if pin is None else pin.revision
    args = [
        "headers" if pin is None else "fetch",
        *("--uri", source.at(revision)),
        *("--to", FETCHED),
        *(() if pin is None else (SIZE_OPTION, str(pin.size))),
        *_address(source, settings),
        *_network(settings),
        *(("--secret", SECRET_FOLDER, "--secret-name", secret) if secret else ()),
        *("--termination-log", TERMINATION_LOG),
    ]
    mounts: list[Object] = [
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a path inside the container
        {"name": "model", "mountPath": MODEL_MOUNT},
    ]
    if secret:
        mounts.append({"name": SECRET, "mountPath": SECRET_FOLDER, "readOnly": True})
    if settings.models.ca_bundle:
        mounts.append({"name": CA_BUNDLE, "mountPath": _CA_FOLDER, "readOnly": True})
    return _container(args, mounts, resources, settings)


def _container(args: list[str], mounts: list[Object], resources: Object, settings: Settings) -> Object:
    return {
        "name": NAME,
        "image": settings.fetch_image,
        "imagePullPolicy": settings.fetch_image_pull_policy,
        "args": args,
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "File",
        "resources": resources,
        "volumeMounts": mounts,
    }


def _address(source: ModelSource, settings: Settings) -> tuple[str, ...]:
    models = settings.models
    if source.scheme == "hf":
        return ("--hub", models.hub_endpoint)
    if source.scheme == "oci":
        return tuple(word for host in models.plain_http_registries for word in ("--plain-http", host))
    endpoint = ("--s3", models.s3_endpoint) if models.s3_endpoint else ()
    return (*endpoint, "--s3-region", models.s3_region)


def _network(settings: Settings) -> tuple[str, ...]:
    models = settings.models
    proxy = ("--proxy", models.proxy, "--no-proxy", models.no_proxy) if models.proxy else ()
    return (*proxy, *(("--ca-bundle", f"{_CA_FOLDER}/{_CA_KEY}") if models.ca_bundle else ()))


def fetch_s(pin: PinnedRevision | None) -> int:
    """Return how many seconds a fetch may take until a rollout counts as failed."""
    return 0 if pin is None else pin.size // _SLOWEST_RATE


def disk_bytes(pin: PinnedRevision | None) -> int:
    """Return the size of the volume of what is fetched."""
    return HEADERS_SIZE if pin is None else int(pin.size * _SPARE_SHARE) + _SPARE


def source_volumes(source: ModelSource, secret: str, settings: Settings) -> list[Object]:
    """Return the volumes of the Secret and of certificate authorities. Where one is not there, the container
    itself reports it.
    """
    volumes: list[Object] = []
    if secret:
        keys = [{"key": key, "path": key} for key in SECRET_KEYS[source.scheme]]
        volume = {"secretName": secret, "items": keys, "defaultMode": _SECRET_MODE, "optional": True}
        volumes.append({"name": SECRET, "secret": volume})
    if settings.models.ca_bundle:
        items = [{"key": _CA_KEY, "path": _CA_KEY}]
        bundle = {"name": settings.models.ca_bundle, "items": items, "optional": True}
        volumes.append({"name": CA_BUNDLE, "configMap": bundle})
    return volumes
