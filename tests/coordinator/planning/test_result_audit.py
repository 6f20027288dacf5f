"""Parts computed again elsewhere: what counts as wrong, who is to blame, and how the plan changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from support.cases.random_graphs import random_graph
from support.machines.profiles import device, near, worker
from support.machines.run_plan import run_plan

from coordinator.planning import plan_messages
from coordinator.planning.audit import result_audit
from coordinator.planning.audit.result_audit import AUDITORS, FREIVALDS_FLOPS_MIN, Auditor, audit_graph, audited
from coordinator.planning.model.memory_check import missing
from coordinator.planning.model.plan import Audit, FromPart
from coordinator.planning.planner import make_plan
from wire.ir.dtypes import C64, F32
from wire.ir.graph import GraphBuilder, WireGraph
from worker.cpu import evaluate

MATMUL = {"lhs_batch": (), "rhs_batch": (), "lhs_contract": (1,), "rhs_contract": (0,)}
RNG = np.random.default_rng(1)


def layer(size: int) -> WireGraph:
    """A product that leaves, and something built on it."""
    made = GraphBuilder()
    x, w = made.input("0", (size, size), F32), made.input("1", (size, size), F32)
    product = made.add("dot", x, w, **MATMUL)
    return made.build([product, made.add("tanh", product)])


def differences(
    graph: WireGraph, inputs: list[NDArray[np.generic]], claimed: list[NDArray[np.generic]], exact: bool
) -> int:
    given = {str(slot): np.ascontiguousarray(value) for slot, value in enumerate([*inputs, *claimed])}
    made = audit_graph(graph, exact)
    assert made is not None
    return int(evaluate(made, given, {})[0])


def flipped(array: NDArray[np.generic], place: int, bit: int) -> NDArray[np.generic]:
    changed = array.copy()
    changed.reshape(-1).view(np.uint32)[place] ^= np.uint32(1 << bit)
    return changed


def run(size: int) -> tuple[WireGraph, list[NDArray[np.generic]], list[NDArray[np.generic]]]:
    graph = layer(size)
    inputs: list[NDArray[np.generic]] = [RNG.standard_normal((size, size)).astype(np.float32) for _ in range(2)]
    return graph, inputs, evaluate(graph, {str(slot): value for slot, value in enumerate(inputs)}, {})


@pytest.mark.parametrize("bit", [0, 11, 22, 30, 31])
def test_one_flipped_bit_is_found_where_engines_are_alike(bit: int) -> None:
    graph, inputs, right = run(8)
    assert differences(graph, inputs, right, exact=True) == 0
    assert differences(graph, inputs, [right[0], flipped(right[1], 5, bit)], exact=True) == 1


@pytest.mark.parametrize(("bit", "found"), [(0, False), (18, True), (30, True)])
def test_other_engines_may_round_and_no_more(bit: int, found: bool) -> None:
    graph, inputs, right = run(8)
    assert differences(graph, inputs, right, exact=False) == 0
    largest = int(np.abs(right[1]).argmax())
    assert bool(differences(graph, inputs, [right[0], flipped(right[1], largest, bit)], exact=False)) is found


@pytest.mark.parametrize("part", ["real", "imag"])
def test_complex_numbers_are_compared_part_by_part(part: str) -> None:
    made = GraphBuilder()
    x = made.input("0", (4,), C64)
    graph = made.build([made.add("exp", made.add("mul", x, x))])
    given = np.array([1 + 2j, complex(np.nan, 1), 0.5j, -3], np.complex64)
    (right,) = evaluate(graph, {"0": given}, {})
    assert differences(graph, [given], [right], exact=True) == 0
    wrong = right.copy()
    getattr(wrong, part)[2] = np.nextafter(getattr(right, part)[2], np.float32(9))
    assert differences(graph, [given], [wrong], exact=True) == 1


@pytest.mark.parametrize("exact", [True, False])
def test_nan_agrees_with_nan_only(exact: bool) -> None:
    graph, inputs, _ = run(8)
    inputs[0][3, 3] = np.nan
    right = evaluate(graph, {str(slot): value for slot, value in enumerate(inputs)}, {})
    assert differences(graph, inputs, right, exact) == 0
    assert differences(graph, inputs, [right[0], np.nan_to_num(right[1])], exact)


@pytest.mark.parametrize("exact", [True, False])
def test_a_large_product_is_checked_by_a_few_columns_and_what_follows_by_the_claim(exact: bool) -> None:
    graph, inputs, right = run(256)
    assert graph.flops > FREIVALDS_FLOPS_MIN
    made = audit_graph(graph, exact)
    assert made is not None and made.flops < graph.flops / 4, "it costs as much as computing it again"
    assert differences(graph, inputs, right, exact) == 0
    wrong = right[0].copy()
    wrong[7, 9] += 1.0
    assert differences(graph, inputs, [wrong, np.tanh(wrong)], exact) > 0, "consistent, and wrong"
    assert differences(graph, inputs, [right[0], flipped(right[1], 0, 30)], exact) > 0


@pytest.mark.parametrize("size", [232, 512])
def test_a_right_product_is_never_doubted(size: int) -> None:
    for scale in (1e-3, 1.0, 1e3):
        graph, inputs, _ = run(size)
        inputs = [value * np.float32(scale) for value in inputs]
        product = (inputs[0] @ inputs[1]).astype(np.float32)  # another order of summation
        claimed = evaluate(graph, {"0": inputs[0], "1": inputs[1]}, {})
        assert differences(graph, inputs, claimed, exact=True) == 0
        assert differences(graph, inputs, [product, np.tanh(product)], exact=False) == 0


@pytest.mark.parametrize("seed", range(12))
def test_an_audited_plan_gives_the_same_answer_and_no_differences(seed: int) -> None:
    made = random_graph(seed, 6, 24)
    profiles = near(*(worker(number, device(0, 1e-3, 1e-3)) for number in range(4)))
    plan = make_plan(made.graph, profiles, "pipeline")
    expected = evaluate(made.graph, made.inputs, made.params)
    for variant in range(len(plan.parts) + 1):
        sampled = audited(plan, variant, profiles)
        assert sampled.audit is not None and len(sampled.audit.auditors) == AUDITORS
        assert sampled.audit.node not in sampled.audit.auditors
        arrived = run_plan(sampled, made.inputs, made.params)
        for one, other in zip(arrived[: len(expected)], expected, strict=True):
            assert one.tobytes() == other.tobytes()
        assert [int(count) for count in arrived[len(expected) :]] == [0] * AUDITORS


# -- what engines may choose differently


def best(outputs: str) -> WireGraph:
    """Scores x @ w and the place of the best one of each row; `outputs` says which leave: scores, best or both."""
    made = GraphBuilder()
    x, w = made.input("0", (4, 8), F32), made.input("1", (8, 5), F32)
    scores = made.add("dot", x, w, **MATMUL)
    place = made.add("argmax", scores, axis=1)
    return made.build({"scores": [scores], "best": [place], "both": [scores, place]}[outputs])


def tied() -> list[NDArray[np.generic]]:
    """Inputs of `best` whose scores tie all but a rounding."""
    return [np.ones((4, 8), np.float32), np.repeat(RNG.standard_normal((8, 1)).astype(np.float32), 5, 1)]


def test_a_choice_among_scores_that_nearly_tie_is_judged_by_engines_of_one_kind_alone() -> None:
    graph = best("best")
    (right,) = evaluate(graph, dict(zip("01", tied(), strict=True)), {})
    assert differences(graph, tied(), [right], exact=True) == 0
    assert differences(graph, tied(), [(right + 1).astype(np.int32)], exact=True) == 4
    assert audit_graph(graph, exact=False) is None


def test_a_choice_that_leaves_with_its_scores_is_judged_by_the_scores_claimed() -> None:
    graph, inputs = best("both"), tied()
    scores, place = evaluate(graph, dict(zip("01", inputs, strict=True)), {})
    other = scores.copy()
    other[:, 3] = np.nextafter(other[:, 3], np.float32(np.inf))  # as another order of summation would have it
    three = np.full(4, 3, np.int32)
    assert differences(graph, inputs, [scores, place], exact=False) == 0
    assert differences(graph, inputs, [other, three], exact=False) == 0
    assert differences(graph, inputs, [scores, three], exact=False) == 4


def test_unlike_engines_audit_what_they_can_compare_and_leave_the_rest() -> None:
    """A cpu worker's choice is audited by the cpus of others, a gpu's by nobody; its scores by anyone."""
    cpu, gpu = device(0, 1e-3, 1e-3), device(0, 1e-3, 1e-3, engine="wgsl")
    for outputs, of, auditors in (("best", cpu, 1), ("best", gpu, 0), ("scores", gpu, 2), ("both", gpu, 2)):
        profiles = near(worker(0, of), worker(1, cpu), worker(2, gpu))
        plan = make_plan(best(outputs), near(worker(0, of)), "single")
        found = audited(plan, 0, profiles).audit
        assert (len(found.auditors) if found else 0) == auditors, outputs


def test_a_value_that_was_rounded_to_few_bits_may_differ_by_one_of_them() -> None:
    made = GraphBuilder()
    x, w = made.input("0", (64, 64), F32), made.input("1", (64, 64), F32)
    graph = made.build([made.add("cast", made.add("dot", x, w, **MATMUL), dtype="f16")])
    inputs: list[NDArray[np.generic]] = [RNG.standard_normal((64, 64)).astype(np.float32) for _ in range(2)]
    (right,) = evaluate(graph, dict(zip("01", inputs, strict=True)), {})
    assert differences(graph, inputs, [np.nextafter(right, np.float16(np.inf))], exact=False) == 0
    assert differences(graph, inputs, [right * np.float16(1.02)], exact=False) > 0


def test_every_part_and_every_worker_gets_its_turn() -> None:
    made = random_graph(3, 6, 24)
    profiles = near(*(worker(number, device(0, 1e-3, 1e-3)) for number in range(4)))
    plan = make_plan(made.graph, profiles, "pipeline")
    audits = [audited(plan, variant, profiles).audit for variant in range(24)]
    assert {audit.part for audit in audits if audit} == {part.index for part in plan.parts}
    assert {node for audit in audits if audit for node in audit.auditors} == {each.node_id for each in profiles.workers}


@pytest.mark.parametrize("exact", [True, False])
def test_a_result_of_no_elements_has_no_differences(exact: bool) -> None:
    made = GraphBuilder()
    x = made.input("0", (0, 4), F32)
    graph = made.build([made.add("sin", x), made.add("reduce_sum", x, axes=(0,))])
    none, zeros = np.zeros((0, 4), np.float32), np.zeros(4, np.float32)
    assert differences(graph, [none], [none, zeros], exact) == 0


def test_auditors_are_workers_with_room_and_no_others_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = 1 << 10, 1 << 20
    rooms = [large, small, large, small, large, *[large] * 20]
    workers = [worker(number, device(0, 1e-3, 1e-3), memory_bytes=room) for number, room in enumerate(rooms)]
    plan = make_plan(layer(64), near(workers[0]), "single")
    asked: list[WireGraph] = []
    monkeypatch.setattr(result_audit, "audit_graph", lambda *given: asked.append(given[0]) or audit_graph(*given))
    sampled = audited(plan, 0, near(*workers))
    assert sampled.audit is not None and sampled.audit.auditors == ("node-2", "node-4")
    assert not any(missing(sampled, near(*workers))) and len(asked) == 4


def test_where_nobody_else_can_compute_it_there_is_no_audit() -> None:
    made = random_graph(3, 6, 24)
    profiles = near(worker(0, device(0, 1.0, 1.0)))
    plan = make_plan(made.graph, profiles)
    assert audited(plan, 0, profiles) is plan
    assert all(isinstance(source, FromPart) or source for source in plan.outputs) and not plan_messages.counts(plan, {})


# -- who is wrong

ABC = Audit(0, "a", ("b", "c"))


@pytest.mark.parametrize(
    ("counts", "culprit", "trusted"),
    [((0, 0), "", True), ((9, 9), "a", False), ((3, 0), "b", True), ((0, 3), "c", True)],
)
def test_two_against_one_say_who_is_wrong(counts: tuple[int, int], culprit: str, trusted: bool) -> None:
    verdict = Auditor(0.1).judge(ABC, counts)
    assert (verdict.node, verdict.trusted, verdict.quarantined) == (culprit, trusted, False)
    assert (verdict.event == "wrong") == bool(culprit)


def test_a_single_doubt_blames_nobody_and_is_not_believed() -> None:
    verdict = Auditor(0.1).judge(Audit(0, "a", ("b",)), [1])
    assert (verdict.event, verdict.trusted, verdict.quarantined) == ("doubted", False, False)


def test_who_is_wrong_twice_is_quarantined() -> None:
    auditor = Auditor(0.1)
    assert [auditor.judge(ABC, (1, 1)).quarantined for _ in range(2)] == [False, True]


@pytest.mark.parametrize(("fraction", "parts", "audits"), [(0.0, 5, 0), (0.02, 1, 20), (0.02, 5, 100), (1.0, 1, 1000)])
def test_so_many_parts_are_audited_as_was_said(fraction: float, parts: int, audits: int) -> None:
    auditor = Auditor(fraction)
    picked = [auditor.pick(parts) for _ in range(1000)]
    assert abs(sum(variant is not None for variant in picked) - audits) <= 1


@pytest.mark.parametrize(
    ("fraction", "untrusted", "audits"), [(0.0, 0, (0, 0)), (0.0, 1, (20, 0)), (0.01, 1, (10, 30)), (0.1, 3, (0, 300))]
)
def test_more_parts_are_audited_of_workers_that_are_not_trusted(
    fraction: float, untrusted: int, audits: tuple[int, int]
) -> None:
    auditor = Auditor(fraction, 0.02)
    picked = [found for _ in range(1000) if (found := auditor.pick(3, untrusted)) is not None]
    for found, expected in zip((True, False), audits, strict=True):
        assert abs(sum(whose is found for _, whose in picked) - expected) <= 1


def test_a_part_of_a_worker_that_is_not_trusted_is_audited_and_by_those_that_are() -> None:
    graph, _, _ = run(64)
    workers = [worker(number, device(0, 10.0, 10.0)) for number in range(5)]
    plan = make_plan(graph, near(*workers[:1]), "single")
    doubtful = near(*(replace(each, trusted=each.node_id in ("node-3", "node-4")) for each in workers))
    for variant in range(8):
        checked = audited(plan, variant, doubtful, untrusted=True)
        assert checked.audit is not None
        assert (checked.audit.node, set(checked.audit.auditors)) == ("node-0", {"node-3", "node-4"})
        trusted = near(*workers)
        assert audited(plan, variant, trusted, untrusted=True) is plan, "there is none to look at"
