"""SPMD: programs of ranks: who is which rank, what each computes, and what collectives cost."""
