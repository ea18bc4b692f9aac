"""Constraints before others' implementations: what is let through is valid, what is refused has a name.

The suites are MaskBench (guidance-ai/jsonschemabench) and JSON-Schema-Test-Suite, in
RECURVE_DATA/schemas; without them their tests are skipped.
"""

import collections
import concurrent.futures
import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tarfile
import threading
import urllib.error
import urllib.request

import jsonschema
import pytest
import regress

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/clients/python"))
from server import Server  # noqa: E402
DATA = pathlib.Path(os.environ.get("RECURVE_DATA", ROOT.parent / "shared" / "data")) / "schemas"
BINARY = pathlib.Path(os.environ["RECURVE_BIN"]) / "constraint_answers"
MOST_MASK_SECONDS = 0.25  # of a processor, as constraint.h has it
REFUSAL = re.compile(r"schema, (\S+) at (#\S*): |schema: |schema, at ")


class Answers:
    """The program that compiles and draws, asked line by line."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [BINARY, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def ask(self, schema, answers=0, seed=1, texts=(), times=False):
        asked = {"schema": schema, "answers": answers, "seed": seed, "texts": list(texts), "times": times}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the program ended on {json.dumps(schema)[:500]}"
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0


def write_world(folder):
    """A vocabulary as RWKV's World models have it: all bytes, and pieces of texts that end anywhere."""
    pieces = [bytes([b]) for b in range(256)]
    text = pathlib.Path(__file__).read_bytes() + '\u00e9\u00e8 \u20ac10 \u4e16\u754c \U0001f600 {"name": "\u00fcber"}'.encode() * 8
    rng = random.Random(1)
    seen = set(pieces)
    while len(pieces) < 3000:
        at = rng.randrange(len(text))
        piece = text[at:at + rng.randint(2, 8)]
        if piece not in seen and len(piece) > 1:
            seen.add(piece)
            pieces.append(piece)
    lines = []
    for number, piece in enumerate(pieces, 1):
        try:
            written = repr(piece.decode())
        except UnicodeDecodeError:
            written = repr(piece)
        lines.append(f"{number} {written} {len(piece)}\n")
    (folder / "rwkv_vocab_v20230424.txt").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module", params=["bytes", "byte-level", "sentencepiece", "world"])
def vocabulary(request, tmp_path_factory):
    demo = ROOT / "weights_tools" / "demo"
    if request.param == "world":
        return [write_world(tmp_path_factory.mktemp("world"))]
    folders = {"bytes": [], "byte-level": [ROOT / "tests/golden/tokenizer"], "sentencepiece": [demo / "xlstm-books"]}
    return folders[request.param]


@pytest.fixture
def answers(vocabulary):
    program = Answers(*vocabulary)
    yield program
    program.close()


@pytest.fixture(scope="module")
def of_bytes():
    program = Answers()
    yield program
    program.close()


def pattern(validator, regex, value, schema):
    """As the specification has it: a regular expression of ECMA-262, where Python has its own."""
    if validator.is_type(value, "string") and regress.Regex(regex).find(value) is None:
        yield jsonschema.ValidationError(f"{value!r} does not match {regex!r}")


Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": pattern})


def validator(schema):
    return Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


# ---- answers under random schemas ----


