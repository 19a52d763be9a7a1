"""The cluster as the operator sees it, read once with the rights of whoever asks.

The same sources, reductions and views as the operator's; its settings from its ConfigMap, and how many
replicas are wanted from what it wrote into statuses. So it need not run.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import yaml

from tangram.catalog import InputError
from tangram.cli.cluster.access import Access
from tangram.cli.cluster.operator_settings import operator_settings
from tangram.fleet import FleetSnapshot, Intent, ParsedIntent
from tangram.shell.api_server.auth import (
    SERVICE_ACCOUNT,
    AuthError,
    Credentials,
    find_credentials,
    load_kubeconfig,
)
from tangram.shell.api_server.client import ApiClient, ApiError
from tangram.shell.measure.scaler import Scaler, params_of
from tangram.shell.objects.kinds import LLM_DEPLOYMENTS, RESOURCE_QUOTAS, Object, key_of
from tangram.shell.settings import Settings
from tangram.shell.snapshot.fleet_snapshot import SnapshotSettings, fleet_snapshot
from tangram.shell.snapshot.intents import parsed_intents
from tangram.shell.snapshot.recorded_status import recorded_back_offs, recorded_replicas, recorded_variants
from tangram.shell.watch.mirror import Mirror
from tangram.shell.watch.mirror_view import MirrorView
from tangram.shell.watch.mirrors import Mirrors

Result = TypeVar("Result")

_CLUSTER = "cluster"
_NEVER_S = 1e9


@dataclass(frozen=True, slots=True)
class ObservedCluster:
    """A whole cluster at one instant."""

    fleet: FleetSnapshot
    intents: tuple[ParsedIntent, ...]
    notes: tuple[str, ...] = ()  # what could not be understood
    namespace: str = "default"  # of the kubeconfig's context


def read_cluster(access: Access) -> ObservedCluster:
    """Read everything once. Raises `InputError` that says what is missing: credentials, rights, CRDs, an
    answer.
    """
    return with_client(access, lambda client: _seen(client, access))


def with_client(access: Access, use: Callable[[ApiClient], Awaitable[Result]]) -> Result:
    """Return what `use` makes of a client of the cluster. Raises `InputError`, as `read_cluster` does."""
    return asyncio.run(_with_client(_credentials(access), use))


def context_namespace(access: Access) -> str:
    """Return the namespace of the kubeconfig's context; of the pod, where this runs in one."""
    if access.kubeconfig is None and access.context is None and (SERVICE_ACCOUNT / "namespace").exists():
        return (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
    from kubernetes import config  # noqa: PLC0415 - 20 MiB that a pod with a service account does not need

    try:
        contexts, current = config.list_kube_config_contexts(access.kubeconfig)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise InputError(_CLUSTER, f"the kubeconfig cannot be read: {error}") from error
    named = (each for each in contexts if each["name"] == access.context)
    chosen = current if access.context is None else next(named, {})
    return str((chosen or {}).get("context", {}).get("namespace") or "default")


class _Heard(logging.Handler):
    """Keeps what the official client only logs: why a credential plug-in failed."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()


def _credentials(access: Access) -> Credentials:
    heard = _Heard()
    logging.getLogger().addHandler(heard)
    try:
        if access.context is not None:
            found: Credentials = load_kubeconfig(access.kubeconfig, access.context)
        else:
            found = find_credentials(access.kubeconfig)
    except AuthError as error:
        raise InputError(_CLUSTER, str(error)) from error
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        yaml.YAMLError,
    ) as error:  # its own, of its contents
        raise InputError(_CLUSTER, f"the kubeconfig is not one: {' '.join(str(error).split())}") from error
    finally:
        logging.getLogger().removeHandler(heard)
    if heard.last:
        raise InputError(_CLUSTER, f"the kubeconfig's credentials: {heard.last}")
    return found


async def _with_client(credentials: Credentials, use: Callable[[ApiClient], Awaitable[Result]]) -> Result:
    try:
        client = ApiClient(credentials)
    except (OSError, ValueError) as error:  # certificates that cannot be read
        raise InputError(
            _CLUSTER, f"the credentials for {credentials.server} cannot be used: {error}"
        ) from error
    try:
        return await use(client)
    except ApiError as error:
        raise _explained(error, credentials.server) from error
    finally:
        await client.close()


async def _seen(client: ApiClient, access: Access) -> ObservedCluster:
    if not await client.served(LLM_DEPLOYMENTS):
        raise InputError(
            _CLUSTER,
            f"{client.credentials.server} does not serve {LLM_DEPLOYMENTS.plural}.{LLM_DEPLOYMENTS.group}:"
            " Tangram's CRDs are not installed there",
        )
    settings = await operator_settings(client, access.operator_namespace, access.config)
    view = await _view(client, settings)
    skipped: list[str] = []

    def skip(obj: Object, error: Exception) -> None:
        skipped.append(
            f"{obj.get('kind', 'object')} {'/'.join(filter(None, key_of(obj)))} is left out: {error!r}"
        )

    now = time.time()
    everyone = parsed_intents(view, skip, settings.default_priority_class_name)
    told = SnapshotSettings(
        settings.engine_image,
        settings.tolerations,
        tuple(sorted(settings.prices.items())),
        settings.pod_needs,
        settings.default_priority_class_name,
    )
    bare = fleet_snapshot(view, told, now, skip)
    return ObservedCluster(_with_wishes(settings, view, bare, everyone, now), everyone, tuple(skipped))


def _with_wishes(
    settings: Settings,
    view: MirrorView,
    bare: FleetSnapshot,
    everyone: tuple[ParsedIntent, ...],
    now: float,
) -> FleetSnapshot:
    """Add what the scaling law wants without a metric: what each status says, within present bounds."""
    valid = tuple(intent for intent in everyone if isinstance(intent, Intent))
    scaler = Scaler(params_of(settings), None)
    scaled = scaler.decide(valid, bare.workloads, recorded_replicas(view), now, recorded_variants(view))
    desired = tuple(sorted((uid, one.decision.replicas) for uid, one in scaled.items()))
    back_offs = tuple(sorted(each for found in recorded_back_offs(view).values() for each in found))
    return replace(bare, desired=desired, desired_of=scaler.counted(), back_offs=back_offs)


async def _view(client: ApiClient, settings: Settings) -> MirrorView:
    mirrors = Mirrors(
        client,
        settings.watch_namespaces,
        changed=lambda: None,
        clock=time.monotonic,
        relist_s=_NEVER_S,
        drift=lambda _kind, _count: None,
    )
    failures = await asyncio.gather(*(_refresh(mirror) for mirror in mirrors.all))
    forbidden = sorted(
        {str(mirror.source) for mirror, error in failures if error is not None and error.status == 403}
    )
    if forbidden:
        everywhere = "" if settings.watch_namespaces else " in all namespaces"
        raise InputError(
            _CLUSTER,
            f"you may not list {_listed(forbidden)}{everywhere}; docs/packing.md has a role that may",
        )
    for _, error in failures:
        if error is not None:
            raise error
    return mirrors.view()


async def _refresh(mirror: Mirror) -> tuple[Mirror, ApiError | None]:
    try:
        await mirror.refresh()
    except ApiError as error:
        newer = (
            error.status == 404 and mirror.source.kind != LLM_DEPLOYMENTS
        )  # a CRD that is not installed yet
        unseen = error.status == 403 and mirror.source.kind == RESOURCE_QUOTAS  # the operator can do without
        return mirror, None if newer or unseen else error
    return mirror, None


def _explained(error: ApiError, server: str) -> InputError:
    if error.status == 0:
        return InputError(_CLUSTER, f"no answer from {server}: {error.message}")
    if error.status == 401:
        return InputError(
            _CLUSTER, f"{server} does not accept the kubeconfig's credentials ({error.message or '401'})"
        )
    if error.status == 403:
        return InputError(_CLUSTER, f"{server} forbids it: {error.message}")
    return InputError(_CLUSTER, f"{server} answered {error}")


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
