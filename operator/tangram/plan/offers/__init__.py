"""Shapes on offer.

In: nodes, a checkpoint, the requirements of an LLMDeployment. Out: shapes with rates and prices, and why the
others do not serve.
"""
