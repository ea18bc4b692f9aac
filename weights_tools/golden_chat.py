"""What transformers makes of chat templates, for the server's own interpreter of them.

Run: python -m weights_tools.golden_chat OUT, with transformers 5.23.0, jinja2 3.1.6 and tokenizers
0.23.3. OUT (tests/golden/chat_template) holds templates in the style of the public ones, NAME.jinja,
and gets
  rendered.json  each template over conversations made by chance: the text, or null where the
                 template refuses them
  snippets.json  small templates, one for each thing that the language has: the text, or null
  ids.json       token ids that apply_chat_template gives with the tokenizer of tests/golden/tokenizer
  continued.json what it gives with continue_final_message, where it gives anything
"""

import argparse
import copy
import json
import pathlib
import random

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CONTROL = [
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|system|>", "<|assistant|>", "<|end|>",
    "[INST]", "[/INST]", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
]  # fmt: skip
WORDS = [
    "hello", "What is  it?", "\n", "  ", "\t", "é", "日本語", "🦙", "\u00a0", "<b>&amp;</b>", "'", '"',
    "\\n", "{{ x }}", "{% if %}", "<think>\nhm\n</think>\n\nyes", "[/INST]", "<|im_end|>", "</s>",
    "a\r\nb", "\u2028", "12", "<result>1</result>", "\x07", "ﬁ e\u0301",
]  # fmt: skip
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather.",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": " The town\u00e9 "},
                    "days": {"type": ["integer", "boolean"]},
                    "kinds": {"type": "array", "items": {"type": "number"}},
                    "more": {"type": "object", "values_are": {"type": "string"}},
                    "other": {"type": "null", "default": None, "limit": 1e-5, "on": True},
                },
                "required": ["place"],
            },
            "return": {"type": "string"},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "now",
            "description": 'Tells "the" time \\.',
            "parameters": {"type": "object", "properties": {}},
        },
    },
]


def text(chance, words):
    return "".join(chance.choice(words) for _ in range(chance.randrange(6)))


def tool_turns(chance, words):
    name = "".join(chance.choice("abcdefghi123") for _ in range(chance.choice([9, 9, 9, 8])))
    call = {"id": name, "type": "function", "function": {"name": "now", "arguments": {"x": [1, 2.5]}}}
    if chance.random() < 0.3:
        call["function"]["arguments"] = '{"x": 1}'
    yield {"role": "assistant", "content": text(chance, words), "tool_calls": [call]}
    for _ in range(chance.randrange(1, 3)):
        content = text(chance, words) if chance.random() < 0.7 else chance.choice([12, {"a": text(chance, words)}])
        yield {"role": "tool", "content": content, "tool_call_id": name}


def conversation(chance, words):
    messages = []
    if chance.random() < 0.4:
        messages.append({"role": "system", "content": text(chance, words)})
    for turn in range(chance.randrange(1, 5)):
        messages.append({"role": "user", "content": text(chance, words)})
        if chance.random() < 0.2:
            messages += tool_turns(chance, words)
        if turn % 2 == 0 or chance.random() < 0.8:
            messages.append({"role": "assistant", "content": text(chance, words)})
    if chance.random() < 0.2:
        chance.choice(messages)["content"] = [{"type": "text", "text": text(chance, words)}, {"type": "image"}]
    if chance.random() < 0.1:
        messages.append({"role": chance.choice(["user", "critic"]), "content": text(chance, words)})
    return messages


def variables(chance, words):
    return {
        "messages": conversation(chance, words),
        "tools": TOOLS if chance.random() < 0.3 else None,
        "add_generation_prompt": chance.random() < 0.5,
        "today": "1 May 2026",
        **TOKENS,
    }


# Variables that clients set, of templates that have them.
SWITCHES = {
    "enable_thinking": [True, False],
    "number_pictures": [True],
    "documents": [[{"doc_id": 1, "title": "", "text": "caf\u00e9 <b>", "source": None}], []],
    "available_tools": [TOOLS[1:], None],
}


def switches(chance, template):
    """One or none of the values of each."""
    return {
        name: chance.choice(values)
        for name, values in SWITCHES.items()
        if name in template and chance.random() < 0.6
    }


