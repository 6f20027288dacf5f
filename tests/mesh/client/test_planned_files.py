"""The files of inputs that a graph is planned with: what is given is right, also where nothing of it is needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mesh.commands.graph_argument import read_graph, read_program
from wire.errors import InputError
from wire.ir.dtypes import F32
from wire.ir.graph import GraphBuilder


@pytest.fixture
def graph(tmp_path: Path) -> str:
    """x + x, as a file, beside arrays that fit it and that do not."""
    builder = GraphBuilder()
    x = builder.input("x", (2,), F32)
    path = tmp_path / "twice.wire"
    builder.build([builder.add("add", x, x)]).save(path)
    np.save(tmp_path / "good.npy", np.zeros(2, np.float32))
    np.save(tmp_path / "long.npy", np.zeros(3, np.float32))
    np.save(tmp_path / "ints.npy", np.zeros(2, np.int32))
    with (tmp_path / "objects.npy").open("wb") as file:  # what numpy writes of objects, whose pickles would follow
        np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": (1,)})
    np.savez(tmp_path / "several.npz", a=np.zeros(2))
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "empty.npy").touch()
    return str(path)


WRONG = [
    ("x=missing.npy", "does not exist"),
    ("x=.", "is not a .npy file"),
    ("x=text.npy", "is not a .npy file"),
    ("x=empty.npy", "is not a .npy file"),
    ("x=objects.npy", "is not a .npy file"),
    ("x=several.npz", "holds several arrays"),
    ("x=long.npy", "expected f32"),
    ("x=ints.npy", "expected f32"),
    ("y=good.npy", "the graph has no input 'y'"),
    ("x", "is not NAME=FILE.npy"),
    ("=good.npy", "is not NAME=FILE.npy"),
    ("x=", "is not NAME=FILE.npy"),
]


@pytest.mark.parametrize(("given", "said"), WRONG)
def test_a_wrong_file_is_named_by_plans_and_jobs_alike(
    given: str, said: str, graph: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for read in (read_graph, read_program):
        with pytest.raises(InputError) as caught:
            read(graph, [given], [])
        assert said in str(caught.value)


def test_a_plan_needs_no_inputs_and_takes_those_that_fit(graph: str, tmp_path: Path) -> None:
    good = f"x={tmp_path / 'good.npy'}"
    assert read_graph(graph, [], [])[0] == read_graph(graph, [good], [])[0]
    with pytest.raises(InputError, match="given twice"):
        read_graph(graph, [good, good], [])
