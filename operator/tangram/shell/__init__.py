"""All I/O of the operator: what is watched, elected, decided in a worker, written, measured and told."""
