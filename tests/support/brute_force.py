"""The best of all assignments, by trying each: the planner's oracle.  It shares the cost function and nothing else."""

from __future__ import annotations

import itertools

from coordinator.cost import CostModel, Prediction


def best_of_all(model: CostModel) -> Prediction:
    """The prediction that `Prediction.objective` likes best, over every worker for every unit."""
    choices = [model.able[unit] for unit in range(len(model.units))]
    return min((model.predict(each) for each in itertools.product(*choices)), key=lambda found: found.objective)
