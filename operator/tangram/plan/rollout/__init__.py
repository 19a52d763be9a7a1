"""How Deployments reach their targets: moves between shapes, pod replacement, node selection.

In: placement targets, Deployments. Out: actions, make before break, and the condition `Placed`.
"""
