"""Shapes that serve an LLMDeployment.

In: the model, its requests and objectives, devices with prices, evaluation reports.
Out: the shapes that serve, with rate and price; for each other shape the constraint that rules it out.
"""
