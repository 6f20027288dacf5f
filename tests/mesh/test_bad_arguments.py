"""Whatever is given for one of its arguments, what a public call raises is the project's own, and says what is wrong.

The public callables are those of support/public_calls.py, found by walking the namespaces and objects of their
classes.  Each of their arguments is given some of the bad values, which its name and the argument's choose.
There are no exceptions but the calls of NOT_CALLED there.
"""

from __future__ import annotations

import dis
import inspect
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.public_calls import KEY, X, callables

import mesh
from mesh import Mesh, MeshError, nn, optim, random, tree
from mesh import numpy as mnp
from mesh.backends.config import MeshConfig
from mesh.errors import InputError
from mesh.numpy import fft, linalg


class Nothing:
    """What can be called, and gives what is no array."""

    def __init__(self, *args: Any) -> None:
        pass


BAD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "an object": object,
    "a class": lambda: Nothing,
    "a text": lambda: "x",
    "bytes": lambda: b"ab",
    "an int": lambda: 3,
    "a negative int": lambda: -1,
    "zero": lambda: 0,
    "a bool": lambda: True,
    "a fraction": lambda: 0.5,
    "nan": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "a complex number": lambda: 1j,
    "a dict": dict,
    "a list": list,
    "a ragged list": lambda: [[1, 2], [3]],
    "texts": lambda: ["a", "b"],
    "a mixed tuple": lambda: (1, "x"),
    "a generator": lambda: (each for each in (1, 2)),
    "a function": lambda: lambda *args: None,
    "an array": lambda: np.ones((2, 2), np.float32),
    "an array of objects": lambda: np.array([object()]),
}
PER_ARGUMENT = 20  # of the bad values
PACKAGES = ("mesh", "wire", "worker", "coordinator")
FUNCTIONS = ("fn", "f", "step_fn", "loss", "test", "body", "then", "otherwise", "function")


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Callable[..., Any]]]:
    with pytest.MonkeyPatch.context() as patch, Mesh(MeshConfig()) as alone:
        patch.chdir(tmp_path_factory.mktemp("here"))  # some of them write files
        yield callables(alone)


def test_no_foreign_error_leaves_a_public_call(public: dict[str, Callable[..., Any]]) -> None:
    found = []
    for name, fn in public.items():
        wrong = bare(name, fn, PER_ARGUMENT)
        found += [f"{name}({given}): {type(error).__name__}: {error}" for given, error in wrong]
    assert not found, "\n".join(found)


