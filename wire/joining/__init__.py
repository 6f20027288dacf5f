"""How a node joins a mesh: tokens, the join protocol, the port that speaks it, and the credentials that a node gets."""
