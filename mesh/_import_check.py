"""The check that wire, worker and coordinator are ours.

Their names are short, so a file `wire.py` beside a user's script would hide ours, and the failure would be a riddle.
Importing this module looks where each one would come from, and otherwise names the file in the way.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

NAMES = ("wire", "worker", "coordinator")


def check(home: Path, names: tuple[str, ...] = NAMES) -> None:
    """Raise ImportError unless each of `names` would be imported from the folder `home`."""
    for name in names:
        location = _location(name)
        if location is None:
            raise ImportError(f"graph-mesh is damaged: its package {name!r} is not in {home}; install it again")
        if location.parent.resolve() != home.resolve():
            raise ImportError(
                f"{location} hides graph-mesh's package {name!r}, which lies in {home}; "
                f"rename it, or remove its folder from sys.path"
            )


def _location(name: str) -> Path | None:
    """The folder or file that `import name` would take."""
    spec = find_spec(name)
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    return Path(folders[0]) if folders else Path(spec.origin or name)


check(Path(__file__).parents[1])