def random_schema(rng, depth=0):
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "pattern", "format", "const", "any"]
    if depth < 3:
        kinds += ["object", "array", "object", "array", "anyOf", "types", "map", "tuple", "recursive", "allOf", "not", "oneOf", "siblings"]
    kind = rng.choice(kinds)
    if kind == "string":
        low = rng.randint(0, 4)
        return rng.choice([{"type": "string"}, {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 9)}])
    if kind == "integer":
        low = rng.randint(-10**rng.randint(1, 12), 10**rng.randint(1, 12))
        return rng.choice([
            {"type": "integer"},
            {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 10**rng.randint(1, 6))},
            {"type": "integer", "exclusiveMinimum": low},
            {"type": "integer", "maximum": low},
            {"type": "integer", "multipleOf": rng.randint(1, 12)},
            {"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": rng.randint(1, 9)},
        ])
    if kind == "number":
        low = round(rng.uniform(-1000, 1000), rng.randint(0, 4))
        return rng.choice([
            {"type": "number"},
            {"type": "number", "minimum": low},
            {"type": "number", "exclusiveMaximum": low},
            {"type": "number", "minimum": low, "exclusiveMaximum": low + rng.choice([0.25, 1, 37.5])},
            {"type": "number", "exclusiveMinimum": low, "maximum": low + rng.choice([0.5, 2, 1e6])},
        ])
    if kind in ("boolean", "null"):
        return {"type": kind}
    if kind == "enum":
        values = ["a", "b\"c", "\u00e9\u20ac\n/\u007f", 1, -2.5, 1e15, 2**53 + 1, True, None, [1, "x"], {"k": {"l": 0}}]
        return {"enum": rng.sample(values, rng.randint(1, 4))}
    if kind == "const":
        return {"const": rng.choice(["x", "\\", 0, {"a": [None, False]}])}
    if kind == "any":
        return rng.choice([{}, True, {"type": "object"}, {"type": "array"}])
    if kind == "pattern":
        length = rng.choice([{}, {}, {"minLength": rng.randint(1, 3)}, {"maxLength": rng.randint(3, 40)}])
        return {"type": "string", **length, "pattern": rng.choice([
            "^[a-z]{2,5}$", "^\\d{3}-\\d{4}$", "^(foo|ba[rz])+$", "^[^x]*$", "^\\w+@\\w+\\.com$", "^.{3}$", "^\\S+ \\S+$", "^[^\\s]{1,4}$", "^[^\\d\\-]+$", "^[^\\w\\s]*$",
            "\\S", "\\d\\D", "^a|b$", "\\W$", "(^\\s|x)\\w+", "[\"\\\\\n]", "\u00e9|\u4e16{2}", ""])}
    if kind == "format":
        return {"type": "string", "format": rng.choice(["date", "time", "date-time", "uuid", "ipv4", "email", "hostname", "ipv6", "uri", "iri-reference",
                                                          "json-pointer", "relative-json-pointer", "duration", "idn-email"])}
    if kind == "object":
        names = rng.sample(["a", "b", "ab", "name", "\u00fcber", "x y", "q\"", "$ref", "items"], rng.randint(0, 5))
        schema = {"type": "object", "properties": {name: random_schema(rng, depth + 1) for name in names}}
        schema["required"] = [name for name in names if rng.random() < 0.5]
        if rng.random() < 0.4:
            schema["additionalProperties"] = rng.choice([False, True, random_schema(rng, depth + 1)])
        if names and "additionalProperties" not in schema and rng.random() < 0.3:
            schema["minProperties"] = rng.randint(0, len(names))
        if rng.random() < 0.2:
            schema["maxProperties"] = rng.randint(len(schema["required"]), len(names) + 1)
        return schema
    if kind == "map":
        return rng.choice([
            {"type": "object", "additionalProperties": random_schema(rng, depth + 1)},
            {"type": "object", "patternProperties": {"^[a-c]+$": random_schema(rng, depth + 1)}, "additionalProperties": False},
            {"type": "object", "propertyNames": {"pattern": "^[A-Z]{2}$"}, "minProperties": 1},
        ])
    if kind == "array":
        schema = {"type": "array", "items": random_schema(rng, depth + 1)}
        if rng.random() < 0.6:
            schema["minItems"] = rng.randint(0, 2)
            schema["maxItems"] = schema["minItems"] + rng.randint(0, 3)
        return schema
    if kind == "tuple":
        return {"type": "array", "prefixItems": [random_schema(rng, depth + 1) for _ in range(rng.randint(1, 3))],
                "items": rng.choice([False, random_schema(rng, depth + 1)])}
    if kind == "types":
        return {"type": rng.sample(["string", "integer", "null", "boolean", "array"], 2), "minLength": 1, "maximum": 9}
    if kind == "allOf":
        low = rng.randint(0, 5)
        return rng.choice([
            {"allOf": [{"type": "integer", "minimum": low}, {"maximum": low + rng.randint(0, 99)}], "description": "x"},
            {"allOf": [{"type": "string"}, {"allOf": [{"minLength": low}, {"maxLength": low + 9}]}]},
            {"type": "object", "properties": {"a": random_schema(rng, depth + 1)}, "required": ["a"],
             "allOf": [{"properties": {"b": random_schema(rng, depth + 1)}}, {"required": ["b"]},
                       {"properties": {"n": {"$ref": "#/$defs/n"}}}]},
        ])
    if kind == "not":
        number = rng.randint(-9, 9)
        name = rng.choice(["a", "b", "name"])
        return {**rng.choice([{}, {"type": ["integer", "string", "object"]}, {"type": "object"}, {"type": "string"}]), "not": rng.choice([
            {"type": rng.sample(["null", "boolean", "integer", "string", "array"], 2)}, {"enum": ["a", "b", number, None]},
            {"minimum": number}, {"type": "integer", "maximum": number}, {"minLength": 3}, {"maxItems": 1}, {"required": [name]},
            {"not": random_schema(rng, depth + 1)}, {"anyOf": [{"type": "string"}, {"required": [name]}]},
            {"allOf": [{"const": True}, {"type": "boolean"}]}, {"properties": {name: {"type": "string"}}, "required": [name]}])}
    if kind == "oneOf":
        return {"oneOf": [random_schema(rng, depth + 2) for _ in range(rng.randint(2, 3))]}
    if kind == "siblings":
        low = rng.randint(0, 5)
        objects = {"type": "object", "properties": {"a": random_schema(rng, depth + 1), "b": {"type": "integer", "minimum": low}}}
        return rng.choice([
            {**objects, "anyOf": [{"required": ["a"]}, {"required": ["b"], "properties": {"b": {"maximum": low + 3}}}]},
            {**objects, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {**objects, "additionalProperties": rng.choice([False, {"type": "boolean"}]),
             "allOf": [{"properties": {"b": {"multipleOf": 1}, "c": random_schema(rng, depth + 2)}}]},
            {**objects, "if": {"properties": {"b": {"minimum": low + 2}}, "required": ["b"]}, "then": {"required": ["a"]},
             "else": {"properties": {"a": {"type": "string"}}}},
            {**objects, "dependentRequired": {"a": ["b"]}}, {**objects, "dependentSchemas": {"b": {"required": ["a"]}}},
            {"$ref": "#/$defs/n", "type": "array", "minItems": 1},
            {"enum": [low, "x" * low, None, [low]], "anyOf": [{"maximum": 3}, {"type": "string", "maxLength": 2}]},
            {"type": ["string", "integer"], "minimum": low, "oneOf": [{"type": "string", "minLength": 1}, {"maximum": low + 9}]},
            {"type": "string", "pattern": "^[a-c]{2,4}$", "maxLength": rng.randint(3, 9)},
        ])
    if kind == "recursive":
        return {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}]}
    return {"anyOf": [random_schema(rng, depth + 1) for _ in range(rng.randint(2, 3))]}


