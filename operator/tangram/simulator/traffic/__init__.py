"""Requests to simulate: read from the lines of a trace, or generated from rates and lengths; cut, scaled and
resampled by seeds.
"""
