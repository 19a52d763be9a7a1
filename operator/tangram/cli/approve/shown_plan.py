"""What a person consents to: the lines of one FleetPlan of changes."""

from collections import defaultdict
from collections.abc import Iterator

from tangram.fleet import ShapeKey
from tangram.kube.kinds import Object


def shown_plan(spec: Object) -> Iterator[str]:
    """Yield a line per GPU, who moves and where to, who gains, and dollars before and after."""
    for change in spec["changes"]:
        before, after = change.get("before"), change.get("after")
        what = "replicas leave it" if before == after else f"{_layout(before)} -> {_layout(after)}"
        yield f"{_place(change)}: {what}"
    moves, restarted = defaultdict[str, list[str]](list), set[str]()
    for each in spec.get("disturbed") or ():
        shape = ShapeKey(str(each.get("sku")), str(each.get("profile")), int(each.get("tensorParallel", 1)))
        moves[str(each.get("owner"))].append(str(shape))
        if each.get("restarts"):
            restarted.add(str(each.get("owner")))
    for owner, shapes in moves.items():
        yield f"replicas of {owner} move to {' and '.join(shapes)}"
    for owner in sorted(restarted):
        yield f"DOWNTIME: replicas of {owner} stop before their replacements serve"
    if not moves:
        yield "no replica moves"
    if spec.get("serves"):
        yield f"serves {', '.join(map(str, spec['serves']))}"
    if "costBeforePerHour" in spec and "costPerHour" in spec:
        before_usd, after_usd = str(spec["costBeforePerHour"]), str(spec["costPerHour"])
        saving = _saving(before_usd, after_usd)
        yield f"these GPUs cost {before_usd} $/h before, {after_usd} $/h after{saving}"


def _saving(before: str, after: str) -> str:
    less = round(float(before) - float(after), 2)
    if not less:
        return ""
    return f": {abs(less):.2f} $/h {'less' if less > 0 else 'more'}"


def _place(change: Object) -> str:
    """Return a GPU as NODE/INDEX, with its id; by the id alone where the index is not known."""
    if change.get("index") is None:
        return f"{change.get('node')}, {change.get('gpu')}"
    return f"{change.get('node')}/{change['index']} ({change.get('gpu')})"


def _layout(layout: Object | None) -> str:
    """Return a layout with the positions of equal slices together: `whole`, `3x1g.10gb@4,5,6`."""
    if not layout or not layout.get("migEnabled"):
        return "whole"
    starts = defaultdict[str, list[str]](list)
    for part in layout.get("instances") or ():
        starts[str(part.get("profile"))].append(str(part.get("start")))
    parts = (
        f"{f'{len(at)}x' if len(at) > 1 else ''}{profile}@{','.join(at)}"
        for profile, at in sorted(starts.items())
    )
    return " ".join(parts) or "empty"