# What the language has, apart from what the templates use. Rendered with SNIPPET_VARIABLES.
SNIPPET_VARIABLES = {
    "s": "  Hello, World  ",
    "u": "Straße ΑΒΓ ñandú it's a dog-house",
    "n": 7,
    "f": 2.5,
    "yes": True,
    "nothing": None,
    "empty": [],
    "l": [3, 1, 2],
    "d": {"a": 1, "b": {"c": "x"}, "items": "own", "é": [1, None, True, 1e22, 0.1, "q\"'\n"]},
    "m": [{"r": "u", "c": "one", "k": 1}, {"r": "a", "c": "two"}, {"r": "u", "c": "three", "k": 3}],
    "lines": "a\nb\n\n  c\n",
}
SNIPPETS = r"""
{{ 1 + 2 * 3 - 4 / 2 }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ -7 % 3 }}|{{ 7 % -3 }}|{{ 2 ** 10 }}|{{ 2 ** -1 }}|{{ 2 ** 3 ** 2 }}
{{ -n + +n }}|{{ 7.5 // 2 }}|{{ 1e3 }}|{{ 1.5e-7 }}|{{ 1e16 }}|{{ 123456789.123 }}|{{ 0.1 + 0.2 }}|{{ -2 ** 2 }}
{{ 1 / 0 }}
{{ 10 / 5 }}|{{ 3.0 }}|{{ 1 == 1.0 }}|{{ true == 1 }}|{{ 'a' < 'b' }}|{{ 1 < 2 < 3 }}|{{ 1 < 3 < 2 }}|{{ 1 != 2 }}
{{ 'a' ~ 1 ~ none ~ true ~ 2.0 }}|{{ 'a' + 'b' }}|{{ 'ab' * 3 }}|{{ [1] + [2] }}|{{ [0] * 3 }}
{{ 'a' + 1 }}
{{ 1 + nothing }}
{{ missing }}|{{ missing is defined }}|{{ missing or 'x' }}|{{ missing | default('y') }}|{{ nothing | default('y') }}|{{ nothing | default('y', true) }}
{{ missing.attribute }}
{{ missing + 'x' }}
{{ d.zz }}|{{ d['zz'] is undefined }}|{{ d.a }}|{{ d['b']['c'] }}|{{ d.b.c }}|{{ d['items'] }}|{{ l[0] }}|{{ l[-1] }}|{{ l[9] }}
{{ d.zz.y }}
{{ d.items is string }}|{{ d.items is defined }}|{{ d.items is callable }}
{{ 'a' in 'cat' }}|{{ 'a' in d }}|{{ 3 in l }}|{{ 4 not in l }}|{{ 'q' in missing }}|{{ not 'a' in 'cat' }}
{{ 1 in 'abc' }}
{{ 1 in nothing }}
{{ yes and n }}|{{ nothing or 'x' }}|{{ not yes }}|{{ yes and '' or 'z' }}|{{ empty or l }}
{{ 'a' if yes else 'b' }}|{{ 'a' if nothing }}|{{ 'a' if nothing else 'b' if empty else 'c' }}
{{ s[2] }}|{{ s[2:7] }}|{{ s[::-1] }}|{{ s[-4:-2] }}|{{ s[:2] }}|{{ s[100:] }}|{{ u[4] }}|{{ l[::2] }}|{{ l[::-2] }}|{{ l[-100:100] }}
{{ l[::0] }}
{{ s.strip() }}|{{ s.lstrip() }}|{{ s.rstrip() }}|{{ 'xxabxx'.strip('x') }}|{{ 'éaé'.strip('é') }}
{{ 'a,b,,c'.split(',') }}|{{ ' a  b '.split() }}|{{ 'a b c'.split(' ', 1) }}|{{ 'a b c d'.rsplit(' ', 2) }}|{{ ' a b  c '.split(none, 1) }}|{{ ' a b  c '.rsplit(none, 1) }}|{{ ''.split() }}|{{ ''.split(',') }}
{{ 'a'.split('') }}
{{ 'abc'.startswith('ab') }}|{{ 'abc'.endswith('bc') }}|{{ 'abc'.startswith(('x', 'a')) }}|{{ 'abc'.find('c') }}|{{ 'abc'.find('z') }}|{{ 'éab'.find('b') }}|{{ 'aXbX'.count('X') }}
{{ 'aaa'.replace('a', 'b') }}|{{ 'aaa'.replace('a', 'b', 2) }}|{{ 'ab'.replace('', '-') }}|{{ 'aaa' | replace('a', 'c', 1) }}|{{ 12 | replace(1, 3) }}
{{ 'abc'.upper() }}|{{ 'ÀB'.lower() }}|{{ 'hello wOrld it\'s'.title() }}|{{ 'hELLO'.capitalize() }}|{{ 'a\nb\r\nc\x0bd'.splitlines() }}|{{ ','.join(['a', 'b']) }}
{{ 'prefix-a'.removeprefix('prefix-') }}|{{ 'a.txt'.removesuffix('.txt') }}
{{ u | lower }}|{{ 'ñandú' | upper }}|{{ u | title }}|{{ 'hello (wOrld) [x]-y' | title }}|{{ 'hELLO' | capitalize }}
{{ s | trim }}|{{ 'xax' | trim('x') }}|{{ nothing | trim }}|{{ missing | trim }}|{{ 5 | string + '' }}|{{ s | length }}|{{ l | length }}|{{ d | count }}|{{ u | length }}
{{ n | length }}
{{ d | tojson }}
{{ d | tojson(indent=2) }}
{{ d | tojson(ensure_ascii=true) }}|{{ d | tojson(sort_keys=true, separators=(',', ':')) }}|{{ [] | tojson(indent=2) }}|{{ {'a': {}} | tojson(indent=1) }}|{{ '</script>\x01\x7f🦙' | tojson }}|{{ '🦙\x7f' | tojson(true) }}
{{ missing | tojson }}
{{ l | join }}|{{ l | join(', ') }}|{{ m | join('-', 'c') }}|{{ m | join('-', attribute='c') }}|{{ 'abc' | join('.') }}|{{ missing | join('x') }}
{{ l | first }}|{{ l | last }}|{{ empty | first }}|{{ 'abc' | first }}|{{ 'abc' | last }}|{{ d | first }}
{{ 'abc' | list }}|{{ d | list }}|{{ (1, 2) | list }}|{{ (1, 2) }}|{{ (1,) }}|{{ () }}|{{ d.b | items | list }}|{{ d.b.items() | list }}|{{ d.keys() | list }}|{{ d.b.values() | list }}
{{ nothing | list }}
{{ n | items | list }}
{{ d.get('a') }}|{{ d.get('zz') }}|{{ d.get('zz', 5) }}
{{ m | selectattr('k') | map(attribute='c') | list }}|{{ m | selectattr('r', 'equalto', 'u') | list | length }}|{{ m | rejectattr('r', '==', 'u') | map(attribute='c') | join }}|{{ m | selectattr('k', 'defined') | map(attribute='k') | list }}
{{ l | select('odd') | list }}|{{ l | reject('gt', 1) | list }}|{{ [0, 1, '', 'a'] | select | list }}|{{ ['a', 1] | select('string') | list }}|{{ l | map('string') | join('+') }}|{{ ['a '] | map('trim') | list }}|{{ m | map(attribute='k', default=0) | list }}
{{ m | selectattr('k') | length }}
{% for v in (nothing, missing, false, 0, '', [], {}) %}{{ v | select | list }}{{ v | reject('odd') | list }}{{ v | selectattr('a') | list }}{{ v | rejectattr('a', 'equalto', 1) | list }}{{ v | map('upper') | list }}{{ v | map(attribute='a') | list }}{% endfor %}
{{ nothing | selectattr | list }}|{{ nothing | map | list }}|{{ nothing | map('trim') | first }}|{{ missing | map(attribute='a') | join('-') }}
{{ n | selectattr('a') | list }}
{{ true | map('upper') | list }}
{{ nothing | join }}
{{ nothing | first }}
{{ nothing | unique | list }}
{% set g = m | selectattr('k') %}{{ 'yes' if g else 'no' }}{% for x in g %}{{ x.c }}{% endfor %}-{% for x in g %}{{ x.c }}{% endfor %}
{% set g = l | map('string') %}{{ g | first }}{{ g | list }}
{{ l | reverse | list }}|{{ 'abc' | reverse }}|{{ '12' | int + 1 }}|{{ ' 12.7 ' | int }}|{{ 'x' | int }}|{{ 'x' | int(9) }}|{{ 2.9 | int }}|{{ '2.5' | float }}|{{ 'x' | float }}|{{ -3 | abs }}|{{ -3.5 | abs }}
{{ lines | indent }}|{{ lines | indent(2, true) }}|{{ lines | indent(2, false, true) }}|{{ lines | indent('>') }}
{{ '<b>' | safe }}|{{ '<b>' | safe + '<i>' }}|{{ '<b>' + ('<i>' | safe) + "'" }}|{{ '<b>' ~ ('<i>' | safe) ~ '"' }}|{{ ('<b>' | safe) + ('<i>' | safe) + '&' }}|{{ d | tojson | safe }}|{{ (d | tojson | safe) + "'" }}
{{ [n | safe, missing | safe, '<' | safe] }}|{{ {'<' | safe: '>' | safe} }}|{{ ['<' | safe, '<'] | unique | list }}|{{ '<' | safe == '<' }}|{{ 'a' in ('<a>' | safe) }}|{{ '<' | safe is string }}
{% set q = '<a> & <b>' | safe %}{{ q.split() }}|{{ q.split('&')[0] + '<' }}|{{ q[0] + '<' }}|{{ q[1:] + '<' }}|{{ q[::-1] + '<' }}|{{ q * 2 + '<' }}|{{ q.strip('<') + '<' }}|{{ q.replace('&', '<') }}|{{ q.upper() + '<' }}|{{ q.title() + '<' }}|{{ q.removeprefix('<') + '<' }}|{{ q.join(['<', '>']) }}|{{ q.find('&') }}|{{ q.count('<') }}|{{ q.startswith('<') }}|{{ q.splitlines() }}|{{ q.rsplit(' ', 1) }}
{% set q = '<a> & <b>' | safe %}{{ q | trim + '<' }}|{{ q | upper + '<' }}|{{ q | capitalize + '<' }}|{{ q | title + '<' }}|{{ q | string + '<' }}|{{ q | replace('&', '<') + '<' }}|{{ q | reverse + '<' }}|{{ q | first + '<' }}|{{ q | last + '<' }}|{{ q | list }}|{{ q | indent(first=true) + '<' }}|{{ [q, '<'] | join('<') + '<' }}|{{ '<'.join([q]) + '<' }}|{{ '<x>'.replace('x', q) + '<' }}|{{ q | default('x') + '<' }}|{{ q | tojson + '<' }}|{{ q | length }}|{{ q | safe + '<' }}
{% set q %}<{{ '<' | safe }}{% endset %}{{ q + '<' }}|{% macro f() %}{{ '<' | safe }}{% endmacro %}{{ f() + '<' }}|{% set r | safe %}<{% endset %}{{ r + '<' }}
{{ ('<' | safe) + 1 }}
{{ {'b': 1, 'A': 2, 'c': 0} | dictsort }}|{{ {'b': 1, 'A': 2, 'c': 0} | dictsort(true) }}|{{ {'b': 1, 'A': 2, 'c': 0} | dictsort(by='value') }}|{{ {'b': 1, 'A': 2, 'c': 0} | dictsort(false, 'key', true) }}|{{ {'b': 'X', 'a': 'y', 'c': 'Y', 'd': 'x'} | dictsort(by='value', reverse=true) }}|{{ {'b': [2, 1], 'a': [2], 'c': []} | dictsort(by='value') }}|{{ {} | dictsort }}
{% for k, v in d.b | dictsort %}{{ k }}={{ v }};{% endfor %}{% for k, v in {'é': 1, 'E': 2, 'z': 3} | dictsort %}{{ k }}{{ v }}{% endfor %}
{{ {'a': 1, 'b': 'x'} | dictsort(by='value') }}
{{ d | dictsort(by='item') }}
{{ l | dictsort }}
{{ missing | dictsort }}
{{ [1, 1.0, true, 2, '1', none, none, 0.5, 0.5] | unique | list }}|{{ ['b', 'B', 'a', 'b'] | unique | list }}|{{ ['b', 'B', 'a', 'b'] | unique(true) | list }}|{{ m | unique(attribute='r') | map(attribute='c') | list }}|{{ m | unique(false, 'k') | list | length }}|{{ [(1, 'a'), (1.0, 'a'), (1, 'A')] | unique | list }}|{{ 'abAB' | unique | join }}|{{ [] | unique | list }}|{{ missing | unique | list }}|{{ d | unique | list }}
{{ [[1], [1]] | unique | list }}
{{ [3, 1, 2] | sort }}|{{ [3, 1.5, true] | sort(true) }}|{{ ['b', 'A', 'a', 'B'] | sort }}|{{ ['b', 'A', 'a', 'B'] | sort(case_sensitive=true) }}|{{ ['b', 'A', 'a', 'B'] | sort(reverse=true) }}|{{ m | sort(attribute='c') | map(attribute='c') | list }}|{{ 'hello' | sort | join }}|{{ d | sort }}|{{ [] | sort }}|{{ [[2, 1], [1, 9]] | sort(attribute='1') }}
{{ [1, 'a'] | sort }}
{{ none | sort }}
{{ [3, 1, 2] | min }}|{{ [3, 1, 2] | max }}|{{ ['b', 'A', 'a'] | min }}|{{ ['b', 'A', 'a'] | max }}|{{ ['b', 'A', 'a'] | max(true) }}|{{ 'hello' | max }}|{{ [] | min }}|{{ [] | max is defined }}|{{ [1, 1.0, true] | max }}|{{ [1.0, 1, true] | min }}|{{ [[1, 'x'], [0, 'y']] | min(attribute='0') }}
{{ [1, none] | max }}
{{ [1, 2, 3] | sum }}|{{ [1, 2.5] | sum }}|{{ [] | sum }}|{{ [] | sum(start=7) }}|{{ [[1, 5], [2, 6]] | sum(attribute='1') }}|{{ [true, true] | sum }}|{{ [[1], [2]] | sum(start=[0]) }}|{{ [1, 2] | sum(none, 10) }}
{{ ['a', 'b'] | sum }}
{{ ['a', 'b'] | sum(start='') }}
{{ 2.5 | round }}|{{ 3.5 | round }}|{{ -0.5 | round }}|{{ 2.675 | round(2) }}|{{ 1.005 | round(2) }}|{{ 42 | round }}|{{ 42 | round(2) }}|{{ 42.55 | round(1, 'floor') }}|{{ 42.51 | round(1, 'ceil') }}|{{ 7 | round(0, 'ceil') }}|{{ -7.2 | round(method='floor') }}|{{ 1e300 | round(3) }}|{{ 0.1 | round(15) }}|{{ true | round }}
{{ 'x' | round }}
{{ 1.5 | round(1, 'down') }}
{{ n | unique | list }}
{% set g = l | unique %}{{ 'yes' if g else 'no' }}{{ g | first }}{{ g | list }}
{{ l | unique | length }}
{% filter upper %}a{{ s }}<{% endfilter %}|{% filter trim | replace('a', 'b') | upper %}  a {{ n }} {% endfilter %}|{% filter indent(2, first=true) %}x{{ '\n' }}y{% endfilter %}
{% filter trim %}{% set zz = 5 %}{{ zz }}{% endfilter %}{{ zz is defined }}|{% for x in l %}{% filter string %}{{ x }}{{ loop.index }}{% endfilter %}{% endfor %}|{% filter trim %}{% filter upper %} a {% endfilter %}{% endfilter %}
{% filter length %}abc{% endfilter %}
{% filter safe %}<{% endfilter %}|{% filter tojson %}"{% endfilter %}|{% filter default('x') %}{% endfilter %}
{% macro f() %}{% filter upper %}a{% endfilter %}{% endmacro %}{{ f() }}{% set q %}{% filter upper %}b{% endfilter %}{% endset %}{{ q }}
{{ [1, 2] < [1, 3] }}|{{ [1] < [1, 0] }}|{{ (1, 'a') >= (1, 'a') }}|{{ [2] > [1, 5] }}
{{ 'aXbXc'.replace('X', '') }}|{{ ''.replace('', '-') }}|{{ 'é日'.replace('', '-') }}|{{ 'é日'.replace('', '-', 2) }}|{{ 'é日x'[::-1] }}|{{ 'é日x'[-2:] }}|{{ 'é日xyz'[1::2] }}|{{ 'é日xyz'[-1:0:-2] }}|{{ 'é日x'[2:1] }}|{{ ''[0:1] }}|{{ 'é日x'[-1] }}|{{ ''[0] }}
{{ 'a\r\n\nb\r\rc\n'.splitlines() }}|{{ '\n'.splitlines() }}|{{ 'a\x85b\u2028c\x1cd'.splitlines() }}|{{ '  é\u3000 '.strip() }}|{{ '日é日'.strip('日') }}|{{ 'a b'.split(maxsplit=0) }}|{{ 'a,b,c'.split(',', 0) }}
{{ none }}|{{ True }}|{{ [none, true, 'a', 1.0, missing] }}|{{ {'a': 'it\'s', 'b': "\"", 'c': '\\ \t é \u200b \x00 \U0001F999'} }}
{{ 1 is number }}|{{ true is number }}|{{ true is integer }}|{{ 1 is integer }}|{{ 1.0 is float }}|{{ 'a' is string }}|{{ d is mapping }}|{{ l is mapping }}|{{ l is sequence }}|{{ 'a' is sequence }}|{{ n is iterable }}|{{ missing is iterable }}|{{ missing is sequence }}|{{ yes is boolean }}|{{ yes is true }}|{{ 1 is true }}|{{ nothing is none }}|{{ nothing is not none }}
{{ n is odd }}|{{ n is even }}|{{ n is divisibleby 7 }}|{{ n is divisibleby(2) }}|{{ n is eq 7 }}|{{ n is in l }}|{{ n is not in(l) }}|{{ n is ge(7) and n is lt(8) }}|{{ 'a' is equalto 'a' }}|{{ not n is odd }}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}
{% for x in l if x > 1 %}{{ x }}{{ loop.length }}{% else %}none{% endfor %}|{% for x in empty %}x{% else %}none{% endfor %}|{% for x in missing %}x{% endfor %}
{% for k, v in d.b.items() %}{{ k }}={{ v }}{% endfor %}|{% for k in d %}{{ k }},{% endfor %}|{% for (a, b) in [(1, 2), [3, 4]] %}{{ a + b }}{% endfor %}|{% for c in 'é🦙' %}{{ c }}.{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for x in n %}{% endfor %}
{% for x in range(3) %}{% for y in range(x) %}{{ loop.depth }}{{ y }}{% endfor %};{% endfor %}|{{ range(2, 8, 3) | list }}|{{ range(3, 0, -1) | list }}
{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% set x = 1 %}{% for y in l %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}
{% set ns = namespace(x=1, y='a') %}{% for y in l %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z is defined }}
{% set n.x = 1 %}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t = 1, %}{{ t }}{% set c = d %}{{ c.a }}
{% set x %}a{{ n }}b{% endset %}{{ x }}{{ x | length }}{% set y | upper | trim %} abc {% endset %}[{{ y }}]
{% if n > 10 %}a{% elif n > 5 %}b{% else %}c{% endif %}{% if missing %}x{% endif %}{% if n == 7 and l and not empty %}y{% endif %}
{% if yes %}{% set z = 5 %}{% endif %}{{ z }}
{% macro f(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{{ n }}{% endmacro %}{{ f(1) }}|{{ f(1, 3) }}|{{ f(a=5, c='x') }}|{{ f() }}|{{ f(1) | length }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}
{% macro up(n) %}{% if n > 0 %}{{ n }}{{ up(n - 1) }}{% endif %}{% endmacro %}{{ up(5) }}
{% macro one() %}{{ two() }}{% endmacro %}{% macro two() %}2{% endmacro %}{{ one() }}
{% macro f() %}{{ x is defined }}{% endmacro %}{% set x = 1 %}{{ f() }}{% for x in l %}{{ f() }}{% endfor %}
{% raw %}{{ x }}{% if %}{% endraw %}|{# a {{ comment }} #}|{{ '{{' }}{{ "%}" }}
{{ "a" 'b' "c" }}|{{ 'tab\there\\ \'q\' \" \x41 \u00e9 \q' }}
{{ raise_exception('no') }}
{{ strftime_now is defined }}|{{ range is callable }}|{{ dict(a=1, b='x') }}|{{ dict({'q': 1}, z=2).z }}
{{ {'a': 1}['a'] }}|{{ {'a': 1}.a }}|{{ [1, [2, 3]][1][0] }}|{{ 'abc'[1] }}|{{ d.é is defined if false else 'skip' }}
{{ (1, 2) == [1, 2] }}|{{ [1, 'a'] == [1, 'a'] }}|{{ {'a': 1} == {'a': 1.0} }}|{{ nothing == missing }}|{{ 'a' == 1 }}
{{ 1 < 'a' }}
{% generation %}gen{% set inner = 1 %}{% endgeneration %}{{ inner is defined }}
{{ m[0].c.upper() }}|{{ m | map(attribute='c') | map('upper') | join }}|{{ m[0]['c'][0] }}|{{ (m | last).c }}|{{ m | length - 1 }}
{{ 'x' if 'a' is string else 'y' }}|{{ n is defined and n is not none }}|{{ nothing is defined and nothing }}
{{ not missing is defined }}|{{ (n | string).startswith('7') }}|{{ -n | abs }}|{{ 1 - -1 }}|{{ l|length > 2 and 'x' ~ n|string or 'no' }}
""".strip("\n").split("\n")  # fmt: skip
# White space: these hold line breaks.
SNIPPETS += [
    "a\n  {% if yes %}\n  b\n  {% endif %}\nc\n",
    "a\n  {%- if yes -%}\n  b\n  {%- endif -%}\nc\n\n",
    "a\n  {%+ if yes +%}\n  b\n  {%+ endif %}\nc",
    "  {% if yes %}x{% endif %}  \n  {{ n }}  \n{{- n -}}\n  y",
    "a {# c #}\n b\n   {#- c -#}  \n d\n  {# c #}\n  e",
    "x  {% set q = 1 %}\n  {% set q = 2 %} {% set q = 3 %}\n{{ q }}",
    "\n\n{% for x in l %}\n{{ x }}\n\n{% endfor %}\n\n",
    "a\r\nb\r{% if yes %}\r\nc{% endif %}\r\n",
    "{% raw %}\n  {{ a }}\n  {%- endraw -%}\n  b  {% raw -%}  \n c{% endraw %}\nd",
    "\t {% if yes %}\t{% endif %}\u00a0{%- if yes %}x{% endif -%}\u2003y",
    "{{ 'a\r\nb' }}{{ {'a': {'b': 1}}['a']['b']}}{{{'a': 1}['a']}}",
    "a\n  {% filter upper %}\n  b\n  {%- endfilter %}\nc\n",
    "{%- if yes %}\n{{- 'x' }}\n{%- endif %}\n{{ 'y' -}}\n\n{% if yes %} z {% endif %}\n",
]


