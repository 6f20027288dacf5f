"""Device names: which device is meant, as a text that graphs hold.  Pure.

`cpu` and `gpu` are any device of that kind, `accelerator 2` the third of all that are no cpu, in the order of workers'
names; `worker - NAME` is any device of a worker, and `worker 1 NAME` its second.  `any` is wherever the planner likes:
what is computed of it is bound to no device.  To add a kind: a pattern here, and in
coordinator/planning/model/device_constraints.py what it means.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import AttrError

_PATTERN = re.compile(
    r"(?P<kind>cpu|gpu|any)|accelerator (?P<number>\d{1,6})|worker (?P<index>-|\d{1,6}) (?P<worker>\S.*)"
)


@dataclass(frozen=True, slots=True)
class DeviceName:
    """A device, or several of which any will do."""

    kind: str  # cpu, gpu, any, accelerator, worker
    number: int = -1  # of an accelerator among all, of a device among a worker's; -1: any
    worker: str = ""

    def __str__(self) -> str:
        number = "-" if self.number < 0 else str(self.number)
        return {"accelerator": f"accelerator {number}", "worker": f"worker {number} {self.worker}"}.get(
            self.kind, self.kind
        )

    @property
    def text(self) -> str:
        """The text by which a program names it: `cpu`, `accelerator 2`, `NAME` or `NAME:INDEX`."""
        if self.kind != "worker":
            return str(self)
        return self.worker if self.number < 0 else f"{self.worker}:{self.number}"


ANY = "any"


def device_named(text: str) -> DeviceName:
    """The device that a text names; AttrError if it names none."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise AttrError(f"{text!r} names no device")
    if match["kind"]:
        return DeviceName(match["kind"])
    if match["number"]:
        return DeviceName("accelerator", int(match["number"]))
    return DeviceName("worker", -1 if match["index"] == "-" else int(match["index"]), match["worker"])
