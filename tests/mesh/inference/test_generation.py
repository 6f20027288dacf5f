"""Causal models go on with texts as transformers lets them (tests/golden/make_generation_reference.py)."""

from __future__ import annotations

import json
import random
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases.language import GOLDEN, golden_model, gpt2_folder, with_bytes
from support.kept_kernels import native_engine

import mesh
from mesh.core.array import handle_array
from mesh.errors import InputError
from mesh.inference import kv_cache_step
from mesh.inference.generation_runner import text_of
from mesh.inference.kv_pages import NOBODYS, PAGE
from mesh.inference.sampling import _limited, chosen, fed
from mesh.inference.settings import GREEDY, Room, Sampling
from mesh.tracing.trace import trace_full
from wire.ir.dtypes import dtype_of
from worker.cpu.engine import ordered
from worker.native.engine import NativeEngine

REFERENCE: dict[str, Any] = json.loads((GOLDEN / "generation.json").read_text())


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_greedy_tokens_are_those_of_transformers_in_a_batch_of_different_lengths(name: str) -> None:
    reference, model = REFERENCE[name], golden_model(name)
    most = min(map(len, reference["tokens"]))  # the longest prompt may leave room for fewer than 32
    found = model.generate(reference["prompts"], max_new_tokens=most, ends=())
    assert found == [tokens[:most] for tokens in reference["tokens"]]
    assert model.generate(reference["prompts"][0], max_new_tokens=32, ends=()) == reference["tokens"][0]


def test_a_text_is_the_same_alone_and_in_a_batch_whatever_the_seed() -> None:
    model, how = golden_model("llama"), {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "max_new_tokens": 8, "ends": ()}
    prompts = [[3, 4], list(range(2, 21)), [7]]
    together = model.generate(prompts, seed=11, **how)
    assert [model.generate(prompt, seed=11 + place, **how) for place, prompt in enumerate(prompts)] == together
    assert model.generate(prompts, seed=12, **how) != together


@pytest.fixture(scope="module")
def native() -> Iterator[NativeEngine]:
    engine = native_engine(threads=2)
    yield engine
    engine.close()


def kept_by(engine: NativeEngine, room: Room, table: Any, prompts: list[list[int]], steps: int) -> list[dict[str, Any]]:
    """The state of every text after some steps of greedy texts, as far as it is written, in the order of its pages."""
    model, traced, executable = golden_model("llama"), None, None
    decoder, params = text_of(model).decoder, {key: handle_array(handle) for key, handle in model.handles.items()}
    step = kv_cache_step.stepper(decoder, room, params)
    state: Any = kv_cache_step.empty(decoder, room, dtype_of(model.weights[decoder.table]))
    state = {key: np.asarray(value) for key, value in state.items()}
    start, table = np.zeros(room.slots, np.int32), np.array(table, np.int32)
    for _ in range(steps):
        ids = np.zeros((room.slots, room.chunk), np.int32)
        count, follow = np.zeros(room.slots, np.int32), np.zeros(room.slots, np.bool_)
        for slot, prompt in enumerate(prompts):
            rest = prompt[start[slot] :][: room.chunk]
            ids[slot, : len(rest)] = rest
            count[slot], follow[slot] = max(len(rest), 1), not rest
        feeds = kv_cache_step.feeds(room, ids, start.copy(), count, follow, table, fed([GREEDY] * room.slots))
        traced = traced or trace_full(step, state, *feeds)
        bound = traced.bind(state, *feeds)
        values = {**bound.inputs, **{key: np.asarray(handle) for key, handle in bound.params.items()}}
        executable = executable or engine.compile(traced.graph)
        state, _ = traced.unflatten(engine.run(executable, ordered(traced.graph, values)))
        start += count
    assert not any(array[NOBODYS].any() for array in state.values() if array.ndim > 1), "nobody's page is written"
    return [
        {
            key: np.concatenate(each[table[slot]], axis=1)[:, : start[slot]] if each.ndim > 1 else each[slot]
            for key, each in state.items()
        }
        for slot in range(len(prompts))
    ]


