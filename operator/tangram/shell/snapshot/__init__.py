"""From the mirrored objects to one `FleetSnapshot`. Pure, but for the memory of offered devices.

In: a `MirrorView`. Out: a `FleetSnapshot`, parsed LLMDeployments, and what their statuses record.
An object that cannot be read is reported and left out; it never stops a round.
"""
