"""Who may import whom, as tables, checked against every import statement of the packages.

It reads source text and runs none of it.  To allow something new, add a row here and say why.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import pytest
from support.source import PACKAGES, Import, SourceFile, source_files

# package -> the other packages of ours that it may import
BELOW = {
    "wire": frozenset[str](),
    "worker": frozenset({"wire"}),
    "coordinator": frozenset({"wire"}),
    "mesh": frozenset({"wire"}),
}

# Within a package: folder, or file of the package itself -> the others of it that it imports, types included.  A folder
# imports what its row names and nothing else; `wire` itself is what stands in no folder of it.
DIRECTIONS: dict[str, set[str]] = {
    # wire
    "wire": set(),
    "wire/erasure": {"wire"},
    "wire/ir": {"wire", "wire/system"},
    "wire/policy": {"wire"},
    "wire/protocol": {"wire"},
    "wire/standby": {"wire", "wire/protocol", "wire/system"},
    "wire/system": {"wire"},
    "wire/passes": {"wire", "wire/ir"},
    "wire/security": {"wire", "wire/system"},
    "wire/joining": {"wire", "wire/security", "wire/system"},
    "wire/sharding": {"wire", "wire/ir"},
    "wire/link": {"wire", "wire/ir", "wire/joining", "wire/protocol", "wire/security", "wire/system"},
    "wire/discovery": {"wire", "wire/link", "wire/protocol", "wire/system"},
    "wire/transfer": {"wire", "wire/ir", "wire/link", "wire/protocol", "wire/system"},
    # worker
    "worker/compiler": set(),
    "worker/engine": set(),
    "worker/state": set(),
    "worker/collectives": {"worker/engine"},
    "worker/wgsl": {"worker/compiler", "worker/engine"},
    "worker/cpu": {"worker/collectives", "worker/compiler", "worker/engine"},
    "worker/native": {"worker/compiler", "worker/cpu", "worker/engine"},
    "worker/config.py": set(),
    "worker/devices": {"worker/cpu", "worker/engine", "worker/native", "worker/wgsl"},
    "worker/engine_host": {"worker/collectives", "worker/config.py", "worker/devices", "worker/engine"},
    "worker/daemon": {
        "worker/collectives",
        "worker/config.py",
        "worker/devices",
        "worker/engine",
        "worker/engine_host",
        "worker/state",
    },
    "worker/__main__.py": {"worker/config.py", "worker/daemon"},
    # coordinator
    "coordinator/authority": set(),
    "coordinator/standby": {"coordinator/coordinator.py", "coordinator/jobs"},
    "coordinator/planning/model": set(),
    "coordinator/planning/audit": {"coordinator/planning/model"},
    "coordinator/planning/placement": {"coordinator/planning/model"},
    "coordinator/planning/redundancy": {"coordinator/planning/model"},
    "coordinator/planning/spmd": {"coordinator/planning/model", "coordinator/planning/placement"},
    "coordinator/planning/pipeline": {"coordinator/planning/model", "coordinator/planning/spmd"},
    "coordinator/planning": {
        "coordinator/planning/model",
        "coordinator/planning/pipeline",
        "coordinator/planning/placement",
        "coordinator/planning/redundancy",
        "coordinator/planning/spmd",
    },
    "coordinator/workers": {"coordinator/planning", "coordinator/planning/model"},
    "coordinator/lifecycle": {
        "coordinator/delivery",
        "coordinator/plan_service",
        "coordinator/planning",
        "coordinator/planning/model",
        "coordinator/workers",
    },
    "coordinator/calls": {"coordinator/lifecycle", "coordinator/planning"},
    "coordinator/config.py": {"coordinator/workers"},
    "coordinator/delivery": {"coordinator/planning", "coordinator/planning/model", "coordinator/workers"},
    "coordinator/plan_service": {
        "coordinator/delivery",
        "coordinator/planning",
        "coordinator/planning/audit",
        "coordinator/planning/model",
        "coordinator/planning/placement",
        "coordinator/planning/redundancy",
        "coordinator/workers",
    },
    "coordinator/sessions": {
        "coordinator/delivery",
        "coordinator/lifecycle",
        "coordinator/plan_service",
        "coordinator/planning",
        "coordinator/planning/model",
        "coordinator/planning/redundancy",
        "coordinator/planning/spmd",
        "coordinator/workers",
    },
    "coordinator/runtime": {
        "coordinator/calls",
        "coordinator/config.py",
        "coordinator/delivery",
        "coordinator/lifecycle",
        "coordinator/plan_service",
        "coordinator/planning",
        "coordinator/planning/audit",
        "coordinator/planning/model",
        "coordinator/planning/placement",
        "coordinator/sessions",
        "coordinator/workers",
    },
    "coordinator/coordinator_parts.py": {
        "coordinator/calls",
        "coordinator/config.py",
        "coordinator/delivery",
        "coordinator/lifecycle",
        "coordinator/plan_service",
        "coordinator/planning",
        "coordinator/runtime",
        "coordinator/sessions",
        "coordinator/workers",
    },
    "coordinator/coordinator.py": {
        "coordinator/calls",
        "coordinator/config.py",
        "coordinator/coordinator_parts.py",
        "coordinator/planning/model",
        "coordinator/runtime",
        "coordinator/workers",
    },
    "coordinator/jobs": {
        "coordinator/coordinator.py",
        "coordinator/planning",
        "coordinator/planning/model",
        "coordinator/sessions",
        "coordinator/workers",
    },
    # mesh
    "mesh/_import_check.py": set(),
    "mesh/errors.py": set(),
    "mesh/util": set(),
    "mesh": {"mesh/_import_check.py", "mesh/util"},
    "mesh/tree.py": {"mesh/util"},
    "mesh/core": {"mesh/tree.py", "mesh/util"},
    "mesh/backends": {"mesh/core", "mesh/util"},
    "mesh/numpy": {"mesh/core", "mesh/util"},
    "mesh/optim": {"mesh/core", "mesh/numpy", "mesh/tree.py", "mesh/util"},
    "mesh/scripts": {"mesh/backends", "mesh/tree.py", "mesh/util"},
    "mesh/simulation": {"mesh/backends", "mesh/core", "mesh/util"},
    "mesh/tracing": {"mesh/core", "mesh/numpy", "mesh/tree.py", "mesh/util"},
    "mesh/transforms": {"mesh/core", "mesh/numpy", "mesh/tracing", "mesh/tree.py", "mesh/util"},
    "mesh/spmd": {"mesh/core", "mesh/tracing", "mesh/transforms", "mesh/tree.py", "mesh/util"},
    "mesh/collectives.py": {"mesh/core", "mesh/numpy", "mesh/spmd", "mesh/transforms", "mesh/tree.py", "mesh/util"},
    "mesh/nn": {"mesh/core", "mesh/numpy", "mesh/spmd", "mesh/transforms", "mesh/util"},
    "mesh/models": {"mesh/core", "mesh/nn", "mesh/numpy", "mesh/tracing", "mesh/util"},
    "mesh/functions": {"mesh/core", "mesh/models", "mesh/numpy", "mesh/tracing", "mesh/tree.py", "mesh/util"},
    "mesh/importers": {"mesh/core", "mesh/models", "mesh/nn", "mesh/numpy", "mesh/transforms", "mesh/util"},
    "mesh/client": {
        "mesh/backends",
        "mesh/core",
        "mesh/functions",
        "mesh/scripts",
        "mesh/simulation",
        "mesh/tree.py",
        "mesh/util",
    },
    "mesh/originals.py": {"mesh/client", "mesh/core", "mesh/numpy", "mesh/util"},
    "mesh/coding": {"mesh/client", "mesh/core", "mesh/nn", "mesh/numpy", "mesh/tracing", "mesh/tree.py", "mesh/util"},
    "mesh/demo": {"mesh/client", "mesh/core", "mesh/importers", "mesh/util"},
    "mesh/inference": {
        "mesh/backends",
        "mesh/client",
        "mesh/core",
        "mesh/functions",
        "mesh/models",
        "mesh/nn",
        "mesh/numpy",
        "mesh/transforms",
        "mesh/tree.py",
        "mesh/util",
    },
    "mesh/serving": {
        "mesh/client",
        "mesh/core",
        "mesh/inference",
        "mesh/models",
        "mesh/numpy",
        "mesh/util",
    },
    "mesh/training": {
        "mesh/client",
        "mesh/collectives.py",
        "mesh/core",
        "mesh/errors.py",
        "mesh/functions",
        "mesh/models",
        "mesh/numpy",
        "mesh/optim",
        "mesh/spmd",
        "mesh/tracing",
        "mesh/transforms",
        "mesh/tree.py",
        "mesh/util",
    },
    "mesh/commands": {
        "mesh/backends",
        "mesh/client",
        "mesh/core",
        "mesh/demo",
        "mesh/inference",
        "mesh/models",
        "mesh/scripts",
        "mesh/serving",
        "mesh/simulation",
        "mesh/util",
    },
}

# Imports against that direction, inside functions: file -> folder.
AGAINST = {
    # Model.generate is a method, and inference is made of models
    ("mesh/models/model.py", "mesh/inference"),
    # asin, det and others have derivatives of their own, which are made of this namespace
    ("mesh/numpy/elementwise.py", "mesh/transforms"),
    ("mesh/numpy/linalg.py", "mesh/transforms"),
}

# Every import of ours inside a function, by its reason.
LATE: dict[str, set[str]] = {
    # Programs begin fast, and need no library of what they do not do.
    "mesh/__init__.py": {"mesh/util/missing_names.py"},
    "mesh/backends/connect.py": {"mesh/backends/auto_join.py"},
    "mesh/backends/enrolment.py": {"coordinator/authority/authority.py", "wire/discovery/mdns.py"},
    "mesh/client/async_mesh.py": {"mesh/backends/connect.py", "mesh/core/inprocess.py", "mesh/simulation/backend.py"},
    "mesh/client/builder.py": {"mesh/backends/local_workers.py", "mesh/client/async_mesh.py", "mesh/client/mesh.py"},
    "mesh/client/mesh.py": {"mesh/simulation/backend.py", "mesh/simulation/loop.py"},
    "mesh/client/session.py": {"mesh/core/inprocess.py"},
    "mesh/commands/coord.py": {"mesh/commands/doctor.py", "mesh/commands/serve.py", "mesh/demo/show.py"},
    "mesh/commands/explain.py": {
        "mesh/client/explanation.py",
        "mesh/client/mesh.py",
        "mesh/commands/graph_argument.py",
    },
    "mesh/commands/find_coordinator.py": {"mesh/backends/enrolment.py", "mesh/backends/remote.py"},
    "mesh/commands/flags.py": {"mesh/backends/config.py", "wire/package.py"},
    "mesh/commands/keys.py": {"mesh/serving/api_keys.py"},
    "mesh/commands/launch.py": {"mesh/scripts/hostfile.py", "mesh/scripts/launcher.py"},
    "mesh/commands/models.py": {"mesh/models/store.py", "wire/units.py"},
    "mesh/commands/membership.py": {
        "coordinator/authority/audit_log.py",
        "coordinator/authority/authority.py",
        "mesh/backends/enrolment.py",
        "mesh/backends/home_authority.py",
    },
    "mesh/commands/remote_verbs.py": {
        "mesh/backends/remote.py",
        "mesh/client/plan_preview.py",
        "mesh/commands/arrays.py",
        "mesh/commands/graph_argument.py",
    },
    "mesh/commands/serve.py": {"mesh/backends/auto_join.py", "wire/discovery/mdns.py"},
    "mesh/commands/topology.py": {"mesh/client/topology.py"},
    "mesh/commands/worker.py": {
        "mesh/backends/enrolment.py",
        "mesh/commands/pause.py",
        "mesh/commands/tables.py",
        "mesh/commands/tune.py",
        "mesh/simulation/throttled_worker.py",
        "worker/config.py",
        "worker/daemon/daemon.py",
        "worker/daemon/environment.py",
        "worker/daemon/state_folder.py",
        "worker/devices/registry.py",
    },
    "mesh/scripts/world.py": {
        "mesh/scripts/group.py",
        "mesh/scripts/listening_ports.py",
        "mesh/scripts/rank_certificates.py",
    },
    "worker/collectives/connector.py": {"wire/security/tls.py"},
    "worker/daemon/mdns_announcer.py": {"wire/discovery/auto_dialer.py", "wire/discovery/mdns.py"},
    "worker/devices/registry.py": {
        "worker/cpu/__init__.py",
        "worker/native/engine.py",
        "worker/wgsl/device.py",
        "worker/wgsl/engine.py",
    },
    # Whoever computes in this process loads an engine, and nobody else.
    "mesh/core/realise.py": {"mesh/core/inprocess.py"},
    "mesh/training/backward.py": {"mesh/core/inprocess.py"},
    "mesh/training/worker_group.py": {"mesh/core/inprocess.py"},
    # Methods of a class, over modules that are made of that class.
    "mesh/core/array.py": {"mesh/core/realise.py"},
    "mesh/models/model.py": {"mesh/inference/generate.py", "mesh/inference/replies.py"},
    "wire/ir/graph.py": {
        "wire/errors.py",
        "wire/ir/codec.py",
        "wire/ir/dtypes.py",
        "wire/ir/file.py",
        "wire/ir/text.py",
    },
    # Functions of one namespace that need each other.
    "mesh/importers/jax/rows.py": {"mesh/numpy/promotion.py"},
    "mesh/numpy/elementwise.py": {"mesh/numpy/complexes.py", "mesh/transforms/composite_rules.py"},
    "mesh/numpy/linalg.py": {"mesh/transforms/composite_rules.py"},
    "mesh/numpy/numpy_extras.py": {"mesh/numpy/dtypes.py"},
    "mesh/numpy/promotion.py": {"mesh/numpy/manipulation.py"},
    "mesh/numpy/random.py": {"mesh/numpy/special.py"},
    "mesh/transforms/composite.py": {"mesh/tracing/trace.py", "mesh/transforms/step_list.py"},
}

# The composition root: the files that make the parts of a program and connect them, and what each may reach.
ROOT = {
    "mesh/backends/admission.py": {"coordinator"},
    "mesh/commands/doctor.py": {"worker"},  # where its folders are, and which adapters this machine has
    "mesh/commands/membership.py": {"coordinator"},
    "mesh/commands/pause.py": {"worker"},  # where a pause is kept
    "mesh/commands/remote_verbs.py": {"coordinator"},  # to derive the times that a node time-out means
    "mesh/commands/serve.py": {"coordinator"},
    "mesh/commands/tune.py": {"worker"},  # to start an engine host that measures
    "mesh/commands/web_certificate.py": {"coordinator"},  # the authority that certifies it
    "mesh/commands/worker.py": {"worker"},
    "mesh/backends/connect.py": {"coordinator"},
    "mesh/demo/show.py": {"coordinator", "worker"},  # to tell the times of its judge, to list this machine's adapters
    "mesh/backends/embedded.py": {"coordinator"},
    "mesh/backends/enrolment.py": {"coordinator"},
    "mesh/backends/home_authority.py": {"coordinator"},
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
    "mesh/simulation/throttled_engine.py": {"worker"},
    "mesh/simulation/throttled_host.py": {"worker"},
    "mesh/simulation/throttled_worker.py": {"worker"},
}

# third-party library -> its door files
DOORS = {
    "aiohttp": {"mesh/serving/http_server.py", "wire/link/websocket_carrier.py"},
    "cryptography": {"wire/security/certificates.py"},
    "filelock": {"wire/system/file_lock.py"},
    "huggingface_hub": {"mesh/models/store.py"},
    "jax": {"mesh/importers/jax/__init__.py", "mesh/importers/jax/control.py"},
    "jinja2": {"mesh/serving/chat_template.py"},
    "lazy_loader": {"mesh/__init__.py"},
    "llguidance": {"mesh/serving/grammar.py"},
    "llvmlite": {"worker/native/llvm.py"},
    "jeepney": {"worker/daemon/system_sleep.py"},
    "ml_dtypes": {"wire/ir/dtypes.py", "mesh/numpy/dtypes.py"},
    "msgpack": {"wire/ir/codec.py"},
    "msgspec": {
        "coordinator/planning/plan_codec.py",
        "wire/protocol/messages/__init__.py",
        "wire/protocol/messages/admin.py",
        "wire/protocol/messages/blobs.py",
        "wire/protocol/messages/deploy.py",
        "wire/protocol/messages/explain.py",
        "wire/protocol/messages/fields.py",
        "wire/protocol/messages/jobs.py",
        "wire/protocol/messages/link.py",
        "wire/protocol/messages/run.py",
        "wire/protocol/messages/session.py",
        "wire/protocol/messages/standby.py",
        "wire/protocol/direct_calls.py",
        "wire/protocol/frames.py",
        "wire/plain_data.py",
        "worker/engine/host_messages.py",
    },
    "onnx": {"mesh/importers/onnx/reading.py"},
    "platformdirs": {
        "worker/config.py",
        "mesh/backends/local_workers.py",
        "mesh/demo/show.py",
        "wire/system/private_folder.py",
    },
    "psutil": {"wire/link/interfaces.py", "wire/system/memory.py"},
    "rich": {
        "mesh/commands/progress.py",
        "mesh/commands/tables.py",
        "mesh/demo/show.py",
        "mesh/training/progress.py",
    },
    "safetensors": {"wire/ir/file.py"},
    "threadpoolctl": {"worker/cpu/process.py"},
    "tokenizers": {"mesh/importers/minilm.py", "mesh/inference/tokenizer.py"},
    "torch": {"mesh/importers/torch/__init__.py"},
    "tqdm": {"mesh/training/progress.py"},
    "wgpu": {"worker/wgsl/device.py"},
    "zeroconf": {"wire/discovery/mdns.py"},
}
EVERYWHERE = {"numpy"}

# The same for parts of the standard library that reach outside.
STANDARD_DOORS = {"sqlite3": {"coordinator/jobs/journal.py"}, "ssl": {"wire/security/tls.py"}}

# Files that decide and do not act: time, chance, identity and the world arrive as arguments.
PURE_FOLDERS = (
    "coordinator/planning/",
    "wire/erasure/",
    "wire/passes/",
    "wire/policy/",
    "wire/protocol/",
    "wire/sharding/",
    "worker/compiler/",
    "worker/state/",
)
PURE_FILES = (
    "wire/cached_property.py",
    "coordinator/authority/member_roster.py",
    "coordinator/authority/refusal_log.py",
    "coordinator/authority/token_table.py",
    "coordinator/calls/events.py",
    "coordinator/calls/state.py",
    "coordinator/jobs/job_table.py",
    "coordinator/lifecycle/error_context.py",
    "coordinator/lifecycle/events.py",
    "coordinator/lifecycle/plan_lifecycle.py",
    "coordinator/lifecycle/retry.py",
    "coordinator/lifecycle/step_timeout.py",
    "coordinator/plan_service/migration_cost.py",
    "coordinator/sessions/copies.py",
    "coordinator/sessions/elastic.py",
    "coordinator/sessions/events.py",
    "coordinator/sessions/manifest.py",
    "coordinator/sessions/reading.py",
    "coordinator/sessions/state.py",
    "coordinator/sessions/steps.py",
    "coordinator/sessions/unattended.py",
    "coordinator/standby/events.py",
    "coordinator/standby/state.py",
    "coordinator/workers/call_report.py",
    "coordinator/workers/collective_calibration.py",
    "coordinator/workers/failure_detector.py",
    "coordinator/workers/link_table.py",
    "coordinator/workers/log_lines.py",
    "coordinator/workers/straggler_detector.py",
    "coordinator/workers/worker_names.py",
    "mesh/commands/diagnosis.py",
    "mesh/inference/continuous_batching.py",
    "mesh/inference/kv_pages.py",
    "mesh/inference/logit_adjustment.py",
    "mesh/inference/request_batcher.py",
    "mesh/inference/settings.py",
    "mesh/inference/speculation.py",
    "mesh/serving/access.py",
    "mesh/serving/api_error.py",
    "mesh/serving/fields.py",
    "mesh/serving/request_queue.py",
    "mesh/simulation/throttle.py",
    "mesh/util/did_you_mean.py",
    "mesh/util/units.py",
    "wire/addresses.py",
    "wire/bounds.py",
    "wire/plain_data.py",
    "wire/deadlines.py",
    "wire/units.py",
    "wire/discovery/announcements.py",
    "wire/errors.py",
    "wire/ir/arithmetic.py",
    "wire/ir/codec.py",
    "wire/ir/collective_rules.py",
    "wire/ir/control_rules.py",
    "wire/ir/device_names.py",
    "wire/ir/dtypes.py",
    "wire/ir/graph.py",
    "wire/ir/graph_memory.py",
    "wire/ir/grids.py",
    "wire/ir/indexing_rules.py",
    "wire/ir/matrix_rules.py",
    "wire/ir/ops.py",
    "wire/ir/rules.py",
    "wire/ir/text.py",
    "wire/ir/types.py",
    "wire/ir/verify.py",
    "wire/ir/workspace.py",
    "wire/joining/join_protocol.py",
    "wire/joining/join_tokens.py",
    "wire/limits.py",
    "wire/roles.py",
    "wire/collector.py",
    "wire/link/address_policy.py",
    "wire/link/sleep_detector.py",
    "wire/security/base32.py",
    "wire/standby/configuration.py",
    "wire/standby/in_messages.py",
    "wire/standby/voter.py",
    "wire/security/connection_limiter.py",
    "wire/security/user_proof.py",
    "wire/system/log_limit.py",
    "wire/text.py",
    "wire/timeouts.py",
    "wire/transfer/zeros.py",
    "worker/collectives/algorithms.py",
    "worker/cpu/inplace_analysis.py",
    "worker/engine/donation.py",
    "worker/engine_host/watchdog.py",
    "worker/native/steps.py",
    "worker/wgsl/canonicalise.py",
    "worker/wgsl/choices.py",
    "worker/wgsl/control_schedule.py",
    "worker/wgsl/updates.py",
    "worker/compiler/element_exprs.py",
    "worker/wgsl/emit.py",
    "worker/wgsl/kernels/product_forms.py",
    "worker/wgsl/kernels/row_forms.py",
    "worker/wgsl/kernels/scores_forms.py",
    "worker/compiler/expressions.py",
    "worker/compiler/fuse.py",
    "worker/wgsl/kernel_ir.py",
    "worker/wgsl/legalise.py",
    "worker/wgsl/lower.py",
    "worker/compiler/memory.py",
    "worker/wgsl/function_texts.py",
    "worker/wgsl/polyfills.py",
    "worker/wgsl/problems.py",
    "worker/wgsl/profile.py",
    "worker/wgsl/program.py",
    "worker/wgsl/shaders.py",
    "worker/wgsl/textures.py",
)
IMPURE = {
    "asyncio", "ctypes", "datetime", "getpass", "mmap", "multiprocessing", "os", "platform", "random", "secrets",
    "select", "shutil", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
# A pure file may ask the interpreter one thing that is the same on every machine of a mesh.
ALLOWED_IN_PURE = {
    ("wire/cached_property.py", "sys"),  # sys.version_info
    ("wire/ir/codec.py", "sys"),  # sys.byteorder: bytes on the wire are little-endian
}

FILES = source_files()
BY_PATH = {file.path: file for file in FILES}
PURE = tuple(
    path
    for path in BY_PATH
    if path in PURE_FILES or (path.startswith(PURE_FOLDERS) and not path.endswith("__init__.py"))
)
SEVERAL = ("wire/protocol", "worker/native", "worker/wgsl", "mesh/importers")  # with the folders in them, one room


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


def room(path: str) -> str:
    """The row of DIRECTIONS that a file belongs to."""
    folder = path.rpartition("/")[0]
    if "/" not in folder:
        return path if folder != "wire" and not path.endswith("__init__.py") else folder
    return next((each for each in SEVERAL if folder.startswith(each)), folder)


def within_packages() -> Iterator[tuple[SourceFile, Import, str]]:
    """Every import of a file of the same package, and which."""
    for file, found in imports():
        if found.top == file.package:
            for target in found.targets(BY_PATH):
                yield file, found, target


def circle(needs: Mapping[str, set[str]]) -> list[str]:
    """What needs itself by way of others, if anything does."""
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as found:
        return list(found.args[1])
    return []


def test_folders_import_what_their_row_names() -> None:
    seen: dict[str, set[str]] = {room(file.path): set() for file in FILES if not file.path.endswith("__init__.py")}
    for file, found, target in within_packages():
        here, there = room(file.path), room(target)
        if here != there and not (found.deferred and (file.path, there) in AGAINST):
            seen.setdefault(here, set()).add(there)
    assert seen == DIRECTIONS


def test_no_folder_imports_what_imports_it() -> None:
    assert not circle(DIRECTIONS)


def test_no_file_needs_what_needs_it_to_be_imported() -> None:
    needs: dict[str, set[str]] = {}
    for file, found, target in within_packages():
        if not found.deferred and not found.for_types:
            needs.setdefault(file.path, set()).add(target)
    assert not circle(needs)


def test_imports_inside_functions_are_listed() -> None:
    seen: dict[str, set[str]] = {}
    for file, found in imports():
        if found.deferred and not found.for_types and found.top in PACKAGES:
            seen.setdefault(file.path, set()).update(found.targets(BY_PATH))
    assert seen == LATE
    assert all(there in {room(each) for each in LATE[path]} for path, there in AGAINST)


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
