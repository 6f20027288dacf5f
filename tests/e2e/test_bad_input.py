"""What is wrong is refused in one line that says what was expected, before anything is sent; daemons go on serving."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.processes import site as sites
from support.processes.commands import (
    PATIENT_S,
    client_of,
    daemon,
    environment,
    run,
    until_they_work,
)
from support.processes.site import WORKER

import mesh.numpy as mnp
from mesh import Mesh, errors, trace
from mesh.commands import exit_codes
from wire.protocol.messages import NamedValue, PlanGraph, SubmitJob

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
MIB = 1 << 20


class Site(sites.Site):
    def still_serves(self) -> bool:
        done = self.ask("submit", "good.wire", "--input", "x=x.npy", "--output", "served")
        return done.returncode == 0 and np.array_equal(np.load(self.folder / "served" / "output.npy"), X + 1)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("bad")
    made_wrong(folder)
    with sites.site(folder, "bad-input", ("w",), Site) as made:
        yield made


def made_wrong(folder: Path) -> None:
    """A good graph and a good input, and files that are wrong in one way each."""
    trace(lambda x: x + 1, X).save(folder / "good.wire")
    np.save(folder / "x.npy", X)
    data = (folder / "good.wire").read_bytes()
    (folder / "damaged.wire").write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    (folder / "short.wire").write_bytes(data[: len(data) // 2])
    (folder / "empty.wire").write_bytes(b"")
    np.savez(folder / "several.npz", x=X)
    with (folder / "objects.npy").open("wb") as file:  # what numpy writes of objects, whose pickles would follow
        np.lib.format.write_array_header_1_0(file, {"descr": "|O", "fortran_order": False, "shape": (1,)})
    np.save(folder / "f64.npy", X.astype(np.float64))
    np.save(folder / "swapped.npy", X.astype(">f4"))


def assert_refused(done: subprocess.CompletedProcess[str], said: str, code: int = exit_codes.USAGE) -> None:
    assert said in done.stderr
    assert done.returncode == code
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stdout == ""


# -- files and flags


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        ("damaged", "damaged.wire is damaged: graph does not match its hash"),
        ("short", "short.wire is not a .wire file"),
        ("empty", "empty.wire is not a .wire file"),
    ],
)
def test_a_damaged_graph_file_is_named(site: Site, graph: str, said: str) -> None:
    assert_refused(site.ask("plan", f"{graph}.wire"), said)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("x=several.npz", "several.npz (input 'x') holds several arrays. Save one with numpy.save"),
        ("x=objects.npy", "objects.npy (input 'x') is not a .npy file (cause: Object arrays cannot be loaded"),
        ("x=f64.npy", "the input 'x' is float64[4, 8], expected f32[4,8]"),
        ("x=/", "/ (input 'x') is not a .npy file"),
        ("=x.npy", "--input '=x.npy' is not NAME=FILE.npy"),
    ],
)
def test_a_wrong_input_is_named_with_what_was_expected(site: Site, value: str, said: str) -> None:
    assert_refused(site.ask("submit", "good.wire", "--input", value, "--output", "o"), said)


def test_an_output_folder_that_cannot_be_made_is_said_before_the_job_runs(site: Site) -> None:
    for folder in ("/proc/none/here", "x.npy"):
        words = ("submit", "good.wire", "--input", "x=x.npy", "--output", folder)
        assert_refused(site.ask(*words), f"cannot write to {folder}")


def test_an_input_in_the_other_byte_order_is_taken(site: Site) -> None:
    done = site.ask("submit", "good.wire", "--input", "x=swapped.npy", "--output", "swapped")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(site.folder / "swapped" / "output.npy"), X + 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--mesh", "a/../b"), "a mesh's name does not begin with a dot and has no slash"),
        (("--mesh", "m" * 65), "a mesh's name has 1 to 64 bytes"),
        (("--name", "two\nlines"), "a node's name has 1 to 64 bytes of printable text"),
    ],
)
def test_names_and_addresses_are_checked_by_both_commands(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    for command in (("coord", "serve"), ("worker", "--device", "cpu")):
        assert_refused(run(*command, *words, "--no-mdns", "--port", "0", env=environment(tmp_path)), said)


def test_a_worker_that_joined_no_mesh_listens_on_loopback_only(tmp_path: Path) -> None:
    words = ("--device", "cpu", "--host", "10.1.2.3", "--no-mdns", "--port", "0")
    said = "will not listen on 10.1.2.3: it is not a loopback address, and this node has joined no mesh"
    assert_refused(run("worker", *words, env=environment(tmp_path)), said)


def test_a_coordinator_that_is_not_there_is_named_with_what_to_start(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    asked = site.ask("nodes", "--coordinator", f"127.0.0.1:{port}")
    assert_refused(asked, f"no node answers at 127.0.0.1:{port}", exit_codes.UNREACHABLE)
    assert asked.stderr.strip().endswith("Is mesh-coord serve running there?")


def test_folders_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for flag in ("--cache-dir", "--state-dir"):
        done = run("worker", flag, str(tmp_path / "file"), "--device", "cpu", "--port", "0", env=environment(tmp_path))
        assert_refused(done, str(tmp_path / "file"))


# -- names that meet


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    """On one machine by the state folder, and at the coordinator where folders differ."""
    env = environment(tmp_path, MESH_NAME="names")
    words = (*WORKER, "--name", "twin")
    with (
        daemon(*words, env=env, log=tmp_path / "1.log") as first,
        daemon(*words, env=env, log=tmp_path / "2.log") as second,
        daemon(*words, "--state-dir", str(tmp_path / "elsewhere"), env=env, log=tmp_path / "3.log") as third,
    ):
        assert [each.ready["name"] for each in (first, second, third)] == ["twin", "twin-2", "twin"]
        builder = Mesh.builder().mesh("names")
        for each in (first, second, third):
            builder = builder.node(each.address)
        with builder.node_timeout(PATIENT_S).build() as mesh:
            assert sorted(node.name for node in mesh.nodes) == ["twin", "twin-2", "twin-3"]
            until_they_work(mesh, 3, lambda: mesh.run(lambda x: (mnp.tanh(x @ x.T) @ x) * 2, X, strategy="pipeline"))
            assert sorted(mesh.report().workers) == ["twin", "twin-2", "twin-3"]


def test_a_worker_may_be_named_twice(tmp_path: Path) -> None:
    env = environment(tmp_path, MESH_NAME="twice")
    words = ("worker", "--port", "0", "--device", "cpu", "--name", "one")
    with daemon(*words, env=env, log=tmp_path / "1.log") as worker:
        port = worker.ready["port"]
        builder = Mesh.builder().mesh("twice").node(f"127.0.0.1:{port}").node(f"localhost:{port}")
        for each in (builder, builder.node(f"localhost:{port}")):
            with each.build() as mesh:
                assert [node.name for node in mesh.nodes] == ["one"]
                np.testing.assert_array_equal(mesh.run(lambda x: x + 1, X, mode="on"), X + 1)


# -- memory


def test_a_part_that_fits_no_worker_is_refused_with_need_and_have_before_anything_is_sent() -> None:
    weights = np.zeros((1024, 1024), np.float32)
    with Mesh.builder().mesh("small").local(2, "cpu", max_memory="1MiB").node_timeout(PATIENT_S).build() as mesh:
        held = mesh.put(weights)
        for use in (mesh.plan, mesh.run):
            with pytest.raises(errors.PlacementError, match=r"local-0 needs \S+ MiB and has 1.0 MiB"):
                use(lambda w: mnp.tanh(w), held)
        small = np.ones((64, 64), np.float32)
        np.testing.assert_array_equal(mesh.run(lambda w: w + 1, small), small + 1)
        moved = mesh.report().weight_bytes_moved
    assert moved == 0


# -- hostile clients


def test_malformed_messages_are_refused_with_a_typed_error_and_the_coordinator_goes_on(site: Site) -> None:
    good = trace(lambda x: x + 1, X)
    huge = NamedValue("x", "f32", (1 << 30, 1 << 30), None, bytes(32))
    wrong: list[tuple[SubmitJob | PlanGraph, type[errors.MeshError]]] = [
        (SubmitJob(b"", (), ()), errors.GraphDecodeError),
        (SubmitJob(b"\xff" * 1000, (), ()), errors.GraphDecodeError),
        (SubmitJob(b"\xdd\xff\xff\xff\xff", (), ()), errors.GraphDecodeError),
        (SubmitJob(good.encoded[:-1], (), ()), errors.GraphDecodeError),
        (PlanGraph(good.encoded + b"\x00"), errors.GraphDecodeError),
        (SubmitJob(good.encoded, (), ()), errors.InputError),
        (SubmitJob(good.encoded, (huge,), ()), errors.InputError),
        (SubmitJob(good.encoded, (NamedValue("x", "f32", (4, 8), b"short"),), ()), errors.MeshError),
        (SubmitJob(good.encoded, (NamedValue("x", "f32", (4, 8)),), ()), errors.MeshError),
        (PlanGraph(good.encoded, "magic"), errors.InputError),
    ]

    async def send(message: SubmitJob | PlanGraph) -> None:
        remote = await client_of(site.coordinator)
        try:
            await (await remote._open()).request(message)
        finally:
            await remote.close()

    for message, kind in wrong:
        with pytest.raises(kind):
            asyncio.run(send(message))
    assert site.still_serves()


def test_malformed_connections_leave_the_coordinator_serving(site: Site) -> None:
    junk = np.random.default_rng(0)
    openings = [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\xff" * 64]
    for number in range(100):
        with socket.create_connection(("127.0.0.1", site.coordinator.ready["port"])) as connection:
            connection.sendall(openings[number % 4] + junk.bytes(int(junk.integers(1, 400))))
    assert site.still_serves()
    assert "Traceback" not in site.coordinator.log.read_text()


def test_a_cache_that_is_damaged_or_gone_is_filled_again(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)

    def build() -> Mesh:
        return (
            Mesh.builder().mesh("cache").local(1, "cpu", cache_dir=tmp_path / "cache").node_timeout(PATIENT_S).build()
        )

    def use() -> int:
        with build() as mesh:
            np.testing.assert_array_equal(mesh.run(lambda w: w * 2, mesh.put(weights)), weights * 2)
            return mesh.report().weight_bytes_moved

    assert [use(), use()] == [weights.nbytes, 0]
    for file in (tmp_path / "cache").rglob("*"):
        if file.is_file() and file.stat().st_size == weights.nbytes:
            file.write_bytes(b"\0" * weights.nbytes)
    assert use() == weights.nbytes
    shutil.rmtree(tmp_path / "cache")
    assert use() == weights.nbytes
