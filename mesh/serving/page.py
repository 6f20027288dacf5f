"""Page: the files of the chat page, beside which a browser loads nothing: no script, style or font of elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent / "web"
FILES: Mapping[str, tuple[str, bytes]] = {
    "/": ("text/html; charset=utf-8", (_FOLDER / "index.html").read_bytes()),
    "/chat.js": ("text/javascript; charset=utf-8", (_FOLDER / "chat.js").read_bytes()),
    "/chat.css": ("text/css; charset=utf-8", (_FOLDER / "chat.css").read_bytes()),
}
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
