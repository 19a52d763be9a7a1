"""Reports to users.

In: statuses, Events, recommendations, metrics. Out: their writes where they changed; the HTTP endpoints.
"""
