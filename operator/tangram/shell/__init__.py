"""All I/O of the operator: watch, elect a leader, plan in a worker process, write, measure, report."""
