"""Layers and weights in n shares on n workers of a simulated mesh: any k answers suffice, and wrong ones are found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mesh.numpy as mnp
from mesh import Coding, Mesh, errors, nn, tree
from mesh.coding import CodedWeights
from mesh.numpy import random
from wire.erasure.real_mds import joined

ERROR_MAX = 1e-4


class Killing:
    """A mesh two of whose workers die in the middle of a request: so many calls were begun, the last has no answer."""

    def __init__(self, mesh: Mesh, asked: int, victims: tuple[str, ...]) -> None:
        self._mesh, self._left, self._victims = mesh, asked, victims

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mesh, name)

    def submit(self, *args: Any, **options: Any) -> Any:
        job = self._mesh.submit(*args, **options)
        self._left -= 1
        if self._left == 0:
            for victim in self._victims:
                self._mesh.simulation.kill(victim)
        return job


class Recording:
    """A mesh that remembers the calls that were begun."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh, self.jobs = mesh, list[Any]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mesh, name)

    def submit(self, *args: Any, **options: Any) -> Any:
        self.jobs.append(self._mesh.submit(*args, **options))
        return self.jobs[-1]


@contextmanager
def workers(count: int) -> Iterator[Mesh]:
    mesh = Mesh.builder().simulate(count).build()
    yield mesh  # not in a block of its own, where what is expected would be computed on it
    mesh.close()


