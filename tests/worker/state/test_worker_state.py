"""The worker's machine: short event scripts, with its invariants checked after every event."""

from __future__ import annotations

import pytest
from support.machines.worker_machine import (
    CALL_INPUT,
    COORD,
    EDGE_IN,
    GRAPH,
    KEY,
    ME,
    ONE_PART,
    PEER,
    SMALL,
    TO_COORD,
    WEIGHT,
    WEIGHT_IN,
    Driver,
    big,
    deploy,
    edge,
    made,
    of,
    one,
    part,
    weight,
)

from wire.errors import (
    BlobMissing,
    Busy,
    Cancelled,
    CompileFailed,
    DeviceLost,
    ExecuteFailed,
    GraphDecodeError,
    InputError,
    NodeLost,
    OutOfMemory,
    QueueFull,
    StaleGeneration,
)
from wire.protocol.messages import BlobSpec, Deploy, Deployed, Done, MissingGraphs, PartSpec, PlanKey, Target
from wire.timeouts import DEFAULT_TIMEOUTS
from worker.state import events as ev
from worker.state.bounds import Bounds

# -- ownership


def test_a_join_is_answered_and_starts_the_heartbeats() -> None:
    drive = Driver(join=False)
    assert drive.join() == [ev.ReplyJoined(1, ()), ev.StartBeats(COORD, 0.1)]


def test_a_second_coordinator_hears_busy_and_who_owns_the_worker() -> None:
    drive = Driver()
    error = one(ev.Refuse, drive.join("other", epoch=99)).error
    assert isinstance(error, Busy) and COORD in str(error)
    assert drive.machine.owner is not None and drive.machine.owner.node == COORD


def test_the_owner_may_join_again_and_its_old_plans_are_forgotten() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    actions = drive.join(epoch=8)
    assert of(ev.Unprepare, actions) and of(ev.ReplyJoined, actions)
    assert isinstance(one(ev.Refuse, drive.run()).error, StaleGeneration)


def test_an_older_epoch_of_the_same_coordinator_is_refused() -> None:
    drive = Driver()
    assert isinstance(one(ev.Refuse, drive.join(epoch=6)).error, StaleGeneration)


def test_the_end_of_another_link_changes_nothing() -> None:
    drive = Driver()
    assert drive(ev.NodeUnlinked(PEER)) == []
    assert drive.machine.owner is not None


def test_a_quiet_coordinator_is_asked_and_a_silent_one_given_up() -> None:
    drive = Driver(join=False, bounds=Bounds(keep_orphans_s=0.0))
    drive.join(silence_s=2.0)
    assert drive.machine.next_deadline() == drive.now + 0.5
    assert drive(ev.Tick(), after_s=0.5) == [ev.AskOwner(COORD)]
    assert drive(ev.Tick(), after_s=0.5) == []
    drive(ev.Heard(COORD))
    assert drive(ev.Tick(), after_s=1.9) == [ev.AskOwner(COORD)]
    actions = drive(ev.Tick(), after_s=0.1)
    assert of(ev.StopBeats, actions) and one(ev.CloseLink, actions).node == COORD
    assert drive.machine.next_deadline() is None


def test_a_worker_that_slept_itself_does_not_blame_its_coordinator() -> None:
    drive = Driver(join=False)
    drive.join(silence_s=2.0)
    assert of(ev.CloseLink, drive(ev.Tick(late_s=4.5), after_s=5.0)) == []


def test_a_suspicion_is_refuted_with_a_higher_incarnation_at_once() -> None:
    drive = Driver()
    assert drive(ev.SuspectedBy(COORD, 1)) == [ev.SendBeat()]
    assert drive.machine.incarnation == 2
    assert drive(ev.SuspectedBy(COORD, 1)) == [ev.SendBeat()], "said before the refutation came: repeat it"
    assert drive.machine.incarnation == 2
    assert drive(ev.SuspectedBy(PEER, 5)) == []
    assert drive.machine.incarnation == 2


# -- deploy