def schema_of(rng):
    """One of random_schema(), with what its references name."""
    body = random_schema(rng)
    if not isinstance(body, dict):
        return body
    return {"$defs": {"n": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2}]}}, **body}


def random_regex(rng, depth=0, edge=True):
    """With anchors where they may be, and what JSON escapes."""
    def one():
        kind = rng.random()
        if kind < 0.3 and depth < 2:
            return rng.choice(["(%s)", "(?:%s)"]) % random_regex(rng, depth + 1, False) + rng.choice(["", "?"])
        atoms = ["a", "b", "\u00e9", "\\.", "\\n", '"', "\\\\", "[ab]", "[^a]", "[^\\s\"]", ".", "[\\W_]", "[\\S\\n]", "\\d", "\\D", "\\w", "\\W", "\\s", "\\S"]
        # No group is repeated: the other implementation takes for ever, or does not see that a part may be empty.
        return rng.choice(atoms) + rng.choice(["", "", "?", "*", "+", "{1,2}"])

    def sequence():
        start, end = (rng.choice(["", "^"]), rng.choice(["", "$"])) if edge else ("", "")
        return start + "".join(one() for _ in range(rng.randint(0, 3))) + end

    text = "|".join(sequence() for _ in range(rng.choice([1, 1, 2])))
    return f"({text})" if edge and depth == 0 and rng.random() < 0.2 else text


