"""`--what-if`: the input with one change.

add-gpu=SKU:N[,node=NAME][,pool=NAME]   remove-gpu=ID   remove-node=NAME   price=SKU:USD
objective=NAME:ttft=MS | tpot=MS        traffic=NAME:rps=N
"""

import math
from collections.abc import Callable
from dataclasses import replace

from tangram.catalog import InputError
from tangram.catalog.lookup import gpu_of_name
from tangram.catalog.prices import HIGHEST_USD_PER_HOUR
from tangram.eligibility.shapes.serving_requirements import ServingRequirements
from tangram.packing import GPUState, board
from tangram.plan.fleet_input.documents.fleet_input import FleetInput
from tangram.plan.fleet_input.documents.pools import under_pool_policy

FLAG = "--what-if"
_MOST_GPUS = 100_000


def with_change(inputs: FleetInput, text: str) -> FleetInput:
    """Return the input with the change of `text`. Raises `InputError` where it cannot be read."""
    kind, _, rest = text.partition("=")
    change = next((change for form, change in _CHANGES.items() if form.partition("=")[0] == kind), None)
    if change is None or not rest:
        raise InputError(FLAG, f"{text!r} is none of {', '.join(_CHANGES)}")
    return change(inputs, rest)


def _add_gpu(inputs: FleetInput, text: str) -> FleetInput:
    first, *more = text.split(",")
    name, _, count = first.partition(":")
    settings = dict(setting.partition("=")[::2] for setting in more)
    unknown = sorted(set(settings) - {"node", "pool"})
    if unknown:
        raise InputError(FLAG, f"add-gpu has no {unknown[0]!r}; it has node and pool")
    sku = gpu_of_name(name, FLAG).sku
    node = settings.get("node") or f"what-if-{sku}"
    new = GPUState(
        id=node,
        node=node,
        sku=sku,
        zone=next((gpu.zone for gpu in inputs.gpus if gpu.node == node), ""),
        pool=settings.get("pool", ""),
        convertible=board(sku) is not None,
    )
    new = under_pool_policy(new, {pool.name: pool for pool in inputs.pools})
    ids = {gpu.id for gpu in inputs.gpus}
    names = [_free_name(f"{node}/{i}", ids) for i in range(_gpu_count(count or "1", text))]
    gpus = (*inputs.gpus, *(replace(new, id=name) for name in names))
    return replace(inputs, gpus=tuple(sorted(gpus, key=lambda gpu: gpu.id)))


def _free_name(name: str, names: set[str]) -> str:
    while name in names:
        name += "+"
    names.add(name)
    return name


def _remove_gpu(inputs: FleetInput, name: str) -> FleetInput:
    return _without(inputs, lambda gpu: gpu.id == name, f"no GPU is called {name!r}")


def _remove_node(inputs: FleetInput, name: str) -> FleetInput:
    return _without(inputs, lambda gpu: gpu.node == name, f"no GPU is on a node {name!r}")


def _without(inputs: FleetInput, is_removed: Callable[[GPUState], bool], problem: str) -> FleetInput:
    left = tuple(gpu for gpu in inputs.gpus if not is_removed(gpu))
    if len(left) == len(inputs.gpus):
        raise InputError(FLAG, problem)
    return replace(inputs, gpus=left)


def _price(inputs: FleetInput, text: str) -> FleetInput:
    name, _, amount = text.partition(":")
    sku, usd = gpu_of_name(name, FLAG).sku, _number(amount, text)
    if not 0 <= usd <= HIGHEST_USD_PER_HOUR:
        raise InputError(FLAG, f"price={text}: must be from 0 to {HIGHEST_USD_PER_HOUR:g} USD per GPU-hour")
    prices = tuple(sorted((dict(inputs.terms.prices) | {sku: usd}).items()))
    return replace(
        inputs,
        terms=replace(inputs.terms, prices=prices),
        gpus=tuple(replace(g, price_per_hour=None) if g.sku == sku else g for g in inputs.gpus),
        pools=tuple(replace(p, price_per_gpu_hour=None) if p.sku == sku else p for p in inputs.pools),
    )


def _objective(inputs: FleetInput, text: str) -> FleetInput:
    name, key, value = _setting(text, ("ttft", "tpot"))

    def with_objective(d: ServingRequirements) -> ServingRequirements:
        request = replace(d.request, ttft_ms=value) if key == "ttft" else replace(d.request, tpot_ms=value)
        return replace(d, request=request)

    return _with_deployment(inputs, name, with_objective)


def _traffic(inputs: FleetInput, text: str) -> FleetInput:
    name, _, rps = _setting(text, ("rps",))
    return _with_deployment(inputs, name, lambda d: replace(d, rps=rps, request=replace(d.request, rps=rps)))


def _setting(text: str, keys: tuple[str, ...]) -> tuple[str, str, float]:
    name, _, setting = text.rpartition(":")
    key, _, value = setting.partition("=")
    if not name or key not in keys:
        raise InputError(FLAG, f"{text!r} must be NAME:{'|'.join(keys)}=NUMBER")
    return name, key, _number(value, text)


def _with_deployment(
    inputs: FleetInput, name: str, change: Callable[[ServingRequirements], ServingRequirements]
) -> FleetInput:
    if not any(name in {d.id, d.intent.name} for d in inputs.deployments):
        raise InputError(FLAG, f"no LLMDeployment is called {name!r}")
    try:
        deployments = tuple(change(d) if name in {d.id, d.intent.name} else d for d in inputs.deployments)
    except InputError as error:
        raise InputError(FLAG, f"{error.field} {error.problem}") from error
    return replace(inputs, deployments=deployments)


def _gpu_count(text: str, where: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_GPUS:
        raise InputError(FLAG, f"{where!r}: {text!r} is not a number of GPUs")
    return int(text)


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(FLAG, f"{where!r}: {text!r} is not a number")
    return value


_CHANGES: dict[str, Callable[[FleetInput, str], FleetInput]] = {
    "add-gpu=SKU:N,node=NAME": _add_gpu,
    "remove-gpu=ID": _remove_gpu,
    "remove-node=NAME": _remove_node,
    "price=SKU:USD": _price,
    "objective=NAME:ttft=MS": _objective,
    "traffic=NAME:rps=N": _traffic,
}