def test_the_native_engine_keeps_the_same_bits_of_a_text_alone_and_in_every_batch(native: NativeEngine) -> None:
    """With other texts beside it, other pages and more of them, and its prompt read in other pieces."""
    prompts = [[3, 4, 9, 1, 7], list(range(2, 21)), [7], [8, 6, 4]]
    pages = [[7, 2, 10], [9, 1, 8], [4, 12, 3], [5, 11, 6]]
    together = kept_by(native, Room(4, 13, 48, 8), pages, prompts, 8)
    for prompt, beside in zip(prompts, together, strict=True):
        length = beside["keys.0"].shape[1]
        (alone,) = kept_by(native, Room(1, 3, 32, 1), [[1, 2]], [prompt], length)
        for key, array in beside.items():
            assert alone[key].tobytes() == array.tobytes(), f"{key} of {prompt}"


@pytest.mark.parametrize(
    ("counts", "first", "branches", "computed"),
    [
        ([1, 1, 1, 1], [0, 1, 2, 3], [True, False], 4),
        ([1, 1, 0, 6], [0, 1, 2, 4], [False, True], 4 + 8),
        ([8, 5, 1, 1], [0, 8, 16, 24], [False, False], 32),
    ],
)
def test_tokens_lie_behind_each_other_as_the_branch_of_a_step_computes_them_and_zeros_behind_them(
    counts: list[int], first: list[int], branches: list[bool], computed: int
) -> None:
    room = Room(4, 13, 48, 8)
    assert room.readers == 1
    ids, start = 1 + np.arange(32, dtype=np.int32).reshape(4, 8), np.array([0, 9, 3, 5], np.int32)
    count, follow = np.array(counts, np.int32), np.array([False, True, False, False])
    table = np.zeros((4, 3), np.int32)
    given = kv_cache_step.feeds(room, ids, start, count, follow, table, fed([GREEDY] * 4))
    laid, positions, source, used, _, _, places, readers, _, _, does, _ = given
    assert used == computed and not laid[used:].any() and not positions[used:].any()
    assert [bool(each) for each in does] == branches
    assert places.tolist() == first
    for slot, many in enumerate(counts):
        own = first[slot] + np.arange(many)
        assert laid.reshape(-1)[own].tolist() == ids[slot, :many].tolist()
        assert positions.reshape(-1)[own].tolist() == list(range(start[slot], start[slot] + many))
    assert readers.tolist() == ([3] if branches[1] else [4])
    assert np.flatnonzero(source >= 0).tolist() == [first[1]], "the second text goes on from what was chosen"
    assert source.reshape(-1)[first[1]] == 1


def test_attention_over_more_pages_gives_the_same_bits(native: NativeEngine) -> None:
    """A program that has branches for several numbers of pages, and one that always reads all."""
    prompt, pages = list(range(2, 40)), np.random.default_rng(5).permutation(30)[:20] + 1
    assert kv_cache_step.widths(Room(1, 31, 320, 8)) == (8, 16, 20)
    (branched,) = kept_by(native, Room(1, 31, 320, 8), [pages], [prompt], 120)
    (plain,) = kept_by(native, Room(1, 13, 192, 40), [range(1, 13)], [prompt], 116)
    assert branched["keys.0"].shape[1] > kv_cache_step.WIDTH_MIN * PAGE, "two of the branches were taken"
    for key, array in branched.items():
        assert plain[key].tobytes() == array.tobytes(), key


def test_a_cache_that_is_full_grows_until_there_are_no_positions(tmp_path: Path) -> None:
    model = mesh.load(gpt2_folder(tmp_path, layers=1, positions=150))
    prompt = [1, 2, 3]
    found = model.generate(prompt, max_new_tokens=148)
    assert len(found) == 150 + 1 - len(prompt), "one is told that has no position of its own"
    assert model.generate(prompt) == found[:128], "nobody asked for more"
    assert model.generate([*prompt, *found[:99]]) == found[99:], "nobody asked for more than there is room for"
    ids = np.array([[*prompt, *found[:-1]]], np.int32)
    assert np.argmax(np.asarray(model(ids))[0], -1)[2:].tolist() == found


def test_ends_and_stops() -> None:
    model = golden_model("gpt2")
    prompt, said = [26, 31, 48, 37, 32, 28, 28, 46, 15], REFERENCE["gpt2"]["tokens"][3]
    assert model.generate(prompt, max_new_tokens=14, ends=(1,)) == said[:5]
    assert model.generate(prompt, max_new_tokens=14, ends=1) == said[:5]
    assert model.generate(prompt, max_new_tokens=14, stop=[47, 10]) == said[:6]
    assert model.generate([prompt, prompt], max_new_tokens=14, ends=iter([1])) == [said[:5]] * 2
    assert model.generate([prompt, prompt], max_new_tokens=14, stop=iter([47, 10])) == [said[:6]] * 2
    pieces = model.generate(prompt, max_new_tokens=14, stream=True)
    assert next(pieces) == said[0]
    pieces.close()
    assert list(model.generate([prompt, [26]], max_new_tokens=3, stream=True))[:3] == [(0, each) for each in said[:3]]