@pytest.mark.parametrize("counted", [False, True])
def test_patterns_are_those_of_ecma_262(of_bytes, request, counted):
    rng = random.Random(20261129)
    wanted = request.config.getoption("--answers")
    alphabet = ["a", "b", "\u00e9", ".", "\n", '"', "\\", " ", "1", "_", "\u4e16", "\u3000"]
    taken = valid = drawn = refused = 0
    for seed in range(wanted):
        schema = {"type": "string", "pattern": random_regex(rng)}
        if counted:
            low = rng.randint(0, 3)
            schema |= rng.choice([{"minLength": low}, {"maxLength": low + 1}, {"minLength": low, "maxLength": low + rng.randint(0, 3)}])
        values = ["".join(rng.choices(alphabet, k=rng.randint(0, 5))) for _ in range(20)]
        got = of_bytes.ask(schema, answers=2, seed=seed, texts=[json.dumps(value, ensure_ascii=False) for value in values])
        expected = [validator(schema).is_valid(value) for value in values]
        if counted and "no string of this length matches it" in got.get("refused", ""):
            assert not any(expected), schema
            refused += 1
            continue
        assert "refused" not in got, got
        for text in got["answers"]:
            check_answer(schema, text)
            drawn += 1
        assert got["takes"] == expected, (schema, [v for v, t, e in zip(values, got["takes"], expected) if t != e])
        valid += sum(expected)
        taken += len(values)
    print(f"\n{wanted} patterns, {drawn} strings drawn, {valid} of {taken} valid, {refused} without a string")
    assert refused < wanted / 4
    assert taken / 10 < valid < taken * 9 / 10


def check_answer(schema, text):
    problem = next(validator(schema).iter_errors(json.loads(text)), None)
    assert problem is None, f"{json.dumps(schema)}\n{text}\n{problem}"


def test_every_answer_that_ends_is_valid(answers, request):
    wanted = request.config.getoption("--answers")
    rng = random.Random(20261124)
    drawn = cut = refused = 0
    for seed in range(wanted):
        schema = schema_of(rng)
        if wanted <= drawn:
            break
        got = answers.ask(schema, answers=2, seed=seed)
        if "refused" in got:
            assert REFUSAL.search(got["refused"]) or "cannot be" in got["refused"], got
            refused += 1
            continue
        cut += got["cut"]
        for text in got["answers"]:
            check_answer(schema, text)
            drawn += 1
    print(f"\n{drawn} answers valid, {cut} cut, {refused} schemas refused")
    assert drawn >= wanted * 0.8
    assert refused < drawn / 20


END = 1  # an id that random weights end an answer with, as they have none by themselves


@pytest.fixture(scope="module")
def random_model(tmp_path_factory):
    """A server of a small model with random weights and a vocabulary of SentencePiece."""
    demo = ROOT / "weights_tools/demo/xlstm-books"
    small = {"embedding_dim": 64, "hidden_size": 64, "num_blocks": 2, "num_hidden_layers": 2, "head_dim": 16}
    config = tmp_path_factory.mktemp("random-model") / "config.json"
    config.write_text(json.dumps({**json.loads((demo / "config.json").read_text()), **small}))
    with Server(config, "--random-weights", "--tokenizer", demo, "--http", "127.0.0.1:0", "--slots", "16") as server:
        yield server


