"""What NVIDIA allows one GPU to be cut to, and which GPUs of a node one replica can take. Pure.

In: the catalog's or a driver's profiles; GPUs that NVLink joins. Out: maximal layouts and multisets of GPU
instances; how many gangs fit.
"""
