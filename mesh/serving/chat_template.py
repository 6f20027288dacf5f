"""Chat template: the text that a conversation is for a model, by the Jinja template that its tokenizer has.

The door of jinja2.  A template may come from a stranger, so it runs in jinja2's sandbox over plain JSON values, and
cannot change them; what it does and makes is counted, and has limits (`template_limits.py`).  What it renders is byte
for byte what `apply_chat_template` of the `transformers` library renders: the extensions, filters, globals and special
tokens are the same.  This file knows no model and no API.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any

from wire.errors import ConfigError, InputError

from ..models.decoder import TextMetadata
from ..util.json_file import read_object
from .template_limits import CHARACTERS_MAX, SOURCE_MAX, WORK, Work, judge, judge_operator

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
TURNS, MADE = " turns", " made"  # filters that no template can name
REASONING = ("reasoning_content", "thinking", "reasoning")  # names for it in messages; templates read the first
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A model's templates by name, and the special tokens that they may write.

    `clock` gives the date that some templates write.
    """

    sources: Mapping[str, str]
    special_tokens: Mapping[str, str]
    clock: Callable[[], datetime] = datetime.now

    def source(self, tools: bool) -> str:
        """The template for a conversation with tools or without; InputError if there is none."""
        names = ("tool_use", "default") if tools else ("default",)
        found = next((self.sources[name] for name in names if name in self.sources), None)
        if found is None:
            known = ", ".join(sorted(self.sources))
            raise InputError(f"the model has no default chat template, only {known}")
        return found

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] | None = None,
        documents: Sequence[Message] | None = None,
        add_generation_prompt: bool = True,
        more: Mapping[str, Any] | None = None,
        continued: bool = False,
    ) -> str:
        """The text of a conversation, up to where the model's answer begins.

        A conversation that is `continued` ends within its last message, whose text the answer goes on with.  `more` are
        further variables of the template, such as enable_thinking.  InputError says why a template does not render: its
        own words, if it raised an exception.
        """
        if not messages:
            raise InputError("a conversation has at least one message")
        variables = {
            **self.special_tokens,
            **(more or {}),
            "messages": [_normalised(message) for message in messages],
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt and not continued,
        }
        text = _rendered(self.source(tools is not None), variables, self.clock)
        return _up_to(text, messages[-1].get("content")) if continued else text


def load_chat_template(folder: Path, metadata: TextMetadata | None = None) -> ChatTemplate | None:
    """The templates of a model's folder, else those of its own file; None if there are none.  InputError for a file
    that is damaged.

    `chat_template.jinja` and `additional_chat_templates/` come before `chat_template.json`, and that before
    `tokenizer_config.json`.
    """
    config = _json_file(folder / "tokenizer_config.json")
    sources: Mapping[str, str] = (
        _jinja_files(folder) or _named(_json_file(folder / "chat_template.json")) or _named(config)
    )
    tokens: Mapping[str, str] = {**_special(_json_file(folder / "special_tokens_map.json")), **_special(config)}
    where = folder
    if not sources and metadata is not None:
        (sources, tokens), where = metadata.template(), metadata.file
    if not sources:
        return None
    for name, source in sources.items():
        try:
            _compiled(source, datetime.now)  # an error of its syntax is raised now
        except InputError as error:
            raise InputError(f"{where}: {error.message} ({name})", cause=error.cause) from None
    return ChatTemplate(sources, tokens)


# -- files


def _jinja_files(folder: Path) -> dict[str, str]:
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").exists():
        files["default"] = folder / "chat_template.jinja"
    return {name: _text(path) for name, path in files.items()}


def _named(config: Mapping[str, Any]) -> dict[str, str]:
    """The templates of a file's `chat_template`: one text, or several with names."""
    given = config.get("chat_template")
    if given is None:
        return {}
    try:
        named = {"default": given} if isinstance(given, str) else {each["name"]: each["template"] for each in given}
    except (TypeError, KeyError):
        named = {"": None}
    if not all(isinstance(text, str) for pair in named.items() for text in pair):
        raise InputError("chat_template is neither a text nor a list of templates with names")
    return named


