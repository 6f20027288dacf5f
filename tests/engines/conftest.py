"""What holds for all tests of engines: each WGSL text that one makes is one that another implementation accepts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.dawn import HAS_DAWN, refusal

from worker.wgsl import shaders

JUDGED: set[str] = set()


@pytest.fixture(autouse=True)
def every_text_is_wgsl(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Texts for limits above WebGPU's minimum are here as well, so only the texts are judged."""
    emit, made = shaders.emit, dict[str, str]()

    def noting(kernel: Any, *more: Any) -> Any:
        shader = emit(kernel, *more)
        made[shader.text] = kernel.name
        return shader

    monkeypatch.setattr(shaders, "emit", noting)
    yield
    for text, name in made.items():
        if HAS_DAWN and text not in JUDGED:
            JUDGED.add(text)
            refused = refusal(text, whole=False)
            assert not refused, f"Dawn refuses kernel {name}: {refused}"
