"""`tangram simulate`.

In: files of a fleet, traces of requests, a scaling law. Out: what the fleet would have cost, and the requests
that it would have failed.
"""