def compiled(template):
    from transformers.utils.chat_template_utils import _compile_jinja_template

    return _compile_jinja_template(template)


def rendered(template, values):
    """The text; None where the template, or Python, refuses."""
    try:
        return compiled(template).render(**values)
    except Exception:  # noqa: BLE001: whatever it is, the request is refused
        return None


def conversations(folder):
    for path in sorted(folder.glob("*.jinja")):
        chance, switched = random.Random(path.stem), random.Random("switches " + path.stem)
        for _ in range(25):
            values = variables(chance, WORDS) | switches(switched, path.read_text())
            text = rendered(path.read_text(), copy.deepcopy(values))
            values["tools"] = values["tools"] is not None  # they are the same everywhere
            for name in ("today", *TOKENS):
                del values[name]
            yield {"template": path.stem, **values, "text": text}


def tokenizer(folder):
    import tokenizers
    import transformers

    inner = tokenizers.Tokenizer.from_file(str(folder.parent / "tokenizer" / "tokenizer.json"))
    inner.add_special_tokens([tokenizers.AddedToken(c, normalized=False) for c in CONTROL])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **TOKENS)


def takes_parts(template):
    """Whether it writes a text part as it writes a string."""
    texts = [
        rendered(template, {"messages": [{"role": "user", "content": content}], "add_generation_prompt": True, **TOKENS})
        for content in ("text", [{"type": "text", "text": "text"}])
    ]
    return texts[0] is not None and texts[0] == texts[1]


