"""The times that can be configured as markdown: `python -m docs.tools.configuration_page > docs/configuration.md`.

Every number and reason comes from the rows of `wire/timeouts.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from wire.timeouts import EVERY, PRESETS, PRESETS_FOR, ROWS

SHOWN = tuple(name for name in PRESETS if name != "local")
HEAD = """\
# Configuration

Every time that a user or an operator may want to change, generated from `wire/timeouts.py` by
`python -m docs.tools.configuration_page > docs/configuration.md`. The other options of the commands are in
[commands](commands.md), and what is on the wire is in [protocol](protocol.md). What each phase of a call waits for, and
what happens after that time, is in [deadlines](deadlines.md).

A preset sets all times for a kind of network. A single time can be set besides, and holds whatever the preset.

```sh
mesh-coord serve --preset wifi
mesh-worker --preset wifi --timeout keep_orphans_s=30m
mesh-coord nodes --preset wan --timeout dial_s=20
```

```python
from mesh import Mesh

builder = Mesh.builder().preset("wifi").timeouts(dial_s=20).local(2)
```

Each process has its own times: start the coordinator and its workers with the same preset. Workers that `.local(n)`
starts get those of the builder. A time is read by the processes in its row; a command refuses a time that it does not
read. The seconds of a flag may have a unit: `90`, `90s`, `30m`, `24h`.

| Preset | For |
|---|---|
"""


def markdown() -> str:
    """The whole of docs/configuration.md."""
    presets = [f"| `{name}` | {text} |" for name, text in PRESETS_FOR.items()]
    return HEAD + "\n".join([*presets, "", *_times()]) + "\n"


def _times() -> Iterator[str]:
    yield "## Times in seconds\n"
    yield f"| Time | {' | '.join(f'`{name}`' for name in SHOWN)} | Bounds | Read by | Why |"
    yield "|---" * (len(SHOWN) + 4) + "|"
    for name, row in ROWS.items():
        values = " | ".join(f"{getattr(PRESETS[preset], name):g}" for preset in SHOWN)
        bounds = f"{row.metadata['least']:g} to {row.metadata['most']:g}"
        readers = "all" if row.metadata["by"] == EVERY else ", ".join(row.metadata["by"])
        yield f"| `{name}` | {values} | {bounds} | {readers} | {row.metadata['why']} |"


if __name__ == "__main__":
    sys.stdout.write(markdown())