IMAGE, KERNEL = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 2, 2), np.float32)
TRAINER = mesh.DistributedTrainer(lambda w, x: mnp.mean((x @ w) ** 2, -1), np.ones((2, 1), np.float32))
SAID: list[tuple[str, Callable[[], Any]]] = [
    ("delta of huber is a number, not 'x'", lambda: nn.huber(X, X, delta="x")),
    ("eps of batch_norm is a number, not None", lambda: nn.batch_norm(X, X[0], X[0], eps=None)),
    ("reduction of mse is a text", lambda: nn.mse(X, X, reduction=X)),
    ("rate of dropout is a number", lambda: nn.dropout(X, None, None)),
    ("axis of softmax is an int, not array", lambda: nn.softmax(X, X)),
    ("axis of softmax is an int, not 0.5", lambda: nn.softmax(X, 0.5)),
    ("kernel of max_pool is an int or a list of ints, not None", lambda: nn.max_pool(IMAGE, None)),
    ("groups of conv is an int, not 'x'", lambda: nn.conv(IMAGE, KERNEL, groups="x")),
    ("as padding an int or a list is given, not None", lambda: nn.conv(IMAGE, KERNEL, padding=None)),
    ("as padding of an axis an int or a list is given, not 0.5", lambda: nn.max_pool(IMAGE, 2, padding=[0.5, "x"])),
    ("interleaved of rotary is True or False, not 3", lambda: nn.rotary(X, np.arange(4), interleaved=3)),
    ("shape of fans is a list, not None", lambda: nn.initialisers.he_normal(random.key(0), None)),
    ("'zz' is not known", lambda: nn.initialisers.scaled(1.0, "zz", "normal")),
    ("peak of warmup_cosine is a number, not 'x'", lambda: optim.warmup_cosine("x", 1, 2)),
    ("schedules of joined is a function, not 3", lambda: optim.joined([3, 4], [1])),
    ("Begin with init(params)", lambda: optim.adam(1e-3).update(X, None, X)),
    ("seed of key is an int, not 'x'", lambda: random.key("x")),
    ("Call tree.structure(value)", lambda: tree.unflatten(None, [])),
    ("what tree.map does with every leaf is a function", lambda: tree.map(None, X)),
    ("path of load_safetensors is the path of a file", lambda: mesh.load_safetensors(None)),
    ("config of Mesh is of the class MeshConfig, not 3", lambda: Mesh(3)),
    ("n of fft is an int, not 'x'", lambda: fft.fft(X, "x")),
    ("keepdims of sum is True or False, not array", lambda: mnp.sum(X, keepdims=X)),
    ("keepdims of max is True or False, not 'no'", lambda: mnp.asarray(X).max(keepdims="no")),
    ("num of linspace is an int, not 'a'", lambda: mnp.linspace(0, 1, num="a")),
    ("side of searchsorted is a text, not array", lambda: mnp.searchsorted(X[0], X, side=X)),
    ("ord of a matrix norm is a text or a number, not array", lambda: linalg.cond(X, p=X)),
    ("there is no device array", lambda: mnp.arange(3, device=X)),
    ("repeats are counts per element, not [[1, 2], [3]]", lambda: mnp.repeat(X, [[1, 2], [3]])),
    ("inputs of Linear.init is an int, not 'x'", lambda: nn.Linear.init(KEY, "x", 3)),
    ("initialiser of Conv.init is a function, not 3", lambda: nn.Conv.init(KEY, 2, 2, (2, 2), initialiser=3)),
    ("groups of Conv.init is an int from 1, not 0", lambda: nn.Conv.init(KEY, 2, 2, (2, 2), groups=0)),
    ("heads of Attention.init is an int from 1, not 0", lambda: nn.Attention.init(KEY, 8, 0)),
    ("kv_heads of Attention.init is an int from 1, not -1", lambda: nn.Attention.init(KEY, 8, 2, kv_heads=-1)),
    ("state of BatchNorm is of the class BatchStatistics", lambda: nn.BatchNorm.init(2)(X, None)),
    ("up of MLP is a function, not 3", lambda: nn.MLP(3, 3, nn.gelu)(X)),
    ("stride is an int from 1, not 0", lambda: nn.conv_transpose(IMAGE, KERNEL, stride=0)),
    ("drop_last of fit is True or False, not array", lambda: TRAINER.fit((X,), drop_last=X)),
    ("every is an int of at least 1, not None", lambda: TRAINER.fit((X,), every=None)),
    ("step of Checkpoints.load is an int, not 'x'", lambda: mesh.training.Checkpoints("none").load("x")),
    ("the tensor 'z' is", lambda: mesh.save_safetensors({"z": np.ones(2, np.complex128)}, "none")),
    ("has_aux is True or False, not array", lambda: mesh.grad(mnp.sum, has_aux=X)),
]


@pytest.mark.parametrize(("said", "call"), SAID)
def test_the_error_says_which_argument_what_came_and_what_is_expected(said: str, call: Callable[[], Any]) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert said in str(caught.value)


def test_sizes_may_be_integers_of_numpy() -> None:
    given = nn.max_pool(IMAGE, np.int64(2), stride=np.array([2, 2]))
    np.testing.assert_array_equal(given, nn.max_pool(IMAGE, 2, stride=(2, 2)))
    np.testing.assert_array_equal(mnp.bincount(np.array([1, 1, 3], np.uint8)), [0, 2, 0, 1])