@pytest.mark.parametrize(
    ("prompt", "options", "says"),
    [
        ([], {}, "there is no prompt"),
        ([50], {}, "the model has 50 tokens, and no token 50"),
        ([1] * 33, {}, "the model has 32 positions, got 33 tokens"),
        (
            [1] * 3,
            {"max_new_tokens": 100},
            "32 positions: .* 3 tokens there is room for 30 new .*max_new_tokens = 100. Ask for max_new_tokens=30",
        ),
        ([1.5], {}, "a prompt is a text or a list of tokens"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens counts from 1, got 0"),
        ([1], {"max_new_tokens": 2.5}, r"max_new_tokens counts from 1, got 2\.5"),
        ([1], {"temperature": -1.0}, "temperature is a number, 0 or more"),
        ([1], {"temperature": "hot"}, "temperature is a number, 0 or more"),
        ([1], {"top_p": 0.0}, "top_p is a probability"),
        ([1], {"top_k": -1}, "top_k, .*, counts from 0, got -1"),
        ([1], {"seed": 1 << 70}, "seed is an int of up to 64 bits"),
        ([1], {"seed": "x"}, "seed is an int of up to 64 bits"),
        ([1], {"ends": "x"}, "ends='x' is no token"),
        ([1], {"ends": [3, 50]}, "ends: the model has 50 tokens, and no token 50"),
        ([1], {"stop": "end"}, "is text, and the prompt is tokens"),
        ([1], {"stop": -1}, "stop: the model has 50 tokens, and no token -1"),
        ([1], {"stop": 1.5}, r"stop=1\.5 is no text or token"),
        ([1], {"stop": True}, "stop=True is no text or token"),
        ([1], {"stop": object}, "is no text or token, nor several of them"),
        ([1], {"stream": "yes"}, "stream is True or False, got 'yes'"),
        ([1], {"temperature": float("nan")}, "temperature is a number, 0 or more"),
        ([1], {"temperature": True}, "temperature is a number, 0 or more"),
        ([1], {"max_new_tokens": True}, "max_new_tokens counts from 1, got True"),
        ([1], {"max_tokens": 3}, r"unexpected keyword argument 'max_tokens'\. Did you mean 'max_new_tokens'\?"),
        ([1], {"mesh": 3}, "mesh is a mesh.Mesh, got 3"),
        ({1, 2}, {}, "{1, 2} is no prompt"),
        (None, {}, "None is no prompt"),
        ([[1], []], {}, "has at least one token"),
        ([[[1]]], {}, "a prompt is a text or a list of tokens"),
        ([[[1], [1, 2]]], {}, "a prompt is a text or a list of tokens, got several"),
        ([[1, [2]]], {}, "a prompt is a text or a list of tokens, got several"),
        (np.array(5), {}, r"array\(5\) is no prompt"),
        ("text", {}, r"tokenizer.json does not exist"),
    ],
)
def test_what_cannot_be_is_named(prompt: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        golden_model("gpt2").generate(prompt, **options)


def test_numbers_may_be_numpys_and_a_tiny_temperature_is_as_good_as_none() -> None:
    model = golden_model("llama")
    said = model.generate([3, 4], max_new_tokens=np.int64(5), top_k=np.int32(0), seed=np.int64(3), temperature=1e-40)
    assert said == model.generate([3, 4], max_new_tokens=5)
    last = (1 << 64) - 1
    rows = model.generate([[3, 4], [3, 4]], max_new_tokens=5, temperature=0.9, seed=last)
    assert rows[1] == model.generate([3, 4], max_new_tokens=5, temperature=0.9, seed=0), "seeds begin anew at the end"


def test_numbers_of_numpy_are_read_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Sampling(temperature=np.float32(0.5)).temperature == np.float32(0.5)


def test_an_iterator_that_nobody_reads_begins_nothing() -> None:
    before = set(threading.enumerate())
    pieces = golden_model("llama").generate([3], max_new_tokens=2, ends=(), stream=True)
    assert before >= set(threading.enumerate())
    assert len(list(pieces)) == 2


def test_a_model_that_is_no_language_model_says_so() -> None:
    with pytest.raises(InputError, match="does not generate text"):
        golden_model("bert").generate([1, 2])


# -- sampling ---------------------------------------------------------------------------------------------


def drawn(logits: np.ndarray, count: int, **how: Any) -> np.ndarray:
    """Tokens drawn from one row of logits at `count` positions."""
    rows = np.broadcast_to(logits, (count, logits.size))
    settings = fed([Sampling(**how)] * count)
    return np.asarray(mesh.function(chosen)(rows, np.arange(count, dtype=np.int32), settings))


def test_draws_have_the_probabilities_of_the_temperature() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    for temperature in (0.5, 1.0, 2.0):
        wanted = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
        shares = np.bincount(drawn(logits, 20_000, temperature=temperature, seed=3), minlength=4) / 20_000
        np.testing.assert_allclose(shares, wanted, atol=0.02)


def test_top_k_and_top_p_leave_the_likeliest() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.05, 0.3, 0.15], np.float32))
    kept = [
        ({"top_k": 2}, {1, 3}),
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.69}, {1, 3}),
        ({"top_p": 0.71}, {1, 3, 4}),
        ({"top_k": 3, "top_p": 0.5}, {1, 3}),  # of what top_k left: 0.47, 0.35, 0.18
        ({"top_k": 9}, {0, 1, 2, 3, 4}),
        ({"top_p": 1e-6}, {1}),
    ]
    for how, wanted in kept:
        assert set(drawn(logits, 1000, temperature=1.0, seed=1, **how).tolist()) == wanted, how


