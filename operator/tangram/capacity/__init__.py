"""What a model takes up and how fast it runs. Pure.

| room | in | out |
| --- | --- | --- |
| `memory` | an architecture, a format, a GPU or slice | weights, buffers, KV cache, what is left |
| `steps` | an architecture, hardware, a batch | seconds of prefill and decode, calibrated |
| `load` | a step-time model, traffic | TTFT, TPOT, the request rate that one replica sustains |
| `sizing` | a model, traffic, objectives | which shapes serve it, and why not the others |
| `diagnosis` | readings of an engine | what bounds it |
| `accuracy` | measured points | the errors of the model |
"""
