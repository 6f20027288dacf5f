"""Paged reports: what people are told of workers and of the ways between them, in answers that fit into messages.
Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from wire.limits import MIB
from wire.protocol.messages import DeviceReport, NodeReport, Nodes, PairReport, encode_message

from .views import NodeView, PairView

ANSWER_BYTES_MAX = 8 * MIB  # of reports in one answer: half of what a message takes, and several times 1,024 workers


def page(
    nodes: Sequence[NodeView], pairs: Sequence[PairView], after: tuple[str, ...], bytes_max: int = ANSWER_BYTES_MAX
) -> tuple[tuple[NodeReport, ...], tuple[PairReport, ...], bool]:
    """The reports that come `after` those that were told before (`AskNodes`), and whether there are more.

    Where the last one of those is not known any more, all are told again: whoever asks goes by their names.
    """
    told = 0
    if len(after) == 1:
        told = next((at for at, view in enumerate(nodes, 1) if view.node_id == after[0]), 0)
    elif after:
        told = len(nodes) + next((at for at, pair in enumerate(pairs, 1) if (pair.source, pair.target) == after), 0)
    reports, ways, size_bytes = list[NodeReport](), list[PairReport](), 0
    for view in nodes[told:]:
        report = _report(view)
        size_bytes += len(encode_message(Nodes((report,))))
        if size_bytes > bytes_max and reports:
            return tuple(reports), (), True
        reports.append(report)
    for pair in pairs[max(told - len(nodes), 0) :]:
        way = _way(pair)
        size_bytes += len(encode_message(Nodes((), pairs=(way,))))
        if size_bytes > bytes_max and (reports or ways):
            return tuple(reports), tuple(ways), True
        ways.append(way)
    return tuple(reports), tuple(ways), False


def _report(view: NodeView) -> NodeReport:
    fields = {name: getattr(view, name) for name in NodeReport.__struct_fields__}
    return NodeReport(**{**fields, "devices": tuple(_shown(device) for device in view.devices)})


def _shown(device: DeviceReport) -> DeviceReport:
    """Without most of what it computes, which is some kilobytes: people are told whether it computes anything."""
    fields = {name: getattr(device, name) for name in DeviceReport.__struct_fields__}
    return DeviceReport(**{**fields, "dtypes_by_op": dict(itertools.islice(device.dtypes_by_op.items(), 1))})


def _way(pair: PairView) -> PairReport:
    return PairReport(**{name: getattr(pair, name) for name in PairReport.__struct_fields__})
