"""Jobs of the engine image.

In: LLMDeployments, facts, reports. Out: inspect and evaluate Jobs to start or to end.
"""
