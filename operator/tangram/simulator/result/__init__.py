"""The figures of a run: requests that met their objectives, cost, waste, oscillation and recovery."""