def test_the_likeliest_and_the_hidden_are_the_same_at_every_temperature() -> None:
    logits = np.array([-50.0, -30.0, -31.0, -40.0], np.float32)
    for temperature in (5e-324, 1e-40, 1e-30, 1e-29, 1e-15):
        for how in ({}, {"top_k": 1}, {"top_k": 3}, {"top_p": 0.9}, {"top_k": 2, "top_p": 0.5}):
            assert set(drawn(logits, 8, temperature=temperature, seed=1, **how).tolist()) == {1}, (temperature, how)
    for temperature in (1e-30, 1.0, 1e25, 1e300):
        how = fed([Sampling(temperature, seed=1)] * 200) | {"mask": np.full((200, 1), 0b1001, np.uint32)}
        rows = np.broadcast_to(logits, (200, 4)), np.arange(200, dtype=np.int32)
        assert {0, 3} >= set(np.asarray(mesh.function(chosen)(*rows, how)).tolist()), temperature


def test_a_text_without_top_p_keeps_all_its_tokens_beside_one_that_has_it() -> None:
    """What the likeliest have together is rounded, and comes to 1 before the last ones are added."""
    scores = 5 * np.random.default_rng(0).standard_normal((3, 5000)).astype(np.float32)
    how = fed([Sampling(1.0), Sampling(1.0, top_k=4900), Sampling(1.0, top_p=0.5)])
    kept = np.sum(np.asarray(mesh.function(_limited)(scores, how)) == scores, axis=1)
    assert kept[0] == 5000 and kept[1] == 4900 and 0 < kept[2] < 100


def test_every_row_of_a_batch_is_drawn_in_its_own_way() -> None:
    logits = np.tile(np.array([0.0, 3.0, 2.0, 1.0], np.float32), (4, 1))
    settings = [Sampling(), Sampling(1.0, top_k=1, seed=4), Sampling(5.0, seed=9), Sampling(1e-4)]
    found = [
        np.asarray(mesh.function(chosen)(logits, np.full(4, at, np.int32), fed(settings))).tolist() for at in range(40)
    ]
    assert {(row[0], row[1], row[3]) for row in found} == {(1, 1, 1)} and len({row[2] for row in found}) == 4


# -- text -------------------------------------------------------------------------------------------------


