"""`mesh-coord models`: the models in the store of this machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from .exit_codes import OK
from .flags import add_action
from .output import say
from .progress import download_progress
from .tables import print_table

Options = argparse.Namespace


def models_pull(options: Options) -> int:
    """Download a model, or the missing part of one, and check every byte."""
    store = _store(options)
    with download_progress(not options.quiet and not options.json) as report:
        path = store.pull(options.name, revision=options.revision, offline=options.offline, report=report)
    say(json.dumps({"name": options.name, "path": str(path)}) if options.json else path)
    return OK


def models_list(options: Options) -> int:
    """List the models and their sizes."""
    from wire.units import size_text

    store = _store(options)
    models = store.models()
    if options.json:
        listing = [
            {"name": model.name, "revision": model.revision, "size_bytes": model.size_bytes, "whole": model.whole,
             "folder": str(model.folder)} for model in models
        ]  # fmt: skip
        say(json.dumps(listing))
        return OK
    rows = [
        (model.name, size_text(model.size_bytes), model.revision[:12] or "by hand", "" if model.whole else "cut off")
        for model in models
    ]
    print_table(("model", "size", "revision", ""), rows)
    advice = "" if rows else ": it is empty; mesh-coord models pull ORG/NAME downloads a model"
    say(f"in {store.folder}{advice}", file=sys.stderr)
    return OK


def models_remove(options: Options) -> int:
    """Delete a model from the store."""
    from wire.units import size_text

    freed_bytes = _store(options).remove(options.name)
    text = f"{options.name} is deleted, which frees {size_text(freed_bytes)}"
    say(json.dumps({"name": options.name, "freed_bytes": freed_bytes}) if options.json else text)
    return OK


def models_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    pull = _action(actions, "pull", models_pull)
    named = "ORG/NAME on the hub, or ORG/NAME:PART for the GGUF file that has this part in its name"
    pull.add_argument("name", metavar="ORG/NAME", help=named)
    pull.add_argument("--revision", default=None, metavar="NAME", help="a branch, a tag or a commit (default: main)")
    pull.add_argument("--offline", action="store_true", help="use only what is in the store; do not contact the hub")
    _action(actions, "list", models_list)
    _action(actions, "rm", models_remove).add_argument("name", metavar="NAME", help="a model, as models list shows it")


def _action(actions: Any, name: str, run: Callable[[Options], int]) -> argparse.ArgumentParser:
    parser = add_action(actions, name, run, run)
    where = "the folder of the store (default: MESH_MODELS, or a folder of the user's data)"
    parser.add_argument("--store", default="", metavar="DIR", help=where)
    return parser


def _store(options: Options) -> Any:
    from ..models.store import ModelStore

    return ModelStore(options.store or None)
