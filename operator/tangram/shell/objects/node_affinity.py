"""On which nodes engine pods may run: the required node affinity of a template, written and read. Pure."""

from typing import Any

from tangram.eligibility.devices.device_rules import SHARING_STRATEGIES
from tangram.fleet import ApplyDeployment, NodeSelector, StartEvaluation
from tangram.fleet.labels import PRODUCT_LABEL
from tangram.shell.objects.kinds import Object

_TERMS = ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")


def node_affinity(action: ApplyDeployment | StartEvaluation) -> Object:
    """Return where pods may run: on nodes with one of the products, in one of the named pools if any; and on
    nodes without a product label in the pools that declare the SKU. Devices must not be shared.

    Nodes that are left out for another reason take no pods by themselves: their devices are not allocatable.
    """
    alone = {
        "key": f"{action.shape.resource}.sharing-strategy",
        "operator": "NotIn",  # holds where the label is missing
        "values": list(SHARING_STRATEGIES),
    }
    product = {"key": PRODUCT_LABEL, "operator": "In", "values": list(action.products)}
    no_product = {"key": PRODUCT_LABEL, "operator": "DoesNotExist"}
    labelled = (action.node_selectors or ((),)) if action.products else ()
    terms = [_term(product, alone, selector) for selector in labelled]
    terms += [_term(no_product, alone, selector) for selector in action.declared]
    required = {_TERMS[2]: terms}
    return {_TERMS[0]: {_TERMS[1]: required}}


def _term(product: Object, alone: Object, selector: NodeSelector) -> Object:
    pools = ({"key": key, "operator": "In", "values": [value]} for key, value in selector)
    return {"matchExpressions": [product, alone, *pools]}


def steered_to(template: Object) -> tuple[tuple[str, ...], tuple[NodeSelector, ...]]:
    """Return the products on whose nodes pods of a template may run, and the selectors of nodes without a
    product label, both sorted; of a template that is none of ours, what can be read of it.
    """
    found: Any = (template.get("spec") or {}).get("affinity")
    for key in _TERMS:
        found = found.get(key) if isinstance(found, dict) else None
    products: set[str] = set()
    declared: set[NodeSelector] = set()
    for term in found if isinstance(found, list) else ():
        expressions = (term or {}).get("matchExpressions") or ()
        mine = [each for each in expressions if each.get("key") == PRODUCT_LABEL]
        if any(each.get("operator") == "DoesNotExist" for each in mine):
            declared.add(
                tuple(
                    sorted(
                        (str(each.get("key")), str(each["values"][0]))
                        for each in expressions
                        if each.get("operator") == "In" and len(each.get("values") or ()) == 1
                    )
                )
            )
        for each in mine:
            products.update(map(str, each.get("values") or ()))
    return tuple(sorted(products)), tuple(sorted(declared))
