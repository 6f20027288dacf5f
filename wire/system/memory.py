"""The machine's memory: how much it has, and how much is free."""

from __future__ import annotations


def machine_memory() -> tuple[int, int]:
    """The bytes that programs can still have, as the system estimates, and the bytes that the machine has."""
    import psutil  # many programs of ours never ask

    memory = psutil.virtual_memory()
    return int(memory.available), int(memory.total)


def default_budget() -> int:
    """Half of the machine's memory, in bytes: what a worker uses by default.  The other half is the owner's."""
    _, total_bytes = machine_memory()
    return total_bytes // 2
