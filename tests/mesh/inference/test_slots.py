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
from support.by_seed import seeds

from mesh.inference.continuous_batching import FULL, ROOMY_TOKENS, STOP, ChosenToken, Feeds, Slots, TextRequest, bucket
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

    def step(self, feeds: Feeds) -> list[list[int]]:
        assert feeds.drafts is not None
        behind = [[token] for token in self.last]
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
            tokens, how = [self.pool[place(at)] for at in range(start + count)], feeds.settings[slot]
            known = start + count - int(feeds.drafts[slot])
            behind[slot] = [next_token(tokens[:length], how) for length in range(known, start + count + 1)]
            self.last[slot] = behind[slot][0]
        return [row + [-1] * (CHUNK - len(row)) for row in behind]


def play(
    wishes: list[TextRequest], seed: int, slots_max: int = 4, die: float = 0.0, length_max: int | None = None,
    pages_max: int = 1 << 20, leave: float = 0.0, right: float | None = None,
) -> tuple[list[Room], Slots]:  # fmt: skip
    """Texts come at any time, answers too, the state is lost now and then, and so are people's wishes; every text is as
    if it were alone.  With `right` texts wait for drafts now and then, which are right in so many cases.

    The rooms that the batch had, in turn, and its machine."""
    rng = random.Random(seed)
    slots = Slots(slots_max, CHUNK, length_max, pages_max, min(32, pages_max))
    worker: Worker | None = None
    coming, answers = list(wishes), list[list[list[int]]]()
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
        if right is not None and rng.random() < 0.5:
            slots.speculate(rng.choice(wishes).number, rng.random() < 0.8)
        for number, most in slots.due():
            assert right is not None and most >= 0
            if rng.random() < 0.5:
                (wish,) = [wish for wish in wishes if wish.number == number]
                slots.propose(number, drafts_of(wish, heard[number], rng, right))
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
        assert slots.in_flight == len(answers)
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


def drafts_of(wish: TextRequest, heard: list[int], rng: random.Random, right: float) -> list[int]:
    """Up to as many drafts as a step has room for, each right in so many cases once those before it are."""
    tokens = [*wish.prompt, *heard]
    for _ in range(rng.randrange(CHUNK)):
        tokens.append(next_token(tokens, wish.sampling) if rng.random() < right else rng.randrange(1000))
    return tokens[len(wish.prompt) + len(heard) :]


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


@pytest.mark.parametrize("seed", seeds(8, 20))
def test_every_text_is_as_if_it_were_alone(seed: int) -> None:
    play(wishes(seed, 12), seed)


@pytest.mark.parametrize("seed", seeds(8, 20))
def test_texts_go_on_where_they_were_after_the_state_is_lost(seed: int) -> None:
    play(wishes(seed, 8), seed, die=0.1)


@pytest.mark.parametrize("seed", seeds(15, 40))
def test_texts_that_there_are_too_few_pages_for_wait_and_go_on(seed: int) -> None:
    """The longest text alone fills the pool, and some of them are not wanted any more."""
    most = max(pages_for(len(wish.prompt) + wish.tokens_max - 1) for wish in wishes(seed, 10))
    play(wishes(seed, 10), seed, die=0.02 * (seed % 2), pages_max=1 + most + seed % 5, leave=0.01 * (seed % 3))


@pytest.mark.parametrize("right", [0.0, 0.8, 1.0])
def test_drafts_change_no_text_whether_they_are_right_or_not(right: float) -> None:
    checked = [one for seed in range(10) for one in play(wishes(seed, 12), seed, right=right)[1].checked]
    drafted, accepted = (sum(getattr(one, what) for one in checked) for what in ("drafted", "accepted"))
    assert (
        drafted > 200 and {0.0: accepted == 0, 0.8: drafted / 2 < accepted < drafted, 1.0: accepted == drafted}[right]
    )


@pytest.mark.parametrize("seed", seeds(15, 40))
def test_drafts_change_no_text_where_the_state_is_lost_or_there_are_few_pages(seed: int) -> None:
    most = max(pages_for(len(wish.prompt) + wish.tokens_max - 1) for wish in wishes(seed, 10))
    pages_max = 1 + most + seed % 5 if seed % 2 else 1 << 20
    play(wishes(seed, 10), seed, die=0.02 * (seed % 3), pages_max=pages_max, leave=0.01 * (seed % 3), right=0.7)


