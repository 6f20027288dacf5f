"""Metrics: what a server did and does, as Prometheus reads it.

A metric is a row of METRICS.  Counters and histograms are added to as things happen; gauges are read when somebody
asks.  Labels are routes, statuses and names of models, of which there are few.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """The kind of a metric, and what it says."""

    kind: str
    help: str


METRICS: Mapping[str, Metric] = {
    "requests_total": Metric(COUNTER, "Requests by route and status; 499 is one whose client left"),
    "requests_waiting": Metric(GAUGE, "Requests of a model that wait for their turn"),
    "requests_running": Metric(GAUGE, "Requests of a model that are answered now"),
    "prompt_tokens_total": Metric(COUNTER, "Tokens of prompts"),
    "cached_tokens_total": Metric(COUNTER, "Tokens of prompts that needed no reading, since a text before had them"),
    "generated_tokens_total": Metric(COUNTER, "Tokens of answers"),
    "time_to_first_token_seconds": Metric(HISTOGRAM, "From a request to the first token of each of its answers"),
    "time_per_token_seconds": Metric(HISTOGRAM, "From a token of an answer to the next one"),
    "model_loaded": Metric(GAUGE, "Whether a model is on the workers"),
    "kv_pages_used": Metric(GAUGE, "Pages of keys and values that texts hold"),
    "kv_pages_free": Metric(GAUGE, "Pages of keys and values that can be had"),
    "drafts_total": Metric(COUNTER, "Drafts that were checked"),
    "drafts_accepted_total": Metric(COUNTER, "Drafts that became tokens"),
}
PREFIX = "graph_mesh_"
Reading = tuple[str, Mapping[str, str], float]
"""The name of a metric in METRICS, its labels, and its value now."""


@dataclass(slots=True)
class _Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum: float = 0.0


class Meters:
    """The counters and histograms of a server, on its loop."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, Labels], float] = {}
        self._histograms: dict[tuple[str, Labels], _Histogram] = {}

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """More of a counter."""
        key = name, tuple(labels.items())
        self._counts[key] = self._counts.get(key, 0) + amount

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        """A time for a histogram."""
        found = self._histograms.setdefault((name, tuple(labels.items())), _Histogram())
        found.counts[bisect_left(BUCKETS_S, seconds)] += 1
        found.sum += seconds

    def text(self, readings: Iterable[Reading] = ()) -> str:
        """All metrics in the text format of Prometheus, with these that were read now."""
        lines: dict[str, list[str]] = {name: [] for name in METRICS}
        for (name, labels), value in self._counts.items():
            lines[name].append(_line(name, labels, value))
        for name, named, value in readings:
            lines[name].append(_line(name, tuple(named.items()), value))
        for (name, labels), histogram in self._histograms.items():
            so_far = 0
            for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), histogram.counts, strict=True):
                so_far += count
                lines[name].append(_line(f"{name}_bucket", (*labels, ("le", bound)), so_far))
            lines[name] += [_line(f"{name}_sum", labels, histogram.sum), _line(f"{name}_count", labels, so_far)]
        return "".join(
            f"# HELP {PREFIX}{name} {METRICS[name].help}\n# TYPE {PREFIX}{name} {METRICS[name].kind}\n{''.join(each)}"
            for name, each in lines.items()
        )


class TextMeter:
    """What is measured of one request for texts, which began at `began_s`."""

    def __init__(self, meters: Meters, model: str, began_s: float) -> None:
        self._meters, self._model, self._began_s = meters, model, began_s
        self._last_s: dict[int, float] = {}

    def came(self, choice: int, now_s: float) -> None:
        """A token of a choice came."""
        self._meters.add("generated_tokens_total", model=self._model)
        name = "time_per_token_seconds" if choice in self._last_s else "time_to_first_token_seconds"
        self._meters.observe(name, now_s - self._last_s.get(choice, self._began_s), model=self._model)
        self._last_s[choice] = now_s

    def over(self, prompt_tokens: int, cached_tokens: int) -> None:
        """The request is over."""
        self._meters.add("prompt_tokens_total", prompt_tokens, model=self._model)
        self._meters.add("cached_tokens_total", cached_tokens, model=self._model)


def _line(name: str, labels: Labels, value: float) -> str:
    inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{PREFIX}{name}{{{inner}}} {value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
