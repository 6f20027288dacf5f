"""Documents say what is true: links resolve, names exist, options and exit codes are those of the code, tests exist."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from support.documents import Document, document, documents, table
from support.source import PACKAGES, ROOT, source_files

import mesh
from mesh import Mesh
from mesh.commands import coord, exit_codes, worker

DOCUMENTS = documents()
ids = [each.path for each in DOCUMENTS]
COMMANDS = document("docs/commands.md")
FEATURES = document("docs/features.md")
STATES = ("works", "partial", "planned")

FOLDERS = (*PACKAGES, "tests", "docs", "script", "bench", "examples", ".ci")
_PATH = re.compile(rf"(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./-]*")
_MODULE_NAME = re.compile(r"(?:wire|worker|coordinator)(?:\.\w+)+")
_NAME_OF_MESH = re.compile(r"(mesh(?:\.[A-Za-z_]\w*)+)(?:\(.*\))?")
_LOOKED_UP = """
import os, sys
import numpy
import mesh
for group in sys.argv[1:]:
    child = os.fork()  # where nothing is imported that another group needs
    if not child:
        for name in group.split():
            found = mesh
            for part in name.split(".")[1:]:
                found = getattr(found, part, None)
            if found is None:
                print(name, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("each", DOCUMENTS, ids=ids)
def test_links_resolve(each: Document) -> None:
    for link in each.links:
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / each.path).parent / path if path else ROOT / each.path
        assert target.exists(), f"{each.path}: {link} leads nowhere"
        if anchor:
            assert anchor in document(target.resolve().relative_to(ROOT).as_posix()).anchors, f"{each.path}: {link}"


@pytest.mark.parametrize("each", DOCUMENTS, ids=ids)
def test_files_that_are_named_exist(each: Document) -> None:
    missing = [name for name in each.names if _PATH.fullmatch(name) and not (ROOT / name).exists()]
    assert not missing, f"{each.path} names {', '.join(missing)}"


@pytest.mark.parametrize("each", DOCUMENTS, ids=ids)
def test_modules_and_what_is_in_them_exist(each: Document) -> None:
    missing = [name for name in each.names if _MODULE_NAME.fullmatch(name) and not _importable(name)]
    assert not missing, f"{each.path} names {', '.join(missing)}"