def served(messages, template):
    """What the server gives the template: parts that are no text are refused, here a text stands for them, and a
    template that takes strings alone gets the texts joined."""
    parts_taken, sent, given = takes_parts(template), [], []
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            content = [part if part["type"] == "text" else {"type": "text", "text": "!"} for part in content]
        sent.append({**message, "content": content})
        if isinstance(content, list) and not parts_taken:
            content = "".join(part["text"] for part in content)
        given.append({**message, "content": content})
    return sent, given


def ids(folder):
    """Without control tokens in the messages, which are text to the server and tokens to most."""
    fast = tokenizer(folder)
    plain = [word for word in WORDS if word not in CONTROL]
    for path in sorted(folder.glob("*.jinja")):
        chance = random.Random("ids " + path.stem)
        for _ in range(8):
            values = variables(chance, plain)
            fast.chat_template = path.read_text()
            values["messages"], given = served(values["messages"], fast.chat_template)
            try:
                result = fast.apply_chat_template(
                    given,
                    tools=values["tools"],
                    add_generation_prompt=values["add_generation_prompt"],
                    today=values["today"],
                    return_dict=False,
                )
            except Exception:  # noqa: BLE001
                continue
            values["tools"] = values["tools"] is not None
            for name in ("today", *TOKENS):
                del values[name]
            yield {"template": path.stem, **values, "ids": result}


