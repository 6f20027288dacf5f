"""Models come from a hub once, whole and checked; what goes wrong says what to do."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from support.hub import Hub, folder_files

import mesh
from mesh.errors import ConfigError, ConnectFailed, InputError, MeshError, StorageError
from mesh.models.store import ModelStore, _File, name_of

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "golden"
LARGE = bytes(range(256)) * (24 << 12)  # 24 MiB: the library writes pieces of 10
SHARDS = {"config.json": b"{}", "model-1.safetensors": LARGE[: 1 << 20], "model-2.safetensors": LARGE}
IDS = np.arange(3, 11, dtype=np.int32)[None]


@pytest.fixture(autouse=True)
def certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library reads the system's even to ask over plain HTTP; other tests do without (conftest.py)."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)


@pytest.fixture
def hub() -> Iterator[Hub]:
    repositories = {
        "org/llama": folder_files(GOLDEN / "huggingface" / "llama"),
        "org/gpt2": {**folder_files(GOLDEN / "huggingface" / "gpt2"), "pytorch_model.bin": b"no", "README.md": b"# Hi"},
        "org/gguf": {
            "a-Q4_0.gguf": (GOLDEN / "gguf" / "llama-Q4_0.gguf").read_bytes(),
            "a-Q5_1.gguf": (GOLDEN / "gguf" / "qwen2-Q5_1.gguf").read_bytes(),
        },
        "org/large": {"config.json": b"{}", "model.safetensors": LARGE},
        "org/shards": dict(SHARDS),
        "org/pickles": {"config.json": b"{}", "pytorch_model.bin": b"no"},
        "org/gated": {"config.json": b"{}", "model.safetensors": b"no"},
    }
    with Hub(repositories, gated=("org/gated",)) as hub:
        yield hub


@pytest.fixture
def store(hub: Hub, tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store", endpoint=hub.endpoint)


def test_a_model_is_pulled_once_and_loads_like_a_folder(hub: Hub, store: ModelStore) -> None:
    told: list[tuple[str, int, int, int]] = []
    folder = store.pull("org/gpt2", report=lambda *row: told.append(row))
    assert folder == store.folder / "org" / "gpt2" == store.find("org/gpt2")
    assert np.array_equal(
        np.asarray(mesh.load(folder)(IDS)), np.asarray(mesh.load(GOLDEN / "huggingface" / "gpt2")(IDS))
    )
    assert not (folder / "pytorch_model.bin").exists() and not (folder / "README.md").exists()
    size = (folder / "model.safetensors").stat().st_size
    assert told[-1][1:3] in {(size, size), ((folder / "config.json").stat().st_size,) * 2}
    assert told[-1][3] == sum(len(data) for path, data in hub.repositories["org/gpt2"].items()
                              if path in ("config.json", "model.safetensors"))  # fmt: skip
    hub.asked.clear()
    store.pull("org/gpt2")
    assert not [path for _, path, _ in hub.asked if "/resolve/" in path], "nothing is asked for again"


def test_a_name_loads_from_the_hub_and_then_without_it(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_MODELS", str(tmp_path / "store"))
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.chdir(tmp_path)
    first = np.asarray(mesh.load("org/llama")(IDS))
    hub.asked.clear()
    assert np.array_equal(np.asarray(mesh.load("org/llama")(IDS)), first)
    assert not hub.asked, "what is in the store is loaded without a word to anybody"
    with pytest.raises(InputError, match=r"there is no folder org/none, and the hub has no model org/none"):
        mesh.load("org/none")
    model = mesh.load("org/gguf:q4_0")
    assert model.buffers and mesh.load("org/gguf:Q4_0").name == model.name
    Path("org/llama").mkdir(parents=True)
    with pytest.raises(InputError, match=r"config.json does not exist"):
        mesh.load("org/llama")  # a folder that is here is meant


def test_one_gguf_file_of_several_is_named(store: ModelStore) -> None:
    with pytest.raises(InputError, match=r"org/gguf has 2 GGUF files: a-Q4_0.gguf, a-Q5_1.gguf\. Name one: org/gguf:"):
        store.pull("org/gguf")
    path = store.pull("org/gguf:q5_1")
    assert path.name == "a-Q5_1.gguf" and mesh.load(path).buffers
    assert store.find("org/gguf:q5_1") == path == store.find("org/gguf")
    with pytest.raises(InputError, match=r"no GGUF file with 'q2' in its name.*a-Q4_0.gguf"):
        store.pull("org/gguf:q2")
    with pytest.raises(InputError, match=r"neither safetensors nor GGUF files.*pytorch_model.bin"):
        store.pull("org/pickles")


def test_a_download_that_is_cut_resumes(hub: Hub, store: ModelStore) -> None:
    hub.cut_after, hub.cuts = 12 << 20, 1
    folder = store.pull("org/large")
    assert (folder / "model.safetensors").read_bytes() == LARGE
    assert hub.ranges("model.safetensors") == ["", f"bytes={10 << 20}-"]


def test_a_file_larger_than_the_library_fetches_by_itself_comes(hub: Hub, store: ModelStore, tmp_path: Path) -> None:
    model = name_of("org/large")
    assert model is not None
    told = _File("model.safetensors", 60_000_000_000, "0" * 64)
    store._get(huggingface_hub, model, hub.commit("org/large"), told, tmp_path / "part", lambda done: None)
    assert (tmp_path / "part").read_bytes() == LARGE, "up to where the hub ends, as it has less here than it says"


def test_a_file_that_the_hub_ends_early_is_gone_on_with(hub: Hub, store: ModelStore) -> None:
    hub.short_by = 1 << 20
    with pytest.raises(
        ConnectFailed, match=r"the hub gave 23.0 MiB of model.safetensors of org/large, which has 24.0 MiB"
    ):
        store.pull("org/large")
    hub.short_by = 0
    hub.asked.clear()
    assert (store.pull("org/large") / "model.safetensors").read_bytes() == LARGE
    assert hub.ranges("model.safetensors") == [f"bytes={23 << 20}-"]


def test_a_pull_that_failed_goes_on_where_it_was(hub: Hub, store: ModelStore) -> None:
    hub.cut_after, hub.cuts, hub.down_after_cuts = 12 << 20, 1, True
    with pytest.raises(
        ConnectFailed, match=r"the hub does not give org/large.*Or put the files of the model into .*org"
    ):
        store.pull("org/large")
    assert store.find("org/large") is None and [model.whole for model in store.models()] == [False]
    hub.down = False
    hub.asked.clear()
    assert (store.pull("org/large") / "model.safetensors").read_bytes() == LARGE
    assert hub.ranges("model.safetensors") == [f"bytes={10 << 20}-"]
    assert [model.whole for model in store.models()] == [True]


def test_files_that_had_come_before_a_pull_failed_are_not_asked_for_again(hub: Hub, store: ModelStore) -> None:
    hub.cut_after, hub.cuts, hub.down_after_cuts = 12 << 20, 1, True  # of the larger one
    with pytest.raises(ConnectFailed):
        store.pull("org/shards")
    hub.down = False
    hub.asked.clear()
    folder = store.pull("org/shards")
    assert {path: (folder / path).read_bytes() for path in SHARDS} == SHARDS
    assert not hub.ranges("config.json") and not hub.ranges("model-1.safetensors")
    assert hub.ranges("model-2.safetensors") == [f"bytes={10 << 20}-"]


def test_an_update_that_is_cut_leaves_the_model_as_it_was(hub: Hub, store: ModelStore) -> None:
    """The new weights have as many bytes as the old ones, so that sizes do not tell them apart."""
    folder = store.pull("org/large")
    new = {"config.json": b"[]", "model.safetensors": LARGE[::-1]}
    hub.repositories["org/large"] = new
    hub.cut_after, hub.cuts, hub.down_after_cuts = 12 << 20, 1, True
    with pytest.raises(ConnectFailed):
        store.pull("org/large")
    assert store.find("org/large") == folder
    assert (folder / "config.json").read_bytes() == b"{}" and (folder / "model.safetensors").read_bytes() == LARGE
    hub.down = False
    store.pull("org/large")
    assert {path: (folder / path).read_bytes() for path in new} == new and store.find("org/large") == folder


def test_a_pull_that_ended_between_two_files_is_not_whole(hub: Hub, store: ModelStore) -> None:
    folder = store.pull("org/large")
    (folder / ".pulled").unlink()
    (folder / ".parts").mkdir()
    (folder / "config.json").write_bytes(b"[]")
    assert store.find("org/large") is None and [model.whole for model in store.models()] == [False]
    hub.asked.clear()
    store.pull("org/large")
    assert (folder / "config.json").read_bytes() == b"{}" and store.find("org/large") == folder
    assert hub.ranges("config.json") == [""] and not hub.ranges("model.safetensors"), "what is right is there"


def test_what_a_cut_download_has_needs_no_room_again(
    hub: Hub, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.cut_after, hub.cuts, hub.down_after_cuts = 12 << 20, 1, True
    with pytest.raises(ConnectFailed):
        store.pull("org/large")
    hub.down = False
    usage = shutil.disk_usage(store.folder)
    free = (1 << 30) + len(LARGE) - (10 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free - 1))
    with pytest.raises(StorageError, match=r"the download takes 14.* MiB, and the disk of"):
        store.pull("org/large")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))
    assert (store.pull("org/large") / "model.safetensors").read_bytes() == LARGE


def test_two_files_of_the_same_content_both_come(hub: Hub, store: ModelStore) -> None:
    same = SHARDS["model-1.safetensors"]
    hub.repositories["org/shards"]["model-2.safetensors"] = same
    folder = store.pull("org/shards")
    assert all((folder / f"model-{number}.safetensors").read_bytes() == same for number in (1, 2))


@pytest.mark.parametrize("path", ["model.safetensors", "config.json"])
def test_a_flipped_byte_is_refused(path: str, hub: Hub, store: ModelStore) -> None:
    hub.flipped = path
    with pytest.raises(StorageError, match=rf"{path} of org/gpt2 is damaged: its checksum is not the hub's"):
        store.pull("org/gpt2")
    assert store.find("org/gpt2") is None and not (store.folder / "org" / "gpt2" / path).exists()
    hub.flipped = ""
    assert store.find("org/gpt2") is None
    assert mesh.load(store.pull("org/gpt2")).outputs == ("logits",)


def test_revisions_are_models_of_their_own(hub: Hub, store: ModelStore) -> None:
    hub.revisions = ("main", "v2")
    assert store.pull("org/gpt2", revision="v2") == store.folder / "org" / "gpt2@v2"
    assert store.find("org/gpt2") is None and store.find("org/gpt2", "v2") is not None
    commit = hub.commit("org/gpt2")
    assert store.pull("org/gpt2", revision=commit).name == f"gpt2@{commit}"
    with pytest.raises(InputError, match="org/gpt2 has no revision 'v9'"):
        store.pull("org/gpt2", revision="v9")


def test_what_changed_on_the_hub_is_pulled_again(hub: Hub, store: ModelStore) -> None:
    store.pull("org/gpt2")
    changed = json.dumps(
        {**json.loads(hub.repositories["org/gpt2"]["config.json"]), "layer_norm_epsilon": 0.1}
    ).encode()
    hub.repositories["org/gpt2"]["config.json"] = changed
    hub.asked.clear()
    assert (store.pull("org/gpt2") / "config.json").read_bytes() == changed
    assert hub.ranges("config.json") == [""] and not hub.ranges("model.safetensors")


def test_offline_takes_what_is_there_and_asks_nobody(hub: Hub, store: ModelStore) -> None:
    with pytest.raises(
        InputError, match=r"org/gpt2 is not in the store, and offline=True forbids a download\. Or put the files"
    ):
        store.pull("org/gpt2", offline=True)
    folder = store.pull("org/gpt2")
    hub.asked.clear()
    assert store.pull("org/gpt2", offline=True) == folder and not hub.asked
    (folder / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(InputError, match="is not in the store"):
        store.pull("org/gpt2", offline=True)


def test_files_that_somebody_put_there_are_a_model(store: ModelStore) -> None:
    shutil.copytree(GOLDEN / "huggingface" / "llama", store.folder / "own" / "llama")
    assert store.pull("own/llama", offline=True) == store.folder / "own" / "llama"
    assert [(model.name, model.revision, model.whole) for model in store.models()] == [("own/llama", "", True)]


def test_models_are_listed_and_deleted(store: ModelStore) -> None:
    store.pull("org/gpt2")
    store.pull("org/llama")
    models = store.models()
    assert [model.name for model in models] == ["org/gpt2", "org/llama"]
    assert all(model.size_bytes > 10_000 and len(model.revision) == 40 for model in models)
    assert store.remove("org/gpt2") == models[0].size_bytes
    assert [model.name for model in store.models()] == ["org/llama"] and not (store.folder / "org" / "gpt2").exists()
    with pytest.raises(InputError, match="'org/gpt2' is not in the store"):
        store.remove("org/gpt2")
    with pytest.raises(InputError, match="is not in the store"):
        store.remove("../outside")


def test_a_list_is_given_while_files_come(store: ModelStore) -> None:
    parts, over = store.folder / "org" / "name" / ".parts", threading.Event()
    parts.mkdir(parents=True)

    def pull() -> None:
        while not over.is_set():
            for number in range(20):
                (parts / f"{number}.part").write_bytes(b"x")
            for number in range(20):
                (parts / f"{number}.part").replace(parts.parent / f"{number}.bin")
            parts.rmdir()
            parts.mkdir()

    pulling = threading.Thread(target=pull)
    pulling.start()
    try:
        for _ in range(2000):
            assert [model.name for model in store.models()] == ["org/name"]
    finally:
        over.set()
        pulling.join()


def test_a_model_that_another_process_pulls_is_not_deleted(store: ModelStore) -> None:
    folder = store.folder / "org" / "name"
    folder.mkdir(parents=True)
    holding = "import sys; from wire.system.file_lock import FileLock; from pathlib import Path\n"
    holding += "lock = FileLock(Path(sys.argv[1])); lock.try_acquire(); print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", holding, str(folder.parent / ".name.lock")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(StorageError, match="another process pulls org/name"):
            store.remove("org/name")
        other.stdin.close()
    assert store.remove("org/name") == 0 and not folder.exists()


def test_a_store_that_cannot_be_written_is_named(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"the store .* cannot be written"):
        ModelStore(tmp_path / "file", endpoint=hub.endpoint).pull("org/gpt2")


def test_who_may_not_have_a_model_is_told_so(store: ModelStore) -> None:
    with pytest.raises(ConfigError, match=r"only to those who accepted its terms.*set HF_TOKEN"):
        store.pull("org/gated")


def test_where_no_hub_answers_the_error_names_the_folder(tmp_path: Path) -> None:
    store = ModelStore(tmp_path, endpoint="http://127.0.0.1:9")
    with pytest.raises(
        ConnectFailed, match=rf"no hub answers for org/m.*put the files of the model into {tmp_path}/org/m"
    ):
        store.pull("org/m")


def test_a_hub_that_takes_a_question_and_never_answers_is_given_up(tmp_path: Path) -> None:
    ended: list[MeshError] = []

    def pull() -> None:
        try:
            store.pull("org/m")
        except MeshError as error:
            ended.append(error)

    with socket.create_server(("127.0.0.1", 0)) as mute:  # the system takes its connections
        store = ModelStore(tmp_path, endpoint=f"http://127.0.0.1:{mute.getsockname()[1]}")
        store._answer_s = 0.2
        pulling = threading.Thread(target=pull, daemon=True)
        pulling.start()
        pulling.join(60)
    assert [type(error) for error in ended] == [ConnectFailed], "it waits for ever"
    assert "no hub answers for org/m" in ended[0].message


def test_a_limit_is_kept(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESH_MODELS_MAX", "150KiB")
    store = ModelStore(tmp_path, endpoint=hub.endpoint)
    store.pull("org/gpt2")
    with pytest.raises(
        StorageError, match=r"the download takes 7\d.* KiB, and the store .* has 11\d.* KiB of 150.*models rm"
    ):
        store.pull("org/llama")
    assert not hub.ranges("model-00001-of-00004.safetensors"), "nothing was asked for"
    store.remove("org/gpt2")
    store.pull("org/llama")


def test_names_that_are_none_are_refused(store: ModelStore) -> None:
    for text in ("model", "a/b/c", "../b", "a/..", "a/b:", "a b/c", "", "/a"):
        assert name_of(text) is None
        with pytest.raises(InputError, match="is no name of a model"):
            store.pull(text)


# -- the command


LIMITED = """
import resource, runpy, sys
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
runpy.run_module("mesh.commands.coord", run_name="__main__", alter_sys=True)
"""  # a process that limits itself: this one has threads, so it doesn't fork


def command(
    *arguments: str, hub: Hub, folder: Path, file_bytes_max: int | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "MESH_MODELS": str(folder), "PYTHONPATH": str(ROOT)}
    program = ["-m", "mesh.commands.coord"] if file_bytes_max is None else ["-c", LIMITED, str(file_bytes_max)]
    run = [sys.executable, *program, "models", *arguments]
    return subprocess.run(run, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_an_empty_text_is_no_model_and_not_the_folder_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(GOLDEN / "huggingface" / "gpt2", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no model is named"):
        mesh.load("")
    assert mesh.load(".").weights


def test_notes_that_are_damaged_are_none(tmp_path: Path) -> None:
    folder, file = (
        tmp_path / "org" / "name",
        '{"revision": "r", "files": {"x": {"size_bytes": 1e400, "checksum": "x"}}}',
    )
    folder.mkdir(parents=True)
    for notes in (file, "[" * 100_000, "[]"):
        (folder / ".pulled").write_text(notes)
        assert ModelStore(tmp_path).find("org/name") == folder
        assert [model.revision for model in ModelStore(tmp_path).models()] == [""]
    assert ModelStore(tmp_path).find("o" * 300 + "/name") is None


@pytest.mark.parametrize("text", ["x" * 5000, "org/" + "x" * 5000])
def test_a_text_that_is_too_long_for_a_path_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError, match="cannot be a path"):
        mesh.load(text)


def test_the_command_pulls_lists_and_deletes(hub: Hub, tmp_path: Path) -> None:
    pulled = command("pull", "org/llama", hub=hub, folder=tmp_path)
    assert pulled.returncode == 0 and pulled.stdout.strip() == str(tmp_path / "org" / "llama"), pulled.stderr
    assert "model-00004-of-00004.safetensors: " in pulled.stderr
    listed = command("list", "--json", hub=hub, folder=tmp_path)
    assert [(row["name"], row["whole"]) for row in json.loads(listed.stdout)] == [("org/llama", True)]
    assert "org/llama" in command("list", hub=hub, folder=tmp_path).stdout
    asked = len(hub.asked)
    assert (
        command("pull", "org/llama", "--offline", hub=hub, folder=tmp_path).returncode == 0 and len(hub.asked) == asked
    )
    assert "is deleted" in command("rm", "org/llama", hub=hub, folder=tmp_path).stdout
    refused = command("pull", "org/llama", "--offline", hub=hub, folder=tmp_path)
    assert refused.returncode == 2 and "is not in the store" in refused.stderr and "Traceback" not in refused.stderr


def test_a_disk_that_fills_up_is_told_and_what_came_stays(hub: Hub, tmp_path: Path) -> None:
    """A process may write files of 15 MiB here, which the system refuses to exceed as it does on a full disk."""
    limit = 15 << 20
    full = command("pull", "org/large", hub=hub, folder=tmp_path, file_bytes_max=limit)
    assert full.returncode == 1 and "is full: File too large" in full.stderr, full.stderr
    assert "Traceback" not in full.stderr
    hub.asked.clear()
    assert command("pull", "org/large", hub=hub, folder=tmp_path).returncode == 0
    assert hub.ranges("model.safetensors") == [f"bytes={limit}-"]
    assert (tmp_path / "org" / "large" / "model.safetensors").read_bytes() == LARGE


def test_without_the_library_the_error_names_the_extra(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"pip install 'graph-mesh\[hub\]', or give the folder"):
        store.pull("org/gpt2")
    assert issubclass(ConfigError, MeshError)
