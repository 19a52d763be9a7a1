"""Reports to users.

In: statuses (those of GPUPools are computed here), Events, recommendations, metrics.
Out: their writes where they changed; the HTTP endpoints.
"""
