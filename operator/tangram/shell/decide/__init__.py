"""Worker processes that plan.

In: a snapshot and the parsed LLMDeployments. Out: a plan or a recommendation, or WorkerFailed.
"""
