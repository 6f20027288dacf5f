"""The table of bounds: code reads each row, a test fills each, no queue is without one, and the page is right."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.source import source_files

from docs.tools.bounds_page import markdown
from wire.bounds import BOUNDS, FULL, PLACES

ROOT = Path(__file__).parents[2]
SOURCES = {file.path: file.text for file in source_files()}
READ = {  # of rows, and of fields of Limits
    name
    for path, text in SOURCES.items()
    if path not in ("wire/bounds.py", "wire/limits.py")
    for name in re.findall(r"\b[A-Z_]+(?=\.most\b)|\blimits\.\w+", text)
}

FILLED: Mapping[str, str] = {  # a test that fills it with the real part, and sees what happens then
    "DIRECT_CALLERS": "tests/worker/test_direct_callers.py::"
    "test_of_too_many_callers_the_one_that_was_not_used_for_longest_goes",
    "ARGUMENTS": "tests/mesh/client/test_argument_room.py::test_steps_wait_for_room_and_all_are_done",
    "SESSION_AHEAD": "tests/wire/test_full_queues.py::test_so_many_steps_may_be_in_flight",
    "SERVER_QUEUE": "tests/sim/test_inference_server.py::test_a_full_queue_is_an_immediate_refusal",
    "REPLAYED_FEEDS": "tests/coordinator/sessions/test_session_state.py::"
    "test_without_copies_the_first_state_and_all_feeds_are_one_until_they_are_forgotten",
    "AGENT_ORDERS": "tests/wire/test_full_queues.py::test_an_agent_reads_no_more_orders_than_it_has_room_for",
    "LINK_QUEUE": "tests/e2e/test_transport.py::test_a_link_whose_other_side_does_not_read_ends",
    "LINK_WINDOW": "tests/e2e/test_transport.py::test_a_stream_takes_no_more_memory_than_its_window",
    "LINK_REQUESTS": "tests/wire/protocol/test_protocol.py::test_requests_have_a_limit_on_both_sides",
    "LINK_REQUEST_BYTES": "tests/wire/protocol/test_protocol.py::test_requests_have_a_limit_in_bytes",
    "LINK_STREAMS": "tests/wire/protocol/test_protocol.py::test_streams_have_a_limit_on_both_sides",
    "UNTAKEN_FILES": "tests/wire/transfer/test_content_exchange.py::"
    "test_who_takes_no_files_gets_no_more_shared_memory_and_all_its_content",
    "SOCKET_MESSAGES": "tests/wire/link/test_websocket_buffers.py::test_who_is_not_listened_to_is_held_up",
    "RELAYED_PIECES": "tests/sim/test_relaying.py::test_pieces_of_many_tensors_share_the_same_room",
    "REFUSED_MESSAGES": "tests/wire/link/test_guard.py::test_who_goes_on_has_its_link_ended",
    "LINES_OF_ONE": "tests/wire/link/test_guard.py::test_what_is_refused_is_told_at_a_limited_rate",
    "MEASUREMENTS": "tests/sim/test_measuring_links.py::test_nobody_can_fill_our_memory_with_measurements",
    "UNLINKED": "tests/e2e/test_transport.py::test_of_many_that_come_at_once_the_oldest_go",
    "STRANGERS": "tests/wire/security/test_connection_limiter.py::"
    "test_so_many_strangers_are_heard_and_then_the_slowest_goes",
    "QUESTIONS": "tests/wire/security/test_connection_limiter.py::"
    "test_a_flood_of_questions_is_remembered_within_bounds",
    "CANDIDATES": "tests/wire/discovery/test_announcements.py::"
    "test_a_flood_of_good_adverts_ends_at_so_many_candidates_and_addresses",
    "JOINED_CANDIDATES": "tests/wire/discovery/test_announcements.py::"
    "test_who_has_joined_leaves_its_place_to_others_within_bounds",
    "LINKED_NODES": "tests/e2e/test_transport.py::test_more_nodes_than_the_limit_are_turned_away",
    "MEMBERS": "tests/coordinator/authority/test_authority.py::test_members_that_are_gone_take_no_place",
    "CALL_INPUTS": "tests/coordinator/calls/test_coordinator_state.py::"
    "test_calls_wait_until_there_is_room_for_their_inputs",
    "JOBS_WAITING": "tests/coordinator/jobs/test_job_table.py::test_a_client_with_too_many_waiting_is_told_so",
    "JOBS_RUNNING": "tests/coordinator/jobs/test_job_table.py::test_jobs_start_in_order_up_to_the_limit",
    "JOBS_OF_CLIENT": "tests/coordinator/jobs/test_job_table.py::test_one_member_alone_has_everything_up_to_its_cap",
    "JOB_BYTES_WAITING": "tests/coordinator/jobs/test_job_table.py::"
    "test_values_that_run_and_values_that_wait_are_bounded_for_each_member",
    "JOB_BYTES_RUNNING": "tests/coordinator/jobs/test_job_table.py::"
    "test_values_that_run_and_values_that_wait_are_bounded_for_each_member",
    "JOBS_OVER": "tests/coordinator/jobs/test_job_table.py::test_results_are_forgotten_by_age_and_by_number",
    "RESULTS_READY": "tests/sim/test_full_stores.py::test_of_many_results_the_latest_are_ready_and_all_can_be_had",
    "JOBS_IN_MEMORY": "tests/sim/test_full_stores.py::test_of_many_results_the_latest_are_ready_and_all_can_be_had",
    "SESSIONS_OPEN": "tests/sim/test_full_stores.py::test_a_session_too_many_is_refused",
    "SESSIONS_OF_CLIENT": "tests/sim/test_full_stores.py::test_a_session_too_many_of_one_client_is_refused_to_that_one",
    "DEFERRED_UPDATES": "tests/coordinator/runtime/test_deferred_updates.py::test_many_that_wait_run_at_once",
    "COPIED_FEEDS": "tests/sim/test_full_stores.py::test_large_arguments_have_the_state_copied_before_its_turn",
    "SESSION_INPUTS": "tests/sim/test_full_stores.py::"
    "test_a_step_whose_arguments_have_no_room_is_refused_to_that_client_and_room_is_made",
    "SESSION_ANSWERS": "tests/sim/test_full_stores.py::test_a_client_that_confirms_no_answer_is_refused_more_of_them",
    "CONTENTS_SENT": "tests/sim/test_full_stores.py::test_content_that_was_sent_long_ago_is_sent_again",
    "EVENTS": "tests/sim/test_full_stores.py::test_the_latest_events_are_kept",
    "REPORT_EVENTS": "tests/mesh/client/test_reports.py::"
    "test_of_many_events_the_first_and_the_latest_are_kept_and_the_others_counted",
    "CALL_STORY": "tests/wire/test_full_queues.py::test_what_is_there_for_people_is_the_latest",
    "SESSION_SPANS": "tests/sim/test_full_stores.py::test_spans_of_the_latest_steps_are_kept",
    "PROFILED_SPANS": "tests/sim/test_full_stores.py::test_spans_of_the_latest_steps_are_kept",
    "RELAYED_AT_ONCE": "tests/coordinator/delivery/test_relay_server.py::"
    "test_a_worker_that_relays_more_at_once_than_workers_do_is_refused",
    "IDLE_PLANS": "tests/wire/test_full_queues.py::test_so_many_plans_stay_deployed_without_a_call",
    "PLANS_AHEAD": "tests/coordinator/planning/test_contingency.py::test_memory_is_bounded_and_the_most_urgent_have_it",
    "RECORD_WAITS": "tests/coordinator/sessions/test_record_writer.py::"
    "test_copies_are_released_after_a_while_where_the_disk_refuses",
    "CONTENT_KEPT": "tests/coordinator/jobs/test_job_store.py::test_weights_stay_a_while_for_whoever_sends_them_again",
    "STANDBY_ACTIONS": "tests/coordinator/standby/test_standby_shell.py::"
    "test_a_disk_that_takes_nothing_for_minutes_ends_the_coordinator",
    "STANDBY_PEERS": "tests/wire/standby/test_standby_file.py::test_of_too_many_peers_the_oldest_that_do_not_count_go",
    "KNOWN_CONTENTS": "tests/coordinator/workers/test_recent_set.py::"
    "test_a_worker_of_many_programs_is_known_to_hold_the_latest",
    "KNOWN_GRAPHS": "tests/coordinator/workers/test_recent_set.py::"
    "test_a_worker_of_many_programs_is_known_to_hold_the_latest",
    "JOURNAL_COPIES": "tests/wire/test_full_queues.py::test_a_standby_with_a_slow_disk_asks_again",
    "KEPT_CONTENT": "tests/worker/state/test_kept_content.py::test_so_much_is_kept_as_there_is_room_for",
    "CACHED_WEIGHTS": "tests/worker/test_blob_store.py::test_what_the_disk_share_cannot_take_goes_to_memory",
    "EARLY_TENSORS": "tests/worker/state/test_worker_state.py::"
    "test_pushes_before_their_run_are_bounded_and_the_run_is_refused_rather_than_hung",
    "EARLY_OF_ONE": "tests/wire/test_full_queues.py::test_no_sender_has_more_than_its_own_room",
    "EARLY_REFUSED": "tests/wire/test_full_queues.py::test_of_many_steps_without_room_all_between_are_refused",
    "EARLY_COUNT": "tests/wire/test_full_queues.py::test_tensors_that_are_early_are_counted",
    "GRAPHS": "tests/worker/state/test_worker_state.py::test_graph_encodings_are_kept_up_to_a_size_and_the_oldest_go",
    "SUSPENDED_RUNS": "tests/worker/state/test_time_slices.py::test_so_many_are_suspended_and_the_device_computes",
    "FETCHES": "tests/worker/state/test_worker_state.py::"
    "test_a_fetch_that_waits_its_turn_keeps_the_client_as_holder_when_a_second_plan_wants_it",
    "DROPPED_PLANS": "tests/wire/test_full_queues.py::test_a_worker_remembers_the_latest",
    "CLOSED_STEPS": "tests/wire/test_full_queues.py::test_a_worker_remembers_the_latest",
    "LOST_LINKS": "tests/wire/test_full_queues.py::test_a_worker_remembers_the_latest",
    "WORKER_LOG": "tests/wire/test_full_queues.py::test_what_is_there_for_people_is_the_latest",
    "HOST_MEMORY": "tests/worker/collectives/test_shared_arena.py::"
    "test_arenas_are_counted_and_give_way_to_what_plans_need",
    "HOST_PARTS": "tests/worker/test_kept_executables.py::test_so_many_are_kept_and_the_longest_unused_goes_first",
    "HOST_CODE": "tests/worker/test_kept_executables.py::test_so_many_are_kept_and_the_longest_unused_goes_first",
    "NATIVE_CODE": "tests/worker/test_kept_executables.py::test_so_many_are_kept_and_the_longest_unused_goes_first",
    "UNUSED_WEIGHTS": "tests/worker/test_kept_executables.py::test_so_many_weights_are_kept_that_nothing_reads",
    "ARENAS": "tests/worker/collectives/test_shared_arena.py::"
    "test_the_arena_that_was_used_longest_ago_is_freed_for_a_new_one",
    "ARENA_OPERANDS": "tests/worker/collectives/test_shared_arena.py::test_what_finds_no_room_travels_in_messages",
    "INLINE_OUTPUTS": "tests/worker/test_failing_hosts.py::test_many_small_tensors_fit_into_a_message_or_go_by_files",
    "TRACE_WAITS": "tests/worker/test_kernel_trace.py::test_what_one_run_tells_does_not_collect_in_memory",
    "KV_POOL": "tests/mesh/inference/test_paged_generation.py::"
    "test_a_budget_that_is_too_small_for_all_makes_texts_wait_and_fails_none",
    "HTTP_QUEUE": "tests/mesh/serving/test_request_queue.py::test_a_full_queue_refuses_with_the_time_to_wait",
    "HTTP_BODIES": "tests/mesh/serving/test_http_server.py::test_so_many_bytes_of_bodies_are_held",
    "HTTP_CONNECTIONS": "tests/mesh/serving/test_http_server.py::test_so_many_connections_are_held",
    "LOG_QUEUE": "tests/wire/test_full_queues.py::test_lines_that_nobody_reads_are_dropped_and_counted",
    "HOST_LINES": "tests/worker/test_stderr_of_hosts.py::"
    "test_of_too_many_in_a_minute_the_rest_is_counted_and_the_last_are_kept",
    "LOG_LINES": "tests/wire/test_full_queues.py::test_lines_that_nobody_reads_are_dropped_and_counted",
}

SAME_TURN = "what one event brings, and handled before the next is looked at"
BOUNDED_BY: Mapping[str, str] = {  # queues that nothing bounds themselves: the row that does, or why none is needed
    "_Plan.waiting": "ARGUMENTS, JOBS_RUNNING",
    "RecordWriter._due": "RECORD_WAITS",
    "StandbyShell._inbox": SAME_TURN,
    "StandbyShell._due": "STANDBY_ACTIONS",
    "RemoteSession._requests": "ARGUMENTS",
    "FailureDetector._withdrawn": "LINKED_NODES",
    "ArgumentRoom._waiting": "one for each thread or task that waits",
    "Slots.waiting": "SERVER_QUEUE",
    "Slots._in_flight": "steps in flight, of which the runner begins two",
    "TokenStream._ready": "tokens of one text, of which its caller says how many",
    "_Ends.places": "one for each of the calls that a caller gave",
    "Generating._answers": "steps in flight, of which the runner begins two",
    "Generating._asked": "steps in flight, of which the runner begins two",
    "Run._in_flight": "steps in flight, of which the loop begins `ahead`",
    "JoinPort.calls": "STRANGERS",
    "BinaryWebSocket._queue": "SOCKET_MESSAGES",
    "Sender._turns": "LINK_STREAMS",
    "Sender._long": "LINK_REQUESTS",
    "Peer._frames": "LINK_QUEUE",
    "Connection._queue": "what the schedule of one step sends; the next step begins when it has left",
    "Progress._waiting": "the collectives of one part",
    "MachineShell._inbox": SAME_TURN,
    "Watchdog._asked": "HOST_PARTS, and what was asked of a host that has not answered",
    "_Ending._left": "one for each large mapping that ended",
    "BlobRequests._queue": "what the plans need that are deployed here",
    "DeviceQueue.ready": "parts of the steps that coordinators have in flight",
    "DeviceQueue.ordered": "the same",
    "DeviceQueue.issued": "the same",
    "TimeSlices.suspended": "SUSPENDED_RUNS",
    "DeviceRecovery._losses": "those of the last ten minutes, of which there are five at most",
    "LostLinks._lost": "LOST_LINKS, those within the grace",
    "WorkerState._devices": "one for each device",
}
UNBOUNDED = re.compile(r"\b(deque|Queue|LifoQueue|PriorityQueue|SimpleQueue)\(\)|default_factory=deque\b")


def test_the_page_is_up_to_date() -> None:
    stored = (ROOT / "docs" / "bounds.md").read_text()
    assert stored == markdown(), "run: python -m docs.tools.bounds_page > docs/bounds.md"


@pytest.mark.parametrize("name", BOUNDS)
def test_each_row_is_read_where_something_is_held(name: str) -> None:
    row = BOUNDS[name]
    assert row.what.endswith(".") and row.then.endswith(".")
    assert row.setting or (f"limits.{row.limit}" if row.limit else name) in READ


@pytest.mark.parametrize("name", BOUNDS)
def test_a_test_fills_it(name: str) -> None:
    path, _, function = FILLED[name].partition("::")
    assert re.search(rf"^(async )?def {function}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)


def test_each_place_and_each_end_has_a_row() -> None:
    assert FILLED.keys() == BOUNDS.keys()
    assert {row.place for row in BOUNDS.values()} == PLACES.keys()
    assert {row.full for row in BOUNDS.values()} == FULL.keys()


def queues(node: ast.AST, owner: str = "") -> Iterator[str]:
    """Queues without a bound of their own, as Class.name."""
    for child in ast.iter_child_nodes(node):
        inner = child.name if isinstance(child, ast.ClassDef) else owner
        if isinstance(child, ast.Assign | ast.AnnAssign) and child.value is not None:
            target = child.targets[0] if isinstance(child, ast.Assign) else child.target
            if UNBOUNDED.search(ast.unparse(child.value)):
                yield f"{inner}.{ast.unparse(target).removeprefix('self.')}"
        yield from queues(child, inner)


def test_no_queue_is_without_a_bound() -> None:
    mine = [path for path in SOURCES if not path.startswith("mesh/simulation/")]
    found = {name for path in mine if UNBOUNDED.search(SOURCES[path]) for name in queues(ast.parse(SOURCES[path]))}
    assert found, "the search finds nothing at all"
    assert found <= BOUNDED_BY.keys(), "give each a row of wire/bounds.py, or say here what bounds it"
