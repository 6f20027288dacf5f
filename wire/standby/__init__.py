"""The choice of the coordinator that serves: what coordinators agree on, and the members that vote."""
