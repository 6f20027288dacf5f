"""Versions of a tensor that share memory, against plain copies."""

import random

import numpy as np
import pytest

from worker.engine.donation import Lent, Undo, Versions


def written(lent: Lent, rows: list[int], value: float) -> np.ndarray:
    """What a run does that is lent a tensor: another value in the same memory."""
    array = lent.array.reshape(-1)
    for row in rows:
        lent.undo.append(Undo(array.shape, 0, np.array([row]), array[[row]]))
        array[row] = value
    lent.output = 0
    return lent.array


@pytest.mark.parametrize("seed", range(60))
def test_versions_have_the_values_of_copies_whatever_is_forgotten_and_in_which_order(seed: int) -> None:
    rng = random.Random(seed)
    versions, copies = Versions(), dict[int, np.ndarray]()
    number = 0
    for _ in range(120):
        what = rng.random()
        if not copies or what < 0.1:
            number += 1
            copies[number] = np.array([rng.random() for _ in range(6)]).reshape(2, 3)
            versions.add(number, copies[number].copy())
        elif what < 0.6:
            before = rng.choice(list(copies))
            lent, rows = versions.lend(before), [rng.randrange(6) for _ in range(rng.randint(1, 4))]
            if not isinstance(lent, Lent):
                assert (lent == copies[before]).all()
                continue
            array = written(lent, rows, value := rng.random())
            if rng.random() < 0.2:
                lent.take_back()
            else:
                number += 1
                copies[number] = copies[before].copy()
                copies[number].reshape(-1)[rows] = value
                versions.add(number, array)
                versions.gave(before, lent, number)
        elif what < 0.8:
            versions.drop(gone := rng.choice(list(copies)))
            del copies[gone]
        else:
            gone = rng.choice(list(copies))
            taken, right = versions.take(gone), copies.pop(gone)
            assert (taken == right).all()
            taken[:] = np.nan
        assert sorted(versions) == sorted(copies) and len(versions) == len(copies)
        for number, right in copies.items():
            assert number in versions and (versions.get(number) == right).all()


def test_values_that_are_kept_in_a_row_have_one_memory() -> None:
    versions = Versions()
    versions.add(1, first := np.zeros(8))
    for number in range(1, 5):
        lent = versions.lend(number)
        assert isinstance(lent, Lent)
        versions.add(number + 1, written(lent, [number], number))
        versions.gave(number, lent, number + 1)
    assert versions.get(5) is first
    assert versions.get(2).tolist() == [0, 1, 0, 0, 0, 0, 0, 0]
    assert not np.shares_memory(versions.get(2), first), "an outgrown value is a copy"
    versions.drop(5)
    versions.drop(4)
    assert np.shares_memory(versions.get(3), first) and first.tolist() == [0, 1, 2, 0, 0, 0, 0, 0]
    with pytest.raises(KeyError):
        versions.get(5)
    versions.drop(5)