def test_streamed_text_never_splits_a_character(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    from mesh.inference.tokenizer import Detokenizer, Tokenizer

    tokenizer = Tokenizer(with_bytes(gpt2_folder(tmp_path / "plain", layers=1), tmp_path / "model"))
    text = "naïve 日本語 🙂👩‍👩‍👧 end\n"
    with pytest.raises(InputError, match="ud800' at 3, which is no character"):
        tokenizer.ids("abc\ud800")
    ids = tokenizer.ids(text)
    assert len(ids) == len(text.encode()) and tokenizer.text(ids) == text
    writing = Detokenizer(tokenizer)
    pieces = [writing.add(token) for token in ids]
    assert "".join(pieces) == text and writing.rest() == "" and all("\ufffd" not in piece for piece in pieces)
    broken = Detokenizer(tokenizer)
    assert "".join([broken.add(token) for token in tokenizer.ids("a🙂")[:-1]]) == "a" and "\ufffd" in broken.rest()


def test_bytes_that_are_no_text_do_not_end_a_stream(tmp_path: Path) -> None:
    """Llama's decoder marks a run of byte tokens as a whole if one of it is no text, also what was told before."""
    tokenizers = pytest.importorskip("tokenizers")
    from mesh.inference.tokenizer import Detokenizer, Tokenizer

    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"\u2581the": 256, "\u2581end": 257}
    own = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], byte_fallback=True))
    steps = tokenizers.decoders
    own.decoder = steps.Sequence(
        [steps.Replace("\u2581", " "), steps.ByteFallback(), steps.Fuse(), steps.Strip(" ", 1, 0)]
    )
    own.save(str(tmp_path / "tokenizer.json"))
    euro = list("\u20ac".encode())
    writing = Detokenizer(Tokenizer(tmp_path))
    assert "".join(map(writing.add, [256, *euro, 257])) + writing.rest() == "the\u20ac end"
    broken = Detokenizer(Tokenizer(tmp_path))
    pieces = "".join(map(broken.add, [0x41, euro[0], 256, *euro, 257])) + broken.rest()
    assert pieces.startswith("A") and pieces.endswith("the\u20ac end")


@pytest.mark.parametrize("seed", range(20))
def test_no_word_is_lost_behind_bytes_that_are_no_text(tmp_path: Path, seed: int) -> None:
    """The words are those that the library gives for all tokens at once."""
    tokenizers = pytest.importorskip("tokenizers")
    from mesh.inference.tokenizer import Detokenizer, Tokenizer

    words = {"\u2581the": 256, "\u2581a": 257, "end": 258}
    own = tokenizers.Tokenizer(
        tokenizers.models.BPE({f"<0x{byte:02X}>": byte for byte in range(256)} | words, [], byte_fallback=True)
    )
    steps = tokenizers.decoders
    own.decoder = steps.Sequence(
        [steps.Replace("\u2581", " "), steps.ByteFallback(), steps.Fuse(), steps.Strip(" ", 1, 0)]
    )
    own.save(str(tmp_path / "tokenizer.json"))
    rng, tokenizer = random.Random(seed), Tokenizer(tmp_path)
    for _ in range(20):
        ids = [rng.choice([rng.randrange(128, 256), *"\u20ac".encode(), *words.values()]) for _ in range(12)]
        writing = Detokenizer(tokenizer)
        told, whole = "".join(map(writing.add, ids)) + writing.rest(), tokenizer.text(ids)
        assert [told.count(word) for word in ("the", " a", "end", " ")] == [
            whole.count(word) for word in ("the", " a", "end", " ")
        ], ids


@pytest.mark.parametrize("stop", ["lo w", "world", "d", "hello world"])
def test_text_ends_before_a_stop_and_holds_back_its_beginnings(tmp_path: Path, stop: str) -> None:
    pytest.importorskip("tokenizers")
    from mesh.inference.tokenizer import Detokenizer, Tokenizer

    tokenizer = Tokenizer(with_bytes(gpt2_folder(tmp_path / "plain", layers=1), tmp_path / "model"))
    writing = Detokenizer(tokenizer, [stop, "never"])
    text = "hello wor hello world and more"
    shown = ""
    for token in tokenizer.ids(text):
        shown += writing.add(token)
        assert stop not in shown and text.startswith(shown)
    assert writing.stopped and shown == text[: text.index(stop)] and writing.rest() == ""


def test_text_in_text_out(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    model = mesh.load(with_bytes(gpt2_folder(tmp_path / "plain", layers=1), tmp_path / "model"))
    text = model.generate("Once", max_new_tokens=12)
    assert isinstance(text, str) and "".join(model.generate("Once", max_new_tokens=12, stream=True)) == text
    assert model.generate("Once", max_new_tokens=12, stop=text[3]) == text[: text.index(text[3])]