def continued(folder):
    fast = tokenizer(folder)
    plain = [word for word in WORDS if word not in CONTROL]
    for path in sorted(folder.glob("*.jinja")):
        chance = random.Random("continued " + path.stem)
        fast.chat_template = path.read_text()
        for case in range(12):
            content = text(chance, plain) + chance.choice(["Sure", "x ", "y\n", ""])
            if case % 3 == 1:
                content = [{"type": "text", "text": "a"}, {"type": "text", "text": content}, {"type": "image"}]
            final = {"role": "assistant", "content": content}
            if case % 4 == 0:
                final[chance.choice(["reasoning", "thinking", "reasoning_content"])] = "hm"
            messages = [{"role": "user", "content": "one " + text(chance, plain)}, final]
            messages, given = served(messages, fast.chat_template)
            try:
                result = fast.apply_chat_template(
                    given, continue_final_message=True, tokenize=False, today="1 May 2026"
                )
            except Exception:  # noqa: BLE001
                continue
            yield {"template": path.stem, "messages": messages, "text": result}


def write(path, head, rows):
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    path.write_text(json.dumps(head, separators=(",", ":"))[:-1] + ',"cases":[\n' + lines + "\n]}\n")


def main(argv=None):
    import jinja2
    import transformers

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=pathlib.Path)
    out = parser.parse_args(argv).out
    head = {"transformers": transformers.__version__, "jinja2": jinja2.__version__}
    common = {**head, "tools": TOOLS, "today": "1 May 2026", **TOKENS}
    write(out / "rendered.json", common, conversations(out))
    write(out / "ids.json", {**common, "control": CONTROL}, ids(out))
    write(out / "continued.json", common, continued(out))
    snippets = ({"source": s, "text": rendered(s, copy.deepcopy(SNIPPET_VARIABLES))} for s in SNIPPETS)
    write(out / "snippets.json", {**head, "variables": SNIPPET_VARIABLES}, snippets)


if __name__ == "__main__":
    main()
