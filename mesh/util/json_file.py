"""JSON files of other programs: what is missing, damaged or of another kind is an InputError that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wire.errors import InputError


def read_json(file: Path) -> Any:
    """The value in a JSON file."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{file} does not exist", next_step="Give the folder of a saved model") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} cannot be read as JSON", cause=str(error)[:200]) from error


def read_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    found = read_json(file)
    if not isinstance(found, dict):
        raise InputError(f"{file} holds no JSON object")
    return found
