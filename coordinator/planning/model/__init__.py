"""What every planner works with: plans, programs, profiles of workers, the cost model, memory and timelines."""
