"""What no file of this project contains, as a table over its syntax trees.

It reads source text and runs none of it.  To forbid something new, add a row to FORBIDDEN or a check below.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from support.source import ROOT, SourceFile, source_files, walk

LINES_MAX = 800  # of code: a file is one noun; the largest state machine with its shell fits
SELF_EVIDENT_LINES = 12  # a shorter function with a good name may do without a docstring
FUNCTION_LINES_MAX = 90  # a table that is built in a function may be long, a knot of branches may not

PROGRAM = source_files()
OURS = source_files("mesh", "wire", "coordinator", "worker", "tests", "bench", "examples")
TESTS = tuple(file for file in source_files("tests") if file.path.rpartition("/")[2].startswith("test_"))


@pytest.fixture(autouse=True, scope="module")
def trees_that_are_let_go() -> Iterator[None]:
    """No collection of garbage meanwhile: while trees of two million nodes are made, it would look for cycles among
    those that are there again and again, which takes three times as long as to parse them."""
    gc.disable()
    yield
    for file in OURS:
        file.forget()
    gc.enable()


def calls(name: str) -> Callable[[ast.AST], bool]:
    """A call of this builtin, or of a function so named in a module: `marshal.*` is all of a module's."""
    module, _, attribute = name.rpartition(".")

    def found(node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        called = node.func
        if not module:
            return isinstance(called, ast.Name) and called.id == attribute
        return (
            isinstance(called, ast.Attribute)
            and isinstance(called.value, ast.Name)
            and called.value.id == module
            and attribute in ("*", called.attr)
        )

    return found


def imports_of(module: str) -> Callable[[ast.AST], bool]:
    def found(node: ast.AST) -> bool:
        if isinstance(node, ast.Import):
            return any(alias.name.partition(".")[0] == module for alias in node.names)
        return isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == module

    return found


def keyword(name: str, value: object) -> Callable[[ast.AST], bool]:
    def found(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.keyword)
            and node.arg == name
            and isinstance(node.value, ast.Constant)
            and node.value.value == value
        )

    return found


def raises_not_implemented(node: ast.AST) -> bool:
    if not isinstance(node, ast.Raise) or node.exc is None:
        return False
    raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"


def hides_everything(node: ast.AST) -> bool:
    """`except Exception: pass` and its relatives: every failure caught, and nothing done about any."""
    if isinstance(node, ast.ExceptHandler):
        broad = node.type is None or (
            isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
        )
        return broad and all(isinstance(line, ast.Pass | ast.Continue) for line in node.body)
    return calls("contextlib.suppress")(node) and any(
        isinstance(argument, ast.Name) and argument.id in ("Exception", "BaseException")
        for argument in getattr(node, "args", ())
    )


