"""What all plans agree on. Pure.

| room | in | out |
| --- | --- | --- |
| `devices` | a Node's labels, taints and resources | the devices for new replicas, and why not the others |
| `shapes` | an LLMDeployment, GPU models | shapes that serve it; why each other one does not |
| `explanation` | assessed shapes, what is against each | unused shapes; why none serves; sentences |
| `acceptance` | all LLMDeployments | which are accepted, and in which order |
| `isolation` | a step and LLMDeployments | results, and the faults of those for which it raises |
"""
