"""Collectives: how ranks exchange tensors, through shared memory and over connections."""
