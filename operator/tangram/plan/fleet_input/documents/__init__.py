"""Documents of a fleet.

In: parsed YAML. Out: nodes, pods, GPUPools and LLMDeployments as one input; errors name the field.
"""
