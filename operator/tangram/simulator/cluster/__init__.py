"""A small Kubernetes with GPU nodes: Deployments, pods that start, drain and are lost, and the snapshot that
the planner reads of them. Which requests go to which pod is decided elsewhere.
"""
