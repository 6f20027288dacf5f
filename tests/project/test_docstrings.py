"""Docstrings: what users call is documented in full, every first line can be read by itself, and examples run.

What users call is every class, function and method that `PUBLIC` leads to: the names of these modules, the methods of
their classes, and the classes that these return.  Their docstrings have numpydoc's format, which numpydoc's own
validator checks (numpydoc.readthedocs.io/en/latest/format.html):

* The summary is one line that ends with a full stop: a sentence, an imperative ("Compile a function."), or a noun
  phrase ("A device of a worker.").  A property needs nothing else.
* `Parameters` names what the signature does, in its order; those of a class are those of its `__init__`, or the fields
  of a dataclass.  A parameter has a type, and a text that begins with a capital letter and ends with a full stop.
  The type is what a caller may give: `int`, `str, optional`, `{"mean", "sum", "none"}`.  A tensor's shape stands behind
  its type: `x : Array, (batch, length)`.  Units stand in the text: "Seconds to wait."
* `Returns` (or `Yields`) is there unless the annotation says None.  Its first line is the type alone.
* `Raises` names our errors that a caller's input or the mesh can cause, and says when.
* `Examples` has one that runs.  A method needs none if the example of its class calls it (`with` calls `close`), and
  exceptions need none.  An example imports what it uses, needs no other machine (`mesh.Mesh.builder().simulate(2)` is a
  mesh), takes well under a second, and closes what it opens.
* `Notes` say where a method comes from: a paper, or the section of a specification.

What is named as numpy names it, in `mesh.numpy` and as a method of an array, follows numpy's own documentation.

The second part is about every docstring, private ones too: its first line stands alone, without a subject or a verb
that only the code around it has.  `WRONG_OPENINGS` says what such a line does not begin with.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpydoc.docscrape import get_doc_object
from numpydoc.validate import Validator, validate

import mesh
from docs.tools.array_api_page import STANDARD

ROOT = Path(__file__).parents[2]
PACKAGES = ("wire", "worker", "coordinator", "mesh")

# Where a user begins.
PUBLIC = (
    "mesh",
    "mesh.coding",
    "mesh.collectives",
    "mesh.errors",
    "mesh.inference",
    "mesh.nn",
    "mesh.numpy",
    "mesh.numpy.fft",
    "mesh.numpy.linalg",
    "mesh.optim",
    "mesh.random",
    "mesh.training",
    "mesh.tree",
)
NUMPYS = {"mesh.numpy": np, "mesh.numpy.fft": np.fft, "mesh.numpy.linalg": np.linalg}
# Classes that public calls return without an annotation that is imported at run time.
RETURNED = ("mesh.numpy.updates.Place", "mesh.scripts.group.Group", "mesh.simulation.backend.Simulation")
# Classes that public methods return, and that only the code of mesh uses.
MACHINERY = frozenset(
    {"Bound", "CallOptions", "Compiled", "CompiledFunction", "ElasticSession", "Running", "Started", "Stepping", "Work"}
)
# Methods that only the code of mesh calls.  They need no example.
OF_MESH_ITSELF = frozenset(
    {
        "AsyncMesh.at_once",
        "AsyncMesh.attend",
        "AsyncMesh.connect",
        "AsyncMesh.forget",
        "AsyncMesh.form",
        "AsyncMesh.function",
        "AsyncMesh.live",
        "AsyncMesh.open_session",
        "AsyncMesh.options",
        "AsyncMesh.start",
        "AsyncMesh.stepping",
        "AsyncMesh.describe",
        "AsyncSession.begin",
        "AsyncSession.begin_close",
        "AsyncSession.begin_state",
        "AsyncSession.describe",
        "Mesh.elastic_session",
        "Mesh.open_session",
        "Mesh.wait",
        "Session.begin_state",
        "Traced.bind_parts",
    }
)

# What numpydoc's validator may not find: https://numpydoc.readthedocs.io/en/latest/validation.html
OF_FORMAT = ("GL01", "GL03", "GL05", "GL06", "GL07", "GL08", "GL10", "SS01", "SS02", "SS03", "SS04", "SS06")
OF_PARAMETERS = ("PR04", "PR05", "PR06", "PR07", "PR08", "PR09", "PR10", "RT02", "RT03", "RT04", "RT05", "YD01")
OF_SIGNATURES = ("PR01", "PR02", "PR03")

# A first line does not begin so.
WRONG_OPENINGS = {
    "a preposition": r"""(?:About|Above|After|Among|Around|As|At|Before|Behind|Below|Besides?|Between|By|During|For|From
        |In|Into|Like|Of|On|Onto|Over|Through|To|Towards?|Under|Upon|With|Within|Without)\b""",
    "a connective": r"""(?:Again|Alike|Also|And|Because|But|Either|Else|If|Likewise|Neither|Not|Off|Only|Or|Otherwise
        |Out|Per|Since|So|Still|Than|Then|There|Though|Unless|Until|Up|While)\b""",
    "a relative": r"""(?:That|Those|Whatever|When|Whenever|Where|Wherever|Which|Whichever|Who|Whoever|Whom|Whose)\b""",
    "a pronoun": r"""(?:He|His|It|Its|Such|Their|Them|They)\b
        |(?:Both|One|The\ ones?|The\ others?|The\ rest|The\ same|These|Same)(?:[.,:;]
        |\ (?:are|as|at|by|come|for|in|more|of|such|that|to|were|where|which|who|whose|with)\b)""",
    "a participle": r"""(?:Begun|Built|Done|Found|Given|Held|Kept|Known|Made|Meant|Read|Said|Seen|Sent|Taken|Told
        |[A-Z]\w+ed)\ (?:after|and|anew|as|at|before|by|for|from|if|in|on|once|only|or|that|to|until|what|when|where
        |with)\b""",
    "a verb without a subject": r"""(?:Adds|Answers|Asks|Begins|Belongs|Builds|Calls|Carries|Collects|Comes|Computes
        |Counts|Decides|Dials|Does|Evaluates|Finds|Follows|Gets|Gives|Goes|Has|Holds|Is|Keeps|Knows|Lets|Listens|Makes
        |Owns|Performs|Plays|Puts|Reads|Removes|Reports|Returns|Runs|Says|Sends|Serves|Sets|Speaks|Stands|Starts|Stops
        |Takes|Tells|Waits|Walks|Watches|Writes|Yields)\ (?!and\b|are\b|by\b|from\b|in\b|of\b|that\b|to\b|wait\b
        |which\b)""",
    "a condition": r"""(?!True|False|None|Raise|Return|Warn|What|Whether)[A-Z]\w+\ (?:if|unless)\b
        |[A-Z]\w+Error\ (?:after|for|when|where)\b""",
}


def name_of(public: Any) -> str:
    return f"{public.__module__}.{public.__qualname__}"


def is_ours(value: Any) -> bool:
    return (inspect.isclass(value) or inspect.isroutine(value)) and value.__module__.split(".")[0] in PACKAGES


def module_of(name: str) -> Any:
    value: Any = mesh
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """The public functions and properties that a class itself defines."""
    for name, value in vars(cls).items():
        if name.startswith("_"):
            continue
        function = getattr(value, "__func__", getattr(value, "fget", value))
        if inspect.isfunction(function):
            yield name, value


def returned_classes(function: Any) -> Iterator[type]:
    """The classes of ours that an annotation promises."""
    function = inspect.unwrap(getattr(function, "__func__", getattr(function, "fget", function)))
    for word in re.findall(r"\w+", str(function.__annotations__.get("return", ""))):
        value = function.__globals__.get(word)
        if inspect.isclass(value) and is_ours(value):
            yield value


@cache
def public_names() -> dict[str, Any]:
    """What users call, by the module and name of its definition."""
    named: dict[str, Any] = {}
    standard = {name.rpartition(".")[2] for names in STANDARD.values() for name in names.split()}
    waiting = [getattr(import_module(module), name) for module, _, name in (path.rpartition(".") for path in RETURNED)]
    for module in PUBLIC:
        for name in module_of(module).__all__:
            value = getattr(module_of(module), name)
            names = {name, getattr(value, "__name__", name)}  # numpy 2.5 has left out one of the two names of vstack
            numpys = module in NUMPYS and any(hasattr(NUMPYS[module], each) or each in standard for each in names)
            if is_ours(value) and not numpys:
                waiting.append(value)
    while waiting:
        value = waiting.pop()
        if name_of(value) in named or value.__name__.startswith("_") or value.__name__ in MACHINERY:
            continue
        named[name_of(value)] = value
        of_array = value is mesh.Array
        if inspect.isclass(value):
            inside = [(name, member) for name, member in members(value) if not (of_array and hasattr(np.ndarray, name))]
            named.update({f"{name_of(value)}.{name}": member for name, member in inside})
        else:
            inside = [("", value)]
        for _, member in inside:
            waiting.extend(returned_classes(member))
    return dict(sorted(named.items()))


def faults(name: str) -> list[str]:
    """What is wrong with the docstring of a public name."""
    value = public_names()[name]
    text = inspect.getdoc(value)
    if not text or not text.strip():
        return ["no docstring"]
    if isinstance(value, property):
        summary = text.split("\n\n")[0]
        return [] if summary.endswith(".") and "\n" not in summary else ["the summary is no line with a full stop"]
    validator = Validator(get_doc_object(getattr(value, "__func__", value)))
    inherits = inspect.isclass(value) and "__init__" not in vars(value)
    wrong = [
        f"{code} {why}"
        for code, why in validate(name)["errors"]
        if code in (*OF_FORMAT, *OF_PARAMETERS) or (code in OF_SIGNATURES and not inherits)
    ]
    if not inspect.isclass(value):
        annotation = inspect.unwrap(value).__annotations__.get("return", "")
        if annotation not in ("None", "NoReturn") and not (validator.returns or validator.yields):
            wrong.append(f"there is no Returns, and the annotation says {annotation}")
    wrong += [
        f"Raises names {error.type or error.name}, which is no error of ours or of Python"
        for error in validator.doc["Raises"]
        if (error.type or error.name) not in mesh.errors.__all__ and not hasattr(builtins, error.type or error.name)
    ]
    if not has_example(name, value, validator):
        wrong.append("there is no example")
    return wrong


def has_example(name: str, value: Any, validator: Validator) -> bool:
    if inspect.isclass(value) and issubclass(value, BaseException):
        return True
    if ".".join(name.split(".")[-2:]) in OF_MESH_ITSELF:
        return True
    if any(">>>" in line for line in validator.examples):
        return True
    owner, _, method = name.rpartition(".")
    of_class = (
        (inspect.getdoc(public_names()[owner]) or "").partition("Examples\n")[2] if owner in public_names() else ""
    )
    return f".{method}(" in of_class or (method == "close" and "with " in of_class)


def test_what_users_call_is_found() -> None:
    names = public_names()
    assert len(names) > 400
    for name in (
        "mesh.client.mesh.Mesh.run",
        "mesh.client.builder.MeshBuilder.local",
        "mesh.core.node.Node",
        "mesh.nn.activations.relu",
        "wire.errors.GraphError",
    ):
        assert name in names
    assert "mesh.numpy.elementwise.add" not in names


def test_users_can_read_what_they_call() -> None:
    wrong = {name: why for name in public_names() if (why := faults(name))}
    assert not wrong, "\n".join(f"{name}: {'; '.join(why)}" for name, why in wrong.items())


def docstrings(path: Path) -> Iterator[tuple[str, int, str]]:
    """The name, line and text of every docstring of a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield getattr(node, "name", path.stem), node.body[0].lineno, text


