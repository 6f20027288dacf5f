"""Deployment: a coordinator gives a worker the parts of a plan, and takes them back."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from ...timeouts import COLLECTIVE_TIMEOUT_S
from .blobs import BlobSpec
from .fields import Addresses, Count, Dims, Hash, Index, Message, Name, PlanKey, Record, Seconds, with_fields


class SourceKind(StrEnum):
    """Kinds of sources of a part's input."""

    INPUT = "input"
    EDGE = "edge"
    PARAM = "param"


class Source(Record, frozen=True):
    """The source of a part's input: kind "input" (a call's input, sent with Run), "edge" (output `slot` of part
    `part`, on node `node`) or "param" (the blob `blob`)."""

    kind: SourceKind
    part: Index = 0
    slot: Index = 0
    blob: Hash | None = None
    node: Name = ""


class Target(Record, frozen=True):
    """The destination of a part's output: input `slot` of part `part` on node `node`; node "" is the coordinator, and
    then `slot` is the position among the graph's outputs."""

    node: Name
    part: Index = 0
    slot: Index = 0


class Carry(Record, frozen=True):
    """Output `output` of a part becomes, at the next step of its plan, input `slot` of part `part` on the same device.
    The source of that input is a param, whose blob is its value at step 0."""

    output: Index
    part: Index
    slot: Index


class Member(Record, frozen=True):
    """A rank of a gang: which part it is, on which node and device."""

    node: Name
    part: Index
    device: Index


class Gang(Record, frozen=True):
    """Parts that run at the same time, one per rank of a grid, and exchange tensors by collectives.  Their graphs have
    the same collectives in the same order.  `members` are listed by rank, row-major over `axes`, and the part itself
    is number `rank`.  The groups follow from the axes of a collective (wire/ir/grids.py).  `bytes_per_s` is what each
    rank can send, if the ranks differ in that.  `timeout_s` is how long they wait for each other."""

    axes: Annotated[tuple[Name, ...], Meta(max_length=64)]
    sizes: Annotated[tuple[Index, ...], Meta(max_length=64)]
    rank: Index
    members: Annotated[tuple[Member, ...], Meta(max_length=4096)]
    bytes_per_s: Annotated[tuple[Seconds, ...], Meta(max_length=4096)] = ()
    timeout_s: Seconds = COLLECTIVE_TIMEOUT_S


class PartSpec(Record, frozen=True):
    """One part for one device of one worker.  `sources[i]` feeds the graph's i-th input (inputs, then params).
    `targets[j]` are the destinations of its j-th output.  `carries` lists the outputs that stay on the device for the
    next step.  If the part has a gang, the collectives of its graph are over the gang's axes."""

    part: Index
    device: Index
    graph: Hash
    sources: Annotated[tuple[Source, ...], Meta(max_length=100_000)]
    targets: Annotated[tuple[Annotated[tuple[Target, ...], Meta(max_length=4096)], ...], Meta(max_length=100_000)]
    carries: Annotated[tuple[Carry, ...], Meta(max_length=100_000)] = ()
    gang: Gang | None = None


class InputType(Record, frozen=True):
    """The type of the tensors that arrive for input `slot` of a part at every step."""

    part: Index
    slot: Index
    dtype: Name
    shape: Dims


class Deploy(Message, frozen=True):
    """Deploy these parts: fetch their blobs, compile, and answer Deployed.  `graphs` has the encodings that this worker
    was not sent before.  `peers` maps the node id of every worker of the plan to the addresses where it can be dialled.
    A device runs the parts of an `ordered` plan in the order of this list, and its steps in the order in which their
    Runs arrived.  `types` are those of inputs that other workers send: a tensor of another type is refused."""

    plan: PlanKey
    parts: tuple[PartSpec, ...]
    graphs: dict[Hash, bytes]
    blobs: tuple[BlobSpec, ...]
    peers: dict[Name, Addresses]
    force: bool = False
    ordered: bool = False
    types: Annotated[tuple[InputType, ...], Meta(max_length=1_000_000)] = ()


class Deployed(Message, frozen=True):
    """All parts are compiled.  The fields say how many bytes of weights came from where, how long compiling took, and
    how many kernels came from the cache.  `unreached` lists the workers of the plan that could not be dialled: tensors
    for them will be relayed.  `bytes_client` says how many of the bytes from sockets and shared memory the coordinator
    sent."""

    bytes_socket: Count
    bytes_shared: Count
    bytes_disk: Count
    bytes_resident: Count  # already on the device or in memory
    compile_s: Seconds
    compiled: Count
    from_cache: Count
    unreached: tuple[Name, ...] = ()
    bytes_client: Count = 0

    def with_moved(self, socket: int, shared: int) -> Deployed:
        """A copy with bytes that came from other workers before."""
        return with_fields(self, bytes_socket=self.bytes_socket + socket, bytes_shared=self.bytes_shared + shared)


class MissingGraphs(Message, frozen=True):
    """Answer to Deploy if the worker no longer holds a graph that Deploy leaves out.  The coordinator sends Deploy
    again with these graphs."""

    graphs: tuple[Hash, ...]


class Drop(Message, frozen=True):
    """Forget a plan: cancel its steps and free what only it used.  With `free`, also free its weights, which otherwise
    stay for other plans.  Answered by Done."""

    plan: PlanKey
    free: bool = False