def test_every_answer_of_a_random_model_is_valid(random_model, request):
    wanted = request.config.getoption("--answers")
    rng = random.Random(20261126)
    next_one, counts, lock = itertools.count(), collections.Counter(), threading.Lock()

    def answer():
        with lock:
            number, schema = next(next_one), schema_of(rng)
        schema_format = {"type": "json_schema", "json_schema": {"name": "random", "schema": schema, "strict": True}}
        asked = {"prompt": "The answer: ", "max_tokens": 400, "seed": number, "stop_token_ids": [END], "response_format": schema_format}
        http = urllib.request.Request(f"http://{random_model.http_address}/v1/completions", json.dumps(asked).encode(),
                                      {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(http) as got:
                choice = json.load(got)["choices"][0]
        except urllib.error.HTTPError as error:
            said = json.load(error)["error"]["message"]
            assert error.code == 400 and (REFUSAL.search(said) or "cannot be" in said), said
            with lock:
                counts["refused"] += 1
            return
        if choice["finish_reason"] == "stop":
            check_answer(schema, choice["text"])
        with lock:
            counts[choice["finish_reason"]] += 1

    def answers_until_there_are_enough():
        while counts["stop"] < wanted:
            answer()

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for one in [pool.submit(answers_until_there_are_enough) for _ in range(16)]:
            one.result()
    print(f"\n{dict(counts)}")
    assert counts["length"] < counts["stop"]
    assert counts["refused"] < counts["stop"] / 10


# ---- the suites ----


def maskbench(each=1):
    """Every so many of its schemas with their tests, by name."""
    path = DATA / "maskbench-400.tar.gz"
    if not path.exists():
        pytest.skip(f"no {path}")
    with tarfile.open(path) as tar:
        members = sorted((m for m in tar.getmembers() if m.name.endswith(".json")), key=lambda m: m.name)
        for member in members[::each]:
            yield member.name, json.load(tar.extractfile(member))


def draft_suite():
    path = DATA / "json-schema-test-suite-2020-12.tar.gz"
    if not path.exists():
        pytest.skip(f"no {path}")
    with tarfile.open(path) as tar:
        for member in sorted(tar.getmembers(), key=lambda m: m.name):
            if member.name.endswith(".json") and "/optional/" not in member.name:
                for group in json.load(tar.extractfile(member)):
                    yield f"{member.name}: {group['description']}", group


def llguidance_takes(schema, texts):
    """What llguidance says: None where it refuses the schema."""
    import llguidance

    try:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
        if llguidance.LLMatcher.validate_grammar(grammar):
            return None
    except ValueError:
        return None
    takes = []
    for text in texts:
        matcher = llguidance.LLMatcher(TOKENIZER[0], grammar)
        takes.append(all(matcher.consume_token(byte) for byte in text.encode()) and matcher.is_accepting())
    return takes


TOKENIZER = []


@pytest.fixture(scope="module", autouse=True)
def byte_tokenizer():
    import llguidance

    class Bytes:
        """What llguidance asks of a tokenizer: all bytes, and one that ends a text."""

        eos_token_id, bos_token_id = 256, None
        tokens = [bytes([b]) for b in range(256)] + [b"<eos>"]
        special_token_ids = [256]

        def __call__(self, text):
            return list(text)

    TOKENIZER.append(llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes())))


class Count:
    def __init__(self):
        self.of = collections.Counter()
        self.keywords = collections.Counter()
        self.wrong = []

    def add(self, name, schema, got, cases, valid_by):
        self.of["schemas"] += 1
        self.of["xgrammar takes"] += got["xgrammar"]
        if "refused" in got:
            self.of["refused"] += 1
            match = REFUSAL.search(got["refused"])
            if match is None and "cannot be enforced: " not in got["refused"]:
                self.wrong.append(f"{name}: a refusal that names nothing: {got['refused']}")
            keyword = match and match[1]
            self.keywords[keyword or got["refused"][:90]] += 1
            return
        self.of["accepted"] += 1
        for taken, (value, valid) in zip(got["takes"], cases):
            self.of["valid" if valid else "invalid"] += 1
            self.of["valid taken"] += taken and valid
            if taken and not valid and not valid_by(value):
                self.wrong.append(f"{name}: an invalid one is taken: {json.dumps(value)[:300]} of {json.dumps(schema)[:600]}")
        for text in got["answers"]:
            self.of["drawn"] += 1
            try:
                valid = valid_by(json.loads(text))
            except ValueError:
                valid = False
            if not valid:
                self.wrong.append(f"{name}: an invalid one is drawn: {text[:300]!r} of {json.dumps(schema)[:600]}")

    def say(self, title, other):
        share = self.of["accepted"] / self.of["schemas"]
        print(f"\n{title}: {dict(self.of)}\naccepted {share:.1%}, llguidance {other / self.of['schemas']:.1%}, "
              f"xgrammar by itself {self.of['xgrammar takes'] / self.of['schemas']:.1%}")
        print("refused for:", dict(self.keywords.most_common(25)))
        assert not self.wrong, "\n".join(self.wrong[:20])


