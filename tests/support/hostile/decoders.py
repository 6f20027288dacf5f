"""Every decoder that reads bytes from outside, and how often to try it with damaged ones.

To add a decoder: a function in one of the files named after the sources that gives its Target, and a row here.
"""

from __future__ import annotations

from . import file_decoders as files
from . import machine_decoders as machines
from . import network_decoders as network
from .fuzzing import Decoder

# name, what opens it, inputs of a million, share of them that is refused at the least: most of the inputs go to what
# is quick and stands nearest to strangers
DECODERS = (
    Decoder("frames", network.frames, 200_000, 0.5),
    Decoder("identities", network.identities, 150_000, 0.5),
    Decoder("messages", network.messages, 190_000, 0.7),
    Decoder("tensors", network.tensors, 100_000, 0.7),
    Decoder("links", network.links, 60_000, 0.3),
    Decoder("errors", network.errors, 30_000, 0.3),
    Decoder("graphs", network.graphs, 35_000, 0.7),
    Decoder("texts of graphs", network.texts, 10_000, 0.7),
    Decoder("joining", network.joining, 19_000, 0.3),
    Decoder("certificates", network.certificates, 10_000, 0.9),
    Decoder("adverts", network.adverts, 10_000, 0.5),
    Decoder("words", network.words, 10_000, 0.1),
    Decoder("shared files", network.shared_files, 20_000, 0.9),
    Decoder("plans told", network.deployed_plans, 10_000, 0.4),
    Decoder("host messages", network.host_messages, 40_000, 0.5),
    Decoder("worker orders", machines.worker_orders, 21_000, 0.4),
    Decoder("worker reports", machines.worker_reports, 4_000, 0.7),
    Decoder("graph files", files.graph_files, 10_000, 0.7),
    Decoder("safetensors", files.safetensors, 10_000, 0.7),
    Decoder("rosters", files.rosters, 10_000, 0.7),
    Decoder("audit logs", files.audits, 10_000, 0.7),
    Decoder("authorities", files.authorities, 10_000, 0.7),
    Decoder("node identities", files.identities, 10_000, 0.7),
    Decoder("measurements", files.measurements, 10_000, 0.5),
    Decoder("remembered", files.remembered, 10_000, 0.5),
    Decoder("journals", files.journals, 1_000, 0.5),
)
assert sum(each.of_million for each in DECODERS) == 1_000_000
