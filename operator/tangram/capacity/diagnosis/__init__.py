"""Diagnosis of a running engine, one module per question.

In: two readings of its /metrics, hardware, a step-time model. Out: findings with the numbers they rest on.
"""