def run_suite(title, groups, of_bytes, drawn):
    count, other = Count(), 0
    for name, group in groups:
        schema = group["schema"]
        cases = [(case["data"], case["valid"]) for case in group["tests"]]
        texts = [json.dumps(value, ensure_ascii=False) for value, _ in cases]
        got = of_bytes.ask(schema, answers=drawn, seed=7, texts=texts)
        other += llguidance_takes(schema, []) is not None
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
            check = validator(schema)
        except jsonschema.SchemaError:
            continue
        count.add(name, schema, got, cases, lambda value, check=check: check.is_valid(value))
    count.say(title, other)
    return count


def test_maskbench(of_bytes):
    count = run_suite("MaskBench", maskbench(), of_bytes, drawn=2)
    assert count.of["accepted"] > 0


def test_few_tokens_are_the_only_ones_that_may_come(request):
    """Why strings that a grammar forces are not absorbed as one chunk: server/constraint/README.md."""
    program = Answers(ROOT / "weights_tools" / "demo" / "xlstm-books")
    tokens = forced = texts = 0
    for name, group in maskbench(request.config.getoption("--each")):
        values = [case["data"] for case in group["tests"] if case["valid"]]
        got = program.ask(group["schema"], texts=[json.dumps(value, ensure_ascii=False, separators=separators)
                                                  for value in values for separators in ((", ", ": "), (",", ":"))])
        tokens, forced, texts = tokens + got.get("tokens", 0), forced + got.get("forced", 0), texts + sum(got.get("takes", []))
    program.close()
    print(f"\n{forced} of {tokens} tokens of {texts} texts are the only ones that may come: {forced / tokens:.1%}")
    assert tokens > 1000
    assert forced < tokens / 10


def test_masks_are_short(request):
    """How long masks of MaskBench's schemas take, worked out and kept: of --vocabulary, the demo's otherwise."""
    program = Answers(request.config.getoption("--vocabulary") or ROOT / "weights_tools" / "demo" / "xlstm-books", str(1 << 30))
    times, compiled = {"worked_out": [], "kept": []}, []
    for name, group in maskbench(request.config.getoption("--each")):
        texts = [json.dumps(case["data"], ensure_ascii=False) for case in group["tests"] if case["valid"]]
        got = program.ask(group["schema"], answers=2, texts=texts, times=True)
        if "refused" in got:
            continue
        compiled.append(got["seconds"] * 1e6)
        for which, of_one in times.items():
            of_one += got[which]
    program.close()
    print()
    for what, microseconds in {**times, "schemas compiled": compiled}.items():
        ordered = sorted(microseconds)
        at = [ordered[int(len(ordered) * q)] for q in (0.5, 0.9, 0.99)] + ordered[-1:]
        print(f"{what}: {len(ordered)}, us of a processor: p50 {at[0]:.0f}, p90 {at[1]:.0f}, p99 {at[2]:.0f}, longest {at[3]:.0f}")
    assert max(times["worked_out"]) < MOST_MASK_SECONDS * 1e6


def test_draft_2020_12(of_bytes):
    count = run_suite("JSON-Schema-Test-Suite 2020-12", draft_suite(), of_bytes, drawn=2)
    assert count.of["accepted"] > 0
