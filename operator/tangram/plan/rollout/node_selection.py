"""The nodes on which the pods of a Deployment may run: product labels, and GPUPools for nodes without one.

Another selection is another pod template, which replaces every pod. So an existing Deployment keeps its
selection as long as its replicas find devices there; a new one gets every node that may serve it.
"""

from dataclasses import dataclass

from tangram.catalog import match_product
from tangram.eligibility.devices.device_rules import model_of
from tangram.fleet import NodeSelector, Shape, Workload
from tangram.plan.fleet_input.free_capacity import FreeDevices
from tangram.plan.offers.node_offers import NodeOffers


@dataclass(frozen=True, slots=True)
class NodeSelection:
    """Where pods may run. False: on no node that is known."""

    products: tuple[str, ...] = ()  # values of the product label, sorted
    declared: tuple[NodeSelector, ...] = ()  # without the label, in GPUPools that declare the SKU; sorted
    selectors: tuple[NodeSelector, ...] = ()  # of the GPUPools that the LLMDeployment names, sorted

    def __bool__(self) -> bool:
        return bool(self.products or self.declared)


def node_selection(
    uid: str,
    pools: tuple[str, ...],
    shape: Shape,
    workload: Workload | None,
    pods: int,
    node_offers: NodeOffers,
    devices: FreeDevices,
) -> NodeSelection:
    """Return where `pods` pods of `shape` may run, for the LLMDeployment `uid` that names `pools`.

    Product labels that a person added to the template of `workload` stay if they are labels of the SKU.
    """
    selectors = node_offers.selectors(pools)
    if pools and not selectors:
        return NodeSelection()
    products = set(node_offers.products.get(shape.sku, ()))
    declaring = node_offers.declaring(shape.sku, pools)
    if workload is not None:
        products |= {product for product in workload.products if _is_of(product, shape.sku)}
        selected = {selector: names for selector, names in declaring.items() if selector in workload.declared}
        reachable = devices.count_selected(uid, shape, products, selected.values())
        if reachable >= pods or reachable == devices.count_selected(uid, shape, products, declaring.values()):
            declaring = selected
    return NodeSelection(tuple(sorted(products)), tuple(sorted(declaring)), selectors)


def _is_of(product: str, sku: str) -> bool:
    """Whether a product label is that of whole, unshared GPUs of this SKU."""
    return model_of(product) == product and match_product(product) == sku
