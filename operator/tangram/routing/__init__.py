"""Which replica takes a request, and when. Pure: the caller passes `now`, and what it saw of each request.

Replicas may be unequal: a 1g slice beside a whole H200. One `ReplicaLoads` is of one served model.

| module | in | out |
| --- | --- | --- |
| `request` | what a gateway knows about a request before it runs | the request, its prefix blocks |
| `token_estimate` | bytes of prompts, token counts of `usage` | tokens of a prompt, without a tokenizer |
| `rates` | the capacity model of a replica | its rates as a few numbers |
| `prefix_index` | blocks of requests that were sent | the cached tokens of a prompt on each replica |
| `correction` | observed and predicted seconds | their ratio |
| `replica` | requests sent, first tokens, ends | the load of each replica, and how far its rates are off |
| `pick` | a request, loads | a replica with the predicted time to first token, or a refusal |
| `tenants` | weights, priorities, tiers | what each tenant uses, and its share |
| `admission` | requests, tenants | which request is sent next, which waits, which is shed |
"""
