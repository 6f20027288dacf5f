"""Chat templates that would take all memory or all time are refused, and those that only do much render."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.errors import InputError
from mesh.serving import template_limits
from mesh.serving.chat_template import ChatTemplate, load_chat_template
from mesh.serving.template_limits import SOURCE_MAX, Work

GIB = 1 << 30
HELLO = [{"role": "user", "content": "hello"}]
TEXT = "{% set ns = namespace(x='ab', l=[1]) %}"
HUNDRED = "{% for a in range(100) %}"
BOMBS = {
    "turns of nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "turns over a text": TEXT + "{% for a in 'x' * 9999999 %}{% endfor %}",
    "turns over a list that is made": "{% for a in [1] * 9999999 %}{% endfor %}",
    "turns over what a filter gives": "{% for a in ('x' * 9999999) | map('upper') %}{% endfor %}",
    "a filter over what a filter gives": "{{ ('x' * 9999999) | map('upper') | map('lower') | list | length }}",
    "calls that branch": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}"
    ),
    "loops that call themselves": (
        "{% for a in [[[]] * 9] recursive %}{{ loop([a, a, a, a]) if loop.depth < 60 }}{% endfor %}"
    ),
    "a text twice as long in each turn": TEXT + HUNDRED + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "a text that is joined to itself": TEXT + HUNDRED + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "a block that is written twice": (
        TEXT + HUNDRED + "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}{% endfor %}"
    ),
    "a macro that writes twice": (
        TEXT + "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + HUNDRED + "{% set ns.x = m(ns.x) %}{% endfor %}"
    ),
    "a list twice as long in each turn": TEXT + HUNDRED + "{% set ns.l = ns.l + ns.l %}{% endfor %}",
    "a list in itself": TEXT + HUNDRED + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    "a mapping in itself": TEXT + HUNDRED + "{% set ns.l = {'a': ns.l, 'b': ns.l} %}{% endfor %}{{ ns.l | tojson }}",
    "a mapping of a call in itself": TEXT + HUNDRED + "{% set ns.l = dict(a=ns.l, b=ns.l) %}{% endfor %}{{ ns.l }}",
    "a large text many times in a list": "{% set x = 'x' * 999999 %}{{ [x] * 99999 }}",
    "slices of a text": TEXT + "{% set x = 'x' * 9999999 %}" + HUNDRED + "{% set ns.l = ns.l + [x[1:]] %}{% endfor %}",
    "a product": "{{ 'x' * 10 ** 9 }}",
    "a list's product": "{{ [1] * 10 ** 9 }}",
    "a power": "{{ 9 ** (9 ** 9) }}",
    "an integer that grows": "{% set ns = namespace(n=3) %}" + HUNDRED + "{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "a wide format": "{{ '%999999999d' % 1 }}",
    "a format of a width that is told": "{{ '%*d' % (999999999, 1) }}",
    "a filter's format": "{{ '%999999999d' | format(1) }}",
    "a method's format": "{{ '{:>999999999}'.format(1) }}",
    "a format in a format": "{{ '{:{w}}'.format(1, w='999999999') }}",
    "a format of many places": "{{ ('{0}' * 99999).format('x' * 99999) }}",
    "spaces around": "{{ 'x'.center(10 ** 9) }}",
    "spaces around by a filter": "{{ 'x' | center(10 ** 9) }}",
    "a filter by its name": "{{ ['x'] | map('center', 10 ** 9) | list }}",
    "zeros before": "{{ 'x'.zfill(10 ** 9) }}",
    "tabs": "{{ ('\\t' * 99999).expandtabs(99999) }}",
    "a method that is looked up": "{{ ('x' | attr('ljust'))(10 ** 9) }}",
    "an indent": "{{ ('x\\n' * 9999) | indent(999999) }}",
    "an indent of JSON": "{{ ([[1]] * 9999) | tojson(indent=999999) }}",
    "replacing": "{{ ('x' * 99999).replace('', 'x' * 99999) }}",
    "replacing by a filter": "{{ ('x' * 99999) | replace('x', 'y' * 99999) }}",
    "joining": "{{ ('x' * 99999).join([''] * 99999) }}",
    "joining by a filter": "{{ ([''] * 99999) | join('x' * 99999) }}",
    "translating": "{{ ('x' * 99999).translate({120: 'y' * 99999}) }}",
    "filling rows": "{{ [1] | batch(10 ** 9, 0) | list }}",
    "columns": "{{ [1] | slice(10 ** 9) | list }}",
    "adding lists": "{{ ([[1] * 99] * 99999) | sum(start=[]) }}",
    "a constant that is made at once": "{{ 'x' | center(999999999) }}",
    "too many words": "{{ lipsum(n=10 ** 9) }}",
    "a slow filter": "{{ ('<!--' * 999999) | striptags }}",
}  # fmt: skip


def template(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, {})


REFUSED = r"the chat template (makes|does|formats|adds|gives|renders|refuses)"


@pytest.mark.long
@pytest.mark.parametrize("what", BOMBS)
def test_what_takes_too_much_is_refused(what: str) -> None:
    """The next test has the same templates, all in one process."""
    with pytest.raises(InputError, match=REFUSED):
        template(BOMBS[what]).render(HELLO)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit of memory is Linux's")
def test_all_of_them_are_refused_within_a_gibibyte() -> None:
    program = (
        "import json, re, resource, sys\n"
        "from mesh.errors import InputError\n"
        "from mesh.serving.chat_template import ChatTemplate\n"
        "ChatTemplate({'default': 'x'}, {}).render([{'role': 'user'}])\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (used + {GIB}, used + {GIB}))\n"
        "for what, source in json.load(sys.stdin).items():\n"
        "    try:\n"
        "        ChatTemplate({'default': source}, {}).render([{'role': 'user', 'content': 'hello'}])\n"
        "    except InputError as error:\n"
        f"        if 'MemoryError' in str(error) or not re.search({REFUSED!r}, str(error)): print(what, error)\n"
        "    else: print(what, 'was rendered')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(BOMBS), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_slow_steps_are_ended_by_the_clock() -> None:
    with pytest.raises(InputError, match="takes more than 0 s"):
        for _ in Work(cpu_s_max=0.0).turns(range(9999)):
            pass


def test_long_conversations_render() -> None:
    source = (
        "{%- set ns = namespace(found=[]) -%}{%- for m in messages -%}{%- set ns.found = ns.found + [m.role] -%}"
        "{{ '<|' ~ m.role ~ '|>' + m.content.strip() | trim }}{% endfor %}{{ ns.found | length }}"
    )
    messages = [{"role": "user", "content": "word " * 200}] * 2000
    text = template(source).render(messages)
    assert text.count("<|user|>") == 2000 and text.endswith("2000")
    assert (
        len(template("{{ messages[0].content }}").render([{"role": "user", "content": "x" * (16 << 20)}])) == 16 << 20
    )


def test_loops_know_how_many_turns_there_are() -> None:
    source = "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ '.' if loop.last else ' ' }}{% endfor %}"
    assert template(source).render(HELLO * 3) == "1/3 2/3 3/3."
    odd = "{% for m in messages | selectattr('role', 'equalto', 'user') %}{{ loop.length }}{{ loop.last }} {% endfor %}"
    assert template(odd).render(HELLO * 2) == "2False 2True "
    assert template("{% for key in messages[0] %}{{ key }} {% endfor %}").render(HELLO) == "role content "
    assert template("{% for m in nothing %}x{% else %}none{% endfor %}").render(HELLO) == "none"


def test_a_template_that_is_too_long_or_too_deep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("x" * (SOURCE_MAX + 1))
    with pytest.raises(InputError, match=f"the chat template has {SOURCE_MAX + 1} characters, and may have"):
        load_chat_template(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")
    with pytest.raises(InputError, match="nested too deeply"):
        load_chat_template(tmp_path)


def test_an_iterator_counts_as_it_goes_on() -> None:
    seen = iter(range(10**12))
    with pytest.raises(InputError, match="steps"):
        for _ in Work().made(seen):
            pass
    assert next(seen) <= template_limits.STEPS_MAX + 1
