"""A tenant that sends new constraints without pause, each as expensive to compile as is allowed."""

import itertools
import json
import random

import tenant
from tenant import TENANTS  # noqa: F401

FLAGS = ["--slots", "16"]
SHORT = {"streams": 24, "seconds": 2.5}
FULL = {"streams": 64, "seconds": 60}
CONSTRAINED = True
KEEPS = 112 << 20  # compiled constraints and masks, as the server logs at its start
# For an answer with a new schema, during the attack. A compilation gets a small share of a busy processor, so
# this requires a machine without other work, as the full form does.
MOST_SECONDS = 5


def regexes(rng):
    """Exponential for backtracking engines, or with many states for automata."""
    letter = rng.choice("abcdefgh")
    yield {"regex": f"({letter}|{letter}{letter})+{rng.randrange(10**6)}"}
    yield {"regex": f".{{0,{rng.randint(150, 250)}}}{rng.randrange(10**6)}"}
    yield {"regex": f"(.*{letter}.{{{rng.randint(15, 20)}}})|{rng.randrange(10**6)}"}
    yield {"regex": "(" * 60 + f"{letter}*" + ")*" * 60 + str(rng.randrange(10**6))}


def schemas(rng):
    number = rng.randrange(10**6)
    names = [f"p{number}_{i}" for i in range(400)]
    yield {"type": "object", "properties": {name: {"type": "string", "maxLength": 900} for name in names}}
    yield {"enum": [f"{number}{rng.random()}" for _ in range(3000)]}
    tree = {"type": "object", "properties": {f"x{number}": {"$ref": "#/$defs/t"}, "y": {"$ref": "#/$defs/t"}}}
    yield {"$ref": "#/$defs/t", "$defs": {"t": {"anyOf": [{"type": "null"}, tree, {"type": "array", "items": {
        "$ref": "#/$defs/t"}}]}}}
    doubled = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(30)}
    yield {"$ref": "#/$defs/d0", "$defs": {**doubled, "d30": {"const": number}}}
    deep = {"type": "integer", "minimum": number}
    for _ in range(60):
        deep = {"type": "array", "items": deep, "maxItems": 900}
    yield deep
    yield {"type": "string", "pattern": f"^[a-z]{{1,250}}{number}$"}
    yield {"type": "integer", "minimum": 2, "maximum": 1, "title": str(number)}


def grammars(rng):
    number = rng.randrange(10**6)
    yield f'root ::= root root | "{number}" | ""'
    yield "\n".join([f'root ::= r0 "{number}"'] + [f"r{i} ::= r{i + 1} r{i + 1} | r{i + 1}" for i in range(20)]
                    + ['r20 ::= [a-z] | [a-m] "x"?'])


def constraints(seed):
    """Endless."""
    for number in itertools.count():
        rng = random.Random(f"{seed} {number}")
        yield from regexes(rng)
        yield from ({"json_schema": json.dumps(schema)} for schema in schemas(rng))
        yield from ({"grammar": grammar} for grammar in grammars(rng))


def attack(address, streams, seconds):
    codes = tenant.flood(address, streams, seconds, text="Once", stop={"max_tokens": 64},
                         each=lambda stream: ({"constraint": one} for one in constraints(stream)))
    return f"{streams} streams of constraints, ended by {codes}"


def check(result, size):
    yield from result.refusals()
    yield from result.too_slow()
    constrained = result.constrained
    if constrained.errors:
        yield f"with new schemas: {constrained}, wanted all answered"
    elif size == FULL and constrained.p99() > MOST_SECONDS:
        yield f"an answer with a new schema took {constrained}, wanted under {MOST_SECONDS} s"
