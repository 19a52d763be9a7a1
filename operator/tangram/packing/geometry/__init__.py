"""What NVIDIA allows one GPU to be cut to: boards, placements, layouts, creation orders. Pure.

In: the catalog's or a driver's profiles. Out: maximal layouts and multisets of GPU instances.
"""
