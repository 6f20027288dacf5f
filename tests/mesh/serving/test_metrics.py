"""Metrics of serving: the text that Prometheus reads, and what a server counts in it."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support.cases.served_models import llama_folder

import mesh
from mesh.importers.minilm import model_folder
from mesh.inference.kv_pages import PAGE
from mesh.serving.api_keys import ApiKeys
from mesh.serving.metrics import BUCKETS_S, METRICS, Meters, TextMeter

LINE = re.compile(r'graph_mesh_(\w+)\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\} ([0-9.e+-]+)')
HELLO: Any = [{"role": "user", "content": "Hello, how are you? " * 8}]


def parsed(text: str) -> dict[str, float]:
    """The value of each line, by its name and labels; every other line is a comment."""
    lines = [line for line in text.splitlines() if not line.startswith("# ")]
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found), lines
    return {f"{match[1]} {match[2]}": float(match[3]) for match in found if match}


def test_the_text_has_every_metric_with_its_kind_and_what_it_says() -> None:
    lines = Meters().text().splitlines()
    assert lines == [
        line
        for name, metric in METRICS.items()
        for line in (f"# HELP graph_mesh_{name} {metric.help}", f"# TYPE graph_mesh_{name} {metric.kind}")
    ]


def test_counters_gauges_and_histograms_are_lines_and_labels_are_escaped() -> None:
    meters = Meters()
    meters.add("requests_total", route="/v1/models", status="200")
    meters.add("requests_total", 2, route="/v1/models", status="200")
    for seconds in (0.005, 0.02, 99.0):
        meters.observe("time_per_token_seconds", seconds, model='a "b"\\\nc')
    found = parsed(meters.text([("model_loaded", {"model": "llama"}, 1)]))
    assert found['requests_total route="/v1/models",status="200"'] == 3
    assert found['model_loaded model="llama"'] == 1
    told = r'model="a \"b\"\\\nc"'
    buckets = [found[f'time_per_token_seconds_bucket {told},le="{bound}"'] for bound in (*BUCKETS_S, "+Inf")]
    assert buckets == [1, 1, *[2] * (len(BUCKETS_S) - 2), 3]
    assert (found[f"time_per_token_seconds_count {told}"], found[f"time_per_token_seconds_sum {told}"]) == (3, 99.025)


def test_a_sum_of_months_still_grows_by_milliseconds() -> None:
    meters = Meters()
    for seconds in (12_345_678.0, 0.001):
        meters.observe("time_per_token_seconds", seconds, model="small")
    assert parsed(meters.text())['time_per_token_seconds_sum model="small"'] == 12_345_678.001


def test_the_first_token_of_each_choice_is_measured_from_the_request() -> None:
    meters = Meters()
    meter = TextMeter(meters, "llama", 10.0)
    for choice, now_s in ((0, 11.0), (1, 12.0), (0, 11.25), (0, 12.25)):
        meter.came(choice, now_s)
    meter.over(20, 16)
    found = parsed(meters.text())
    sums = [found[f'time_{what}_seconds_sum model="llama"'] for what in ("to_first_token", "per_token")]
    assert sums == [3.0, 1.25]
    tokens = [found[f'{what}_tokens_total model="llama"'] for what in ("generated", "prompt", "cached")]
    assert tokens == [4, 20, 16]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mesh.ModelServer]:
    with mesh.Mesh.builder().build() as own, mesh.ModelServer(own, port=0) as made:
        made.load_model("llama", llama_folder(tmp_path_factory.mktemp("models") / "llama"))
        made.load_model("minilm", model_folder())
        yield made


def read(server: mesh.ModelServer) -> dict[str, float]:
    with urllib.request.urlopen(server.url + "/metrics", timeout=60) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return parsed(answer.read().decode())


def test_a_server_counts_what_it_does(server: mesh.ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)  # an empty one of the tests, which httpx does not take
    assert read(server)['model_loaded model="llama"'] == 0
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        how: Any = {"model": "llama", "messages": HELLO, "max_completion_tokens": 6, "temperature": 0}
        first = client.chat.completions.create(**how).usage
        second = client.chat.completions.create(**how).usage
        stream = client.chat.completions.create(stream=True, **how)
        pieces = sum(1 for _ in stream)
        client.embeddings.create(model="minilm", input=["hello", "there"], encoding_format="float")
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(**{**how, "model": "none"})
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(server.url + "/no/such/path", timeout=60)
    assert first is not None and second is not None and pieces > 1
    found = read(server)
    route = 'requests_total route="/v1/chat/completions",status='
    assert [found[f'{route}"{status}"'] for status in (200, 404)] == [3, 1]
    assert found['requests_total route="other",status="404"'] == 1
    assert found['prompt_tokens_total model="llama"'] == 3 * first.prompt_tokens
    assert found['prompt_tokens_total model="minilm"'] == 2 * 3
    generated = found['generated_tokens_total model="llama"']
    assert generated >= first.completion_tokens + second.completion_tokens
    assert second.prompt_tokens_details is not None
    assert found['cached_tokens_total model="llama"'] >= (second.prompt_tokens_details.cached_tokens or 0) >= PAGE
    assert found['time_to_first_token_seconds_count model="llama"'] == 3
    assert found['time_per_token_seconds_count model="llama"'] == generated - 3
    assert [found[f'{what} model="llama"'] for what in ("requests_waiting", "requests_running", "model_loaded")] == [
        0,
        0,
        1,
    ]
    assert found['kv_pages_free model="llama"'] > 0 == found['kv_pages_used model="llama"']
    assert found['drafts_total model="llama"'] == 0


def test_metrics_need_a_key_where_others_do_and_come_under_no_other_name(tmp_path: Path) -> None:
    keys = ApiKeys(tmp_path / "keys.json")
    key = keys.create("prometheus")
    with mesh.Mesh.builder().build() as own, mesh.ModelServer(own, port=0, keys=tmp_path / "keys.json") as server:
        for headers, status in (
            ({}, 401), ({"Authorization": f"Bearer {key}", "Host": "evil.example"}, 403),
            ({"Authorization": f"Bearer {key}", "Origin": "http://evil.example"}, 403),
        ):  # fmt: skip
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(urllib.request.Request(server.url + "/metrics", headers=headers), timeout=60)
            assert caught.value.code == status
        asked = urllib.request.Request(server.url + "/metrics", headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert 'route="/metrics",status="401"} 1' in answer.read().decode()
