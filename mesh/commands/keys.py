"""`mesh-coord keys`: the keys that requests to a server of models need."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from wire.system.private_folder import state_root

from .exit_codes import OK
from .flags import add_action, mesh_name
from .output import say
from .tables import print_records

Options = argparse.Namespace


def keys_file(mesh: str, state_dir: str = "") -> Path:
    """The file with the hashes of a mesh's API keys."""
    return state_root(state_dir) / mesh / "@api-keys" / "keys.json"


def keys_create(options: Options) -> int:
    """Create a key and show it; it is never shown again."""
    text = _keys(options).create(options.name)
    say(json.dumps({"name": options.name, "key": text}) if options.json else text)
    return OK


def keys_list(options: Options) -> int:
    """List the names of the keys; the keys themselves are not stored."""
    records = _keys(options).records()
    rows = [(each.key_id, each.name, f"{datetime.fromtimestamp(each.created_s):%Y-%m-%d %H:%M}") for each in records]
    header = ("id", "name", "created")
    print_records(header, rows, options.json)
    return OK


def keys_remove(options: Options) -> int:
    """Remove a key; servers refuse it from the next request on."""
    record = _keys(options).remove(options.id)
    text = f"key {record.key_id} ({record.name}) is refused from now on"
    say(json.dumps({"id": record.key_id, "name": record.name}) if options.json else text)
    return OK


def keys_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    _action(actions, "create", keys_create).add_argument(
        "name", metavar="NAME", help="what the key is for, such as the machine or the program that has it"
    )
    _action(actions, "list", keys_list)
    _action(actions, "rm", keys_remove).add_argument("id", metavar="ID", help="the id of a key, as keys list shows it")


def _action(actions: Any, name: str, run: Callable[[Options], int]) -> argparse.ArgumentParser:
    parser = add_action(actions, name, run, run)
    where = "the folder with the mesh's folder (default: the user's state folder)"
    parser.add_argument("--state-dir", default="", metavar="DIR", help=where)
    return parser


def _keys(options: Options) -> Any:
    from ..serving.api_keys import ApiKeys

    return ApiKeys(keys_file(mesh_name(options), options.state_dir))
