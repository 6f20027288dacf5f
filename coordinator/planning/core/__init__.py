"""What all planners share: the Plan, profiles, cost, partition, memory, timeline."""
