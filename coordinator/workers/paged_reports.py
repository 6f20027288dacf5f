"""Paged reports: the reports on workers and on the links between them, in answers that fit into messages.  Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from wire.limits import MIB
from wire.protocol.messages import DeviceReport, NodeReport, Nodes, PairReport, encode_message, with_fields

ANSWER_BYTES_MAX = 8 * MIB  # of reports in one answer: half of what a message takes, and several times 1,024 workers


def page(
    nodes: Sequence[NodeReport], pairs: Sequence[PairReport], after: tuple[str, ...], bytes_max: int = ANSWER_BYTES_MAX
) -> tuple[tuple[NodeReport, ...], tuple[PairReport, ...], bool]:
    """The reports `after` the last one of the answer before (`AskNodes`), and whether there are more.

    If that one is not known any more, all reports come again: the client drops duplicates by name.
    """
    sent = 0
    if len(after) == 1:
        sent = next((at for at, node in enumerate(nodes, 1) if node.node_id == after[0]), 0)
    elif after:
        sent = len(nodes) + next((at for at, pair in enumerate(pairs, 1) if (pair.source, pair.target) == after), 0)
    reports, ways, size_bytes = list[NodeReport](), list[PairReport](), 0
    for node in nodes[sent:]:
        report = with_fields(node, devices=tuple(_without_ops(device) for device in node.devices))
        size_bytes += len(encode_message(Nodes((report,))))
        if size_bytes > bytes_max and reports:
            return tuple(reports), (), True
        reports.append(report)
    for pair in pairs[max(sent - len(nodes), 0) :]:
        size_bytes += len(encode_message(Nodes((), pairs=(pair,))))
        if size_bytes > bytes_max and (reports or ways):
            return tuple(reports), tuple(ways), True
        ways.append(pair)
    return tuple(reports), tuple(ways), False


def _without_ops(device: DeviceReport) -> DeviceReport:
    """Leave out all but one op: the table of ops takes kilobytes, and people see only whether it is empty."""
    return with_fields(device, dtypes_by_op=dict(itertools.islice(device.dtypes_by_op.items(), 1)))