def test_blobs_are_looked_for_here_then_asked_of_the_holders_in_order() -> None:
    drive = Driver()
    first = one(ev.Fetch, drive.ask_deploy(deploy(ONE_PART, blobs=(weight(PEER, ""),))))
    assert first.holder == ME
    second = one(ev.Fetch, drive(ev.BlobNotFound(first.attempt, BlobMissing("not here"))))
    assert second.holder == PEER
    third = one(ev.Fetch, drive(ev.BlobNotFound(second.attempt, NodeLost("gone"))))
    assert third.holder == ""
    prepare = one(ev.Prepare, drive(ev.BlobFound(third.attempt, "socket")))
    reply = one(ev.Reply, drive(ev.PartPrepared(prepare.prepared, 0.25, False)))
    assert reply.message == Deployed(400, 0, 0, 0, 0.25, 1, 0)


def test_a_blob_that_nobody_has_fails_the_deploy_with_what_each_said() -> None:
    drive = Driver()
    fetch = one(ev.Fetch, drive.ask_deploy(deploy(ONE_PART, blobs=(weight(PEER),))))
    fetch = one(ev.Fetch, drive(ev.BlobNotFound(fetch.attempt, BlobMissing("not here"))))
    refusal = one(ev.Refuse, drive(ev.BlobNotFound(fetch.attempt, NodeLost("peer fell over"))))
    assert isinstance(refusal.error, BlobMissing) and "peer fell over" in str(refusal.error)
    assert drive.ask_deploy(deploy(ONE_PART)), "the worker takes the next plan"


def test_a_fetch_from_a_node_the_next_plan_does_not_name_is_started_over() -> None:
    drive = Driver()
    fetch = one(ev.Fetch, drive.ask_deploy(deploy(ONE_PART, blobs=(weight(PEER),))))
    stuck = one(ev.Fetch, drive(ev.BlobNotFound(fetch.attempt, BlobMissing("not here"))))
    drive(ev.DropRequested(COORD, drive.request(), KEY))
    actions = drive.ask_deploy(deploy(ONE_PART, plan=PlanKey(7, 2), blobs=(weight("other"),)))
    assert one(ev.AbandonFetch, actions).attempt == stuck.attempt
    assert one(ev.Fetch, actions).holder == ME
    assert drive(ev.BlobFound(stuck.attempt, "socket")) == [], "the abandoned one comes too late"


def test_a_fetch_under_way_serves_the_next_plan_that_names_its_holder() -> None:
    drive = Driver()
    fetch = one(ev.Fetch, drive.ask_deploy(deploy(ONE_PART, blobs=(weight(PEER),))))
    fetch = one(ev.Fetch, drive(ev.BlobNotFound(fetch.attempt, BlobMissing("not here"))))
    drive(ev.DropRequested(COORD, drive.request(), KEY))
    assert drive.ask_deploy(deploy(ONE_PART, plan=PlanKey(7, 2), blobs=(weight(PEER, ""),))) == []
    assert of(ev.Prepare, drive(ev.BlobFound(fetch.attempt, "shared")))


def test_a_fetch_that_waits_its_turn_keeps_the_client_as_holder_when_a_second_plan_wants_it() -> None:
    drive = Driver(bounds=Bounds(fetches_max=1))
    blobs = (BlobSpec(b"o" * 32, 4, "f32", (1,), ("",)), weight(""))  # the second waits for the first
    first = one(ev.Fetch, drive.ask_deploy(deploy(ONE_PART, blobs=blobs)))
    assert of(ev.Fetch, drive.ask_deploy(deploy(ONE_PART, plan=PlanKey(7, 2), blobs=blobs))) == []
    own = one(ev.Fetch, drive(ev.BlobFound(first.attempt, "socket")))
    assert (own.blob, own.holder) == (WEIGHT, ME)
    assert one(ev.Fetch, drive(ev.BlobNotFound(own.attempt, BlobMissing("not here")))).holder == ""


