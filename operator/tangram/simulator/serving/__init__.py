"""The way of requests: the gateway that picks a pod for each, and what Prometheus scrapes of pods."""
