"""Pytrees: dicts, lists, tuples, namedtuples, dataclasses and None, with anything else as a leaf.

    leaves, structure = tree.flatten({"w": a, "layers": [b, c]})    # [a, b, c]
    tree.unflatten(structure, leaves)
    tree.map(fn, params)
    tree.flatten_with_paths(params)                                 # [("w", a), ("layers/0", b), ...]

A path names a leaf for people: keys joined by "/", with "~" written "~0" and "/" written "~1" inside a key (as in
JSON pointers).  Dicts keep their insertion order.  Fields of a dataclass marked `field(metadata={"static": True})`
belong to the structure instead of being leaves.  A class with `__tree_leaf__ = True` is a leaf whatever else it is.
This file knows nothing of arrays.  To support another container: one row in `_NODES`.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, TypeAlias

from wire.errors import InputError

from .util.annotation_checks import checked
from .util.argument_checks import check_function, value_text

__all__ = [
    "LEAF", "Keywords", "Tree", "escape", "flatten", "flatten_with_paths", "is_frozen", "join", "leaves", "map",
    "ordered", "paths", "spread", "structure", "unflatten",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tree:
    """The structure of a pytree, without its leaves.

    Equal structures have the same containers, keys and static fields.

    Parameters
    ----------
    kind : type or None
        The class of the container, None for a leaf.
    keys : tuple, optional
        The dict keys, field names or positions of the children.
    children : tuple of Tree, optional
        The structures of the children.
    static : tuple of (str, object), optional
        The static fields of a dataclass.

    Examples
    --------
    >>> import mesh
    >>> structure = mesh.tree.structure({"w": 1, "layers": [2, 3]})
    >>> structure.leaf_count, str(structure)
    (3, 'dict(w: *, layers: list(0: *, 1: *))')
    """

    kind: type | None
    keys: tuple[Any, ...] = ()
    children: tuple[Tree, ...] = ()
    static: tuple[tuple[str, Any], ...] = ()

    @property
    def leaf_count(self) -> int:
        """The number of leaves."""
        return 1 if self.kind is None else sum(child.leaf_count for child in self.children)

    def __str__(self) -> str:
        if self.kind is None:
            return "*"
        inside = ", ".join(f"{key}: {child}" for key, child in zip(self.keys, self.children, strict=True))
        return f"{self.kind.__name__}({inside})"


LEAF = Tree(None)

PyTree: TypeAlias = Any
"""A nest of containers; the function that takes one says what its leaves are."""


class Keywords(dict[str, Any]):
    """The arguments that a call gives by name: the last of its tuple of arguments, and no argument that is a dict.

    Examples
    --------
    >>> import mesh
    >>> mesh.tree.structure((1, mesh.tree.Keywords(b=2))) == mesh.tree.structure((1, {"b": 2}))
    False
    """


def flatten(value: PyTree) -> tuple[list[Any], Tree]:
    """Take a pytree apart.

    Parameters
    ----------
    value : pytree
        What to take apart.

    Returns
    -------
    leaves : list
        The leaves in order.
    structure : Tree
        The structure.

    Examples
    --------
    >>> import mesh
    >>> leaves, structure = mesh.tree.flatten({"w": 1, "layers": [2, 3]})
    >>> leaves
    [1, 2, 3]
    """
    leaves: list[Any] = []
    return leaves, _flatten(value, leaves)


def flatten_with_paths(value: PyTree) -> tuple[list[tuple[str, Any]], Tree]:
    """Take a pytree apart, with the path of each leaf.

    Parameters
    ----------
    value : pytree
        What to take apart.

    Returns
    -------
    leaves : list of (str, object)
        Paths and leaves in order; the path of a bare leaf is "".
    structure : Tree
        The structure.

    Examples
    --------
    >>> import mesh
    >>> mesh.tree.flatten_with_paths({"w": 1, "layers": [2, 3]})[0]
    [('w', 1), ('layers/0', 2), ('layers/1', 3)]
    """
    leaves, structure = flatten(value)
    return list(zip(paths(structure), leaves, strict=True)), structure


def unflatten(structure: Tree, leaves: Sequence[Any]) -> Any:
    """Build a pytree of a structure and leaves.

    Parameters
    ----------
    structure : Tree
        The structure.
    leaves : sequence
        The leaves in order.

    Returns
    -------
    pytree
        The pytree.

    Raises
    ------
    InputError
        If there are more or fewer leaves than the structure has.

    Examples
    --------
    >>> import mesh
    >>> mesh.tree.unflatten(mesh.tree.structure({"a": 0, "b": (0, 0)}), [1, 2, 3])
    {'a': 1, 'b': (2, 3)}
    """
    _check(structure)
    if not isinstance(leaves, Sized):
        raise InputError(f"the leaves of a tree are a list, not {value_text(leaves)}")
    if len(leaves) != structure.leaf_count:
        raise InputError(f"a tree of {structure.leaf_count} leaves cannot be made of {len(leaves)}")
    return _unflatten(structure, iter(leaves))


def map(fn: Callable[..., Any], value: PyTree, *others: PyTree) -> PyTree:
    """Apply a function to every leaf.

    Parameters
    ----------
    fn : callable
        A function of one leaf of each tree.
    value : pytree
        The first tree.
    *others : pytree
        Trees of the same structure.

    Returns
    -------
    pytree
        The first tree, with what `fn` returns as its leaves.

    Raises
    ------
    InputError
        If structures differ.

    Examples
    --------
    >>> import mesh
    >>> mesh.tree.map(lambda a, b: a + b, {"w": 1, "b": [2]}, {"w": 10, "b": [20]})
    {'w': 11, 'b': [22]}
    """
    check_function(fn, "what tree.map does with every leaf")
    leaves, structure = flatten(value)
    columns = [leaves]
    for other in others:
        column, other_structure = flatten(other)
        if other_structure != structure:
            raise InputError(f"trees differ: {structure} and {other_structure}")
        columns.append(column)
    return _unflatten(structure, iter([fn(*row) for row in zip(*columns, strict=True)]))


def ordered(value: PyTree, structure: Tree) -> PyTree:
    """Put the keys of dicts in the order of a structure.

    Parameters
    ----------
    value : pytree
        A tree whose dicts may have another order.
    structure : Tree
        A structure with the same keys.

    Returns
    -------
    pytree
        The tree; what does not fit the structure is left as it is.

    Examples
    --------
    >>> import mesh
    >>> mesh.tree.ordered({"a": 1, "b": 2}, mesh.tree.structure({"b": 0, "a": 0}))
    {'b': 2, 'a': 1}
    """
    _check(structure)
    container = _container_of(type(value))
    if container is None or structure.kind is not container.kind(type(value)):
        return value
    keys, children, static = container.split(value)
    if set(keys) != set(structure.keys):
        return value
    by_key = dict(zip(keys, children, strict=True))
    in_order = [ordered(by_key[key], child) for key, child in zip(structure.keys, structure.children, strict=True)]
    return container.build(Tree(structure.kind, structure.keys, structure.children, static), in_order)


@checked
def spread(prefix: PyTree, structure: Tree, leaves: bool = True) -> list[Any]:
    """Return one value for each leaf of a structure, from a tree that may end earlier.

    Parameters
    ----------
    prefix : pytree
        A tree that begins like the structure.  A None in it stands for all leaves below.
    structure : Tree
        The structure.
    leaves : bool, optional
        Whether any other leaf stands for all leaves below, too.

    Returns
    -------
    list
        The values in the order of leaves.

    Raises
    ------
    InputError
        If `prefix` has a container where the structure has another or a leaf, or a leaf where it may have none.

    Examples
    --------
    >>> import mesh
    >>> mesh.tree.spread({"w": 0, "b": None}, mesh.tree.structure({"w": [1, 2], "b": 3}))
    [0, 0, None]
    """
    _check(structure)
    if structure.kind is None:
        return [prefix]
    container = None if prefix is None else _container_of(type(prefix))
    if container is None and (leaves or prefix is None):
        return [prefix] * structure.leaf_count
    if container is None:
        raise InputError(f"trees differ: {LEAF} and {structure}")
    keys, children, _ = container.split(prefix)
    if keys != structure.keys:
        raise InputError(f"trees differ: {_flatten(prefix, [])} and {structure}")
    pairs = zip(children, structure.children, strict=True)
    return [value for child, below in pairs for value in spread(child, below, leaves)]


def leaves(value: PyTree) -> list[Any]:
    """Return the leaves of a pytree in order.

    Parameters
    ----------
    value : pytree
        The tree.

    Returns
    -------
    list
        Its leaves.

    Examples
    --------
    >>> import mesh
    >>> mesh.tree.leaves({"w": 1, "b": None, "layers": (2, 3)})
    [1, 2, 3]
    """
    return flatten(value)[0]


def structure(value: PyTree) -> Tree:
    """Return the structure of a pytree.

    Parameters
    ----------
    value : pytree
        The tree.

    Returns
    -------
    Tree
        Its structure.

    Examples
    --------
    >>> import mesh
    >>> str(mesh.tree.structure((1, [2])))
    'tuple(0: *, 1: list(0: *))'
    """
    return flatten(value)[1]


def paths(structure: Tree) -> list[str]:
    """Return the path of every leaf of a structure, in order.

    Parameters
    ----------
    structure : Tree
        The structure.

    Returns
    -------
    list of str
        The paths.

    Examples
    --------
    >>> import mesh
    >>> mesh.tree.paths(mesh.tree.structure({"w": 1, "a/b": [2]}))
    ['w', 'a~1b/0']
    """
    _check(structure)
    return list(_paths(structure, ""))


def is_frozen(structure: Tree) -> bool:
    """Return whether no container of such a tree can be changed: tuples, frozen dataclasses and None.

    Parameters
    ----------
    structure : Tree
        The structure.

    Returns
    -------
    bool
        Whether none can.

    Examples
    --------
    >>> import mesh
    >>> mesh.tree.is_frozen(mesh.tree.structure((1, (2,)))), mesh.tree.is_frozen(mesh.tree.structure([1]))
    (True, False)
    """
    _check(structure)
    kind = structure.kind
    return (kind is None or _is_frozen_class(kind)) and all(is_frozen(child) for child in structure.children)


def join(*parts: str) -> str:
    """Join paths; empty ones vanish.

    Parameters
    ----------
    *parts : str
        The paths.

    Returns
    -------
    str
        One path.

    Raises
    ------
    InputError
        If a part is not a text.

    Examples
    --------
    >>> import mesh
    >>> mesh.tree.join("params", "", "layers/0")
    'params/layers/0'
    """
    wrong = next((part for part in parts if not isinstance(part, str)), None)
    if wrong is not None:
        raise InputError(f"a part of a path is a text, not {value_text(wrong)}")
    return "/".join(part for part in parts if part)


def escape(key: object) -> str:
    """Write a key as one step of a path.

    Parameters
    ----------
    key : object
        A dict key, a field name or a position.

    Returns
    -------
    str
        The key, with "~" written "~0" and "/" written "~1".

    Examples
    --------
    >>> import mesh
    >>> mesh.tree.escape("a/b")
    'a~1b'
    """
    return str(key).replace("~", "~0").replace("/", "~1")


def _check(structure: Any) -> None:
    if not isinstance(structure, Tree):
        what = f"a structure is what tree.structure gives, not {value_text(structure)}"
        raise InputError(what, next_step="Call tree.structure(value) for that of a value")


# -- containers -------------------------------------------------------------------------------------------

Parts = tuple[tuple[Any, ...], Sequence[Any], tuple[tuple[str, Any], ...]]  # keys, children, static fields


@dataclass(frozen=True, slots=True)
class _Container:
    """How one kind of container comes apart and together again."""

    matches: Callable[[type], bool]
    kind: Callable[[type], type]
    split: Callable[[Any], Parts]
    build: Callable[[Tree, list[Any]], Any]


def _split_sequence(value: Sequence[Any]) -> Parts:
    return tuple(range(len(value))), value, ()


def _split_dataclass(value: PyTree) -> Parts:
    fields = dataclasses.fields(value)
    static = tuple((field.name, getattr(value, field.name)) for field in fields if field.metadata.get("static"))
    names = tuple(field.name for field in fields if not field.metadata.get("static"))
    return names, [getattr(value, name) for name in names], static


def _build_dataclass(tree: Tree, children: list[Any]) -> Any:
    assert tree.kind is not None
    instance: Any = object.__new__(tree.kind)  # not through __init__: its checks are for users, not for tracers
    for name, child in (*zip(tree.keys, children, strict=True), *tree.static):
        object.__setattr__(instance, name, child)
    return instance


def _is_frozen_class(cls: type) -> bool:
    parameters = getattr(cls, "__dataclass_params__", None)  # says how the decorator was called; not typed, but stable
    return cls is type(None) or issubclass(cls, tuple) or (parameters is not None and parameters.frozen)


def _is_leaf_class(cls: type) -> bool:
    return bool(getattr(cls, "__tree_leaf__", False))


_NODES: tuple[_Container, ...] = (
    _Container(lambda cls: cls is type(None), lambda cls: cls, lambda value: ((), (), ()), lambda tree, children: None),
    _Container(
        lambda cls: cls is Keywords,
        lambda cls: cls,
        lambda value: (tuple(value), list(value.values()), ()),
        lambda tree, children: Keywords(zip(tree.keys, children, strict=True)),
    ),
    _Container(
        lambda cls: issubclass(cls, OrderedDict),
        lambda cls: OrderedDict,
        lambda value: (tuple(value), list(value.values()), ()),
        lambda tree, children: OrderedDict(zip(tree.keys, children, strict=True)),
    ),
    _Container(
        lambda cls: issubclass(cls, dict),
        lambda cls: dict,
        lambda value: (tuple(value), list(value.values()), ()),
        lambda tree, children: dict(zip(tree.keys, children, strict=True)),
    ),
    _Container(lambda cls: issubclass(cls, list), lambda cls: list, _split_sequence, lambda tree, children: children),
    _Container(
        lambda cls: issubclass(cls, tuple) and hasattr(cls, "_fields"),
        lambda cls: cls,
        lambda value: (value._fields, value, ()),
        lambda tree, children: tree.kind._make(children),  # type: ignore[union-attr]  # a namedtuple class
    ),
    _Container(
        lambda cls: issubclass(cls, tuple), lambda cls: tuple, _split_sequence, lambda tree, children: tuple(children)
    ),
    _Container(dataclasses.is_dataclass, lambda cls: cls, _split_dataclass, _build_dataclass),
)

_BY_CLASS: dict[type, _Container | None] = {}  # which row a class matches, found once


def _container_of(cls: type) -> _Container | None:
    if cls not in _BY_CLASS:
        rows = () if _is_leaf_class(cls) else _NODES
        _BY_CLASS[cls] = next((row for row in rows if row.matches(cls)), None)
    return _BY_CLASS[cls]


def _flatten(value: PyTree, leaves: list[Any]) -> Tree:
    cls = type(value)
    container = _container_of(cls)
    if container is None:
        leaves.append(value)
        return LEAF
    keys, children, static = container.split(value)
    return Tree(container.kind(cls), keys, tuple([_flatten(child, leaves) for child in children]), static)


def _unflatten(structure: Tree, leaves: Iterator[Any]) -> Any:
    if structure.kind is None:
        return next(leaves)
    container = _container_of(structure.kind)
    assert container is not None
    return container.build(structure, [_unflatten(child, leaves) for child in structure.children])


def _paths(structure: Tree, prefix: str) -> Iterator[str]:
    if structure.kind is None:
        yield prefix
    for key, child in zip(structure.keys, structure.children, strict=True):
        yield from _paths(child, f"{prefix}/{escape(key)}" if prefix else escape(key))