def test_blobs_of_a_deployed_plan_are_pinned_until_it_is_dropped() -> None:
    drive = Driver()
    seen = drive.deployed(deploy(ONE_PART, blobs=(weight(PEER),)))
    assert one(ev.PinBlobs, seen).blobs == frozenset([WEIGHT])
    assert of(ev.PinBlobs, drive.deployed(deploy(ONE_PART, plan=PlanKey(7, 2), blobs=(weight(PEER),)))) == []
    assert of(ev.UnpinBlobs, drive(ev.DropRequested(COORD, drive.request(), KEY))) == []
    actions = drive(ev.DropRequested(COORD, drive.request(), PlanKey(7, 2)))
    assert one(ev.UnpinBlobs, actions).blobs == frozenset([WEIGHT])


def test_a_deploy_waits_for_links_to_the_peers_it_will_push_to() -> None:
    drive = Driver()
    actions = drive.ask_deploy(deploy(part(0, [CALL_INPUT], [[Target(PEER, 1, 0)]])))
    assert one(ev.LinkTo, actions) == ev.LinkTo(PEER, ("127.0.0.1:2",))
    assert drive(ev.PartPrepared(one(ev.Prepare, actions).prepared, 0.0, True)) == []
    assert isinstance(one(ev.Reply, drive(ev.NodeLinked(PEER))).message, Deployed)


def test_a_peer_that_cannot_be_dialled_holds_nothing_up_since_the_coordinator_relays() -> None:
    drive = Driver()
    actions = drive.ask_deploy(deploy(part(0, [CALL_INPUT], [[Target(PEER, 1, 0)]])))
    drive(ev.PartPrepared(one(ev.Prepare, actions).prepared, 0.0, True))
    deployed = one(ev.Reply, drive(ev.LinkFailed(PEER, NodeLost("refused")))).message
    assert isinstance(deployed, Deployed) and deployed.unreached == (PEER,)


def test_a_link_that_ends_under_a_step_fails_it_after_a_moment_since_something_may_be_lost() -> None:
    drive = Driver()
    drive.deployed(deploy(part(0, [edge(1, 0, PEER)], [[]])))
    drive.run(1)
    assert of(ev.Refuse, drive(ev.NodeUnlinked(PEER))) == []
    assert drive.machine.next_deadline() == drive.now + DEFAULT_TIMEOUTS.lost_link_grace_s
    error = one(ev.Refuse, drive(ev.Tick(), DEFAULT_TIMEOUTS.lost_link_grace_s)).error
    assert isinstance(error, NodeLost) and error.retry and error.node == PEER


def test_a_link_that_comes_anew_under_a_step_fails_it_too_since_the_other_end_may_have_sent_into_the_old_one() -> None:
    drive = Driver()
    drive.deployed(deploy(part(0, [edge(1, 0, PEER)], [[]])))
    drive(ev.NodeLinked(PEER))
    drive.run(1)
    assert drive.machine.next_deadline() is None, "a first link has lost nothing"
    drive(ev.NodeUnlinked(PEER))
    assert one(ev.Refuse, drive(ev.Tick(), DEFAULT_TIMEOUTS.lost_link_grace_s)).error.retry
    drive.run(2)
    assert drive.machine.next_deadline() is None
    drive(ev.NodeLinked(PEER), 10.0)
    assert drive.machine.next_deadline() == drive.now + DEFAULT_TIMEOUTS.lost_link_grace_s
    assert isinstance(one(ev.Refuse, drive(ev.Tick(), DEFAULT_TIMEOUTS.lost_link_grace_s)).error, NodeLost)


@pytest.mark.parametrize("later_s", [0.0, DEFAULT_TIMEOUTS.lost_link_grace_s / 2])
def test_a_plan_that_comes_after_its_links_has_lost_nothing_with_those_before(later_s: float) -> None:
    drive = Driver()
    for event in (ev.NodeLinked(PEER), ev.NodeUnlinked(PEER), ev.NodeLinked(PEER)):
        drive(event)
    drive.now += later_s
    drive.deployed(deploy(part(0, [edge(1, 0, PEER)], [[]])))
    drive.run(1)
    assert drive.machine.next_deadline() is None