def _special(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a file names, each as a text or as an object with its content."""
    found = {name: config.get(name) for name in SPECIAL_TOKENS}
    texts = {name: each.get("content") if isinstance(each, dict) else each for name, each in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _json_file(path: Path) -> dict[str, Any]:
    return read_object(path) if path.exists() else {}


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read", cause=str(error)) from None


# -- rendering


def _rendered(source: str, variables: Mapping[str, Any], clock: Callable[[], datetime]) -> str:
    from jinja2.exceptions import TemplateError

    template = _compiled(source, clock)
    pieces, size = [], 0
    counting = WORK.set(Work(variables))
    try:
        for piece in template.generate(**variables):
            size += len(piece)
            if size > CHARACTERS_MAX:
                raise InputError(f"the chat template renders more than {CHARACTERS_MAX} characters")
            pieces.append(piece)
    except TemplateError as error:
        raise InputError("the chat template refuses the conversation", cause=str(error)) from None
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise InputError("the chat template cannot render the conversation", cause=why) from None
    finally:
        WORK.reset(counting)
    return "".join(pieces)


def _up_to(text: str, content: Any) -> str:
    """A rendered conversation without what its template writes behind the last message's text."""
    stripped = content.strip() if isinstance(content, str) else ""
    at = text.rfind(stripped) if stripped else -1
    if at < 0:
        raise InputError("the chat template does not write the last message as it is, so nothing can go on with it")
    whole = content.lstrip()  # with its spaces at the end, if the template leaves them
    return text[: at + len(whole if text.startswith(whole, at) else stripped)]


def _normalised(message: Message) -> dict[str, Any]:
    """A message as templates expect it: no keys without a value, and reasoning under the names that they read."""
    there = {key: value for key, value in message.items() if value is not None}
    reasoning = next((there[name] for name in REASONING if name in there), None)
    return there if reasoning is None else {"thinking": reasoning, **there, "reasoning_content": reasoning}


@lru_cache(32)
def _compiled(source: str, clock: Callable[[], datetime]) -> Any:
    """A template, ready to render; InputError for one whose syntax is wrong, ConfigError without jinja2."""
    if len(source) > SOURCE_MAX:
        raise InputError(f"the chat template has {len(source)} characters, and may have {SOURCE_MAX}")
    environment = _environment(clock)
    from jinja2.exceptions import TemplateSyntaxError

    counting = WORK.set(Work())  # values of constants are made now
    try:
        return environment.from_string(source)
    except TemplateSyntaxError as error:
        raise InputError(f"the chat template is wrong in line {error.lineno}", cause=error.message or "") from None
    except (MemoryError, RecursionError, SyntaxError, ValueError) as error:  # of Python's own compiler
        raise InputError("the chat template is nested too deeply", cause=str(error)[:200]) from None
    finally:
        WORK.reset(counting)


@lru_cache(8)
def _environment(clock: Callable[[], datetime]) -> Any:
    """What templates run in; ConfigError without jinja2."""
    try:
        import jinja2
        import jinja2.ext
        from jinja2.exceptions import SecurityError, TemplateError
    except ModuleNotFoundError:
        raise ConfigError(
            "chat templates need the package 'jinja2', which is not installed",
            next_step="pip install 'graph-mesh[serve]'",
        ) from None

    class Generation(jinja2.ext.Extension):
        """{% generation %} marks what the model said, for training; here it is rendered as it is."""

        tags = {"generation"}  # noqa: RUF012 - jinja2 reads it from the class

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller: Callable[[], str]) -> str:
            return caller()

    class Namespace(jinja2.utils.Namespace):
        """A namespace without names that begin with an underscore."""

        def __init__(*args: Any, **named: Any) -> None:
            self, values = args[0], dict(*args[1:], **named)
            for name in values:
                check(name)
            jinja2.utils.Namespace.__init__(self, values)

        def __repr__(self) -> str:
            return "<Namespace>"  # what is in it may be in it many times

        def __setitem__(self, name: str, value: Any) -> None:
            check(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

    class Dictionary:
        """`dict` without the attributes of the class."""

        def __call__(self, *args: Any, **named: Any) -> dict[Any, Any]:
            return dict(*args, **named)

        def fromkeys(self, *args: Any) -> dict[Any, Any]:
            return dict.fromkeys(*args)

    def check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a namespace stores no {name!r}")

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = _sandbox()(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.filters |= {name: _counted(name, function) for name, function in environment.filters.items()}
    environment.filters[TURNS] = lambda items: WORK.get().turns(items)
    environment.filters[MADE] = lambda value: WORK.get().made(value)
    del environment.globals["lipsum"]  # which makes any number of words at once
    environment.globals.update(
        raise_exception=raise_exception,
        strftime_now=lambda form: clock().strftime(form),
        dict=Dictionary(),
        namespace=Namespace,
    )
    return environment


def _sandbox() -> Any:
    """The class of environments in which a template reaches little, and is counted."""
    import jinja2.sandbox
    import jinja2.visitor

    class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
        """jinja2's sandbox, which also counts what a template does and makes."""

        intercepted_binops = frozenset({"+", "-", "*", "**", "%"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            judge_operator(operator, left, right)
            return WORK.get().made(super().call_binop(context, operator, left, right))

        def call(__self, __context: Any, __obj: Any, *args: Any, **named: Any) -> Any:
            method = getattr(__obj, "__wrapped__", __obj)
            judge(getattr(method, "__name__", ""), getattr(method, "__self__", None), args, named)
            return WORK.get().made(super().call(__context, __obj, *args, **named))

        @staticmethod
        def concat(pieces: Iterable[str]) -> str:
            text: str = WORK.get().made("".join(pieces))
            return text

        def _parse(self, source: str, name: Any, filename: Any) -> Any:
            tree = super()._parse(source, name, filename)
            for node in list(tree.find_all(jinja2.nodes.For)):
                node.iter = _filtered(node.iter, TURNS)
            return _Counting().visit(tree)

    class _Counting(jinja2.visitor.NodeTransformer):
        """A pass that has those values counted that no method makes: joined texts, slices, lists and mappings."""

        def visit_Concat(self, node: Any) -> Any:
            return _filtered(self.generic_visit(node), MADE)

        def visit_List(self, node: Any) -> Any:
            self.generic_visit(node)
            return _filtered(node, MADE) if getattr(node, "ctx", "load") == "load" else node

        visit_Dict = visit_Tuple = visit_List

        def visit_Getitem(self, node: Any) -> Any:
            self.generic_visit(node)
            return _filtered(node, MADE) if isinstance(node.arg, jinja2.nodes.Slice) else node

    def _filtered(node: Any, name: str) -> Any:
        return jinja2.nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)

    return Sandbox


def _counted(name: str, function: Any) -> Any:
    """A filter that is judged before, and whose value is counted."""
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0  # the context or the environment comes first

    @wraps(function)
    def done(*args: Any, **named: Any) -> Any:
        judge(name, args[skipped], args[skipped + 1 :], named)
        return WORK.get().made(function(*args, **named))

    return done


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as it is: jinja2's own filter escapes what has a meaning in HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
