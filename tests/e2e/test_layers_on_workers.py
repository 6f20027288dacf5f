"""A served model whose layers are on the workers that the command line names."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
from support.cases.served_models import llama_folder
from support.processes.commands import daemon, environment
from support.processes.worker_process import children

import mesh
from mesh.inference.tokenizer import Detokenizer, Tokenizer

PROMPT = [5, 9, 40, 7]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9")
def test_answers_are_the_models_own_and_a_worker_that_dies_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)  # an empty one of the tests, which httpx does not take
    folder = llama_folder(tmp_path / "llama")
    writing, said = Detokenizer(Tokenizer(folder)), mesh.load(folder).generate(PROMPT, max_new_tokens=20)
    wanted = "".join(writing.add(token) for token in said) + writing.rest()
    arguments = (
        "serve-model", str(folder), "--port", "0", "--local", "2", "--engine", "native", "--preset", "test",
        "--layers", "local-0=0..1", "--layers", "local-1=1..2",
    )  # fmt: skip
    with daemon("coord", *arguments, env=environment(tmp_path), log=tmp_path / "log") as server:
        url = server.ready["url"] + "/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:

            def asked() -> Any:
                return client.completions.create(model="llama", prompt=PROMPT, max_tokens=20, temperature=0)

            assert asked().choices[0].text == wanted
            workers = {}
            for pid in children(server.process.pid):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one that planned may have ended
                    named = re.search(r"local-\d", Path(f"/proc/{pid}/cmdline").read_bytes().decode())
                    workers |= {named[0]: pid} if named else {}
            os.kill(workers["local-1"], signal.SIGKILL)
            with pytest.raises(openai.InternalServerError, match="there is no worker 'local-1'") as failed:
                asked()
            assert failed.value.status_code == 503