def test_a_step_that_begins_when_a_link_has_just_come_back_is_not_waited_for_long() -> None:
    drive = Driver()
    drive.deployed(deploy(part(0, [edge(1, 0, PEER)], [[]])))
    drive.now += DEFAULT_TIMEOUTS.lost_link_grace_s / 4
    for event in (ev.NodeLinked(PEER), ev.NodeUnlinked(PEER), ev.NodeLinked(PEER)):
        drive(event)
    drive.now += DEFAULT_TIMEOUTS.lost_link_grace_s / 2
    drive.run(1)
    assert isinstance(one(ev.Refuse, drive(ev.Tick(), DEFAULT_TIMEOUTS.lost_link_grace_s)).error, NodeLost)
    drive.run(2)
    assert drive.machine.next_deadline() is None


def test_a_link_that_ends_under_a_step_that_does_not_need_it_is_nothing() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    drive.run(1)
    drive(ev.NodeUnlinked(PEER))
    assert drive.machine.next_deadline() is None


def test_a_worker_that_leaves_starts_no_host_again_and_waits_for_nothing() -> None:
    drive = Driver(devices=1)
    for _ in range(2):
        drive(ev.HostLost(0, DeviceLost("again")))
        drive(ev.Tick(), 10.0)
        drive(ev.HostReady(0))
    drive(ev.HostLost(0, DeviceLost("again")))
    assert drive.machine.next_deadline() is not None
    drive(ev.DrainRequested("asked to stop"))
    assert drive.machine.next_deadline() is None


def test_a_peer_that_is_known_to_be_out_of_reach_is_not_dialled() -> None:
    drive = Driver()
    near = deploy(part(0, [CALL_INPUT], [[Target(PEER, 1, 0)]]))
    away = Deploy(near.plan, near.parts, near.graphs, near.blobs, {PEER: ()})
    actions = drive.ask_deploy(away)
    assert of(ev.LinkTo, actions) == []
    done = drive(ev.PartPrepared(one(ev.Prepare, actions).prepared, 0.0, True))
    assert isinstance(one(ev.Reply, done).message, Deployed)


def test_a_graph_that_is_not_here_is_asked_for_and_then_remembered() -> None:
    drive = Driver()
    bare = Deploy(KEY, (ONE_PART,), {}, (), {})
    assert one(ev.Reply, drive.ask_deploy(bare)).message == MissingGraphs((GRAPH,))
    drive.deployed(deploy(ONE_PART))
    again = Deploy(PlanKey(7, 2), (ONE_PART,), {}, (), {})
    assert one(ev.Prepare, drive.ask_deploy(again)).encoded == b"encoded"


def test_graph_encodings_are_kept_up_to_a_size_and_the_oldest_go() -> None:
    drive = Driver(bounds=Bounds(graphs_bytes_max=10))
    drive.deployed(deploy(ONE_PART))
    other = b"h" * 32
    second = PartSpec(0, 0, other, ONE_PART.sources, ONE_PART.targets)
    drive.deployed(Deploy(PlanKey(7, 2), (second,), {other: b"encoded2"}, (), {}))
    bare = Deploy(PlanKey(7, 3), (ONE_PART,), {}, (), {})
    assert one(ev.Reply, drive.ask_deploy(bare)).message == MissingGraphs((GRAPH,))


def test_a_graph_that_does_not_decode_is_refused_and_forgotten() -> None:
    drive = Driver()
    prepare = one(ev.Prepare, drive.ask_deploy(deploy(ONE_PART)))
    error = one(ev.Refuse, drive(ev.PrepareFailed(prepare.prepared, GraphDecodeError("cyclic")))).error
    assert isinstance(error, GraphDecodeError) and error.part == "0"
    bare = Deploy(PlanKey(7, 2), (ONE_PART,), {}, (), {})
    assert isinstance(one(ev.Reply, drive.ask_deploy(bare)).message, MissingGraphs)


