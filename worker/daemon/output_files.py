"""Output files: those that an engine host writes into the daemon's directory, and what to do with them once it is lost.

Their names are a prefix of the host and a number that grows.  A host writes, and then says which files it wrote.  So
those behind the last one that it said are nobody's if it was killed in between, as it often is where memory is full.
"""

from __future__ import annotations

import contextlib
import os

from wire.system.shared_memory import SharedDir, new_prefix, remove

from ..engine import host_messages as hm


class OutputFiles:
    """Files of one engine host in `shared`, whose names begin with `prefix`."""

    def __init__(self, shared: SharedDir) -> None:
        self.prefix = new_prefix()
        self._shared = shared
        self._last = ""  # the newest name that the host said

    def heard(self, message: hm.FromHost) -> None:
        """The host says something: from then on files that it names are those of who gets them."""
        match message:
            case hm.Executed():
                outputs = message.outputs
            case hm.Exported() if message.output is not None:
                outputs = (message.output,)
            case _:
                return
        for output in outputs:
            self._last = max(self._last, *(name for name in output.files if name.startswith(self.prefix)), "")

    def remove_unheard(self) -> None:
        """The host is lost: remove what it wrote and did not say."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._shared.path):
                if name.startswith(self.prefix) and name > self._last:
                    remove(self._shared.path, name)