def test_right_drafts_give_a_token_each_and_one_more_in_one_step() -> None:
    wish = TextRequest(0, (7,), 100, sampling=Sampling(seed=3))
    slots, heard, steps = Slots(1, CHUNK), list[int](), 0
    slots.join(wish)
    slots.speculate(0, True)
    worker = Worker(slots.wanted())
    slots.moved(worker.room)
    true = alone(wish)
    while not slots.idle:
        slots.speculate(0, True)
        for number, most in slots.due():
            slots.propose(number, true[len(heard) :][: CHUNK - 1])
            assert most == 99 - len(heard)
        feeds = slots.ask()
        assert feeds is not None
        told = slots.answer(worker.step(feeds))
        steps += 1
        heard += [one.token for one in told]
    assert heard == true and steps == 1 + -(-99 // CHUNK), "the first token comes with the prompt"


def test_a_draft_that_ends_a_text_is_its_last_token() -> None:
    wish = TextRequest(0, (7,), 100, sampling=Sampling(seed=3))
    true = alone(wish)
    ending = TextRequest(0, (7,), 100, frozenset({true[2]}), sampling=Sampling(seed=3))
    slots, heard = Slots(1, CHUNK), list[ChosenToken]()
    slots.join(ending)
    worker = Worker(slots.wanted())
    slots.moved(worker.room)
    while not slots.idle:
        feeds = slots.ask()
        assert feeds is not None
        heard += slots.answer(worker.step(feeds))
        slots.speculate(0, True)
        slots.propose(0, true[1:4])
    assert [(one.token, one.reason) for one in heard] == [(true[0], ""), (true[1], ""), (true[2], STOP)]
    assert slots.pages.held == 0


def play_drafter(seed: int, pages_max: int = 1 << 20, die: float = 0.0, leave: float = 0.0) -> None:
    """Texts that rest, and go on again and again from other tokens than they had chosen: what they are told is what
    follows the true tokens, whatever was there before."""
    rng = random.Random(seed)
    slots = Slots(4, CHUNK, None, pages_max, min(32, pages_max), few=2)
    true = {wish.number: [*wish.prompt, *(rng.randrange(1000) for _ in range(80))] for wish in wishes(seed, 6)}
    for wish in wishes(seed, 6):
        slots.join(TextRequest(wish.number, wish.prompt, 80), drafts=True)
    known = {wish.number: len(wish.prompt) for wish in wishes(seed, 6)}
    wanted, heard = dict.fromkeys(known, 1), {number: list[int]() for number in known}
    worker: Worker | None = None
    answers = list[list[list[int]]]()

    def answer() -> None:
        for told in slots.answer(answers.pop(0)):
            tokens = [*true[told.number][: known[told.number]], *heard[told.number]]
            assert told.token == next_token(tokens, GREEDY) and not told.reason
            heard[told.number].append(told.token)

    for _ in range(600):
        for number in list(known):
            rests = len(heard[number]) == wanted[number]
            assert len(heard[number]) <= wanted[number]
            if rng.random() < (0.3 if rests else 0.02):
                known[number] = min(known[number] + rng.randrange(1, 4), len(true[number]) - 5)
                if rng.random() < 0.5:  # it had chosen the right ones
                    true[number][known[number] : known[number] + 5] = [*heard[number], *true[number][-5:]][:5]
                wanted[number], heard[number] = rng.randrange(1, 5), []
                slots.go_on(number, true[number][: known[number]], wanted[number])
        if rng.random() < leave and len(known) > 1:
            number = rng.choice(list(known))
            slots.leave(number)
            del known[number]
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
        if len(answers) < 3 and (feeds := slots.ask()) is not None:
            answers.append(worker.step(feeds))
        if answers and rng.random() < 0.5:
            answer()
    assert slots.pages.count <= pages_max


@pytest.mark.parametrize("seed", range(30))
def test_a_text_that_drafts_goes_on_from_what_turned_out_to_be_true(seed: int) -> None:
    longest = max(pages_for(len(wish.prompt) + 85) for wish in wishes(seed, 6))
    play_drafter(seed, longest + 3 if seed % 2 else 1 << 20, 0.02 * (seed % 3), 0.005 * (seed % 2))


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


def test_while_texts_go_on_a_step_reads_the_prompts_of_few() -> None:
    """Full for all slots, it would compute as much for texts that go on by one token."""
    slots = Slots(8, 16)
    for number in range(5):
        slots.join(TextRequest(number, (number,), 50))
    slots.moved(slots.wanted())
    assert slots.ask() is not None
    slots.answer([1] * 8)
    for number in (5, 6, 7):
        slots.join(TextRequest(number, tuple(range(40)), 50))
    slots.moved(slots.wanted())
    counts = []
    for _ in range(6):
        feeds = slots.ask()
        assert feeds is not None
        counts.append(feeds.count[5:].tolist())
        assert feeds.count[:5].tolist() == [1] * 5
        slots.answer([1] * 8)
    assert slots.room.readers == 1
    assert counts == [[16, 1, 1], [16, 1, 1], [8, 1, 1], [1, 16, 1], [1, 16, 1], [1, 5, 1]]


def test_a_step_that_is_full_for_most_texts_is_full() -> None:
    slots = Slots(8, 16, pages_kept=1000)
    for number in range(8):
        slots.join(TextRequest(number, tuple(range(1 + 100 * number, 18 + 100 * number)), 50))
    slots.moved(slots.wanted())
    feeds = slots.ask()
    assert feeds is not None and feeds.count.tolist() == [16] * 8


@pytest.mark.parametrize("pages_kept", [0, 1000])
def test_a_batch_that_moves_for_several_texts_has_pages_for_all_of_them(pages_kept: int) -> None:
    """It moved for the slots, with pages for the first text, and then again, each time by another program."""
    slots = Slots(8, 16, pages_kept=pages_kept)
    for number in range(8):
        slots.join(TextRequest(number, tuple(range(100 * number, 60 + 100 * number)), 50))
    slots.moved(slots.wanted())
    assert slots.ask() is not None
    assert slots.active == 8
    assert slots.wanted() == slots.room