def test_one_part_that_does_not_compile_ends_the_deploy_and_frees_the_others() -> None:
    drive = Driver()
    actions = drive.ask_deploy(deploy(ONE_PART, part(1, [CALL_INPUT], [TO_COORD], device=1)))
    first, second = of(ev.Prepare, actions)
    drive(ev.PartPrepared(first.prepared, 0.1, True))
    actions = drive(ev.PrepareFailed(second.prepared, CompileFailed("too many registers")))
    assert isinstance(one(ev.Refuse, actions).error, CompileFailed)
    assert {(unprepare.device, unprepare.prepared) for unprepare in of(ev.Unprepare, actions)} == {
        (0, first.prepared),
        (1, second.prepared),
    }


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (part(0, [CALL_INPUT], [TO_COORD], device=2), "device 2"),
        (part(0, [WEIGHT_IN], [TO_COORD]), "not listed"),
        (part(0, [CALL_INPUT], [[Target("stranger", 0, 0)]]), "stranger"),
    ],
)
def test_a_deploy_that_cannot_work_is_refused_before_anything_happens(wrong: PartSpec, says: str) -> None:
    actions = Driver().ask_deploy(deploy(wrong))
    error = one(ev.Refuse, actions).error
    assert len(actions) == 1 and isinstance(error, InputError) and says in str(error)


def test_only_the_owner_may_deploy() -> None:
    assert isinstance(one(ev.Refuse, Driver().ask_deploy(deploy(ONE_PART), node=PEER)).error, StaleGeneration)


def test_a_plan_of_another_epoch_or_a_dropped_one_is_stale() -> None:
    drive = Driver()
    assert isinstance(one(ev.Refuse, drive.ask_deploy(deploy(ONE_PART, plan=PlanKey(6, 1)))).error, StaleGeneration)
    assert drive(ev.DropRequested(COORD, drive.request(), KEY)) == [ev.Reply(drive.requests, Done())]
    assert isinstance(one(ev.Refuse, drive.ask_deploy(deploy(ONE_PART))).error, StaleGeneration)


def test_dropping_a_plan_while_it_deploys_refuses_the_deploy() -> None:
    drive = Driver()
    drive.ask_deploy(deploy(ONE_PART))
    actions = drive(ev.DropRequested(COORD, drive.request(), KEY))
    assert isinstance(one(ev.Refuse, actions).error, StaleGeneration)
    assert of(ev.Unprepare, actions) and one(ev.Reply, actions).message == Done()


def test_a_coordinator_that_stops_waiting_for_a_deploy_gets_the_plan_forgotten() -> None:
    drive = Driver()
    drive.ask_deploy(deploy(ONE_PART))
    assert of(ev.Unprepare, drive(ev.RequestGone(drive.requests)))
    drive.deployed(deploy(ONE_PART))


# -- run


def test_a_part_runs_when_its_inputs_are_there_and_its_output_goes_back() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    actions = drive.run(0, (0, 0, SMALL))
    execute = one(ev.Execute, actions)
    assert execute.inputs == (ev.RunInput(0, SMALL, True),) and execute.outputs == (ev.OutputRequest(0, 1),)
    assert not of(ev.SendBegan, actions)
    ran = one(ev.ReplyRan, drive(ev.PartExecuted(execute.run, made(SMALL), 0.125)))
    assert ran.outputs == ((0, SMALL),) and ran.bytes_in == 8 and ran.bytes_out == 8
    assert ran.parts[0].compute_s == 0.125


def test_a_push_may_come_before_its_run() -> None:
    drive = Driver()
    drive.deployed(deploy(part(0, [EDGE_IN], [TO_COORD])))
    assert drive.push(0, 0, SMALL) == []
    assert one(ev.Execute, drive.run()).inputs[0].tensor == SMALL


def test_wait_time_runs_from_the_run_to_the_last_input() -> None:
    drive = Driver()
    drive.deployed(deploy(part(0, [EDGE_IN], [TO_COORD])))
    drive.run()
    drive.now += 0.75
    execute = one(ev.Execute, drive.push(0, 0, SMALL))
    ran = one(ev.ReplyRan, drive(ev.PartExecuted(execute.run, made(SMALL), 0.0)))
    assert ran.parts[0].wait_s == pytest.approx(0.75)


