"""The solver of the independent models."""

from ortools.sat.python import cp_model


def cp_solver(seconds):
    """One worker, so many deterministic seconds, and without what OR-tools 9.15 does wrong."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = seconds
    solver.parameters.presolve_inclusion_work_limit = 0  # github.com/google/or-tools/issues/5293
    return solver
