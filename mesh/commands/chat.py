"""`mesh-coord chat`: talk with a served model in the terminal."""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

from wire.deadlines import CHAT_ANSWER
from wire.errors import ConnectFailed, InputError, RemoteError

from ..util.text_file import read_text
from .exit_codes import INTERRUPTED, OK
from .output import say, say_lines

Options = argparse.Namespace

# Lines of a stream of events that are no part of the answer: comments, which a server sends while it loads a model.
NO_DATA = (b":", b"event:", b"id:", b"retry:")


def chat(options: Options) -> int:
    """Send every line to the model, with all that was said before; an empty line or Ctrl-D ends.

    With --json an answer is one object, once it is whole, and there is no prompt.
    """
    messages: list[dict[str, str]] = [{"role": "system", "content": options.system}] if options.system else []
    talking = sys.stdin.isatty()
    prompt = "> " if talking and not options.json else ""
    while True:
        line = _line(prompt)
        if not line:
            return OK
        messages.append({"role": "user", "content": line})
        try:
            messages.append({"role": "assistant", "content": _answer(options, messages)})
        except (RemoteError, InputError) as error:
            if not talking:
                raise
            say_lines(f"\n{error}", file=sys.stderr)
            messages.pop()
        except KeyboardInterrupt:
            say()
            if not talking:
                return INTERRUPTED
            messages.pop()


def _line(prompt: str) -> str:
    try:
        return input(prompt).strip()
    except EOFError:
        return ""
    except UnicodeDecodeError as error:
        raise InputError("stdin is no text in the encoding of this terminal", cause=str(error)) from None


def _answer(options: Options, messages: list[dict[str, str]]) -> str:
    """Print an answer as it comes, or as JSON once it is whole; its text."""
    pieces = []
    for piece in _pieces(options, messages):
        if not options.json:
            say_lines(piece, end="")
        pieces.append(piece)
    text = "".join(pieces)
    say(json.dumps({"role": "assistant", "content": text}) if options.json else "", flush=True)
    return text


def _pieces(options: Options, messages: list[dict[str, str]]) -> Iterator[str]:
    given = {"temperature": options.temperature, "max_completion_tokens": options.max_tokens}
    body = {"model": options.model, "messages": messages, "stream": True}
    body |= {name: value for name, value in given.items() if value is not None}
    try:
        with urllib.request.urlopen(_request(options, body), timeout=CHAT_ANSWER.seconds) as answer:
            for line in answer:
                if line.startswith(NO_DATA):
                    continue
                data = line.removeprefix(b"data:").strip()
                if data and data != b"[DONE]":
                    yield _text(json.loads(data), options.url)
    except urllib.error.HTTPError as error:
        raise InputError(_error_text(error)) from None
    except (OSError, HTTPException, ValueError) as error:
        raise ConnectFailed(
            f"{options.url} does not answer",
            cause=str(getattr(error, "reason", error)),
            next_step="Start it with: mesh-coord serve-model MODEL; or name it: --url",
        ) from None


def _request(options: Options, body: dict[str, Any]) -> urllib.request.Request:
    headers = {"Content-Type": "application/json"}
    if options.key_file:
        try:
            headers["Authorization"] = f"Bearer {read_text(Path(options.key_file)).strip()}"
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{options.key_file} cannot be read", cause=str(error)) from None
    url = options.url.rstrip("/").removesuffix("/v1")  # which is part of what programs are given as a base URL
    if not url.startswith(("http://", "https://")):
        raise InputError(f"--url {options.url!r} is no address of HTTP", next_step="Write http://HOST:PORT")
    return urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)


def _text(event: Any, url: str) -> str:
    try:
        if "error" in event:
            raise RemoteError(str(event["error"]["message"]))
        return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    except (AttributeError, KeyError, TypeError):
        raise RemoteError(
            f"{url} sends {str(event)[:80]!r}, which is no part of an answer",
            next_step="Check --url: it is the address of mesh-coord serve-model, or of a server like OpenAI's",
        ) from None


def _error_text(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"]["message"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"{error.code} {error.reason}"