def test_pushes_before_their_run_are_bounded_and_the_run_is_refused_rather_than_hung() -> None:
    drive = Driver(bounds=Bounds(early_bytes_max=10))
    drive.deployed(deploy(part(0, [EDGE_IN, edge(9, 1)], [TO_COORD])))
    assert drive.push(0, 0, big("x")) == [], "the first step needs it"
    assert drive.push(0, 0, SMALL, step=1) == []
    assert drive.push(0, 1, big("x"), step=1) == [ev.Release(big("x")), ev.Release(SMALL)]
    assert isinstance(one(ev.Refuse, drive.run(step=1)).error, QueueFull)
    assert drive.push(0, 0, SMALL, step=2) == [], "the room is free again"


def test_a_worker_with_more_memory_has_more_room_for_pushes_before_their_run() -> None:
    size_bytes = ev.size_bytes_of(big("x"))
    for memory_bytes, refused in ((16 * size_bytes, False), (16 * size_bytes - 16, True)):
        drive = Driver(bounds=Bounds(early_bytes_max=1, early_bytes_of_one_max=1, memory_bytes=memory_bytes))
        drive.deployed(deploy(part(0, [EDGE_IN], [TO_COORD])))
        assert drive.push(0, 0, big("x")) == []
        assert drive.push(0, 0, big("y"), step=1) == [ev.Release(big("y"))] * refused


@pytest.mark.parametrize("key", [PlanKey(6, 1), PlanKey(7, 5)])
def test_stale_pushes_are_released(key: PlanKey) -> None:
    drive = Driver()
    drive(ev.DropRequested(COORD, drive.request(), PlanKey(7, 5)))
    assert drive.push(0, 0, big("late"), plan=key) == [ev.Release(big("late"))]


def test_a_push_for_a_step_that_is_over_is_released() -> None:
    drive = Driver()
    drive.deployed(deploy(part(0, [EDGE_IN], [TO_COORD])))
    drive.push(0, 0, SMALL)
    drive(ev.PartExecuted(one(ev.Execute, drive.run()).run, made(SMALL), 0.0))
    assert drive.push(0, 0, big("again")) == [ev.Release(big("again"))]


def test_a_tensor_that_came_once_reaches_every_slot_with_its_source() -> None:
    drive = Driver()
    drive.deployed(deploy(part(0, [EDGE_IN, EDGE_IN], [TO_COORD]), part(1, [EDGE_IN], [[Target("", 0, 1)]], device=1)))
    drive.run()
    first, second = of(ev.Execute, drive.push(0, 0, big("x")))
    uses = [use.last for execute in (first, second) for use in execute.inputs]
    assert uses == [False, False, True], "only the last reader may consume it"
    released, blame = drive.push(1, 0, big("y"))
    assert released == ev.Release(big("y")), "the first one counts"
    assert isinstance(blame, ev.Blame) and blame.node == PEER


def test_an_output_for_two_parts_of_one_worker_is_sent_once() -> None:
    drive = Driver()
    targets = [Target(PEER, 1, 0), Target(PEER, 2, 3), Target("", 0, 4)]
    drive.deployed(deploy(part(0, [CALL_INPUT], [targets])))
    execute = one(ev.Execute, drive.run(0, (0, 0, SMALL)))
    assert execute.outputs == (ev.OutputRequest(0, 2),)
    files = (big("a"), big("b"))
    actions = drive(ev.PartExecuted(execute.run, (ev.PartOutput(files=files),), 0.0))
    push = one(ev.SendPush, actions)
    assert (push.node, push.part, push.slot, push.tensor) == (PEER, 1, 0, big("a"))
    assert of(ev.ReplyRan, actions) == [], "the step is not over before its pushes are sent"
    assert one(ev.ReplyRan, drive(ev.PushSent(push.push))).outputs == ((4, big("b")),)


