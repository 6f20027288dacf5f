"""How large anything from the wire may be; one number per line, with how it was chosen.

Every limit is checked before memory is allocated for the thing it limits.  A process may lower them
(`dataclasses.replace`); raising them takes memory on every node that accepts the larger thing.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
REPORT_CHARS_MAX = 1 * MIB  # of what a call did where, as JSON in one message
PLAN_CHARS_MAX = 4 * MIB  # of a plan, likewise
KERNEL_TEXTS_CHARS_MAX = 4 * MIB  # of the kernels of a graph that is explained, likewise
TEXT_FILE_CHARS_MAX = 1 * MIB  # of a hostfile, a token or a key: a line for each of 4,096 ranks is a fraction
THREADS_MAX = 1024  # of a worker: several times the cores of any machine, and each takes memory


@dataclass(frozen=True, slots=True)
class Limits:
    graph_nodes_max: int = 100_000  # a 100k-node training step is the largest planned use; inner graphs' nodes count
    graph_edges_max: int = 1_000_000  # stops a graph whose nodes have huge fan-out; inner graphs' edges count
    graph_bytes_max: int = 16 * MIB  # one graph frame
    variadic_inputs_max: int = 4096  # every other op takes exactly as many inputs as its row says
    rank_max: int = 8
    dim_max: int = 1 << 31
    tensor_bytes_max: int = 64 * GIB  # product of the dimensions and the item size; the job's budget is lower
    attrs_per_node_max: int = 16
    attr_items_max: int = 4096  # in one attribute: a spec per operand of an spmd node, two per rank of a permute
    name_bytes_max: int = 256
    nesting_max: int = 8  # graphs inside graphs: composites, branches and bodies
    inline_const_bytes_max: int = 64 * KIB  # a larger constant is a blob

    control_frame_bytes_max: int = 1 * MIB
    chunk_bytes_max: int = 256 * KIB  # payload of one frame: no frame waits behind a longer one
    stream_bytes_max: int = 64 * GIB
    window_bytes: int = 16 * MIB  # bulk bytes without credit returned that may be in flight to one peer
    streams_per_peer_max: int = 4096
    requests_per_peer_max: int = 4096
    request_bytes_per_peer_max: int = 512 * MIB  # bytes of its requests without an answer
    queue_bytes_max: int = 256 * MIB  # bytes that wait to be sent to one peer
    nodes_max: int = 1024

    @property
    def message_bytes_max(self) -> int:
        """One message: the graphs it carries, and what is said about them."""
        return self.graph_bytes_max + self.control_frame_bytes_max


DEFAULT = Limits()
