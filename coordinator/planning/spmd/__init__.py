"""SPMD: programs of ranks: which device is which rank, what each computes, and what collectives cost."""
