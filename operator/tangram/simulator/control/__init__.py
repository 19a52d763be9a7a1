"""Control rounds: the replicas that scaling laws desire, the fleet's plan, its actions in the cluster."""
