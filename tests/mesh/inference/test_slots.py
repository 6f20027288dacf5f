"""The machine of a running batch, with a worker that remembers which token is where, and chooses by a hash of them.

What a text is told depends on all of its tokens as they lie in its pages: so a page that is another text's, or that was
given to another one too early, changes what is told.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field

import numpy as np
import pytest

from mesh.inference.continuous_batching import FULL, ROOMY_TOKENS, STOP, Feeds, Slots, TextRequest, bucket
from mesh.inference.kv_pages import NOBODYS, PAGE, pages_for
from mesh.inference.settings import GREEDY, Room, Sampling

CHUNK = 4


def next_token(tokens: list[int], how: Sampling) -> int:
    return zlib.crc32(repr((tokens, how.seed)).encode()) % 1000


def alone(wish: TextRequest) -> list[int]:
    """What a text becomes when it is the only one."""
    tokens = list(wish.prompt)
    while len(tokens) < len(wish.prompt) + wish.tokens_max:
        tokens.append(next_token(tokens, wish.sampling))
        if tokens[-1] in wish.ends:
            break
    return tokens[len(wish.prompt) :]


@dataclass
class Worker:
    """Its `pool` has a token per place of every page, of the room that it was given."""

    room: Room
    pool: dict[tuple[int, int], int] = field(default_factory=dict)
    last: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.last = [*self.last, *(0 for _ in range(self.room.slots - len(self.last)))]

    def moved(self, room: Room, order: tuple[int, ...]) -> Worker:
        assert room.pages >= self.room.pages, "a page was lost"
        return Worker(room, self.pool, [self.last[slot] for slot in order])

    def step(self, feeds: Feeds) -> list[int]:
        for slot, count in enumerate(feeds.count.tolist()):
            start = int(feeds.start[slot])
            if not count:
                continue
            given = feeds.ids[slot, :count].tolist()
            if feeds.follow[slot]:
                given[0] = self.last[slot]
            table = feeds.table[slot].tolist()
            assert len(table) == pages_for(self.room.length)

            def place(at: int, table: list[int] = table) -> tuple[int, int]:
                assert table[at // PAGE] != NOBODYS and table[at // PAGE] < self.room.pages
                return table[at // PAGE], at % PAGE

            for further, token in enumerate(given):
                assert start + further < self.room.length, "written behind the end"
                self.pool[place(start + further)] = token
            tokens = [self.pool[place(at)] for at in range(start + count)]
            self.last[slot] = next_token(tokens, feeds.settings[slot])
        return list(self.last)


def play(
    wishes: list[TextRequest], seed: int, slots_max: int = 4, die: float = 0.0, length_max: int | None = None,
    pages_max: int = 1 << 20, leave: float = 0.0,
) -> tuple[list[Room], Slots]:  # fmt: skip
    """Texts come at any time, answers too, the state is lost now and then, and so are people's wishes; every text is as
    if it were alone.

    The rooms that the batch had, in turn, and its machine."""
    rng = random.Random(seed)
    slots = Slots(slots_max, CHUNK, length_max, pages_max, min(32, pages_max))
    worker: Worker | None = None
    coming, answers = list(wishes), list[list[int]]()
    heard: dict[int, list[int]] = {wish.number: [] for wish in wishes}
    reasons: dict[int, str] = {}
    rooms: list[Room] = []

    def answer() -> None:
        for told in slots.answer(answers.pop(0)):
            assert told.number not in reasons, "a text goes on behind its end"
            heard[told.number].append(told.token)
            if told.reason:
                reasons[told.number] = told.reason

    left = set[int]()
    turns = 0
    while coming or not slots.idle or answers:
        turns += 1
        assert turns < 100_000, "nothing goes on"
        if coming and rng.random() < 0.3:
            slots.join(coming.pop(0))
        if leave and rng.random() < leave and (there := [wish.number for wish in wishes if wish not in coming]):
            left.add(rng.choice(there))
            slots.leave(max(left))
        if worker is not None and rng.random() < die:
            slots.lost()
            answers.clear()
            worker = None
        room = slots.wanted()
        if worker is None or room != slots.room:
            while answers:
                answer()
            room = slots.wanted()
            order = slots.order(room)
            worker = Worker(room) if worker is None else worker.moved(room, order)
            slots.moved(room, order)
            rooms.append(room)
        if len(answers) < 3 and (feeds := slots.ask()) is not None:
            answers.append(worker.step(feeds))
        if answers and rng.random() < 0.5:
            answer()
        assert slots.under_way == len(answers)
        assert slots.pages.count == slots.room.pages <= pages_max, "the budget is exceeded"
        needed = sum(pages_for(text.fed) for text in slots._texts if text is not None)
        assert slots.pages.held <= needed + sum(text.pages_least for text in slots._texts if text is not None)
    assert slots.pages.held == 0, "pages of texts that are over"
    for wish in wishes:
        if wish.number in left:
            assert heard[wish.number] == alone(wish)[: len(heard[wish.number])]
            continue
        assert heard[wish.number] == alone(wish)
        assert reasons[wish.number] == (STOP if heard[wish.number][-1] in wish.ends else FULL)
    return rooms, slots


def wishes(seed: int, count: int) -> list[TextRequest]:
    """Texts of any lengths, of which many begin alike."""
    rng = random.Random(seed)
    beginning = tuple(rng.randrange(1000) for _ in range(3 * PAGE))
    return [
        TextRequest(
            number, beginning[: rng.choice((0, 0, PAGE, 2 * PAGE + 3, 3 * PAGE))]
            + tuple(rng.randrange(1000) for _ in range(rng.choice((1, 3, 4, 5, 30)))), rng.choice((1, 2, 9, 60)),
            frozenset(rng.sample(range(1000), 30)), Sampling(seed=number),
        )
        for number in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_every_text_is_as_if_it_were_alone(seed: int) -> None:
    play(wishes(seed, 12), seed)


@pytest.mark.parametrize("seed", range(20))
def test_texts_go_on_where_they_were_after_the_state_is_lost(seed: int) -> None:
    play(wishes(seed, 8), seed, die=0.1)


@pytest.mark.parametrize("seed", range(40))
def test_texts_that_there_are_too_few_pages_for_wait_and_go_on(seed: int) -> None:
    """The longest text alone fills the pool, and some of them are not wanted any more."""
    most = max(pages_for(len(wish.prompt) + wish.tokens_max - 1) for wish in wishes(seed, 10))
    play(wishes(seed, 10), seed, die=0.02 * (seed % 2), pages_max=1 + most + seed % 5, leave=0.01 * (seed % 3))


def test_in_a_pool_that_is_too_small_for_two_the_later_one_is_put_back_once() -> None:
    _, slots = play([TextRequest(number, (number,), 10 * PAGE) for number in range(2)], 1, pages_max=12)
    assert slots.put_back == 1


def test_of_a_prompt_that_was_read_before_only_the_rest_is_read() -> None:
    shared = tuple(range(32 * PAGE))
    slots = Slots(1, CHUNK, pages_max=100)
    worker = Worker(slots.room)
    read = []
    for number, more in enumerate(((1, 2, 3), (4, 5), ())):
        wish = TextRequest(number, (*shared, *more), 3)
        before = slots.read
        slots.join(wish)
        heard = []
        while not slots.idle:
            room = slots.wanted()
            if room != slots.room:
                worker = worker.moved(room, slots.order(room))
                slots.moved(room)
            feeds = slots.ask()
            assert feeds is not None
            heard += [told.token for told in slots.answer(worker.step(feeds))]
        assert heard == alone(wish)
        read.append(slots.read - before - 2)  # two of its three tokens are fed again, since no step was asked ahead
    assert read == [32 * PAGE + 3, 2, PAGE], "the last token of a prompt is always read, with its page"
    assert slots.spared == 63 * PAGE


def test_pages_grow_with_the_tokens_of_a_text_and_a_long_prompt_holds_nobody_up() -> None:
    slots = Slots(2, CHUNK)
    slots.join(TextRequest(0, (1,), 100))
    slots.join(TextRequest(1, tuple(range(40 * PAGE)), 3))
    worker = Worker(slots.wanted())
    slots.moved(worker.room)
    for turn in range(1, 60):
        feeds = slots.ask()
        assert feeds is not None
        told = slots.answer(worker.step(feeds))
        assert [one.number for one in told] == [0], "a token of the text at every step"
        own = slots._texts[0]
        assert own is not None and max(2, pages_for(turn)) >= len(own.pages) >= pages_for(turn)
    slots.leave(1)
    assert slots.pages.held == len(own.pages), "only a short text is left"


def test_a_loss_at_every_single_step_changes_no_token() -> None:
    wish = TextRequest(0, tuple(range(10)), 12, sampling=Sampling(seed=5))
    for deadline in range(20):
        slots, heard, steps = Slots(1, CHUNK), list[int](), 0
        slots.join(wish)
        worker = Worker(slots.wanted())
        slots.moved(worker.room)
        while not slots.idle:
            if steps == deadline:
                slots.lost()
                worker = Worker(worker.room)
            steps += 1
            feeds = slots.ask()
            assert feeds is not None
            heard += [told.token for told in slots.answer(worker.step(feeds))]
        assert heard == alone(wish)


def test_a_batch_grows_with_its_texts_and_no_further_than_it_may() -> None:
    rooms, _ = play(
        [TextRequest(0, tuple(range(60)), 100), *(TextRequest(at, (at,), 5) for at in range(1, 12))], 1, slots_max=4
    )
    assert max((room.slots, room.pages, room.length) for room in rooms) == (4, 16, 1024)
    assert play([TextRequest(0, tuple(range(60)), 41)], 1, length_max=100)[0] == [Room(1, 8, 100, CHUNK)]
    slots = Slots(4, CHUNK, pages_max=1 << 10, pages_kept=64)
    slots.join(TextRequest(0, tuple(range(1000)), 3000))
    assert slots.wanted() == Room(1, 128, 4096, CHUNK), "a large pool has room for some tokens more, and not for all"
    assert [bucket(count) for count in (1, 2, 3, 8, 9)] == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("seed", range(10))
def test_a_batch_shrinks_when_texts_that_end_leave_one_with_much_to_say(seed: int) -> None:
    long, short = TextRequest(0, (1, 2, 3), 300), [TextRequest(at, (at,), 5) for at in range(1, 8)]
    rooms, _ = play([*short, long] if seed % 2 else [long, *short], seed, slots_max=8)
    most = max(rooms, key=lambda room: room.slots)
    assert most.slots > 2 and rooms[-1].slots == 1, rooms
    assert len(rooms) < 12, "it does not go to and fro"


def test_a_batch_becomes_no_smaller_for_a_few_tokens() -> None:
    rooms, _ = play(
        [TextRequest(0, (1,), ROOMY_TOKENS), *(TextRequest(at, (at,), 5) for at in range(1, 8))], 3, slots_max=8
    )
    assert [room.slots for room in rooms] == sorted(room.slots for room in rooms)


def test_texts_keep_their_order_in_a_smaller_room_and_one_that_leaves_on_the_way_leaves_a_gap() -> None:
    slots = Slots(4, CHUNK)
    for number in range(4):
        slots.join(TextRequest(number, (number,), 3))
    worker = Worker(slots.wanted())
    slots.moved(worker.room)
    first = slots.ask()
    assert first is not None
    slots.answer(worker.step(first))
    slots.leave(0)
    slots.leave(2)
    room = Room(2, slots.room.pages, slots.room.length, CHUNK)
    order = slots.order(room)
    assert order == (1, 3)
    slots.leave(1)
    slots.moved(room, order)
    following = slots.ask()
    assert following is not None and following.count.tolist() == [0, 1] and following.start[1] == 1
    assert [told.number for told in slots.answer(worker.moved(room, order).step(following))] == [3]


def test_who_leaves_makes_room_for_who_waits() -> None:
    slots = Slots(1, CHUNK)
    slots.join(TextRequest(0, (1, 2), 50))
    slots.join(TextRequest(1, (3,), 2))
    slots.join(TextRequest(2, (4,), 2))
    worker = Worker(slots.wanted())
    slots.moved(worker.room)
    first = slots.ask()
    assert first is not None and len(slots.waiting) == 2
    slots.leave(0)
    slots.leave(1)
    second = slots.ask()
    assert second is not None and second.ids[0, 0] == 4 and not second.follow[0], "what is under way is nobody's"
    assert slots.answer(worker.step(first)) == []
    assert [told.number for told in slots.answer(worker.step(second))] == [2]


def test_a_slot_without_a_text_has_nothing_to_do() -> None:
    slots = Slots(2, CHUNK)
    slots.join(TextRequest(0, (1,), 3))
    slots.moved(Room(2, 8, 1024, CHUNK))
    feeds = slots.ask()
    assert feeds is not None and feeds.count.tolist() == [1, 0] and feeds.settings[1] is GREEDY
    assert feeds.ids.dtype == np.int32
