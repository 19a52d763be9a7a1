"""Read a cluster once, as the operator does, with the rights of the user.

The operator need not run: its settings come from its ConfigMap, desired replicas from the statuses that it
wrote. Objects are watched, reduced and parsed by the operator's own code.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from tangram.api.llm_deployment.status import ScalingDecisionStatus
from tangram.catalog import InputError
from tangram.cli.cluster.access import ClusterAccess
from tangram.cli.cluster.operator_settings import operator_settings
from tangram.fleet import FleetSnapshot, Intent, ParsedIntent
from tangram.kube import kubeconfig
from tangram.kube.client import ApiClient, ApiError
from tangram.kube.credentials import SERVICE_ACCOUNT, AuthError, Credentials
from tangram.kube.kinds import (
    CLUSTER_QUEUES,
    FLEET_PLANS,
    LLM_DEPLOYMENTS,
    RESOURCE_FLAVORS,
    RESOURCE_QUOTAS,
    Object,
    key_of,
)
from tangram.kube.kubeconfig import find_credentials, load_kubeconfig
from tangram.kube.mirror import Mirror
from tangram.shell.measure.scaler import Scaler, params_of, provisioned_loads
from tangram.shell.repartition.fleet_state import waiting_for_consent
from tangram.shell.settings import Settings
from tangram.shell.snapshot.fleet_snapshot import fleet_snapshot
from tangram.shell.snapshot.intents import parsed_intents
from tangram.shell.snapshot.recorded_status import (
    recorded_back_offs,
    recorded_decisions,
    recorded_replicas,
    recorded_scaling,
    recorded_scaling_active,
    recorded_variants,
)
from tangram.shell.watch.mirror_view import MirrorView
from tangram.shell.watch.mirrors import Mirrors

Result = TypeVar("Result")

_CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class ObservedCluster:
    """A cluster at one instant."""

    fleet: FleetSnapshot
    intents: tuple[ParsedIntent, ...]
    notes: tuple[str, ...] = ()  # one per object that could not be read
    decisions: Mapping[str, tuple[ScalingDecisionStatus, ...]] = field(default_factory=dict)  # by UID
    scaling_active: Mapping[str, str] = field(default_factory=dict)  # the condition, by UID


def read_cluster(access: ClusterAccess) -> ObservedCluster:
    """Read the cluster. Raises `InputError` without credentials, rights, CRDs or an answer."""
    return with_client(access, lambda client: _observed_cluster(client, access))


def with_client(access: ClusterAccess, use: Callable[[ApiClient], Awaitable[Result]]) -> Result:
    """Return the result of `use` with a client of the cluster. Raises `InputError` as `read_cluster` does."""
    return asyncio.run(_with_client(_credentials(access), use))


def context_namespace(access: ClusterAccess) -> str:
    """Return the namespace of the kubeconfig's context; inside a pod without kubeconfig, that of the pod."""
    if access.kubeconfig is None and access.context is None and (SERVICE_ACCOUNT / "namespace").exists():
        return (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
    try:
        return kubeconfig.context_namespace(access.kubeconfig, access.context)
    except AuthError as error:
        raise InputError(_CLUSTER, str(error)) from error


class _LastErrorLog(logging.Handler):
    """Keeps the last error that the official client only logs: why a credential plug-in failed."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()


def _credentials(access: ClusterAccess) -> Credentials:
    error_log = _LastErrorLog()
    logging.getLogger().addHandler(error_log)
    try:
        if access.context is not None:
            credentials: Credentials = load_kubeconfig(access.kubeconfig, access.context)
        else:
            credentials = find_credentials(access.kubeconfig)
    except AuthError as error:
        raise InputError(_CLUSTER, str(error)) from error
    finally:
        logging.getLogger().removeHandler(error_log)
    if error_log.last:
        raise InputError(_CLUSTER, f"the kubeconfig's credentials: {error_log.last}")
    return credentials


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
        raise _input_error(error, credentials.server) from error
    finally:
        await client.close()


async def _observed_cluster(client: ApiClient, access: ClusterAccess) -> ObservedCluster:
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
    keys = settings.engine.pod_metadata_keys
    default_class = settings.default_priority_class_name
    fleet = fleet_snapshot(view, settings, now, skip)
    if settings.partition.enabled:
        waiting = waiting_for_consent(await _fleet_plans(client))
        fleet = replace(fleet, partition=replace(fleet.partition, waiting=waiting))
    intents = parsed_intents(view, skip, default_class, keys, settings.pod_needs, fleet)
    return ObservedCluster(
        _with_desired_replicas(settings, view, fleet, intents, now),
        intents,
        tuple(skipped),
        recorded_decisions(view, skip),
        recorded_scaling_active(view),
    )


def _with_desired_replicas(
    settings: Settings, view: MirrorView, fleet: FleetSnapshot, intents: tuple[ParsedIntent, ...], now: float
) -> FleetSnapshot:
    """Add the replicas of each status, within the present bounds: the scaling law without a metric."""
    valid = tuple(intent for intent in intents if isinstance(intent, Intent))
    scaler = Scaler(params_of(settings), None)
    scaled = scaler.decide(
        valid,
        fleet.workloads,
        recorded_replicas(view),
        now,
        recorded_variants(view),
        memories=recorded_scaling(view),
    )
    desired = tuple(sorted((uid, scaling.decision.replicas) for uid, scaling in scaled.items()))
    back_offs = tuple(sorted(itertools.chain.from_iterable(recorded_back_offs(view).values())))
    return replace(
        fleet,
        desired=desired,
        desired_of=scaler.counted_shapes(),
        provisioned=provisioned_loads(scaled),
        back_offs=back_offs,
    )


async def _view(client: ApiClient, settings: Settings) -> MirrorView:
    new_mirror = partial(Mirror, client, changed=lambda: None, clock=time.monotonic)
    mirrors = Mirrors(
        settings.watch_namespaces,
        new_mirror,
        partition=settings.partition.enabled,
        model_claims=settings.models.volume_claims,
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


async def _fleet_plans(client: ApiClient) -> list[Object]:
    """Return the FleetPlans, or none where the user may not list them, or their CRD is older."""
    try:
        return (await client.list(FLEET_PLANS)).items
    except ApiError as error:
        if error.status in (403, 404):
            return []
        raise


_UNSEEN = (RESOURCE_QUOTAS, CLUSTER_QUEUES, RESOURCE_FLAVORS)  # without the right to, plans do without


async def _refresh(mirror: Mirror) -> tuple[Mirror, ApiError | None]:
    try:
        await mirror.refresh()
    except ApiError as error:
        kind = mirror.source.kind
        newer = error.status == 404 and kind != LLM_DEPLOYMENTS  # a CRD that is not installed yet
        unseen = error.status == 403 and kind in _UNSEEN
        return mirror, None if newer or unseen else error
    return mirror, None


def _input_error(error: ApiError, server: str) -> InputError:
    if error.status == 0:
        return InputError(_CLUSTER, f"no answer from {server}: {error.message}")
    if error.status == 401:
        problem = f"does not accept the kubeconfig's credentials ({error.message or '401'})"
        return InputError(_CLUSTER, f"{server} {problem}")
    if error.status == 403:
        return InputError(_CLUSTER, f"{server} forbids it: {error.message}")
    return InputError(_CLUSTER, f"{server} answered {error}")


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
