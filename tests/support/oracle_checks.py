"""Checks the JSON of `tangram plan` against its input: layouts, owners, moves, money, steps."""

from .oracle import FULL, Fleet, board_of, sites, sku_of
from .oracle_steps import steps

MONEY = 2e-4  # USD: plans print five decimals


def problems(documents, plan):
    """Everything that is wrong with a plan for these documents, as text; none: it keeps what it says."""
    fleet = Fleet(documents)
    found = []
    for check in (_layouts, _requests, _strangers, _moves, _money, steps):
        found += [f"{check.__name__.strip('_')}: {text}" for text in check(fleet, plan)]
    return found


def _layouts(fleet, plan):
    ids = [gpu["id"] for gpu in plan["gpus"]]
    if len(ids) != len(set(ids)) or not set(fleet.gpus) <= set(ids):
        yield "a GPU is missing or there twice"
    for gpu in plan["gpus"]:
        after = [(i["profile"], i["start"]) for i in gpu["instances"] + gpu.get("free", [])]
        reason = board_of(fleet, plan, gpu["id"]).wrong(after)
        if reason:
            yield f"{gpu['id']}: {reason}: {after}"
        if gpu["inUse"] != bool(gpu["instances"]):
            yield f"{gpu['id']}: inUse is {gpu['inUse']}"
        before = fleet.gpus.get(gpu["id"])
        if before is None:
            continue
        was = {(i["profile"], i["start"]) for i in before.get("instances", ())}
        slices = {slice_ for slice_ in after if slice_[0] != FULL}
        changed = slices != {slice_ for slice_ in was if slice_[0] != FULL}
        if changed != gpu["recut"]:
            yield f"{gpu['id']}: recut is {gpu['recut']}"
        if changed and before.get("cuttable") is False:
            yield f"{gpu['id']}: is cut, though it must not be"
        whole = any(profile == FULL for profile, _ in after)
        if after and fleet.mode(before) is whole:
            yield f"{gpu['id']}: {after} against its MIG mode"


def _requests(fleet, plan):
    unmet = {entry["name"]: entry for entry in plan["unmet"]}
    told = {entry["name"]: entry for entry in plan["requests"]}
    if set(told) != set(fleet.requests) or not set(unmet) <= set(fleet.requests):
        yield f"requests {sorted(told)}, unmet {sorted(unmet)}"
        return
    for name, spec in fleet.requests.items():
        mine = _held(plan).get(name, [])
        short = spec["count"] - len(mine)
        if any(profile != spec["profile"] or spec.get("sku", sku) != sku for sku, profile in mine):
            yield f"{name} wants {spec}, has {mine}"
        if (told[name]["count"], told[name]["placed"]) != (spec["count"], len(mine)):
            yield f"{name} has {mine}, told is {told[name]}"
        if short < 0:
            yield f"{name} has {-short} too many"
        wanted = (short, round(short / spec["count"], 4), spec.get("priority", 0)) if short else None
        said = unmet.get(name)
        if wanted != (said and (said["count"], round(said["share"], 4), said["priority"])):
            yield f"{name} goes short {wanted}, unmet tells {said}"


def _strangers(fleet, plan):
    """Owners whom nobody asked for keep all that they have; what must not move stays."""
    after, has, had = sites(plan["gpus"]), _held(plan), {}
    for gpu, instance in fleet.held():
        owner = instance["owner"]
        if owner in fleet.requests:
            continue
        had.setdefault(owner, []).append((gpu["sku"], instance["profile"]))
        site = (gpu["id"], instance["profile"], instance["start"])
        if instance.get("movable") is False and after.get(site) != owner:
            yield f"{owner} must stay at {site}"
    for owner in (has.keys() | had.keys()) - fleet.requests.keys():
        if sorted(has.get(owner, ())) != sorted(had.get(owner, ())):
            yield f"{owner} had {had.get(owner)}, has {has.get(owner)}"


def _held(plan):
    """(SKU, profile) of all that each owner has."""
    found = {}
    for (gpu_id, profile, _), owner in sites(plan["gpus"]).items():
        found.setdefault(owner, []).append((sku_of(plan, gpu_id), profile))
    return found


def _moves(fleet, plan):
    before = {site: owner for site, owner in sites(fleet.gpus.values()).items() if owner}
    after = sites(plan["gpus"])
    cleared = {g["id"] for g in plan["gpus"] if g["recut"] and fleet.clears(fleet.gpus.get(g["id"], {}))}
    stays = {site for site, owner in before.items() if after.get(site) == owner and site[0] not in cleared}
    left, came = [], []
    told = {}
    for move in plan["moves"]:
        start, end = tuple(move["from"].values()), tuple(move["to"].values())
        if before.get(start) != move["owner"] or start in stays or start in left:
            yield f"nobody moves like {move}"
            continue
        if after.get(end) != move["owner"] or end in stays or end in came:
            yield f"nobody gets where {move} goes"
        left.append(start)
        came.append(end)
        told[move["owner"]] = told.get(move["owner"], 0) + 1
        gpu = fleet.gpus[start[0]]
        instance = next(i for i in gpu["instances"] if (i["profile"], i["start"]) == (start[1], start[2]))
        if abs(move["cost"] - fleet.cost_of_moving(gpu, instance)) > MONEY:
            yield f"{move} costs {fleet.cost_of_moving(gpu, instance)}"
    for owner in set(before.values()):
        had = [site for site in before if before[site] == owner]
        has = [site for site in after if after[site] == owner]
        kept = sum(site in stays for site in had)
        if told.get(owner, 0) != min(len(had), len(has)) - kept:
            yield f"{owner} had {len(had)}, has {len(has)}, {kept} stay, {told.get(owner, 0)} are told"
    if fleet.move_budget is not None and len(plan["moves"]) > fleet.move_budget:
        yield f"{len(plan['moves'])} moves, {fleet.move_budget} are allowed"


def _money(fleet, plan):
    used = [gpu["id"] for gpu in plan["gpus"] if gpu["instances"]]
    hourly = sum(fleet.price(fleet.gpus[gpu_id]) for gpu_id in used if gpu_id in fleet.gpus)
    for grown in plan["newNodes"]:
        pool = fleet.pools[grown["pool"]]
        price = float(pool.get("pricePerGPUHour", fleet.prices.get(pool.get("sku"))))
        hourly += price * pool["nodes"].get("gpusPerNode", 8) * grown["count"]
    moved = sum(move["cost"] for move in plan["moves"])
    due = MONEY * (1 + len(plan["moves"]))
    if abs(plan["costPerHour"] - hourly) > due:
        yield f"costPerHour {plan['costPerHour']} is {hourly}"
    if abs(plan["moveCost"] - moved) > due:
        yield f"moveCost {plan['moveCost']} is {moved}"
    if abs(plan["objective"] - hourly * fleet.horizon - moved) > due:
        yield f"objective {plan['objective']} is {hourly * fleet.horizon + moved}"
    if plan["gpusInUse"] != len(used):
        yield f"gpusInUse {plan['gpusInUse']} is {len(used)}"
    if plan["bound"] > plan["objective"] + 1e-9:
        yield f"bound {plan['bound']} is above {plan['objective']}"
    gap = (plan["objective"] - plan["bound"]) / plan["objective"] if plan["objective"] else 0
    if abs(plan["gap"] - gap) > 1e-4 or (plan["status"] == "OPTIMAL" and gap > 1e-6):
        yield f"gap {plan['gap']} is {gap}, {plan['status']}"
    for stage in plan["stages"]:
        if stage["bound"] > stage["value"] + 1e-6:
            yield f"stage {stage}"