def test_right_arguments_cost_one_more_frame() -> None:
    def frames(fn: Callable[..., Any], *args: Any, **keywords: Any) -> int:
        entered: list[str] = []
        sys.setprofile(lambda frame, event, arg: entered.append(event))
        try:
            fn(*args, **keywords)
        finally:
            sys.setprofile(None)
        return entered.count("call")

    for fn, args, keywords in (
        (nn.softmax, (X,), {}), (nn.softmax, (X, 1), {}), (nn.softmax, (X,), {"axis": 1}), (nn.gelu, (X,), {}),
        (nn.gelu, (X,), {"approximate": True}), (nn.mse, (X, X), {"reduction": "sum"}),
    ):  # fmt: skip
        fn(*args, **keywords)  # what is remembered of the first call
        assert frames(fn, *args, **keywords) - frames(fn.__wrapped__, *args, **keywords) == 1, fn


def test_the_walk_finds_the_public_callables(public: dict[str, Callable[..., Any]]) -> None:
    assert {
        "mesh.vjp",
        "mesh.nn.huber",
        "mesh.numpy.sum",
        "Array.sum",
        "Grid.axes",
        "Linear.init",
        "DistributedTrainer.fit",
    } <= set(public)
    assert len(public) > 800


def bare(name: str, fn: Callable[..., Any], count: int) -> Iterator[tuple[str, BaseException]]:
    """The calls of `fn` that raise what is not the project's own, by what was given."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # a builtin without one
        return
    for wrong in parameters:
        if wrong.kind in (wrong.VAR_POSITIONAL, wrong.VAR_KEYWORD):
            continue
        for kind in chosen(f"{name} {wrong.name}", count):
            args, keywords = arguments(parameters, wrong, BAD[kind])
            error = error_of(fn, args, keywords)
            if error is not None:
                yield f"{wrong.name}={kind}", error


def chosen(text: str, count: int) -> list[str]:
    """So many names of bad values, other ones for other texts."""
    names = list(BAD)
    first = zlib.crc32(text.encode())
    step = next(each for each in range(7 + first % 5, 100) if np.gcd(each, len(names)) == 1)
    return [names[(first + at * step) % len(names)] for at in range(min(count, len(names)))]


def arguments(
    parameters: list[inspect.Parameter], wrong: inspect.Parameter, bad: Callable[[], Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Those of a call in which one is bad, and the others that are needed are functions or arrays."""
    args: list[Any] = []
    keywords: dict[str, Any] = {}
    for each in parameters:
        if each is not wrong and (
            each.default is not each.empty or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        ):
            continue
        value = bad() if each is wrong else good(each.name)
        if each.kind is each.KEYWORD_ONLY or each.default is not each.empty:
            keywords[each.name] = value
        else:
            args.append(value)
    return args, keywords


def good(name: str) -> Any:
    return (lambda *args: args[0] if args else X) if name in FUNCTIONS else X


def error_of(fn: Callable[..., Any], args: list[Any], keywords: dict[str, Any]) -> BaseException | None:
    """What it raises, but for errors of the project and those of Python's own binding of arguments."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            result = fn(*args, **keywords)
            if inspect.iscoroutine(result):
                result.close()
    except MeshError:
        return None
    except Exception as error:
        return None if ours(error) else error
    return None


def ours(error: Exception) -> bool:
    """Whether it says what is wrong with a value, in words of the project: its own code raised it by a statement.

    An error of a kind is Python's, or that of its binding of the arguments of the call itself.
    """
    last = error.__traceback__
    if isinstance(error, TypeError) and last is not None and last.tb_next is None:
        return True
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or isinstance(error, TypeError | LookupError | AttributeError | AssertionError):
        return False
    raised = dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] == "RAISE_VARARGS"
    return raised and last.tb_frame.f_globals.get("__name__", "").partition(".")[0] in PACKAGES
