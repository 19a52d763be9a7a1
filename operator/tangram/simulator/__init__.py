"""A fleet simulated through traces of requests: what a scaling law costs, and how many requests meet their
objectives under it. Pure: no clock, no file; randomness is passed in as seeds.

Times are seconds since the start of the trace.

| room | in | out |
| --- | --- | --- |
| `controllers` | metrics and replicas of an LLMDeployment | replicas that a published scaling law orders |
| `metrics` | the events of simulated engines, scrape by scrape | what Prometheus would answer about them |
| `traffic` | lines of a trace; a description of rates and lengths | the requests of each LLMDeployment |
"""
