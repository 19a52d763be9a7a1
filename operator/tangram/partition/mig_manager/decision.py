"""What is due on a node: at most one action, and what is waited for.

The states of mig-manager, its label's values and its defects: NVIDIA/mig-parted, cmd/nvidia-mig-manager.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from tangram.api.gpu_node import AttemptsStatus, GPUNodeCondition
from tangram.partition.mig_manager.blocking_pods import blocking_pods
from tangram.partition.mig_manager.config_entries import ALL_DISABLED, MIGConfig
from tangram.partition.mig_manager.managed_node import GPUPod, ManagedNode
from tangram.partition.mig_manager.node_counts import RETRY, NodeCounts, entry_name
from tangram.partition.mig_manager.observed_counts import SUCCESS, ObservedCounts
from tangram.partition.status.attempts import (
    FAILURES_BEFORE_QUARANTINE,
    LONGEST_BACK_OFF_S,
    GPURecord,
    OperationFailure,
    failed_attempts,
)
from tangram.partition.status.conditions import NodeConditionState, is_over
from tangram.partition.status.operator_labels import (
    MIG_CONFIG_LABEL,
    MIG_STATE_LABEL,
    PAUSED_FOR_MIG,
    paused_components,
)
from tangram.partition.status.times import parse_api_time

AS_WANTED, BLOCKED = "AsWanted", "Blocked"
LABEL_CHANGED = "LABEL_CHANGED"  # name of a failure: the label was set to something else from outside


@dataclass(frozen=True, slots=True)
class MIGManagerTimes:
    """For how long each thing is waited for, in seconds."""

    config_sync_s: float = 150.0  # the kubelet copies a changed ConfigMap within about two minutes
    apply_s: float = 900.0  # mig-manager itself waits up to five minutes for each component to end
    confirm_s: float = 300.0  # device plugin and GPU feature discovery start, and the kubelet reports
    reboot_s: float = 1800.0
    retry_s: float = 60.0  # mig-manager refuses a name that is no entry in about a second
    in_use_s: float = 600.0  # whether a holder is drained is decided elsewhere
    back_off_s: float = 60.0  # after the first failure: each attempt pauses the device plugin of the node
    settled_s: float = 3600.0  # after which changes of the label from outside no longer count


@dataclass(frozen=True, slots=True)
class WriteEntry:
    """Add the entry of a layout to the ConfigMap."""

    counts: NodeCounts


@dataclass(frozen=True, slots=True)
class SetLabels:
    """Set labels of the Node in the version that was read."""

    labels: tuple[tuple[str, str], ...]
    purpose: Literal["request", "retry", "restore"]


MIGManagerAction = WriteEntry | SetLabels


@dataclass(frozen=True, slots=True)
class LayoutDecision:
    """The condition Applied, the action, and the failed attempts. All of it holds once the action is done."""

    state: NodeConditionState
    action: MIGManagerAction | None = None
    attempts: AttemptsStatus | None = None
    requests: bool = False  # whether the label names the entry of the wanted layout then


@dataclass(frozen=True, slots=True)
class NodeChange:
    """One node on its way to a layout."""

    node: ManagedNode
    pods: tuple[GPUPod, ...]
    config: MIGConfig
    observed: ObservedCounts
    wanted: NodeCounts
    last: GPUNodeCondition | None  # Applied, as it was stored
    former_config: str | None  # the entry that was requested last
    former_attempts: AttemptsStatus | None
    now: datetime
    times: MIGManagerTimes

    @property
    def target(self) -> str:
        """The entry of the wanted layout."""
        return entry_name(self.wanted)

    @property
    def attempts(self) -> AttemptsStatus | None:
        """The failed attempts at this layout."""
        return self.former_attempts if self.former_config == self.target else None

    def is_over(self, state: NodeConditionState) -> bool:
        """Whether what `state` waits for was waited for until its deadline."""
        return is_over(self.last, state, self.now)


def decide(change: NodeChange) -> LayoutDecision:
    """Return what is due next."""
    node = change.node
    if node.config == change.target:
        return replace(_requested(change), requests=True)
    is_settled = node.config in ("", ALL_DISABLED) and not node.is_changing
    if is_settled and change.observed == change.wanted:
        return LayoutDecision(_as_wanted())
    if change.former_config == change.target and node.config != RETRY:
        return _changed_from_outside(change)
    return _request(change)


def _requested(change: NodeChange) -> LayoutDecision:
    """The label names the entry: follow what mig-manager makes of it."""
    node, target = change.node, change.target
    if node.state == SUCCESS:
        return _confirmed(change)
    if node.state == "failed":
        return _after_failure(
            change, "MIG_MANAGER_FAILED", "mig-manager reports failed: see the log of its pod"
        )
    if node.state == "rebooting":
        message = f"mig-manager reboots the node for {target}"
        wait = _waiting("Rebooting", message, f"Node {node.name}", change.times.reboot_s)
        error = "REBOOT_TIMEOUT"
    else:
        wait = _waiting("Applying", f"mig-manager makes the layout {target}", target, change.times.apply_s)
        error = "STUCK_PENDING"
    if not change.is_over(wait) and not _has_failed(change):
        return LayoutDecision(wait, attempts=_under_way(change.attempts))
    text = f"the state of mig-manager has been {node.state or 'empty'} for too long"
    return _after_failure(change, error, text)


def _confirmed(change: NodeChange) -> LayoutDecision:
    """mig-manager reports success: believe what the node offers."""
    node, attempts = change.node, change.attempts
    wait = _waiting(
        "Confirming",
        "mig-manager reports success, and the node does not offer the devices of the layout yet",
        f"allocatable of Node {node.name}",
        change.times.confirm_s,
    )
    was_confirmed = change.last is not None and change.last.reason == AS_WANTED
    has_unhealthy = node.offers(change.wanted, node.most) and (was_confirmed or change.is_over(wait))
    if node.offers(change.wanted) or has_unhealthy:
        return LayoutDecision(_as_wanted(), attempts=_remembered(change))
    left_paused = _paused(change)  # by a process of mig-manager that ended before it was done
    if left_paused is not None:
        return left_paused
    if not change.is_over(wait) and not _has_failed(change):
        return LayoutDecision(wait, attempts=_under_way(attempts))
    text = "mig-manager reports success, and the node offers other devices"
    return _after_failure(change, "NOT_CONFIRMED", text)


def _remembered(change: NodeChange) -> AttemptsStatus | None:
    """Return the attempts after a success: changes of the label from outside count for a while, so that two
    writers do not take turns for ever.
    """
    attempts, last = _under_way(change.attempts), change.last
    if attempts is None or attempts.error != LABEL_CHANGED:
        return None
    since = parse_api_time(last.since) if last is not None and last.reason == AS_WANTED else change.now
    age = None if since is None else change.now - since
    settled = timedelta(seconds=change.times.settled_s)
    return attempts if age is not None and abs(age) < settled else None  # one from far ahead: another clock's


def _changed_from_outside(change: NodeChange) -> LayoutDecision:
    """The label named the entry, and names something else now."""
    node = change.node
    text = f"{MIG_CONFIG_LABEL} was set to {node.config or 'nothing'} from outside"
    return _after_failure(change, LABEL_CHANGED, text)


def _after_failure(change: NodeChange, error: str, text: str) -> LayoutDecision:
    """Count a failure once, wait for its back-off, then try again."""
    attempts = change.attempts
    if attempts is None or (attempts.next_try is None and attempts.count < FAILURES_BEFORE_QUARANTINE):
        failure = OperationFailure(f"layout {change.target}", error, text)
        attempts = failed_attempts(attempts, failure, change.now, change.times.back_off_s)
    if attempts.next_try is None:
        help_ = "write another layout, or remove the attempts from status.gpus, to try again"
        message = f"{attempts.count} attempts in a row failed; the last: {attempts.message}; {help_}"
        return LayoutDecision(NodeConditionState("False", BLOCKED, message), attempts=attempts)
    if GPURecord(attempts).is_backing_off(change.now):
        message = f"{attempts.message}; tried again at {attempts.next_try}"
        state = _waiting("BackOff", message, f"layout {change.target}", LONGEST_BACK_OFF_S)
        return LayoutDecision(state, attempts=attempts)
    again = _request(change) if change.node.config != change.target else _retry(change)
    return again if again.attempts is not None else replace(again, attempts=attempts)


def _retry(change: NodeChange) -> LayoutDecision:
    """Make mig-manager try an entry again: it only reacts to another value of the label."""
    is_unsure = change.node.state == SUCCESS  # the node offers other devices than those of its entry
    refusal = _paused(change) or _in_use(change, is_unsure=is_unsure)
    if refusal is not None:
        return refusal
    return _set_label(change, RETRY, "retry", change.times.retry_s)


def _request(change: NodeChange) -> LayoutDecision:
    """Bring the label to the entry: the entry first, then nothing that is in use, then the label."""
    if not change.config.has(change.wanted):
        state = NodeConditionState("False", "WritingEntry", f"the ConfigMap {change.config.name} lacks it")
        return LayoutDecision(state, WriteEntry(change.wanted), change.attempts)
    refusal = _in_use(change) or _not_synced(change) or _busy(change) or _paused(change)
    if refusal is not None:
        return refusal
    return replace(_set_label(change, change.target, "request", change.times.apply_s), requests=True)


def _set_label(
    change: NodeChange, value: str, purpose: Literal["request", "retry"], wait_s: float
) -> LayoutDecision:
    """Set the label, and the state with it: else that of the former value is taken for that of this one."""
    labels = ((MIG_CONFIG_LABEL, value), (MIG_STATE_LABEL, "pending"))
    if purpose == "request":
        state = _waiting("Applying", f"mig-manager makes the layout {value}", value, wait_s)
    else:
        state = _retrying(change)
    return LayoutDecision(state, SetLabels(labels, purpose), attempts=_under_way(change.attempts))


def _busy(change: NodeChange) -> LayoutDecision | None:
    """mig-manager is at work on something else, or has yet to see the value of a retry."""
    node = change.node
    if not node.is_changing:
        return None
    attempts = change.attempts
    if node.config == RETRY:
        wait, attempts = _retrying(change), _under_way(attempts)
    else:
        message = f"mig-manager is {node.state} with {MIG_CONFIG_LABEL}={node.config}"
        wait_s = change.times.reboot_s if node.state == "rebooting" else change.times.apply_s
        wait = _waiting("MIGManagerBusy", message, f"mig-manager on Node {node.name}", wait_s)
    is_over = change.is_over(wait) or (change.last is not None and change.last.reason == "Restoring")
    return None if is_over else LayoutDecision(wait, attempts=attempts)


def _paused(change: NodeChange) -> LayoutDecision | None:
    """Let the components run again that mig-manager left paused: it would take that for what they were."""
    paused = [
        name for name, value in paused_components(change.node.labels).items() if value == PAUSED_FOR_MIG
    ]
    if not paused:
        return None
    message = f"mig-manager left {', '.join(paused)} at {PAUSED_FOR_MIG}"
    action = SetLabels(tuple((name, "true") for name in paused), "restore")
    return LayoutDecision(NodeConditionState("False", "Restoring", message), action, change.attempts)


def _in_use(change: NodeChange, *, is_unsure: bool = False) -> LayoutDecision | None:
    """mig-manager evicts no pod: one that may hold a device of a GPU that changes has to go before."""
    observed = (None,) * len(change.observed) if is_unsure else change.observed
    pods = blocking_pods(change.node, change.pods, observed, change.wanted)
    if not pods:
        return None
    others = f" and {len(pods) - 1} other pods" if len(pods) > 1 else ""
    message = f"waits for {pods[0]}{others} to end: each may hold a device of a GPU that changes"
    state = _waiting("InUse", message, str(pods[0]), change.times.in_use_s)
    return LayoutDecision(state, attempts=change.attempts)


def _not_synced(change: NodeChange) -> LayoutDecision | None:
    """The file that mig-manager reads follows the ConfigMap a minute or two later."""
    config, sync = change.config, timedelta(seconds=change.times.config_sync_s)
    if config.written_at is None or not config.written_at <= change.now < config.written_at + sync:
        return None
    message = "mig-manager's file follows the ConfigMap within a minute or two"
    wait = _waiting("ConfigSyncing", message, f"entry {change.target}", change.times.config_sync_s)
    return None if change.is_over(wait) else LayoutDecision(wait, attempts=change.attempts)


def _has_failed(change: NodeChange) -> bool:
    """Whether this attempt was counted as failed already: what mig-manager does now is too late."""
    attempts = change.attempts
    if attempts is None or attempts.error == LABEL_CHANGED:
        return False
    return attempts.next_try is not None or attempts.count >= FAILURES_BEFORE_QUARANTINE


def _under_way(attempts: AttemptsStatus | None) -> AttemptsStatus | None:
    """Return the attempts while the next one is being made."""
    return attempts and attempts.model_copy(update={"next_try": None})


def _as_wanted() -> NodeConditionState:
    return NodeConditionState("True", AS_WANTED, "every GPU has the layout that the spec wants")


def _retrying(change: NodeChange) -> NodeConditionState:
    message = f"another value of the label comes first, so that mig-manager tries {change.target} again"
    return _waiting("Retrying", message, f"{MIG_CONFIG_LABEL}={RETRY}", change.times.retry_s)


def _waiting(reason: str, message: str, waits_for: str, wait_s: float) -> NodeConditionState:
    return NodeConditionState("False", reason, message, waits_for, wait_s)
