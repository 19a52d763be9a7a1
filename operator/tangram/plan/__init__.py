"""What a plan reads, on the slices that exist or on the fleet as it could be cut. Pure.

| room | in | out |
| --- | --- | --- |
| `fleet_input` | a snapshot | the fleet: each node with its GPUPools, price and holders |
| `offers` | the fleet, a checkpoint | shapes with rates and prices, and why others do not serve |
"""
