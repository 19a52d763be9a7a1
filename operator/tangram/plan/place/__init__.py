"""The shape and the replicas of each LLMDeployment, decided together.

`now`: on the slices that exist, which nothing cuts or moves. `best`: on the fleet as it could be cut.
"""
