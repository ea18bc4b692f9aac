// The template interpreter against Jinja itself, as transformers uses it:
// tests/golden/chat_template, made by weights_tools/golden_chat.py. And what is its own: limits,
// origins, refusals.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "server/text/jinja/json.h"
#include "server/text/jinja/template.h"
#include "tests/server/text/data.h"

namespace recurve::jinja::jinja_test {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

std::filesystem::path folder() {
  return std::filesystem::path(RECURVE_SOURCE_DIR) / "tests/golden/chat_template";
}

Json golden(const char* name) { return Json::parse(recurve::testing::read_text(folder() / name)); }

Value parsed(const std::string& json) {
  JsonBudget budget{.most = 1'000'000};
  return parse_json(json, Origin::kMessage, budget);
}

Template::Variables variables_of(const Json& object) {
  Template::Variables all;
  for (const auto& [name, value] : object.items()) all[name] = parsed(value.dump());
  return all;
}

// The text, or null where the template or the interpreter refuses.
Json rendered(const std::string& source, const Template::Variables& variables,
              std::string* why = nullptr) {
  try {
    const Text text = Template(source).render({&variables}, std::tm{});
    EXPECT_EQ(text.bytes.size(), text.origins.size());
    return text.bytes;
  } catch (const Error& error) {
    if (why != nullptr) *why = error.what();
    return nullptr;
  }
}

TEST(JinjaGolden, Snippets) {
  const Json file = golden("snippets.json");
  for (const Json& one : file["cases"]) {
    std::string why;
    const Json text = rendered(one["source"], variables_of(file["variables"]), &why);
    EXPECT_EQ(text, one["text"]) << one["source"].get<std::string>() << "\n" << why;
  }
}

TEST(JinjaGolden, Conversations) {
  const Json file = golden("rendered.json");
  int texts = 0;
  for (const Json& one : file["cases"]) {
    Json variables = one;
    for (const char* name : {"bos_token", "eos_token", "today"}) variables[name] = file[name];
    variables["tools"] = one["tools"].get<bool>() ? file["tools"] : Json(nullptr);
    const auto name = one["template"].get<std::string>();
    const std::string source = recurve::testing::read_text(folder() / (name + ".jinja"));
    std::string why;
    const Json text = rendered(source, variables_of(variables), &why);
    EXPECT_EQ(text, one["text"]) << name << "\n" << one["messages"] << "\n" << why;
    texts += one["text"].is_string() ? 1 : 0;
  }
  EXPECT_GT(texts, 150);  // not only refusals
}

std::string refusal(const std::string& source) {
  try {
    Template{source};
  } catch (const Error& error) {
    return error.what();
  }
  return "understood";
}

TEST(JinjaRefusals, NameTheConstructAndItsLine) {
  EXPECT_EQ(refusal("a\n{% call x() %}{% endcall %}"),
            "line 2: the tag {% call %} is not supported");
  EXPECT_EQ(refusal("\n\n{{ x | wordcount }}"), "line 3: the filter 'wordcount' is not supported");
  EXPECT_EQ(refusal("{{ x is sameas(y) }}"), "line 1: the test 'sameas' is not supported");
  EXPECT_EQ(refusal("{{ x.append(1) }}"), "line 1: the method 'append' is not supported");
  EXPECT_EQ(refusal("{% if false %}{{ cycler(1) }}{% endif %}"),
            "line 1: the function 'cycler' is not supported");
  EXPECT_EQ(refusal("{{ x | trim(1, 2) }}"),
            "line 1: the filter 'trim' is not supported with 2 arguments");
  EXPECT_EQ(refusal("{{ x | tojson(html=1) }}"),
            "line 1: the filter 'tojson' is not supported with the argument 'html'");
  EXPECT_THAT(refusal("{% include 'x' %}"), HasSubstr("{% include %}"));
  EXPECT_THAT(refusal("{% if x %}"), HasSubstr("{% endif %} is missing"));
  EXPECT_THAT(refusal("{{ x"), HasSubstr("a tag is not closed"));
  EXPECT_THAT(refusal("{{ x }} }}{% endif %}"), HasSubstr("unexpected {% endif %}"));
  EXPECT_THAT(refusal("{{ ) }}"), HasSubstr("unexpected )"));
  EXPECT_THAT(refusal("{{ f(*x) }}{% macro f() %}{% endmacro %}"), HasSubstr("arguments with *"));
  EXPECT_THAT(refusal("{% for x in y recursive %}{% endfor %}"), HasSubstr("recursive loops"));
  EXPECT_THAT(refusal("{{ " + std::string(100, '(') + "1" + std::string(100, ')') + " }}"),
              HasSubstr("more than 32 levels deep"));
}

std::string failure(const std::string& source, const Json& variables = Json::object(),
                    const Limits& limits = {}) {
  try {
    const Template::Variables given = variables_of(variables);
    Template(source).render({&given}, std::tm{}, limits);
  } catch (const Error& error) {
    return error.what();
  }
  return "rendered";
}

TEST(JinjaFailures, SayWhatIsWrongAndWhere) {
  EXPECT_EQ(failure("\n{{ raise_exception('no tools here') }}"),
            "line 2: the template rejects the messages: no tools here");
  EXPECT_EQ(failure("{{ x.y }}"), "line 1: 'x' is undefined");
  EXPECT_EQ(failure("{{ x.y.z }}", {{"x", Json::object()}}), "line 1: a dict has no attribute 'y'");
  EXPECT_EQ(failure("{{ 'a' + 1 }}"), "line 1: cannot add a string and an integer");
}

TEST(JinjaLimits, StopWhatWouldNotEnd) {
  const Limits few{.steps = 100'000, .text_bytes = 100'000};
  EXPECT_THAT(
      failure("{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}", {},
              few),
      HasSubstr("exceeds the limit of 100000 steps"));
  EXPECT_THAT(failure("{{ 'ab' * 1000000000000 }}", {}, few),
              HasSubstr("exceeds the limit of 100000 bytes"));
  EXPECT_THAT(failure("{{ ('a' * 90000).replace('a', 'b' * 90000) }}", {}, few),
              HasSubstr("exceeds the limit of 100000 bytes"));
  EXPECT_THAT(failure("{% for i in range(9) %}{{ 'a' * 50000 }}{% endfor %}", {}, few),
              HasSubstr("exceeds the limit of 100000 bytes"));
  EXPECT_THAT(failure("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("deep"));
  EXPECT_THAT(failure("{% set n = namespace(x=[]) %}{% for i in range(1000) %}{% set n.x = [n.x] %}"
                      "{% endfor %}"),
              HasSubstr("nested more than 100 levels deep"));
  EXPECT_THAT(failure("{{ range(100001) | list }}"), HasSubstr("more than 100000 numbers"));
  EXPECT_THAT(failure("{{ 9223372036854775807 + 1 }}"), HasSubstr("64 bits"));
  EXPECT_THAT(failure("{% set n = namespace() %}{% set n.self = n %}{{ n == n }}"), "rendered");
}

TEST(JinjaLimits, CutNoTextIntoTooManyItems) {
  const Limits few{.items = 3};
  const Json v = {{"x", "a b c d"}, {"y", "a b c"}, {"lines", "1\n2\n3\n4\n"}};
  const std::string refused = "line 1: a list exceeds the limit of 3 items";
  for (const char* cut : {"x.split()", "x.split(' ')", "x.rsplit(' ')", "x.rsplit()",
                          "lines.splitlines()", "x | list", "lines | indent"}) {
    EXPECT_EQ(failure(std::string("{{ ") + cut + " }}", v, few), refused) << cut;
  }
  EXPECT_EQ(failure("{{ y.split() }}{{ y.split(' ') }}{{ x.split(' ', 2) }}", v, few), "rendered");
}

// Each name is found in its own time: a search through all others would take minutes.
TEST(JinjaLimits, VariablesAreFoundHoweverManyThereAre) {
  std::string json = "{\"v0\": 0";
  Template::Variables many;
  for (int i = 1; i < 200'000; ++i) {
    json += fmt::format(", \"v{}\": {}", i, i);
    many[fmt::format("v{}", i)] = Value(int64_t{i});
  }
  many["d"] = parsed(json + "}");
  EXPECT_EQ(rendered("{% for i in range(99999) %}{% set a = v199999 + d.v199998 %}{% endfor %}"
                     "{{ v199999 }} {{ d.v7 }}",
                     many),
            "199999 7");
}

TEST(JinjaUnwanted, RenderingEnds) {
  // It would take longer than anybody lives, but for the flag.
  const Limits boundless{.steps = std::numeric_limits<int64_t>::max()};
  const Template endless(
      "{% for a in range(99999) %}{% for a in range(99999) %}{% for a in range(99999) %}"
      "{% for a in range(99999) %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}");
  std::atomic<bool> unwanted{false};
  std::thread leaver([&] { unwanted = true; });
  EXPECT_THROW(endless.render({}, std::tm{}, boundless, {.unwanted = &unwanted}), WorkUnwanted);
  leaver.join();
}

TEST(JinjaUnwanted, JsonIsNotReadToItsEnd) {
  const std::atomic<bool> unwanted{true};
  for (const std::string& json :
       {"\"" + std::string(1 << 17, 'x') + "\"", std::string(1 << 17, ' ')}) {
    JsonBudget budget{.most = 10, .work = {.unwanted = &unwanted}};
    EXPECT_THROW(parse_json(json, Origin::kMessage, budget), WorkUnwanted);
  }
}

// Bytes of the output as t (template) and m (message).
std::string origins(const std::string& source, const Json& variables) {
  const Template::Variables given = variables_of(variables);
  const Text text = Template(source).render({&given}, std::tm{});
  std::string marks, runs;
  for (size_t byte = 0; byte < text.bytes.size(); ++byte) {
    marks += text.origin(byte) == Origin::kTemplate ? 't' : 'm';
  }
  text.origins.for_each(0, text.bytes.size(), [&](size_t begin, size_t end, Origin origin) {
    runs.append(end - begin, origin == Origin::kTemplate ? 't' : 'm');
  });
  EXPECT_EQ(marks, runs) << source;
  return marks;
}

TEST(JinjaOrigins, OfAPartAreThoseOfItsBytes) {
  Text text("", Origin::kTemplate);
  std::string wanted;
  for (int i = 0; i < 20; ++i) {
    const auto origin = static_cast<Origin>(i % 7 % 3);
    text.append(std::string(static_cast<size_t>(i % 4), 'a'), origin);
    wanted.append(static_cast<size_t>(i % 4), static_cast<char>(origin));
  }
  for (size_t begin = 0; begin <= wanted.size(); ++begin) {
    for (size_t end = begin; end <= wanted.size(); ++end) {
      const Text part = text.part(begin, end);
      std::string got;
      for (size_t at = 0; at < part.bytes.size(); ++at) {
        got += static_cast<char>(part.origin(at));
      }
      EXPECT_EQ(got, wanted.substr(begin, end - begin)) << begin << " to " << end;
    }
  }
}

TEST(JinjaOrigins, FollowEveryByte) {
  const Json v = {{"x", "ab"}, {"s", " é "}, {"d", {{"k", "a\"b"}}}, {"l", {"p", "q"}}};
  EXPECT_EQ(origins("<{{ x }}>", v), "tmmt");
  EXPECT_EQ(origins("{{ '<' + x + '>' ~ x }}", v), "tmmtmm");
  EXPECT_EQ(origins("{{ s | trim }}{{ s.strip() | upper }}", v), "mmmm");
  EXPECT_EQ(origins("{{ x.replace('a', '<>') }}{{ 'xax'.replace('a', x) }}", v), "ttmtmmt");
  EXPECT_EQ(origins("{{ d | tojson }}", v), "ttmttttmmmmtt");  // {"k": "a\"b"}
  EXPECT_EQ(origins("{{ l | join('-') }}{{ l }}", v), "mtmttmttttmtt");
  EXPECT_EQ(origins("{{ x[::-1] }}{{ x[0] }}{{ x.split('b')[0] }}", v), "mmmm");
  EXPECT_EQ(origins("{% set q %}<{{ x }}{% endset %}{{ q }}{% macro f(a) %}{{ a }}!{% endmacro %}"
                    "{{ f(x) }}",
                    v),
            "tmmmmt");
  EXPECT_EQ(origins("{% for c in x %}{{ c }}{{ loop.index }}{% endfor %}", v), "mtmt");
  EXPECT_EQ(origins("{{ x | title }}{{ x | capitalize }}{{ x | indent(1, true) }}", v), "mmmmtmm");
}

TEST(JinjaJson, RefusesWhatItCannotKeep) {
  const auto refusal = [](const std::string& json) -> std::string {
    try {
      parsed(json);
    } catch (const Error& error) {
      return error.what();
    }
    return "read";
  };
  EXPECT_EQ(refusal("[1, -2.5e3, \"a\", null, {\"k\": true}]"), "read");
  EXPECT_EQ(refusal("{\"a\": }"), "not valid JSON at byte 7");
  EXPECT_EQ(refusal(""), "not valid JSON at byte 1");
  EXPECT_EQ(refusal("9223372036854775808"),
            "the integer 9223372036854775808 has more than 64 bits");
  EXPECT_EQ(refusal("99999999999999999999"),
            "the integer 99999999999999999999 has more than 64 bits");
  EXPECT_EQ(refusal(std::string(65, '[') + std::string(65, ']')),
            "the JSON is nested more than 64 levels deep");
  EXPECT_EQ(refusal("\"\xff\""), "not valid JSON at byte 2");
}

TEST(JinjaJson, CountsValuesBeforeTheyTakeMemory) {
  const auto left = [](const std::string& json, size_t values) -> std::string {
    JsonBudget budget{.most = values};
    try {
      parse_json(json, Origin::kMessage, budget);
    } catch (const Error& error) {
      return error.what();
    }
    return std::to_string(budget.used);
  };
  EXPECT_EQ(left(R"({"a": [1, "b", {}], "c": null})", 10), "6");
  EXPECT_EQ(left("[[], [], {}, 1]", 5), "5");
  EXPECT_EQ(left("[[], [], {}, 1]", 4), "there are more than 4 values in total");
}

}  // namespace recurve::jinja::jinja_test
