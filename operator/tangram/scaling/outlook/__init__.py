"""The load that is to come, and what one replica carries of it.

| file | in | out |
| --- | --- | --- |
| `load_history` | arrivals counted by the minute | bins, gaps kept apart from zero |
| `forecast` | a history, the present rate, a horizon | the distribution of the load at that time |
| `replica_capacity` | predicted rates by percentile, a correction | the share of requests that miss |
| `mixture_capacity` | step model, limits, lengths, objectives | the capacity of a replica by mean lengths |
| `tenth_steps` | a number | the step of a tenth next to it |
| `load_steps` | a rate, lengths, a correction | the load that other shapes are counted for, in steps |
| `load_outlook` | these | what the law knows, and the need that it concludes |
"""
