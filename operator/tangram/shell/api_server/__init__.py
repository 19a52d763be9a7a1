"""The client of the Kubernetes API: requests, credentials, and delays between retries.

In: calls. Out: parsed JSON, bounded in size and time. It decides nothing.
"""