def values(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def known(layer: Any) -> Any:
    return tree.map(np.asarray, layer)


def error(found: Any, wanted: Any) -> float:
    return float(np.abs(np.asarray(found) - np.asarray(wanted)).max() / np.abs(np.asarray(wanted)).max())


MLP = known(nn.MLP.init(random.key(0), 20, 50))  # 50 and 20 are no multiples of 3


# -- layers


def test_two_deaths_in_a_request_change_nothing_whoever_they_are() -> None:
    x = values(4, 20)
    for victims in ((0, 1), (0, 4), (2, 3)):
        with workers(5) as mesh:
            killing = Killing(mesh, 15, tuple(f"sim-{victim}" for victim in victims))
            coded = Coding(killing, 5, 3).layers(MLP)  # type: ignore[arg-type]
            for _ in range(2):
                assert error(coded(x), MLP(x)) <= ERROR_MAX
            assert sum(node.state == "dead" for node in mesh.nodes) == 2


def test_a_transformer_block_is_coded_layer_by_layer() -> None:
    block = known(nn.TransformerBlock.init(random.key(1), 24, 4, causal=True, hidden=35))
    x = values(2, 6, 24)
    with workers(5) as mesh:
        coded = Coding(Killing(mesh, 42, ("sim-1", "sim-4")), 5, 3).layers(block)  # type: ignore[arg-type]
        assert error(coded(x), block(x)) <= ERROR_MAX
        assert sum(node.state == "dead" for node in mesh.nodes) == 2


def test_slow_workers_are_not_waited_for() -> None:
    layer, x = known(nn.Linear.init(random.key(2), 64, 64, bias=False)), values(8, 64)
    with workers(5) as mesh:
        coded = Coding(mesh, 5, 3).layers(layer)
        coded(x)
        mesh.simulation.slow("sim-0", 1e6)
        mesh.simulation.slow("sim-2", 1e6)
        began_s = mesh.simulation.now_s
        assert error(coded(x), layer(x)) <= ERROR_MAX
        assert mesh.simulation.now_s - began_s < 0.1


def test_with_too_few_workers_left_it_says_so_and_spare_ones_take_the_shares() -> None:
    x = values(4, 20)
    with workers(5) as mesh:
        coding = Coding(mesh, 3, 2, workers=["sim-0", "sim-1", "sim-2"])
        coded = coding.layers(MLP)
        coded(x)
        for victim in ("sim-0", "sim-2"):
            mesh.simulation.kill(victim)
        with pytest.raises(errors.NodeLost, match="2 answers are needed, 1 of 3 came"):
            coded(x)
        share = coded.up.share_bytes, coded.down.share_bytes
        recording = coding.mesh = Recording(mesh)  # type: ignore[assignment]
        assert coding.repair() == {0: "sim-3", 2: "sim-4"} and coding.spare() == []
        moved = [job.report().weight_bytes_moved for job in recording.jobs]
        assert moved == [share[0], share[0], share[1], share[1]]
        assert error(coded(x), MLP(x)) <= ERROR_MAX


def test_a_worker_that_computes_with_something_else_is_found_by_two_more_answers() -> None:
    layer, x = known(nn.Linear.init(random.key(3), 20, 31)), values(4, 20)
    for extra in (1, 2):
        with workers(5) as mesh:
            coding = Coding(mesh, 5, 3, extra=extra)
            coded = coding.layers(layer)
            assert error(coded(x), layer(x)) <= ERROR_MAX and not coding.wrong
            altered = np.asarray(coded._held[2]["weight"]).copy()
            altered[0, 0] += 1
            coded._held[2]["weight"] = mesh.put(altered)
            for _ in range(3):
                assert error(coded(x), layer(x)) <= ERROR_MAX
            assert set(coding.wrong) <= {"sim-2"}
            if extra == 2:
                assert coding.wrong["sim-2"] == 3


def test_answers_that_contradict_each_other_are_an_error_where_nobody_can_say_who_is_wrong() -> None:
    layer, x = known(nn.Linear.init(random.key(3), 20, 31)), values(4, 20)
    with workers(3) as mesh:
        coded = Coding(mesh, 3, 2, extra=1).layers(layer)
        coded._held[1]["weight"] = mesh.put(np.asarray(coded._held[1]["weight"]) + 1)
        with pytest.raises(errors.ExecuteFailed, match="sim-0, sim-1, sim-2 contradict"):
            coded(x)


def test_what_cannot_be_coded_is_refused() -> None:
    with workers(3) as mesh:
        with pytest.raises(errors.PlacementError, match="4 shares need 4 workers, there are 3"):
            Coding(mesh, 4, 2)
        with pytest.raises(errors.InputError, match="leave 1 extra"):
            Coding(mesh, 3, 2, extra=2)
        with pytest.raises(errors.InputError, match="no Linear"):
            Coding(mesh, 3, 2).layers({"norm": nn.LayerNorm.init(4)})
        coded = Coding(mesh, 3, 2).layers(nn.Linear(values(8, 4)))
        with pytest.raises(errors.InputError, match=r"a coded layer needs the value .* Call the coded model itself"):
            mesh.run(lambda x: coded(x) + 1, values(2, 4))
        half = nn.Linear(values(8, 4).astype(np.float16))
        assert error(Coding(mesh, 3, 2).layers(half)(values(2, 4)), mnp.asarray(half(values(2, 4)))) <= 1e-3


# -- weights


def changes(count: int) -> list[NDArray[np.float32]]:
    return [values(11, 6, seed=100 + number) for number in range(count)]


def test_after_ten_updates_every_k_shares_decode_to_the_same_weights() -> None:
    tensor = values(11, 6)
    expected = tensor + sum(changes(10))
    with workers(5) as mesh, CodedWeights(Coding(mesh, 5, 3, extra=2), tensor) as weights:
        assert [weights.update(change) for change in changes(10)] == list(range(1, 11))
        states = weights.states()
        code = weights.coding.code
        for numbers in combinations(range(5), 3):
            found = joined(code.decode({number: states[number]["share"] for number in numbers}), 11)
            assert error(found, expected) <= ERROR_MAX
        assert error(weights.read(), expected) <= ERROR_MAX


def test_gradients_are_sent_as_factors() -> None:
    tensor, expected = values(11, 6), values(11, 6)
    with workers(4) as mesh, CodedWeights(Coding(mesh, 4, 2), tensor, rank=3) as weights:
        for seed in range(10):
            left, right = values(11, 3, seed=seed), values(3, 6, seed=seed + 50)
            weights.update(left, right)
            expected = expected + left @ right
        assert error(weights.read(), expected) <= ERROR_MAX
        with pytest.raises(errors.ShapeError, match="a change has the shapes"):
            weights.update(left.T, right)
        weights.close()
        for asked in (weights.read, lambda: weights.update(left, right)):
            with pytest.raises(errors.ConfigError, match="these weights are closed"):
                asked()


def test_what_is_sent_twice_late_or_in_another_order_changes_no_bit() -> None:
    chance = np.random.default_rng(7)
    tensor = values(11, 6)
    with workers(4) as mesh:
        coding = Coding(mesh, 4, 2, extra=2)
        with CodedWeights(coding, tensor) as undisturbed, CodedWeights(coding, tensor) as disturbed:
            for change in changes(10):
                undisturbed.update(change)
            coded = [disturbed.coded(change) for change in changes(10)]
            for number in disturbed.shares:
                version = 0
                while (
                    version < 10
                ):  # the channel shuffles, repeats and replays; whoever sends goes on from what it tells
                    sent = [int(each) for each in chance.integers(1, min(version + 4, 10) + 1, 5)]
                    steps = [disturbed.send(number, each, coded[each - 1][number]) for each in sent]
                    told = [int(step.result()) for step in steps]
                    assert told == sorted(told)
                    version = told[-1]
            disturbed.version = 10
            wanted, found = undisturbed.states(), disturbed.states()
            for number in wanted:
                assert wanted[number]["share"].tobytes() == found[number]["share"].tobytes()
            for number in disturbed.shares:  # everything again
                for version, each in enumerate(coded, 1):
                    assert int(disturbed.send(number, version, each[number]).result()) == 10
            assert disturbed.read().tobytes() == undisturbed.read().tobytes()


def test_shares_die_and_are_made_again_of_others() -> None:
    tensor = values(11, 6)
    expected = tensor.copy()
    with workers(7) as mesh, CodedWeights(Coding(mesh, 5, 3), tensor) as weights:
        for number, change in enumerate(changes(10)):
            if number in (2, 5):
                mesh.simulation.kill(f"sim-{number - 1}")
            weights.update(change)
            expected = expected + change
            assert error(weights.read(), expected) <= ERROR_MAX
        assert len(weights.shares) == 3
        assert weights.rebuild() == {1: "sim-5", 4: "sim-6"} and weights.shares == (0, 1, 2, 3, 4)
        for victim in ("sim-0", "sim-2"):
            mesh.simulation.kill(victim)
        weights.update(changes(1)[0])
        assert error(weights.read(), expected + changes(1)[0]) <= ERROR_MAX
        mesh.simulation.kill("sim-5")
        with pytest.raises(errors.NodeLost, match="3 shares are needed"):
            weights.update(changes(1)[0])


def test_a_worker_that_is_back_gets_its_share_again() -> None:
    tensor, (change, other) = values(11, 6), changes(2)
    with workers(4) as mesh, CodedWeights(Coding(mesh, 4, 2, extra=2), tensor) as weights:
        mesh.simulation.kill("sim-1")
        weights.update(change)
        mesh.simulation.wait(0.5)
        weights.update(other)
        assert weights.rebuild() == {} and weights.shares == (0, 2, 3), "nobody is there to take it"
        with pytest.raises(errors.NodeLost, match="4 shares are needed, 3 answered"):
            weights.read()
        mesh.simulation.start("sim-1")
        mesh.simulation.wait(0.5)
        assert weights.rebuild() == {1: "sim-1"}
        assert error(weights.read(), tensor + change + other) <= ERROR_MAX


def test_linear_regression_is_trained_in_shares_while_workers_die() -> None:
    """Nobody ever holds the weights: outputs are decoded, and gradients are coded as the factors dy^T and x."""
    x, target = values(64, 8), values(64, 8) @ values(5, 8, seed=1).T
    weight = np.zeros((5, 8), np.float32)
    with workers(5) as mesh, CodedWeights(Coding(mesh, 5, 3), weight, rank=64) as weights:
        for step in range(30):
            if step in (7, 19):
                mesh.simulation.kill(f"sim-{step % 5}")
            gradient = (x @ weight.T - target) / 64
            weights.update(-0.5 * gradient.T, x)
            weight = weight - 0.5 * gradient.T @ x
            assert error(weights.read(), weight) <= ERROR_MAX
        assert error(weight, values(5, 8, seed=1)) < 0.02


def test_a_share_is_not_made_again_of_a_wrong_one() -> None:
    tensor, (change, other) = values(11, 6), changes(2)
    with workers(6) as mesh:
        coding = Coding(mesh, 5, 2, extra=2)
        with CodedWeights(coding, tensor) as weights:
            weights.send(3, 1, weights.coded(other)[3]).result()
            mesh.simulation.kill("sim-0")
            weights.update(change)
            assert weights.rebuild() == {0: "sim-5"} and dict(coding.wrong) == {"sim-3": 1}
            assert error(weights.read(), tensor + change) <= ERROR_MAX


def test_a_wrong_share_is_seen_by_one_more_and_located_by_two() -> None:
    tensor, (change, other) = values(11, 6), changes(2)
    with workers(5) as mesh:
        coding = Coding(mesh, 5, 3, extra=2)
        with CodedWeights(coding, tensor) as weights:
            weights.send(3, 1, weights.coded(other)[3]).result()  # it got another change by this number
            weights.update(change)
            assert error(weights.read(), tensor + change) <= ERROR_MAX
            assert dict(coding.wrong) == {"sim-3": 1}
        one = Coding(mesh, 4, 3, extra=1)
        with CodedWeights(one, tensor) as weights:
            weights.send(3, 1, weights.coded(other)[3]).result()
            weights.update(change)
            with pytest.raises(errors.ExecuteFailed, match="contradict"):
                weights.read()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_whatever_befalls_workers_answers_are_right_while_k_are_left(seed: int) -> None:
    """Random codes, sizes and mischief; at most n - k shares are lost at any time, and then repaired."""
    chance = np.random.default_rng(seed)
    n = int(chance.integers(2, 7))
    k = int(chance.integers(1, n + 1))
    rows, columns = (int(each) for each in chance.integers(1, 40, 2))
    layer, x = nn.Linear(values(rows, columns, seed=seed)), values(3, columns, seed=seed + 1)
    tensor = values(rows, columns, seed=seed + 2)
    with workers(n + 2) as mesh:
        coding = Coding(mesh, n, k)
        coded = coding.layers(layer)
        with CodedWeights(coding, tensor) as weights:
            for turn in range(12):
                victims = [
                    str(each) for each in chance.choice(coding.workers, int(chance.integers(0, n - k + 1)), False)
                ]
                how = [str(chance.choice(["kill", "leave", "slow", "silence", "pause"])) for _ in victims]
                for victim, what in zip(victims, how, strict=True):
                    mesh.simulation.slow(victim, 1e4) if what == "slow" else getattr(mesh.simulation, what)(victim)
                change = values(rows, columns, seed=1000 * seed + turn)
                tensor = tensor + change
                assert weights.update(change) == turn + 1
                assert error(coded(x), layer(x)) <= ERROR_MAX
                assert error(weights.read(), tensor) <= ERROR_MAX
                mesh.simulation.heal()
                for victim, what in zip(victims, how, strict=True):
                    if what in ("kill", "leave"):
                        mesh.simulation.start(victim)
                    elif what == "pause":
                        mesh.simulation.resume(victim)
                    elif what == "slow":
                        mesh.simulation.slow(victim, 1)
                mesh.simulation.wait(5)
                weights.rebuild()
                mesh.simulation.wait(5)
                assert len(weights.shares) >= k
                weights.rebuild()
