"""Grammar: what an answer has to be, such as JSON of a schema, as masks of the tokens that may come next.

The door of llguidance, which compiles schemas and grammars and computes the masks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import ConfigError, InputError

from ..inference.continuous_batching import FAILED, STOP

# One line, as models were trained to write it; with any white space a model may write nothing else for ever.
COMPACT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer has to be: JSON of a schema, or a text of a grammar in Lark's form; `what` names it in errors."""

    what: str
    schema: Mapping[str, Any] | None = None
    lark: str = ""


class Grammars:
    """A tokenizer's side of grammars, given as a tokenizer.json: `guide` makes one for a text.

    ConfigError without llguidance, InputError for a tokenizer that it cannot read.
    """

    def __init__(self, tokenizer: str, vocabulary: int, ends: tuple[int, ...]) -> None:
        try:
            import llguidance
        except ModuleNotFoundError:
            raise ConfigError(
                "tools and JSON schemas need the package 'llguidance', which is not installed",
                next_step="pip install 'graph-mesh[serve]'",
            ) from None
        if not ends:
            raise InputError("the model names no token that ends a text, which a grammar needs")
        self._library = llguidance
        self._words = -(-vocabulary // 32)
        try:
            self._tokenizer = llguidance.LLTokenizer(tokenizer, n_vocab=vocabulary, eos_token=list(ends))
        except Exception as error:  # the library raises nothing narrower
            raise InputError("the model's tokenizer cannot guide texts", cause=str(error)[:200]) from None

    def guide(self, grammar: Grammar) -> GrammarGuide:
        """A guide for one text; InputError for a schema or a grammar that is wrong, or that nothing can meet."""
        matcher = self._library.LLMatcher
        try:
            compiled = (
                matcher.grammar_from_lark(grammar.lark)
                if grammar.schema is None
                else matcher.grammar_from_json_schema(json.dumps(grammar.schema), overrides=COMPACT)
            )
            problem = matcher.validate_grammar(compiled, self._tokenizer)
        except (ValueError, RecursionError) as error:
            problem = str(error)
        if problem:
            raise InputError(f"{grammar.what} cannot be met: {problem[:300]}")
        guide = GrammarGuide(matcher(self._tokenizer, compiled), self._words)
        if guide.failed:
            raise InputError(f"{grammar.what} cannot be met: {guide.failed[:300]}")
        return guide


class GrammarGuide:
    """The tokens that may come next in one text, by its grammar."""

    def __init__(self, matcher: Any, words: int) -> None:
        self._matcher = matcher
        self._words = words
        self.mask = self._next()

    @property
    def failed(self) -> str:
        """Why no token may follow, "" if some may."""
        return str(self._matcher.get_error()) if self._matcher.is_error() else ""

    def accept(self, token: int) -> str:
        """Take the token that was chosen: "" if others may follow, else how the text ended."""
        if not self._matcher.consume_token(token) or self._matcher.is_error():
            return FAILED
        self.mask = self._next()
        if self._matcher.is_error() or not self.mask.any():
            return FAILED
        return STOP if self._matcher.is_stopped() else ""

    def _next(self) -> NDArray[np.uint32]:
        return np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: self._words]
