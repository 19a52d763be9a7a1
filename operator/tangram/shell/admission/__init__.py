"""What `kubectl apply` says at once: kopf's admission webhook, in a thread and event loop of its own.

In: AdmissionReviews of the API server, the mirrors, the fleet of the last round. Out: a refusal with the
field, or warnings. It writes nothing. Where it is down or late, the API server goes on without it.
"""
