"""mesh.tree: containers come apart and together again, and every leaf has a readable path."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh import tree
from mesh.errors import InputError

Point = namedtuple("Point", "x y")


@dataclass(frozen=True, slots=True)
class Layer:
    weight: Any
    bias: Any = None
    eps: float = field(default=1e-5, metadata={"static": True})

    def __post_init__(self) -> None:
        assert not isinstance(self.weight, str), "unflatten must not run the checks of __init__"


class Opaque:
    pass


@dataclass
class Marked:
    __tree_leaf__ = True
    value: int = 1


ROWS = [
    ("leaf", 5, [("", 5)]),
    ("none", None, []),
    ("list", [1, [2, 3]], [("0", 1), ("1/0", 2), ("1/1", 3)]),
    ("tuple", (1, (2,)), [("0", 1), ("1/0", 2)]),
    ("dict keeps its order", {"b": 1, "a": {"c": 2}}, [("b", 1), ("a/c", 2)]),
    ("ordered dict", OrderedDict(z=1, y=2), [("z", 1), ("y", 2)]),
    ("namedtuple", Point(1, [2]), [("x", 1), ("y/0", 2)]),
    ("dataclass with static field", Layer(1, [2, None]), [("weight", 1), ("bias/0", 2)]),
    ("escaped keys", {"a/b": 1, "c~d": 2, 3: 4}, [("a~1b", 1), ("c~0d", 2), ("3", 4)]),
    ("empty containers", {"a": [], "b": (), "c": {}}, []),
]


@pytest.mark.parametrize(("value", "paths"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_flatten_names_every_leaf_and_unflatten_undoes_it(value: Any, paths: list[tuple[str, Any]]) -> None:
    found, structure = tree.flatten_with_paths(value)
    assert found == paths
    again = tree.unflatten(structure, [leaf for _, leaf in found])
    assert again == value
    assert type(again) is type(value)
    assert structure.leaf_count == len(paths)
    assert tree.structure(again) == structure


def test_anything_else_is_a_leaf() -> None:
    things = [Opaque(), "text", {1, 2}, Marked()]
    assert tree.leaves(things) == things


def test_static_fields_belong_to_the_structure() -> None:
    assert tree.structure(Layer(1, eps=1.0)) == tree.structure(Layer(2, eps=1.0))
    assert tree.structure(Layer(1, eps=1.0)) != tree.structure(Layer(1, eps=2.0))
    assert hash(tree.structure(Layer(1))) == hash(tree.structure(Layer(3)))


def test_unflatten_skips_the_checks_of_init() -> None:
    assert tree.map(str, Layer(1)).weight == "1"


def test_map_takes_several_trees_of_one_structure() -> None:
    assert tree.map(lambda a, b: a + b, {"x": 1, "y": [2]}, {"x": 10, "y": [20]}) == {"x": 11, "y": [22]}
    with pytest.raises(InputError, match="trees differ"):
        tree.map(lambda a, b: a, [1], (1,))


def test_unflatten_needs_as_many_leaves_as_the_structure() -> None:
    with pytest.raises(InputError, match="2 leaves cannot be made of 1"):
        tree.unflatten(tree.structure([1, 2]), [1])


def test_join_leaves_out_empty_parts() -> None:
    assert tree.join("params", "", "w/0") == "params/w/0"


TREES = st.recursive(
    st.integers() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(Layer, inner, inner)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=12,
)


@given(TREES)
def test_any_tree_survives(value: Any) -> None:
    found, structure = tree.flatten_with_paths(value)
    assert tree.unflatten(structure, [leaf for _, leaf in found]) == value
    assert len({path for path, _ in found}) == len(found), "paths are distinct"


def test_dicts_are_put_in_the_order_of_a_structure_and_nothing_else_is() -> None:
    structure = tree.structure({"b": 0, "a": [{"d": 0, "c": 0}, (0,)]})
    found = tree.ordered({"a": [{"c": 1, "d": 2}, (3,)], "b": 4}, structure)
    assert tree.flatten(found) == ([4, 2, 1, 3], structure)
    for other in ({"a": 1}, {"a": 1, "b": 2, "e": 3}, [1, 2], 7, {"a": {"c": 1}, "b": 2}):
        assert tree.flatten(tree.ordered(other, structure))[1] != structure
