"""How Deployments get there.

In: placement targets, Deployments. Out: actions, make before break.
"""