def locks_a_property(node: ast.AST) -> bool:
    """Python 3.11's cached_property, which may wait for another thread for ever: wire.cached_property does not."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "functools" and any(alias.name == "cached_property" for alias in node.names)
    decorators = getattr(node, "decorator_list", ())
    return any(ast.unparse(decorator) == "functools.cached_property" for decorator in decorators)


ABOUT = (  # the kinds of nodes that FORBIDDEN looks at
    ast.Call, ast.Import, ast.ImportFrom, ast.keyword, ast.Raise, ast.ExceptHandler, ast.FunctionDef,
    ast.AsyncFunctionDef, ast.ClassDef,
)  # fmt: skip
FORBIDDEN: dict[str, Callable[[ast.AST], bool]] = {
    "eval": calls("eval"),
    "exec": calls("exec"),
    "compile of text": calls("compile"),
    "pickle": imports_of("pickle"),
    "marshal": imports_of("marshal"),
    "shelve": imports_of("shelve"),
    "multiprocessing": imports_of("multiprocessing"),
    "yaml": imports_of("yaml"),
    "os.system": calls("os.system"),
    "a shell": keyword("shell", True),
    "pickles in .npy files": keyword("allow_pickle", True),
    "NotImplementedError": raises_not_implemented,
    "a broad except that hides": hides_everything,
    "a cached property with a lock": locks_a_property,
}


@cache
def everything_forbidden() -> dict[str, list[str]]:
    """Where each row of FORBIDDEN finds something.  One walk for all rows: there are two million nodes, and most are of
    kinds that no row is about."""
    found: dict[str, list[str]] = {what: [] for what in FORBIDDEN}
    for file in OURS:
        for node in file.nodes:
            if isinstance(node, ABOUT):
                for what, forbidden in FORBIDDEN.items():
                    if forbidden(node):
                        found[what].append(f"{file.path}:{getattr(node, 'lineno', '?')}")
    return found


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_contains(what: str) -> None:
    wrong = everything_forbidden()[what]
    assert not wrong, f"{what} in " + ", ".join(wrong)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("eval", "eval('1')"),
        ("pickle", "from pickle import loads"),
        ("marshal", "import marshal"),
        ("os.system", "os.system('ls')"),
        ("a shell", "subprocess.run('ls', shell=True)"),
        ("NotImplementedError", "raise NotImplementedError"),
        ("NotImplementedError", "raise NotImplementedError('later')"),
        ("a broad except that hides", "try:\n    pass\nexcept Exception:\n    pass"),
        ("a broad except that hides", "try:\n    pass\nexcept:\n    pass"),
        ("a broad except that hides", "with contextlib.suppress(Exception):\n    pass"),
        ("a cached property with a lock", "from functools import cache, cached_property"),
        ("a cached property with a lock", "@functools.cached_property\ndef size(self):\n    return 1"),
    ],
)
def test_the_rows_find_what_they_forbid(what: str, text: str) -> None:
    assert any(isinstance(node, ABOUT) and FORBIDDEN[what](node) for node in walk(ast.parse(text)))


def test_numpy_files_are_read_without_pickles() -> None:
    loads = [
        (file.path, node)
        for file in PROGRAM
        for node in file.nodes
        if isinstance(node, ast.Call) and calls("np.load")(node)
    ]
    assert loads, "nothing reads .npy files any more: drop this test"
    for path, node in loads:
        assert any(keyword("allow_pickle", False)(word) for word in node.keywords), f"{path}:{node.lineno}"


def test_commands_print_in_one_place_only() -> None:
    """Which escapes what other machines said (`mesh/commands/output.py`)."""
    prints = {
        file.path
        for file in PROGRAM
        if file.path.startswith("mesh/commands/")
        for node in file.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert prints == {"mesh/commands/output.py"}


def test_nothing_is_left_for_later() -> None:
    mark = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")))
    folders = ("mesh", "wire", "coordinator", "worker", "tests", "bench", "examples", "script", "docs", ".ci")
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and path.suffix in (".py", ".sh", ".md", ".txt", "")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if mark.search(line)
    ]
    assert not wrong, ", ".join(wrong)


def test_a_file_opens_by_saying_what_it_is() -> None:
    silent = [file.path for file in OURS if file.text.strip() and not ast.get_docstring(file.tree)]
    assert not silent, ", ".join(silent)


def test_what_users_call_says_what_it_does() -> None:
    """Public functions and methods that users import have a docstring, unless a few lines say all of it."""
    silent = [
        f"{file.path}:{node.lineno} {node.name}"
        for file in source_files("mesh")
        if not file.path.startswith("mesh/commands/")
        for node in _public_functions(file)
        if not ast.get_docstring(node) and _lines(node) > SELF_EVIDENT_LINES
    ]
    assert not silent, "\n".join(silent)


def test_files_and_functions_stay_readable() -> None:
    long_files = [f"{file.path}: {count}" for file in OURS if (count := _code_lines(file)) > LINES_MAX]
    long_functions = [
        f"{file.path}:{node.lineno} {node.name}: {_lines(node)}"
        for file in PROGRAM
        for node in file.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _lines(node) > FUNCTION_LINES_MAX
    ]
    assert not long_files + long_functions, "\n".join(long_files + long_functions)


def test_tests_have_names_of_their_own() -> None:
    names = [file.path.rpartition("/")[2] for file in TESTS]
    assert len(names) == len(set(names)), "test folders have no __init__.py, so file names must be unique"
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_every_test_asserts_something() -> None:
    """A test asserts itself, expects an error, or calls a helper that does."""
    wrong = []
    for file in TESTS:
        asserting = _asserting_names(file)
        for node in file.tree.body:
            for test in _tests_in(node):
                if not _asserts(test, asserting):
                    wrong.append(f"{file.path}:{test.lineno} {test.name}")
    assert not wrong, "\n".join(wrong)


def test_no_test_is_switched_off() -> None:
    wrong = [
        f"{file.path}:{node.lineno}"
        for file in TESTS
        for node in file.nodes
        if isinstance(node, ast.Attribute)
        and node.attr in ("skip", "xfail")
        and ast.unparse(node).startswith("pytest.mark")
    ]
    assert not wrong, "say the reason with skipif, or delete: " + ", ".join(wrong)


Function = ast.FunctionDef | ast.AsyncFunctionDef
_HELPERS = (
    "check",
    "assert_",
    "expect",
    "verify",
    "validate",
    "refuse",
    "compare",
    "raises",
    "warns",
    "must",
    "until",
    "wait_for",
)


def _public_functions(file: SourceFile) -> Iterator[Function]:
    for node in file.tree.body:
        members = node.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_") else [node]
        for member in members:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and not member.name.startswith("_"):
                yield member


def _lines(node: Function) -> int:
    """The lines of a function without its docstring, which says as much as callers need."""
    return (node.end_lineno or node.lineno) - node.lineno + 1 - _docstring_lines(node)


def _code_lines(file: SourceFile) -> int:
    """The lines of a file without the docstrings of its classes and functions."""
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return file.text.count("\n") - sum(_docstring_lines(node) for node in file.nodes if isinstance(node, kinds))


def _docstring_lines(node: ast.ClassDef | Function) -> int:
    if ast.get_docstring(node, clean=False) is None:
        return 0
    docstring = node.body[0]
    return (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1


def _tests_in(node: ast.stmt) -> Iterator[Function]:
    members = node.body if isinstance(node, ast.ClassDef) else [node]
    for member in members:
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and member.name.startswith("test"):
            yield member


def _asserting_names(file: SourceFile) -> set[str]:
    """The file's own helpers that assert, directly or through each other."""
    functions = {node.name: node for node in file.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    found: set[str] = set()
    while True:
        more = {name for name, node in functions.items() if name not in found and _asserts(node, found)}
        if not more:
            return found
        found |= more


def _asserts(function: Function, asserting: set[str]) -> bool:
    for node in walk(function):
        if isinstance(node, ast.Assert) or (isinstance(node, ast.Raise) and "AssertionError" in ast.unparse(node)):
            return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in asserting or name.lstrip("_").startswith(_HELPERS):
                return True
    return False


# -- tasks

SHELLS = tuple(file for file in OURS if file.package in ("wire", "worker", "coordinator"))


def tasks_made(tree: ast.AST) -> Iterator[ast.AST]:
    """Calls that make a task, but for those of a TaskGroup, which raises what its tasks raise."""
    groups = {
        item.optional_vars.id
        for node in walk(tree)
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if calls("asyncio.TaskGroup")(item.context_expr) and isinstance(item.optional_vars, ast.Name)
    }
    for node in walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        name = getattr(called, "attr", getattr(called, "id", ""))
        owner = getattr(getattr(called, "value", None), "id", "")
        if name in ("create_task", "ensure_future", "run_coroutine_threadsafe") and owner not in groups:
            yield node


def test_shells_make_tasks_in_one_place_only() -> None:
    made = {file.path for file in SHELLS for node in tasks_made(file.tree)}
    assert made == {"wire/system/tasks.py"}, "use wire/system/tasks.py, so that whatever a task raises somebody is told"


def test_loggers_are_made_in_one_place_only() -> None:
    made = {file.path for file in PROGRAM for node in file.nodes if calls("logging.getLogger")(node)}
    assert made == {"wire/system/steady_log.py"}, "use steady_logger, so that no handler of a program's stops anything"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("asyncio.create_task(work())", 1),
        ("self._loop.create_task(work())", 1),
        ("asyncio.get_running_loop().create_task(work())", 1),
        ("ensure_future(work())", 1),
        ("async def f():\n    async with asyncio.TaskGroup() as group:\n        group.create_task(work())", 0),
        ("async def f():\n    async with asyncio.TaskGroup() as group:\n        loop.create_task(work())", 1),
    ],
)
def test_every_way_to_make_a_task_is_seen(text: str, found: int) -> None:
    assert len(list(tasks_made(ast.parse(text)))) == found


