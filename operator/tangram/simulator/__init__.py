"""A fleet simulated through traces of requests: what a scaling law costs, and how many requests meet their
objectives under it. Pure: no clock, no file; randomness is passed in as seeds.

Times are seconds since the start of the trace.

| room | in | out |
| --- | --- | --- |
| `cluster` | nodes, plans, start times, faults | pods over time; the snapshot that the planner reads |
| `control` | scaling laws, a cluster, metrics | desired replicas and plans, round by round |
| `controllers` | metrics and replicas of an LLMDeployment, a replica's capacity | what a scaling law orders |
| `metrics` | the events of simulated engines, scrape by scrape | what Prometheus would answer about them |
| `result` | requests and pods after a run | attainment, cost, waste, oscillation, recovery |
| `run` | LLMDeployments with traces and laws, nodes | the figures of one run |
| `serving` | requests, pods | requests sent to pods; scrapes of their engines |
| `traffic` | lines of a trace; a description of rates and lengths | the requests of each LLMDeployment |
"""
