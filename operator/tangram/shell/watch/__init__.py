"""Mirrors (informer caches): local copies of Kubernetes objects, kept current by list and watch.

In: LISTs and watch events. Out: a `MirrorView` of all kinds at one instant.
Expectations say whether the copies already show the operator's own writes.
"""
