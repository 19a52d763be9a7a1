"""Documents that people write.

In: parsed YAML. Out: nodes, pods, pools and LLMDeployments; errors name the field.
"""
