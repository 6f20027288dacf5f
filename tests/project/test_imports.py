"""Who may import whom, as tables, checked against every import statement of the packages.

It reads source text and runs none of it.  To allow something new, add a row here and say why.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from support.source import PACKAGES, Import, SourceFile, source_files

# package -> the other packages of ours that it may import
BELOW = {
    "wire": frozenset[str](),
    "worker": frozenset({"wire"}),
    "coordinator": frozenset({"wire"}),
    "mesh": frozenset({"wire"}),
}

# The composition root: the files that make the parts of a program and connect them, and what each may reach.
ROOT = {
    "mesh/backends/admission.py": {"coordinator"},
    "mesh/commands/doctor.py": {"worker"},  # where its folders are, and which adapters this machine has
    "mesh/commands/membership.py": {"coordinator"},
    "mesh/commands/pause.py": {"worker"},  # where a pause is kept
    "mesh/commands/remote_verbs.py": {"coordinator"},  # to derive the times that a node time-out means
    "mesh/commands/serve.py": {"coordinator"},
    "mesh/commands/worker.py": {"worker"},
    "mesh/backends/connect.py": {"coordinator"},
    "mesh/demo/show.py": {"coordinator", "worker"},  # to tell the times of its judge, to list this machine's adapters
    "mesh/backends/embedded.py": {"coordinator"},
    "mesh/backends/enrolment.py": {"coordinator"},
    "mesh/core/inprocess.py": {"worker"},  # the cpu engine, for programs without a mesh
    "mesh/backends/auto_join.py": {"coordinator"},
    "mesh/scripts/listening_ports.py": {"worker"},  # connections between ranks on different machines
    "mesh/scripts/group.py": {"worker"},  # ranks of scripts exchange arrays by the runtime that hosts have
    "mesh/scripts/channels.py": {"worker"},
    "mesh/simulation/backend.py": {"coordinator"},
    "mesh/simulation/invariants.py": {"coordinator", "worker"},
    "mesh/simulation/cluster.py": {"coordinator", "worker"},
    "mesh/simulation/faulty_engine.py": {"worker"},
    "mesh/simulation/engine_host.py": {"worker"},
    "mesh/simulation/gang_rendezvous.py": {"worker"},
}

# third-party library -> its door files
DOORS = {
    "aiohttp": {"wire/link/websocket_carrier.py"},
    "cryptography": {"wire/security/certificates.py"},
    "jax": {"mesh/importers/jax/__init__.py", "mesh/importers/jax/control.py"},
    "lazy_loader": {"mesh/__init__.py"},
    "jeepney": {"worker/daemon/system_sleep.py"},
    "ml_dtypes": {"wire/ir/dtypes.py", "mesh/numpy/dtypes.py"},
    "msgpack": {"wire/ir/codec.py"},
    "msgspec": {
        "coordinator/planning/plan_codec.py",
        "wire/protocol/messages.py",
        "wire/protocol/frames.py",
        "worker/engine/host_messages.py",
    },
    "onnx": {"mesh/importers/onnx/reading.py"},
    "platformdirs": {"worker/config.py", "mesh/backends/enrolment.py", "mesh/demo/show.py"},
    "psutil": {"wire/link/interfaces.py", "worker/cpu/engine.py", "worker/daemon/environment.py"},
    "rich": {"mesh/commands/progress.py", "mesh/commands/tables.py", "mesh/demo/show.py"},
    "safetensors": {"wire/ir/file.py"},
    "threadpoolctl": {"worker/cpu/process.py"},
    "tokenizers": {"mesh/demo/minilm.py", "mesh/inference/tokenizer.py"},
    "torch": {"mesh/importers/torch/__init__.py"},
    "wgpu": {"worker/wgsl/device.py"},
    "zeroconf": {"wire/discovery/mdns.py"},
}
EVERYWHERE = {"numpy"}

# The same for parts of the standard library that reach outside.
STANDARD_DOORS = {"sqlite3": {"coordinator/jobs/journal.py"}, "ssl": {"wire/security/tls.py"}}

# Files that decide and do not act: time, chance, identity and the world arrive as arguments.
PURE = (
    "coordinator/planning/pipeline/epilogue.py",
    "coordinator/planning/contingency.py",
    "coordinator/planning/spmd/collective_cost.py",
    "coordinator/planning/auto_strategy.py",
    "coordinator/planning/core/cost_model.py",
    "coordinator/planning/plan_messages.py",
    "coordinator/sessions/elastic.py",
    "coordinator/calls/events.py",
    "coordinator/calls/error_context.py",
    "coordinator/planning/spmd/rank_placement.py",
    "coordinator/workers/failure_detector.py",
    "coordinator/jobs/job_table.py",
    "coordinator/workers/collective_calibration.py",
    "coordinator/planning/faults/result_tolerance.py",
    "coordinator/workers/worker_names.py",
    "coordinator/planning/core/memory_check.py",
    "coordinator/planning/pipeline/microbatch_loop.py",
    "coordinator/planning/faults/migration_cost.py",
    "coordinator/workers/log_lines.py",
    "coordinator/workers/link_table.py",
    "coordinator/planning/core/partition.py",
    "coordinator/planning/core/subgraphs.py",
    "coordinator/planning/core/device_constraints.py",
    "coordinator/planning/pipeline/pipeline_planner.py",
    "coordinator/planning/core/device_map.py",
    "coordinator/planning/core/plan.py",
    "coordinator/planning/plan_codec.py",
    "coordinator/planning/planner.py",
    "coordinator/planning/core/profiles.py",
    "coordinator/planning/core/program.py",
    "coordinator/planning/spmd/load_balance.py",
    "coordinator/workers/views.py",
    "coordinator/planning/spmd/rank_programs.py",
    "coordinator/planning/spmd/rank_planner.py",
    "coordinator/planning/faults/what_if.py",
    "coordinator/authority/member_roster.py",
    "coordinator/planning/faults/result_audit.py",
    "coordinator/planning/spmd/split_strategies.py",
    "coordinator/calls/state.py",
    "coordinator/sessions/copies.py",
    "coordinator/sessions/steps.py",
    "coordinator/calls/step_timeout.py",
    "coordinator/sessions/events.py",
    "coordinator/planning/spmd/uneven_ranks.py",
    "coordinator/planning/session_planner.py",
    "coordinator/sessions/state.py",
    "coordinator/planning/pipeline/stage_builder.py",
    "coordinator/planning/pipeline/stage_search.py",
    "coordinator/workers/straggler_detector.py",
    "coordinator/authority/refusal_log.py",
    "coordinator/planning/core/timeline.py",
    "coordinator/authority/token_table.py",
    "coordinator/planning/core/liveness.py",
    "mesh/commands/diagnosis.py",
    "mesh/inference/request_batcher.py",
    "mesh/inference/settings.py",
    "mesh/inference/continuous_batching.py",
    "mesh/util/did_you_mean.py",
    "wire/addresses.py",
    "wire/protocol/reports.py",
    "wire/discovery/announcements.py",
    "wire/link/address_policy.py",
    "wire/discovery/no_peer_advice.py",
    "wire/link/backoff.py",
    "wire/ir/codec.py",
    "wire/erasure/parity_check.py",
    "wire/erasure/real_mds.py",
    "wire/erasure/gf256.py",
    "wire/policy/redundancy.py",
    "coordinator/planning/faults/parity_groups.py",
    "coordinator/planning/faults/redundancy_cost.py",
    "coordinator/planning/core/reproducible.py",
    "coordinator/planning/faults/sticky_placement.py",
    "coordinator/planning/faults/redundancy_memory.py",
    "coordinator/planning/faults/state_redundancy_memory.py",
    "worker/state/memory_admission.py",
    "wire/ir/dtypes.py",
    "wire/errors.py",
    "wire/protocol/flow_control.py",
    "wire/protocol/frames.py",
    "wire/security/connection_limiter.py",
    "wire/ir/graph.py",
    "wire/ir/device_names.py",
    "wire/ir/grids.py",
    "wire/security/join_protocol.py",
    "wire/passes/collective_order.py",
    "wire/limits.py",
    "wire/protocol/messages.py",
    "wire/protocol/compatibility.py",
    "wire/passes/input_slicing.py",
    "wire/ir/ops.py",
    "wire/protocol/dial_collision.py",
    "wire/policy/batch_shares.py",
    "wire/protocol/peer.py",
    "wire/passes/dead_code.py",
    "wire/ir/matrix_rules.py",
    "wire/ir/rules.py",
    "wire/ir/workspace.py",
    "wire/sharding/annotations.py",
    "wire/sharding/assignment.py",
    "wire/sharding/auto.py",
    "wire/sharding/region_dims.py",
    "wire/sharding/cost.py",
    "wire/sharding/rank_emitter.py",
    "wire/sharding/factors.py",
    "wire/sharding/layout.py",
    "wire/sharding/partial_sums.py",
    "wire/sharding/local_attrs.py",
    "wire/sharding/decompose.py",
    "wire/sharding/partition.py",
    "wire/sharding/op_cost.py",
    "wire/sharding/program.py",
    "wire/sharding/propagate.py",
    "wire/sharding/reshard.py",
    "wire/sharding/rule.py",
    "wire/sharding/position_ops.py",
    "wire/policy/pipeline_schedules.py",
    "wire/passes/simplify.py",
    "wire/byte_sizes.py",
    "wire/passes/specialise_ranks.py",
    "wire/policy/strategies.py",
    "wire/ir/text.py",
    "wire/timeouts.py",
    "wire/security/join_tokens.py",
    "wire/link/throttle.py",
    "wire/ir/types.py",
    "wire/passes/unroll_spmd.py",
    "wire/passes/replication.py",
    "wire/ir/verify.py",
    "wire/protocol/missing_gpu.py",
    "wire/protocol/versions.py",
    "wire/link/sleep_detector.py",
    "worker/state/carried_state.py",
    "worker/collectives/algorithms.py",
    "worker/cpu/inplace_analysis.py",
    "worker/state/availability.py",
    "worker/state/events.py",
    "worker/state/blob_requests.py",
    "worker/state/gang_checks.py",
    "worker/state/early_tensors.py",
    "worker/compiler/inline_composites.py",
    "worker/engine/donation.py",
    "worker/state/lost_links.py",
    "worker/state/device_queue.py",
    "worker/state/lease.py",
    "worker/state/deployments.py",
    "worker/state/device_recovery.py",
    "worker/state/snapshot_requests.py",
    "worker/state/worker_state.py",
    "worker/state/invariants.py",
    "worker/state/event_log.py",
    "worker/engine_host/watchdog.py",
    "worker/wgsl/canonicalise.py",
    "worker/wgsl/control_schedule.py",
    "worker/wgsl/element_exprs.py",
    "worker/wgsl/emit.py",
    "worker/wgsl/expressions.py",
    "worker/wgsl/fuse.py",
    "worker/wgsl/kernel_ir.py",
    "worker/wgsl/legalise.py",
    "worker/wgsl/lower.py",
    "worker/wgsl/memory.py",
    "worker/wgsl/polyfills.py",
    "worker/wgsl/profile.py",
    "worker/wgsl/program.py",
    "worker/wgsl/shaders.py",
)
IMPURE = {
    "asyncio", "ctypes", "datetime", "getpass", "mmap", "multiprocessing", "os", "platform", "random", "secrets",
    "select", "shutil", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
# A pure file may ask the interpreter one thing that is the same on every machine of a mesh.
ALLOWED_IN_PURE = {("wire/ir/codec.py", "sys")}  # sys.byteorder: bytes on the wire are little-endian

FILES = source_files()
BY_PATH = {file.path: file for file in FILES}


def imports() -> Iterator[tuple[SourceFile, Import]]:
    for file in FILES:
        for found in file.imports:
            yield file, found


def test_packages_import_one_way() -> None:
    wrong = [
        f"{file.path}:{found.line} imports {found.module}"
        for file, found in imports()
        if found.top in PACKAGES
        and found.top != file.package
        and found.top not in BELOW[file.package]
        and found.top not in ROOT.get(file.path, set())
    ]
    assert not wrong, "\n".join(wrong)


def test_every_row_of_the_composition_root_is_used() -> None:
    reached = {path: {found.top for found in BY_PATH[path].imports} for path in ROOT}
    assert {path: reached[path] & {"worker", "coordinator"} for path in ROOT} == ROOT


def test_a_package_names_its_own_modules_relatively() -> None:
    wrong = [
        f"{file.path}:{found.line} imports {found.module}"
        for file, found in imports()
        if found.written_absolute and found.top == file.package
    ]
    assert not wrong, "\n".join(wrong)


def test_libraries_enter_by_their_doors() -> None:
    seen: dict[str, set[str]] = {}
    for file, found in imports():
        if found.top not in sys.stdlib_module_names and found.top not in {*PACKAGES, *EVERYWHERE}:
            seen.setdefault(found.top, set()).add(file.path)
    assert seen == DOORS


@pytest.mark.parametrize("library", STANDARD_DOORS)
def test_parts_of_the_standard_library_enter_by_their_doors(library: str) -> None:
    assert {file.path for file, found in imports() if found.top == library} == STANDARD_DOORS[library]


@pytest.mark.parametrize("path", PURE)
def test_pure_files_reach_for_nothing(path: str) -> None:
    file = BY_PATH[path]
    wrong = [
        f"{path}:{found.line} imports {found.module}"
        for found in file.imports
        if found.top in IMPURE and (path, found.top) not in ALLOWED_IN_PURE
    ]
    assert not wrong, "\n".join(wrong)


def test_pure_files_lean_on_pure_files_only() -> None:
    """A pure file may use the shells' types in annotations, and nothing of theirs at run time."""
    wrong = []
    for path in PURE:
        for found in BY_PATH[path].imports:
            for target in found.files(BY_PATH):
                if target not in PURE and not found.for_types and not found.deferred:
                    wrong.append(f"{path}:{found.line} imports {target}")
    assert not wrong, "\n".join(wrong)
