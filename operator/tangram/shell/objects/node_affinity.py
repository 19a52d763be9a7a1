"""The required node affinity of pod templates, written and read back. Pure."""

from collections.abc import Iterable
from typing import Any

from tangram.eligibility.devices.device_rules import SHARING_STRATEGIES
from tangram.fleet import ApplyDeployment, NodeSelector, StartEvaluation
from tangram.fleet.labels import PRODUCT_LABEL
from tangram.kube.kinds import Object

_TERMS = ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")


def node_affinity(action: ApplyDeployment | StartEvaluation) -> Object:
    """Return the affinity to nodes with one of the products (in one of the named pools if there are any), and
    to nodes without a product label in the pools that declare the SKU. Devices must not be shared.

    Nodes that are left out for another reason need no term: their devices are not allocatable.
    """
    unshared = {
        "key": f"{action.shape.resource}.sharing-strategy",
        "operator": "NotIn",  # holds where the label is missing
        "values": list(SHARING_STRATEGIES),
    }
    product = {"key": PRODUCT_LABEL, "operator": "In", "values": list(action.products)}
    no_product = {"key": PRODUCT_LABEL, "operator": "DoesNotExist"}
    labelled = (action.node_selectors or ((),)) if action.products else ()
    terms = [_term(product, unshared, selector) for selector in labelled]
    terms += [_term(no_product, unshared, selector) for selector in action.declared]
    required = {_TERMS[2]: terms}
    return {_TERMS[0]: {_TERMS[1]: required}}


def _term(product: Object, unshared: Object, selector: NodeSelector) -> Object:
    pools = ({"key": key, "operator": "In", "values": [value]} for key, value in selector)
    return {"matchExpressions": [product, unshared, *pools]}


def targeted_nodes(template: Object) -> tuple[tuple[str, ...], tuple[NodeSelector, ...]]:
    """Return the products on whose nodes pods of a template may run, and the selectors of nodes without a
    product label, both sorted; of a template that another author wrote, as much as can be read.
    """
    terms: Any = (template.get("spec") or {}).get("affinity")
    for key in _TERMS:
        terms = terms.get(key) if isinstance(terms, dict) else None
    products: set[str] = set()
    declared: set[NodeSelector] = set()
    for term in terms if isinstance(terms, list) else ():
        expressions = (term or {}).get("matchExpressions") or ()
        of_product = [expression for expression in expressions if expression.get("key") == PRODUCT_LABEL]
        if any(expression.get("operator") == "DoesNotExist" for expression in of_product):
            declared.add(_selector(expressions))
        for expression in of_product:
            products.update(map(str, expression.get("values") or ()))
    return tuple(sorted(products)), tuple(sorted(declared))


def _selector(expressions: Iterable[Object]) -> NodeSelector:
    """Return the labels that `expressions` require, sorted: those with one value."""
    required = (e for e in expressions if e.get("operator") == "In" and len(e.get("values") or ()) == 1)
    return tuple(sorted((str(e.get("key")), str(e["values"][0])) for e in required))
