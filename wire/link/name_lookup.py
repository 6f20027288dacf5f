"""Name lookup: the addresses of a name, as the system's resolver has them, by a thread of its own for each name.

A resolver that nobody answers takes up to minutes, and who dials asks again all the time.  In the threads of
`asyncio.to_thread`, which are few, such questions would keep waiting all that is read, written and hashed there, and a
program at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from functools import partial


class NameLookup:
    """The questions of one event loop.  A name that is being looked up is not asked for again."""

    def __init__(self) -> None:
        self._asked: dict[str, asyncio.Future[list[str]]] = {}

    async def addresses(self, name: str) -> list[str]:
        """The addresses of a name; OSError where it has none, UnicodeError where no resolver takes it."""
        if name not in self._asked:
            self._ask(name)
        return await asyncio.shield(self._asked[name])  # others may wait for it, too

    def _ask(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[str]] = loop.create_future()

        def look() -> None:
            try:
                infos = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
                tell = partial(answer.set_result, list(dict.fromkeys(str(info[4][0]) for info in infos)))
            except Exception as error:
                tell = partial(answer.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(tell)

        try:
            threading.Thread(target=look, name="name lookup", daemon=True).start()
        except RuntimeError as error:
            raise OSError(f"there is no thread to look it up: {error}") from None
        self._asked[name] = answer
        answer.add_done_callback(partial(self._answered, name))

    def _answered(self, name: str, answer: asyncio.Future[list[str]]) -> None:
        del self._asked[name]
        if not answer.cancelled():
            answer.exception()  # nobody may wait for it any more