def test_between_parts_of_one_device_a_tensor_stays_there_and_on_another_it_is_handed_over() -> None:
    drive = Driver()
    drive.deployed(
        deploy(
            part(0, [CALL_INPUT], [[Target(ME, 1, 0), Target(ME, 2, 0)]]),
            part(1, [edge(0, 0)], [TO_COORD]),
            part(2, [edge(0, 0)], [[Target("", 0, 1)]], device=1),
        )
    )
    execute = one(ev.Execute, drive.run(0, (0, 0, SMALL)))
    (wish,) = execute.outputs
    assert wish.keep and wish.copies == 1
    kept = ev.DeviceTensor("f32", (1024, 1024), 0, wish.keep)
    near, far = of(ev.Execute, drive(ev.PartExecuted(execute.run, (ev.PartOutput(None, (big("x"),), kept),), 0.0)))
    assert (near.device, near.inputs[0].tensor) == (0, kept)
    assert (far.device, far.inputs[0].tensor) == (1, big("x"))


def test_a_device_runs_one_part_at_a_time_in_the_order_of_becoming_ready_over_several_steps() -> None:
    drive = Driver()
    drive.deployed(deploy(part(0, [EDGE_IN], [TO_COORD])))
    for step in range(3):
        drive.run(step)
    first = one(ev.Execute, drive.push(0, 0, SMALL, step=2))
    assert of(ev.Execute, drive.push(0, 0, SMALL, step=0)) == []
    assert of(ev.Execute, drive.push(0, 0, SMALL, step=1)) == []
    assert drive.machine.queue_depth == 3
    actions = drive(ev.PartExecuted(first.run, made(SMALL), 0.0))
    assert one(ev.ReplyRan, actions).step == 2
    second = one(ev.Execute, actions)
    assert one(ev.ReplyRan, drive(ev.PartExecuted(second.run, made(SMALL), 0.0))).step == 0


def test_a_part_that_fails_ends_the_step_with_its_error_and_the_plan_lives_on() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART, part(1, [EDGE_IN], [[Target("", 0, 1)]], device=1)))
    execute = one(ev.Execute, drive.run(0, (0, 0, SMALL)))
    refusal = one(ev.Refuse, drive(ev.ExecuteFailed(execute.run, ExecuteFailed("overheated"))))
    assert refusal.error.part == "0"
    assert drive.push(1, 0, big("late")) == [ev.Release(big("late"))]
    assert of(ev.Execute, drive.run(1, (0, 0, SMALL)))


def test_a_push_that_cannot_be_delivered_fails_the_step_so_that_it_can_be_retried() -> None:
    drive = Driver()
    drive.deployed(deploy(part(0, [CALL_INPUT], [[Target(PEER, 1, 0)]])))
    execute = one(ev.Execute, drive.run(0, (0, 0, SMALL)))
    push = one(ev.SendPush, drive(ev.PartExecuted(execute.run, made(SMALL), 0.0)))
    error = one(ev.Refuse, drive(ev.PushFailed(push.push, NodeLost("the link ended")))).error
    assert error.retry


def test_a_run_of_an_unknown_plan_or_a_repeated_step_is_stale_and_its_feeds_are_freed() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    actions = drive.run(0, (0, 0, big("x")), plan=PlanKey(7, 2))
    assert one(ev.Release, actions).tensor == big("x") and isinstance(one(ev.Refuse, actions).error, StaleGeneration)
    drive.run(0, (0, 0, SMALL))
    assert isinstance(one(ev.Refuse, drive.run(0, (0, 0, SMALL))).error, StaleGeneration)


# -- cancel, drop, leave


def test_cancelling_a_step_frees_its_tensors_and_dispatches_nothing_more() -> None:
    drive = Driver()
    drive.deployed(deploy(part(0, [EDGE_IN, edge(9, 1)], [TO_COORD])))
    drive.run()
    drive.push(0, 0, big("x"))
    actions = drive(ev.CancelRequested(COORD, KEY, 0))
    assert one(ev.Release, actions).tensor == big("x")
    assert isinstance(one(ev.Refuse, actions).error, Cancelled)
    assert drive.push(0, 1, big("y")) == [ev.Release(big("y"))]


