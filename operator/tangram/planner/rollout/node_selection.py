"""On which nodes the pods of a Deployment may run: which product labels, and which GPUPools without one.

Another set is another pod template, and rolls every replica. So a Deployment that exists keeps its set while
its replicas find a unit there; a new one gets all there is.
"""

from dataclasses import dataclass

from tangram.catalog import match_product
from tangram.eligibility.devices.device_rules import model_of
from tangram.fleet import NodeSelector, Shape, Workload
from tangram.planner.observe.free_capacity import FreeDevices
from tangram.planner.shapes.candidates import Offers


@dataclass(frozen=True, slots=True)
class Steering:
    """Where pods may run. Empty: no node is known."""

    products: tuple[str, ...]  # values of the product label, sorted
    declared: tuple[NodeSelector, ...]  # of nodes without the label, in pools that declare the SKU; sorted

    def __bool__(self) -> bool:
        return bool(self.products or self.declared)


def steering(
    uid: str,
    pools: tuple[str, ...],
    shape: Shape,
    mine: Workload | None,
    pods: int,
    offered: Offers,
    devices: FreeDevices,
) -> Steering:
    """Return where `pods` pods of `shape` may run, for the LLMDeployment `uid` that names `pools`.

    What a person wrote into the template of `mine` counts only as far as it is true of the SKU.
    """
    products = set(offered.products.get(shape.sku, ()))
    declaring = offered.declaring(shape.sku, pools)
    if mine is not None:
        products |= {each for each in mine.products if _is_of(each, shape.sku)}
        kept = {selector: names for selector, names in declaring.items() if selector in mine.declared}
        found = devices.count_selected(uid, shape, products, kept.values())
        if found >= pods or found == devices.count_selected(uid, shape, products, declaring.values()):
            declaring = kept
    return Steering(tuple(sorted(products)), tuple(sorted(declaring)))


def _is_of(product: str, sku: str) -> bool:
    """Whether a product label is one of whole GPUs of this SKU that no two pods share."""
    return model_of(product) == product and match_product(product) == sku
