"""Shapes that serve an LLMDeployment.

In: the model, traffic, objectives, reports. Out: shapes, and rejections.
"""