# -- disks and locks

WAITS = "write_whole", "sync_file", "sync_folder", "fsync", "FileLock", "remember_coordinator", "take_trust"
WAITS_OF = "credentials.adopt", "fresh.adopt", "authority.certify_coordinator", "authority.admit_here"


def waits_for_a_disk(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls in coroutines of what waits for a disk or for another process; a thread is given the function, which is no
    call."""
    for function in walk(tree):
        if isinstance(function, ast.AsyncFunctionDef):
            yield from (node for node in _own(function) if isinstance(node, ast.Call) and _waits(node))


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, but for those of functions in it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from _own(node)


def _waits(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    return name.rpartition(".")[2] in WAITS or name.endswith(WAITS_OF)


def test_no_event_loop_waits_for_a_disk() -> None:
    waits = [f"{file.path}:{call.lineno}" for file in PROGRAM for call in waits_for_a_disk(file.tree)]
    assert not waits, f"use asyncio.to_thread, wire/system/in_order.py or behind_lock: {waits}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("async def f():\n    self._disk.write_whole(path, parts)", 1),
        ("async def f():\n    with FileLock(path):\n        os.fsync(1)", 2),
        ("async def f():\n    await self.credentials.adopt(admitted)", 1),
        ("async def f():\n    await asyncio.to_thread(self._disk.write_whole, path, parts)", 0),
        ("async def f():\n    await to_thread(lambda: take_trust(data))\n    def g():\n        os.fsync(1)", 0),
        ("def f():\n    os.fsync(1)", 0),
        ("async def f():\n    await self.adopt(link, host)", 0),
    ],
)
def test_every_wait_for_a_disk_is_seen(text: str, found: int) -> None:
    assert len(list(waits_for_a_disk(ast.parse(text)))) == found
