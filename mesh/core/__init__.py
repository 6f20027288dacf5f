"""The lazy Array, its expression, handles, and the protocol of what computes them."""