def test_what_a_cancelled_step_was_computing_is_freed_when_it_comes() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    execute = one(ev.Execute, drive.run(0, (0, 0, SMALL)))
    assert one(ev.StopRun, drive(ev.CancelRequested(COORD, KEY, 0))) == ev.StopRun(execute.device, execute.run)
    actions = drive(ev.PartExecuted(execute.run, (ev.PartOutput(files=(big("x"),)),), 0.0))
    assert actions == [ev.Release(big("x"))]


def test_a_cancel_that_overtakes_its_run_wins() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    drive(ev.CancelRequested(COORD, KEY, 0))
    assert isinstance(one(ev.Refuse, drive.run(0, (0, 0, SMALL))).error, StaleGeneration)
    assert of(ev.Execute, drive.run(1, (0, 0, SMALL)))


def test_a_device_goes_on_with_the_next_step_when_one_is_cancelled() -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    first = one(ev.Execute, drive.run(0, (0, 0, SMALL)))
    drive.run(1, (0, 0, SMALL))
    assert of(ev.Execute, drive(ev.CancelRequested(COORD, KEY, 0))) == [], "the device is still busy with it"
    assert one(ev.Execute, drive(ev.ExecuteFailed(first.run, Cancelled("stopped")))).inputs
    assert of(ev.StopRun, drive(ev.CancelRequested(COORD, KEY, 0))) == [], "that one is over; another runs now"


def test_dropping_a_plan_stops_its_pushes_and_refuses_its_steps() -> None:
    drive = Driver()
    drive.deployed(deploy(part(0, [CALL_INPUT], [[Target(PEER, 1, 0)]])))
    execute = one(ev.Execute, drive.run(0, (0, 0, SMALL)))
    push = one(ev.SendPush, drive(ev.PartExecuted(execute.run, made(SMALL), 0.0)))
    actions = drive(ev.DropRequested(COORD, drive.request(), KEY))
    assert one(ev.StopPush, actions).push == push.push and of(ev.Refuse, actions) and of(ev.Unprepare, actions)
    assert drive(ev.PushSent(push.push)) == []


def test_a_coordinator_that_stops_waiting_for_a_run_gets_the_step_closed() -> None:
    drive = Driver()
    drive.deployed(deploy(part(0, [EDGE_IN], [TO_COORD])))
    drive.run()
    drive(ev.RequestGone(drive.requests))
    assert drive.push(0, 0, big("x")) == [ev.Release(big("x"))]


def test_a_drain_hands_back_and_ends_with_zero() -> None:
    drive = Driver()
    drive.deployed(deploy(part(0, [EDGE_IN], [TO_COORD])))
    drive.run()
    actions = drive(ev.DrainRequested("asked to stop by SIGTERM"))
    assert [type(action) for action in actions[:1]] == [ev.SendLeaving]
    assert one(ev.Stop, actions) == ev.Stop(0, "asked to stop by SIGTERM")
    assert of(ev.Refuse, actions), "the unfinished step is handed back"
    assert drive(ev.DrainRequested("again")) == []


def test_a_free_worker_drains_without_telling_anybody() -> None:
    assert Driver(join=False)(ev.DrainRequested("enough")) == [ev.Stop(0, "enough")]


@pytest.mark.parametrize("begun", [True, False])
def test_a_tensor_that_could_not_be_taken_ends_its_step_also_before_the_run_comes(begun: bool) -> None:
    drive = Driver()
    drive.deployed(deploy(ONE_PART))
    asked = drive.run() if begun else []
    lost = drive(ev.TensorLost(KEY, 0, OutOfMemory("no room")))
    actions = asked + lost if begun else drive.run()
    assert type(one(ev.Refuse, actions).error) is (OutOfMemory if begun else StaleGeneration)
    assert drive(ev.TensorLost(KEY, 0, OutOfMemory("no room"))) == [], "it is told once"
