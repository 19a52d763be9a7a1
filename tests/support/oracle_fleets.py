"""Small fleets of slices, drawn at random: boards, layouts, owners, prices, policies and requests."""

from .oracle import BOARDS, FULL

PRICES = {
    "H100-80GB-SXM": 2.5,
    "A100-40GB-SXM": 1.25,
    "A100-80GB-SXM": 1.6,
    "H200-141GB-SXM": 4.1,
    "B200-180GB-SXM": 7.5,
    "A30": 0.5,
    "RTX-PRO-6000-SERVER": 1.2,
    "H100-94GB-NVL": 3.6,
    "L4": 0.55,
    "L40S": 1.35,
}
COUNTS = (0, 1, 1, 1, 2, 2, 4, 5, 8)


def fleet(rng, gpus=4, requests=6):
    """Documents for `tangram plan`; whatever is drawn is legal."""
    boards = rng.sample(sorted(PRICES), rng.choice((1, 1, 2)))
    asked = {f"r{i}": _request(rng, rng.choice(boards)) for i in range(rng.randint(0, requests))}
    knobs = {
        "fill": rng.choice((0, 0.3, 0.6, 0.9)),
        "fixed": rng.choice((0, 0, 0.2)),
        "backends": rng.choice((["nvml"], ["nvml"], ["mig-manager"], ["nvml", "mig-manager"])),
        "priced": rng.random() < 0.15,
        "stuck": rng.random() < 0.15,
        "modes": rng.random() < 0.3,
    }
    spec = {"gpus": [], "prices": PRICES}
    for index in range(rng.randint(1, gpus)):
        spec["gpus"].append(_gpu(rng, f"g{index}", rng.choice(boards), asked, knobs))
    for key, values, chance in (
        ("moveCost", (0, 0.1, 0.6, 3), 0.4),
        ("moveBudget", (0, 1, 2, 3), 0.3),
        ("horizonHours", (0.1, 2, 24), 0.2),
    ):
        if rng.random() < chance:
            spec[key] = rng.choice(values)
    cut = [sku for sku in boards if BOARDS[sku].profiles]
    if cut and rng.random() < 0.15:
        sku = rng.choice(cut)
        spec["headroom"] = [{"sku": sku, "profile": _profile(rng, sku), "count": rng.randint(1, 3)}]
    documents = [{"apiVersion": "tangram.dev/v1alpha1", "kind": "Inventory", "spec": spec}]
    documents += [
        {"kind": "SliceRequest", "metadata": {"name": name}, "spec": wanted} for name, wanted in asked.items()
    ]
    return [*documents, _pool(rng, rng.choice(boards))] if rng.random() < 0.1 else documents


def _profile(rng, sku):
    names = list(BOARDS[sku].profiles)
    plain = [name for name in names if "+" not in name and "-" not in name]
    return rng.choice(names if rng.random() < 0.2 else plain)


def _request(rng, sku):
    whole = not BOARDS[sku].profiles or rng.random() < 0.15
    spec = {"profile": FULL if whole else _profile(rng, sku), "count": rng.choice(COUNTS)}
    if rng.random() < 0.7:
        spec["sku"] = sku
    if rng.random() < 0.3:
        spec["priority"] = rng.choice((-1, 1, 5))
    return spec


def _gpu(rng, gpu_id, sku, asked, knobs):
    gpu, board = {"id": gpu_id, "node": f"n{rng.randint(0, 1)}", "sku": sku}, BOARDS[sku]
    if knobs["priced"] and rng.random() < 0.5:
        gpu["pricePerGPUHour"] = rng.choice((0.25, 1, 2, 5))
    whole = not board.profiles or rng.random() < 0.15
    instances = []
    for _ in range(0 if rng.random() > knobs["fill"] else rng.randint(1, 7)):
        profile = FULL if whole else _profile(rng, sku)
        one = {"profile": profile, "start": 0 if whole else rng.choice(board.profiles[profile].starts)}
        if board.wrong([(i["profile"], i["start"]) for i in [*instances, one]]) is None:
            instances.append(one | _owner(rng, sku, profile, asked, knobs))
    if instances:
        gpu["instances"] = instances
    if knobs["stuck"] and rng.random() < 0.6:
        gpu["cuttable"] = False
    if board.profiles:
        gpu["backend"] = rng.choice(knobs["backends"])
        if (knobs["modes"] and rng.random() < 0.6) or gpu["backend"] == "mig-manager":
            free = gpu["backend"] == "mig-manager" or rng.random() < 0.5  # of an empty one
            gpu["migEnabled"] = instances[0]["profile"] != FULL if instances else free
    return gpu


def _owner(rng, sku, profile, asked, knobs):
    """Somebody who asks for such a slice of such a board, a stranger, or nobody."""
    if rng.random() < 0.25 and profile != FULL:
        return {}
    fits = [name for name, spec in asked.items() if (spec["profile"], spec.get("sku")) == (profile, sku)]
    if fits and rng.random() < 0.7:
        found = {"owner": rng.choice(fits)}
    else:
        found = {"owner": f"s{rng.randint(0, 5)}"}
        if rng.random() < knobs["fixed"]:
            found["movable"] = False
    return found | ({"moveCost": rng.choice((0.05, 1))} if rng.random() < 0.05 else {})


def _pool(rng, sku):
    nodes = {"max": rng.randint(1, 2), "gpusPerNode": rng.randint(1, 2)}
    if BOARDS[sku].profiles:
        nodes["migEnabled"] = rng.random() < 0.5
    spec = {"nodeSelector": {"pool": "elastic"}, "sku": sku, "nodes": nodes}
    spec["pricePerGPUHour"] = rng.choice(("0.4", 2, 6))
    return {"kind": "GPUPool", "metadata": {"name": "elastic"}, "spec": spec | {"backend": "NVML"}}
