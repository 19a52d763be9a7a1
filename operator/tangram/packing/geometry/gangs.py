"""How many tensor-parallel replicas the free GPUs of one node can hold."""


def gangs_that_fit(size: int, *, free: int, node_gpus: int, nvlink_gpus: int) -> int:
    """Return how many gangs of `size` GPUs fit on `free` GPUs of a node with `node_gpus`.

    A gang takes GPUs that one NVLink domain joins (`nvlink_gpus` of them; 1: no NVLink), or the whole node.
    Nodes do not show which GPUs are one domain. NVIDIA's device plugin prefers GPUs that NVLink joins, so
    gangs are counted as if they filled one domain after the other.
    """
    if size <= nvlink_gpus:
        return free // size
    return int(size == free == node_gpus)