def wrong_opening(line: str) -> str:
    """What a first line wrongly begins with, or ""."""
    return next((what for what, pattern in WRONG_OPENINGS.items() if re.match(pattern, line, re.VERBOSE)), "")


def test_first_lines_stand_alone() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {what} opens {text.splitlines()[0]!r}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for _, line, text in docstrings(path)
        if (what := wrong_opening(text.splitlines()[0]))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("Of every rank in order, its place along each axis.", "a preposition"),
        ("That of the operand, (..., n, n).", "a relative"),
        ("So many lines at once, and then another one.", "a connective"),
        ("One of a class.", "a pronoun"),
        ("The same, reduced.", "a pronoun"),
        ("Made by `open`; methods may be called from any thread.", "a participle"),
        ("Stands before zeroconf at a socket.", "a verb without a subject"),
        ("InputError for what is no path.", "a condition"),
        ("One line of a table.", ""),
        ("The same device, slower.", ""),
        ("Return if the graph is valid.", ""),
        ("Reads of every page.", ""),
        ("Whether a worker is alive.", ""),
        ("Bytes that wait to be sent.", ""),
    ],
)
def test_openings_that_are_wrong_are_known(line: str, what: str) -> None:
    assert wrong_opening(line) == what


MODULES_WITH_EXAMPLES = [
    str(path.relative_to(ROOT))
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("path", MODULES_WITH_EXAMPLES)
def test_examples_of_docstrings_run(path: str) -> None:
    """By the file and not by the module: doctest's own search passes over functions that a decorator wraps."""
    parser = doctest.DocTestParser()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    said: list[str] = []
    for name, line, text in docstrings(ROOT / path):
        if examples := parser.get_doctest(text, {}, name, path, line - 1):
            runner.run(examples, out=said.append)
    assert not runner.summarize(verbose=False).failed, "".join(said)
