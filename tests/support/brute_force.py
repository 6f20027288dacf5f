"""The best of all assignments, by trying each: the planner's oracle.  It shares the cost function and nothing else."""

from __future__ import annotations

import itertools

from coordinator.planning.model.cost_model import CostModel, Prediction


def best_of_all(model: CostModel) -> Prediction:
    """The prediction that `Prediction.objective` likes best, over every able worker for every unit."""
    every = itertools.product(*model.able)
    return min((model.predict(assignment) for assignment in every), key=lambda found: found.objective)
