"""Chosen workers: plans for some of the workers, where a strategy names those that may compute.  Pure.

A strategy's other words mean the same among them as among all.
"""

from __future__ import annotations

from dataclasses import replace

from wire.errors import NoSuchDevice
from wire.policy.strategies import Strategy

from .plan import REASONS_MAX, Plan
from .profiles import Profiles


def chosen_profiles(profiles: Profiles, strategy: Strategy) -> Profiles:
    """The profiles of the workers that a strategy names, of all where it names none.  Those that are gone are left
    out; NoSuchDevice if none is there."""
    if not strategy.workers:
        return profiles
    there = tuple([one for one in profiles.workers if one.node_id in strategy.workers or one.name in strategy.workers])
    if not there:
        known = ", ".join(sorted(one.name for one in profiles.workers)) or "none"
        raise NoSuchDevice(
            f"of the workers that may compute this ({', '.join(strategy.workers)}) none is there",
            next_step=f"Start one of them, or choose among those that are there: {known}",
        )
    return profiles if len(there) == len(profiles.workers) else replace(profiles, workers=there)


def for_chosen(plan: Plan, strategy: Strategy) -> Plan:
    """The plan by the name of what was asked for; its reasons name the chosen workers."""
    if not strategy.workers:
        return plan
    why = f"only {', '.join(strategy.workers)} may compute it"
    return replace(plan, strategy=strategy.text, reasons=(why, *plan.reasons)[:REASONS_MAX])