def test_what_documents_call_mesh_is_there_after_import_mesh_alone() -> None:
    """Each name is looked up where nothing was imported but what names of the same module need."""
    named = {name: each.path for each in DOCUMENTS for name in _names_of_mesh(each)}
    assert len(named) > 60
    stub = ast.parse(Path(mesh.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {each.asname or each.name: node.module or each.name for node in imports for each in node.names}
    groups: dict[str, list[str]] = {}
    for name in named:
        root = name.split(".")[1]
        groups.setdefault(homes.get(root, root), []).append(name)
    asked = subprocess.run(
        [sys.executable, "-c", _LOOKED_UP, *[" ".join(names) for names in groups.values()]],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not asked.stdout, "".join(f"{named[name]} has {name}\n" for name in asked.stdout.split())


def test_what_an_example_calls_mesh_is_a_mesh_or_the_package() -> None:
    wrong = []
    for each in DOCUMENTS:
        for block in each.code_blocks("python"):
            of = Mesh if re.search(r"\bas mesh\b|^ *mesh = ", block, re.MULTILINE) else mesh
            names = re.findall(r"(?<![\w.])mesh\.(\w+)", re.sub(r"^ *(from|import) .*$", "", block, flags=re.MULTILINE))
            wrong += [f"{each.path} has mesh.{name}" for name in names if not hasattr(of, name)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("each", DOCUMENTS, ids=ids)
def test_classes_and_functions_that_are_named_exist(each: Document) -> None:
    """A name in `code` that looks like one of ours is a word of the source; a table's planned rows may name more, and
    the first column of one that has names of other programs."""
    prose = re.sub(r"(?m)^\|.*\| planned \|.*$", "", each.prose)
    prose = re.sub(r"(?m)^\|[^|]*\|", "|", prose) if "| There | Here |" in prose else prose
    named = {word for name in re.findall(r"`([^`\n]+)`", prose) for word in _identifiers(name)}
    missing = sorted(named - _words())
    assert not missing, f"{each.path} names {', '.join(missing)}"


def test_the_doors_of_the_architecture_are_those_of_the_code() -> None:
    for library, files, _ in table(document("docs/architecture.md").section("Third-party libraries")):
        doors = {file.path for file in source_files() for found in file.imports if found.top == library}
        assert doors == set(re.findall(r"`([^`]+)`", files)), library


def test_pages_and_sections_that_the_source_cites_exist() -> None:
    wrong = []
    for file in source_files(*PACKAGES, "tests", "bench", "examples"):
        for path, section in re.findall(r'(docs/[\w/-]+\.md)(?:, "([^"\n]+)")?', file.text):
            if not (ROOT / path).is_file():
                wrong.append(f"{file.path} cites {path}")
            elif section and section not in document(path).headings():
                wrong.append(f"{file.path} cites {section!r} of {path}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("each", DOCUMENTS, ids=ids)
def test_commands_that_are_shown_are_accepted(each: Document) -> None:
    """Every line of a shell block that runs one of our commands is parsed by that command's own parser."""
    for block in each.code_blocks("sh"):
        for line in block.splitlines():
            words = re.sub(r"\s#.*", "", line).split()
            if not words or words[0] not in ("mesh-worker", "mesh-coord"):
                continue
            parser = worker.parser() if words[0] == "mesh-worker" else coord.parser()
            try:
                parser.parse_args(words[1:])
            except SystemExit as stop:
                raise AssertionError(f"{each.path}: {line!r} is refused with {stop.code}") from None


@pytest.mark.parametrize("each", DOCUMENTS, ids=ids)
def test_pages_are_written_to_be_read(each: Document) -> None:
    assert each.text.startswith("# "), "a page opens with its title"
    assert each.text.endswith("\n")
    assert not each.text.endswith("\n\n")
    assert len(re.findall("^# ", each.prose, re.MULTILINE)) == 1, "a page has one title"


def test_every_page_is_linked_from_another() -> None:
    linked = {
        ((ROOT / each.path).parent / link.partition("#")[0]).resolve()
        for each in DOCUMENTS
        for link in each.links
        if not link.startswith("http")
    }
    pages = {(ROOT / each.path).resolve() for each in DOCUMENTS} - {ROOT / "README.md"}
    lonely = [path for path in pages if path not in linked and path.parent not in linked]
    assert not lonely, ", ".join(str(path.relative_to(ROOT)) for path in lonely)


# -- commands


def test_every_option_of_mesh_worker_is_explained_and_no_other() -> None:
    assert _explained(COMMANDS.section("mesh-worker")) == _options(worker.parser())


@pytest.mark.parametrize("verb", coord.VERBS)
def test_every_option_of_a_verb_is_explained_and_no_other(verb: str) -> None:
    wanted = _explained(COMMANDS.section(f"mesh-coord {verb}")) | _explained(COMMANDS.section("Every verb"))
    if coord.VERBS[verb].remote is not None:
        wanted |= _explained(COMMANDS.section("Every verb that asks a coordinator"))
    assert wanted == _options(_verbs()[verb])


def test_every_verb_has_a_section() -> None:
    shown = [title.partition(" ")[2] for title in COMMANDS.headings() if title.startswith("mesh-coord ")]
    assert shown == list(coord.VERBS)


def test_the_role_of_every_verb_is_in_the_table_of_roles() -> None:
    """A verb is for this machine's user, or it asks a coordinator, which looks at the role."""
    (users, of_whom), *asking = [row for row in table(COMMANDS.section("Roles")) if row[0].startswith("`mesh-coord")]
    assert of_whom == "this machine's user"
    by_user, by_role = _verbs_in(users), set().union(*(_verbs_in(cell) for cell, _ in asking))
    assert by_user | by_role == set(coord.VERBS) and not by_user & by_role
    assert by_role >= {verb for verb, row in coord.VERBS.items() if row.remote is not None}


def _verbs_in(cell: str) -> set[str]:
    return {name.removeprefix("mesh-coord ").split()[0] for name in re.findall(r"`([^`]+)`", cell)}


def test_the_verbs_that_ask_a_coordinator_are_listed() -> None:
    section = COMMANDS.section("Every verb that asks a coordinator")
    asking = [verb for verb, row in coord.VERBS.items() if row.remote is not None]
    assert f"These are {', '.join(asking[:-1])} and {asking[-1]}." in section


def test_every_exit_code_is_explained() -> None:
    codes = {name: value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    rows = {name: int(code) for code, name, _ in table(COMMANDS.section("Exit codes"))}
    assert rows == codes


def test_the_epilogs_name_the_codes_of_their_command() -> None:
    for parser in (worker.parser(), coord.parser()):
        text = parser.epilog or ""
        assert set(map(int, re.findall(r"\b\d\b", text))) <= {value for _, value in exit_codes.BY_ERROR} | {0, 3, 8}


def test_every_variable_of_the_environment_is_explained() -> None:
    pattern = re.compile(r"\b(?:MESH|GRAPH_MESH)_[A-Z_]+\b")
    texts = [file.text for file in source_files("mesh", "wire", "worker", "coordinator", "tests/support")]
    texts += [path.read_text(encoding="utf-8") for path in (ROOT / "script").iterdir()]
    read = {name for text in texts for name in pattern.findall(text)}
    explained = {row[0].strip("`") for row in table(COMMANDS.section("Environment"))}
    assert explained == read


# -- features


def test_every_feature_has_a_state_and_a_test_that_exists() -> None:
    rows = list(table(FEATURES.text))
    assert len(rows) > 80
    for feature, _, state, proof in rows:
        assert state.partition(" (")[0] in STATES, f"{feature}: {state}"
        files = re.findall(r"`([^`]+)`", proof)
        if state == "planned":
            assert not files, f"{feature}: what is planned has no test yet"
        else:
            assert files, f"{feature}: no test shows it"
        for name in files:
            assert name.startswith("tests/"), f"{feature}: {name} is not a test"
            assert (ROOT / name).is_file(), f"{feature}: {name} does not exist"


def test_features_are_named_once() -> None:
    names = [row[0] for row in table(FEATURES.text)]
    assert len(names) == len(set(names))


def test_the_readme_says_of_all_that_is_not_there_that_it_is_not() -> None:
    rows = [(feature, *state.partition(" ")[::2]) for feature, _, state, _ in table(FEATURES.text)]
    _, _, section = document("README.md").section("What works, and what does not yet").partition("Does not work yet:")
    missing, _, partial = section.partition("Works in part:")
    assert _listed(missing) == [feature for feature, state, _ in rows if state == "planned"]
    assert _listed(partial) == [f"{feature} {note}" for feature, state, note in rows if state == "partial"]


def test_what_works_in_part_says_which_part() -> None:
    for feature, _, state, _ in table(FEATURES.text):
        if state.startswith("partial"):
            assert re.fullmatch(r"partial \(works: .+; missing: .+\)", state), f"{feature}: {state}"


def test_no_other_page_lacks_what_is_there() -> None:
    planned = {feature for feature, _, state, _ in table(FEATURES.text) if state == "planned"}
    pages = [each for each in DOCUMENTS if "What is not there" in each.headings()]
    assert {each.path for each in pages} == {"docs/nn.md", "docs/inference.md"}
    for each in pages:
        found = _listed(each.section("What is not there"))
        assert found, f"{each.path} lists nothing"
        assert not (wrong := [item for item in found if item not in planned]), f"{each.path}: {wrong}"
    titles = [f"{each.path}: {title}" for each in DOCUMENTS for title in each.headings()]
    lists = [title for title in titles if re.search(r"not (yet|there|work)|missing", title, re.IGNORECASE)]
    assert len(lists) == 3, f"a list of what is missing is called as those are that are checked here: {lists}"
    assert "Limits" not in document("CHANGELOG.md").headings(), "what is not there is in docs/features.md"


# -- decisions


def test_decisions_are_numbered_without_gaps_and_named_by_their_number() -> None:
    files = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(path.name[:4]) for path in files] == list(range(1, len(files) + 1))
    for path in files:
        assert path.read_text(encoding="utf-8").startswith(f"# {path.name[:4]}: ")


def _verbs() -> dict[str, argparse.ArgumentParser]:
    (verbs,) = (action for action in coord.parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(verbs.choices)


def _options(parser: argparse.ArgumentParser) -> set[str]:
    """Every option and argument of a parser and of its actions, help aside, as people write it."""
    found: set[str] = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {option for name, each in action.choices.items() for option in _options(each)}
        elif not action.option_strings and action.choices:
            found |= {str(choice) for choice in action.choices}
        elif action.help != argparse.SUPPRESS and "--help" not in action.option_strings:
            found |= set(action.option_strings) or {str(action.metavar or action.dest).upper()}
    return found


def _explained(section: str) -> set[str]:
    """The options in the first column of a section's table."""
    return {word.split()[0] for row in table(section) for word in re.findall(r"`([^`]+)`", row[0])}


@cache
def _words() -> set[str]:
    """Every word of the source of packages, examples and scripts, and of pyproject.toml: extras have names, too."""
    texts = [file.text for file in source_files(*PACKAGES, "examples", "bench")]
    texts += [path.read_text(encoding="utf-8") for path in (ROOT / "script").iterdir()]
    texts.append((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {word for text in texts for word in re.findall(r"\w+", text)}


def _identifiers(name: str) -> list[str]:
    """The words of something like `Peer`, `Mesh.run(fn)` or `next_frame`; none of a path, a flag or a sentence."""
    match = re.fullmatch(r"\.?((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:\(.*\))?", name)
    return match[1].split(".") if match and "/" not in name else []


def _names_of_mesh(each: Document) -> Iterator[str]:
    """What a page's prose calls by a name that starts with mesh: a file (`mesh.svg`) is none."""
    for name in each.names:
        if (match := _NAME_OF_MESH.fullmatch(name)) and not name.endswith((".svg", ".py")):
            yield match[1]


def _listed(section: str) -> list[str]:
    """The items of a section's list."""
    return [line.removeprefix("* ").rstrip(";.") for line in section.splitlines() if line.startswith("* ")]


def _importable(name: str) -> bool:
    """Whether a dotted name is a module of ours or something in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        path = Path(*parts[:count])
        if (ROOT / path.with_suffix(".py")).is_file() or (ROOT / path).is_dir():
            found = importlib.import_module(".".join(parts[:count]))
            for attribute in parts[count:]:
                found = getattr(found, attribute, None)  # type: ignore[assignment]
            return found is not None
    return False
