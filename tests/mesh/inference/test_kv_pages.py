"""The pages of a pool: who holds them, which are found again, and which are forgotten."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from mesh.inference.kv_pages import NOBODYS, PAGE, KvPages, pages_for, prefix_keys


def tokens_of(*pages: int, more: int = 0) -> list[int]:
    """Whole pages of one token each, and some tokens behind them."""
    return [page for page in pages for _ in range(PAGE)] + [999] * more


def found_of(pages: KvPages, tokens: list[int]) -> list[int]:
    """The pages of all tokens but the last, which is always read."""
    return pages.found(prefix_keys(tokens[:-1]))


def read(pages: KvPages, tokens: list[int]) -> list[int]:
    """A text of these tokens holds its pages, and has published those that are whole."""
    found = found_of(pages, tokens)
    pages.hold(found)
    own = list(found)
    for _ in range(pages_for(len(tokens)) - len(found)):
        page = pages.take()
        assert page is not None
        own.append(page)
    for page, key in list(zip(own, prefix_keys(tokens), strict=False))[len(found) :]:
        pages.publish(page, key)
    return own


@pytest.mark.parametrize("seed", range(40))
def test_no_page_is_in_two_texts_unless_both_begin_with_what_it_holds(seed: int) -> None:
    """Texts of few kinds of pages come, grow and go, in a pool that is often too small and that grows now and then."""
    rng = random.Random(seed)
    pages, texts = KvPages(rng.choice((2, 5, 12))), list[tuple[list[int], list[int]]]()
    holds: dict[int, tuple[int, ...]] = {}  # what was written to a page: its tokens and all before them
    for _ in range(300):
        if rng.random() < 0.02:
            pages.grow(pages.count + rng.randrange(4))
        if rng.random() < 0.03:
            pages = KvPages(pages.count)  # the state was lost
            texts.clear()
        elif texts and rng.random() < 0.4:
            _, own = texts.pop(rng.randrange(len(texts)))
            pages.release(own)
        else:
            tokens = tokens_of(*(rng.randrange(2) for _ in range(rng.randrange(5))), more=rng.randrange(1, PAGE))
            found = found_of(pages, tokens)
            for place, page in enumerate(found):
                assert holds[page] == tuple(tokens[: PAGE * (place + 1)]), "another text's page was found"
            if pages_for(len(tokens)) - len(found) > pages.free - pages.cost(found):
                continue
            own = read(pages, tokens)
            assert own[: len(found)] == found
            for place, page in enumerate(own):
                holds[page] = tuple(tokens[: PAGE * (place + 1)])
            texts.append((tokens, own))
        held = Counter(page for _, own in texts for page in own)
        assert pages._holders == held, "a reference too many or too few"
        assert pages.held + pages.free == pages.count - 1, "a page was lost"
        assert NOBODYS not in held and all(0 < page < pages.count for page in held)
        assert not held.keys() & {*pages._unused, *pages._idle}
        for tokens, own in texts:
            for place, page in enumerate(own):
                assert holds[page] == tuple(tokens[: PAGE * (place + 1)]), "a page was written over"


def test_pages_that_were_used_longest_ago_are_forgotten_first_and_of_a_text_its_end() -> None:
    pages = KvPages(6)
    one, other = tokens_of(1, 2, 3, more=1), tokens_of(4, more=1)
    pages.release(read(pages, one))
    pages.release(read(pages, other))
    assert (pages.idle, pages.unused) == (4, 1)
    pages.hold(found_of(pages, other))
    pages.release(found_of(pages, other))  # used again
    assert [pages.take() is not None for _ in range(2)] == [True, True]
    assert (len(found_of(pages, one)), len(found_of(pages, other))) == (2, 1)
    assert [pages.take() is not None for _ in range(4)] == [True, True, True, False]
    assert not found_of(pages, one) and not found_of(pages, other) and pages.held == 5


def test_a_key_tells_all_tokens_before_a_page() -> None:
    keys = {key for first in range(3) for key in prefix_keys(tokens_of(first, 7, 7))}
    assert len(keys) == 9
    before, *after = prefix_keys(tokens_of(0, 1, 2))
    assert list(prefix_keys(tokens_of(1, 2), before)) == after
    assert not list(prefix_keys([1] * (PAGE - 1)))


def test_two_texts_that_read_the_same_at_the_same_time_keep_a_page_each_and_one_is_found() -> None:
    pages, tokens = KvPages(8), tokens_of(1, more=1)
    pairs = []
    for _ in range(2):
        page = pages.take()
        assert page is not None
        pairs.append(page)
    for page in pairs:
        pages.publish(page, next(prefix_keys(tokens)))
    assert found_of(pages, tokens) == pairs[:1]
    pages.release(pairs[1:])
    assert pages.unused == 6, "nobody finds the second one"
