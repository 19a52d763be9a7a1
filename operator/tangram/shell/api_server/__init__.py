"""The Kubernetes API.

In: calls. Out: raw JSON, bounded in size and time; back-off between attempts.
"""
