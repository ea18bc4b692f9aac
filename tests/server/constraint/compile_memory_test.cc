// Memory of a compilation, of each form of constraint: at most 4 times the text and 16 MB.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "server/constraint/constraint_library.h"
#include "tests/support/amount.h"
#include "tests/support/counted_memory.h"

namespace recurve::compile_memory_test {
namespace {

using Form = ConstraintText::Form;

constexpr size_t kMost = size_t{16} << 20;
constexpr size_t kLongest = kMostConstraintBytes - 64;  // with what stands around it

std::string letters(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::string text(count, ' ');
  for (char& c : text) c = static_cast<char>('a' + random() % 26);
  return text;
}

// Bytes, and words of which many begin as others do.
TokenTexts vocabulary() {
  constexpr size_t kTokens = 8192;
  TokenTexts texts = {""};
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (uint32_t i = 0; texts.size() < kTokens; ++i) {
    texts.push_back((i % 2 == 0 ? " " : "") + letters(2 + i % 7, i));
  }
  return texts;
}

std::string quoted(const std::string& text) { return '"' + text + '"'; }

// The open mark, so many elements or as many as have so many bytes, and the close mark.
template <typename One>
std::string list(const char* open, size_t count, const char* close, const One& one) {
  std::string text = open;
  for (size_t i = 0; i < count; ++i) text.append(i == 0 ? "" : ",").append(one(i));
  return text + close;
}
template <typename One>
std::string filled(const char* open, size_t bytes, const char* close, const One& one) {
  std::string text = open;
  for (size_t i = 0; text.size() + one(i).size() + 2 < bytes; ++i) {
    text.append(i == 0 ? "" : ",").append(one(i));
  }
  return text + close;
}

std::string object_of_kind(size_t i) {
  return fmt::format(
      R"({{"type":"object","properties":{{"kind":{{"const":"k{}"}},"value":{{"type":"string"}}}},"required":["kind"]}})",
      i);
}

// As a request's tools are written for the compiler.
std::string tool_calls(size_t tools, size_t parameters) {
  const auto parameter = [&](size_t tool, size_t p) {
    constexpr const char* kTypes[] = {"string", "integer", "boolean"};
    return fmt::format(R"("{}_{}":{{"type":"{}","description":"{}"}})", letters(8, p + 7 * tool), p,
                       kTypes[p % 3], letters(90, p));
  };
  return list(R"({"shape":"marked","mark":"<tool_call>","close":"</tool_call>","calls":[)", tools,
              "]}", [&](size_t t) {
                return fmt::format(R"({{"name":"tool_{0}","begin":"{{\"name\": \"tool_{0}\", )"
                                   R"(\"arguments\": ","end":"}}","schema":{1}}})",
                                   t,
                                   list(R"({"type":"object","properties":{)", parameters, "}}",
                                        [&](size_t p) { return parameter(t, p); }));
              });
}

class CompileMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  }

  struct Taken {
    int64_t bytes = 0;
    std::string refusal = {};
  };
  static Taken compile(Form form, const std::string& text, double most_seconds = 20) {
    static const auto library = make_constraint_library(vocabulary());
    const testing::MostLiveBytes most;
    Taken taken;
    try {
      library->compile({form, text}, {.most_seconds = most_seconds});
    } catch (const ConstraintRefused& refused) {
      taken.refusal = refused.what();
    }
    taken.bytes = most();
    return taken;
  }
  static void expect_bounded(const char* name, Form form, const std::string& text) {
    ASSERT_LE(text.size(), kMostConstraintBytes) << name;
    const Taken taken = compile(form, text);
    fmt::print("{:24} {:6} bytes: {:5.2f} MB{}{}\n", name, text.size(),
               static_cast<double>(taken.bytes) / (1 << 20), taken.refusal.empty() ? "" : ": ",
               taken.refusal);
    EXPECT_LE(taken.bytes, 4 * text.size() + kMost) << name << ", " << text.size() << " bytes";
  }
  // What a client may well ask for. Sanitizers take several times the processor time.
  static void expect_compiled(const char* name, Form form, const std::string& text) {
    expect_bounded(name, form, text);
    EXPECT_EQ(compile(form, text, testing::kSanitized ? 200 : 20).refusal, "") << name;
  }
};

TEST_F(CompileMemory, OfLargeConstraintsThatAreServed) {
  expect_compiled("60 tools", Form::kToolCalls, tool_calls(60, 10));
  expect_compiled("anyOf of 500", Form::kJsonSchema,
                  list(R"({"anyOf":[)", 500, "]}", object_of_kind));
  expect_compiled("pattern of a length", Form::kJsonSchema,
                  R"({"type":"string","pattern":"^([a-z]+:){3}[a-z]+$","maxLength":500})");
  expect_compiled("2,000 choices", Form::kChoice, list("[", 2000, "]", [](size_t i) {
                    return quoted(letters(30, static_cast<uint32_t>(i)));
                  }));
  expect_compiled("enum of 64 KB", Form::kJsonSchema,
                  filled(R"({"enum":[)", 64 << 10, "]}",
                         [](size_t i) { return quoted(letters(8, static_cast<uint32_t>(i))); }));
  expect_compiled("const of 120 KB", Form::kJsonSchema,
                  R"({"const":")" + letters(120 << 10, 1) + "\"}");
  expect_compiled("500 properties", Form::kJsonSchema,
                  list(R"({"type":"object","properties":{)", 500, "}}", [](size_t i) {
                    return fmt::format(R"("p{}":{{"type":"string","maxLength":{}}})", i,
                                       i % 8 * 32 + 32);
                  }));
}

// Whether it is served or refused.
TEST_F(CompileMemory, OfEachFormAtItsLimitIsBounded) {
  const auto word = [](size_t i) { return quoted(letters(8, static_cast<uint32_t>(i))); };
  const auto long_word = [](size_t i) { return quoted(letters(300, static_cast<uint32_t>(i))); };
  expect_bounded("const", Form::kJsonSchema, R"({"const":")" + letters(kLongest, 1) + "\"}");
  expect_bounded("enum", Form::kJsonSchema, filled(R"({"enum":[)", kLongest, "]}", word));
  expect_bounded("enum, long", Form::kJsonSchema,
                 filled(R"({"enum":[)", kLongest, "]}", long_word));
  expect_bounded("anyOf", Form::kJsonSchema,
                 filled(R"({"anyOf":[)", kLongest, "]}", object_of_kind));
  expect_bounded("anyOf of 1,500", Form::kJsonSchema,
                 list(R"({"anyOf":[)", 1500, "]}", object_of_kind));
  expect_bounded("choices", Form::kChoice, filled("[", kLongest, "]", word));
  expect_bounded("choices, long", Form::kChoice, filled("[", kLongest, "]", long_word));
  expect_bounded("two choices", Form::kChoice, list("[", 2, "]", [](size_t i) {
                   return quoted(letters(kLongest / 2, static_cast<uint32_t>(i)));
                 }));
  for (const size_t most : {100, 1000}) {
    expect_bounded("properties", Form::kJsonSchema,
                   list(R"({"type":"object","properties":{)", 500, "}}", [&](size_t i) {
                     return fmt::format(R"("p{}":{{"type":"string","maxLength":{}}})", i,
                                        most - i % 100);
                   }));
  }
  expect_bounded("patterns", Form::kJsonSchema,
                 list(R"({"type":"object","properties":{)", 200, "}}", [](size_t i) {
                   return fmt::format(R"("p{}":{{"pattern":"^([a-z]{{1,9}}{}|[^b-y]*)+$"}})", i, i);
                 }));
  for (const char* pattern : {"a.{10}$", "([a-c]x|[b-d]y|.z)+", "^(\\\\w+:\\\\S*){1,30}$"}) {
    expect_bounded("pattern of a length", Form::kJsonSchema,
                   fmt::format(R"({{"type":"string","pattern":"{}","maxLength":1000}})", pattern));
  }
  expect_bounded("patterns of a length", Form::kJsonSchema,
                 list(R"({"type":"object","properties":{)", 200, "}}", [](size_t i) {
                   return fmt::format(R"("p{0}":{{"pattern":"^[a-z]*{0}","maxLength":100}})", i);
                 }));
  expect_bounded("lengths", Form::kJsonSchema, list(R"({"anyOf":[)", 1000, "]}", [](size_t i) {
                   return fmt::format(
                       R"({{"type":"array","items":{{"minLength":{}}},"maxItems":{}}})", i, i + 1);
                 }));
  expect_bounded("regex", Form::kRegex, "(" + letters(240, 1) + "|[a-z]{1,200}|.{0,40})+");
  expect_bounded("tools", Form::kToolCalls, tool_calls(64, 25));
  expect_bounded("tags", Form::kStructuralTag,
                 list(R"({"triggers":["<"],"structures":[)", 64, "]}", [](size_t i) {
                   return fmt::format(
                       R"({{"begin":"<{0}","end":"</{0}>","schema":{{"const":"{0}"}}}})",
                       letters(1300, static_cast<uint32_t>(i)));
                 }));
}

TEST_F(CompileMemory, OfGrammarsIsBounded) {
  const auto grammar = [](const char* name, const std::string& rest) {
    expect_bounded(name, Form::kGrammar, "root ::= " + rest);
  };
  const auto times = [](size_t bytes, const std::string& one) {
    std::string text;
    while (text.size() + one.size() < bytes) text += one;
    return text;
  };
  grammar("literal", '"' + letters(kLongest, 1) + '"');
  std::string rules = "r0\n";
  for (size_t i = 0; rules.size() + 100 < kLongest; ++i) {
    rules += fmt::format("r{0} ::= \"a{0}\" r{1} | [a-z]+ \"b{0}\"\n", i, (i * 7 + 1) % 2000);
  }
  grammar("rules", rules);
  grammar("references", "a" + times(kLongest, " | a") + "\na ::= \"a\"");
  grammar("short literals", "\"\"" + times(kLongest, "\"b\""));
  grammar("alternatives", "\"a\"" + times(kLongest, "|\"b\""));
  grammar("class", "[" + letters(kLongest, 1) + "]");
  grammar("classes", times(kLongest, "[a]"));
  grammar("ranges", "[" + times(kLongest, "\xc3\xa9-\xf0\x9f\x98\x80") + "]");
  grammar("repeats", times(kLongest, "[a-z]{0,99}"));
  grammar("groups", times(kLongest, "(a?)") + "\na ::= \"a\"");
  grammar("brackets", times(kLongest, "[^"));
}

TEST_F(CompileMemory, OfSchemasThatGrowAsTheyAreReadIsBounded) {
  const auto schema = [](const char* name, const std::string& text) {
    expect_bounded(name, Form::kJsonSchema, text);
  };
  const auto nested = [](size_t levels, const std::string& open, const std::string& middle,
                         const std::string& close) {
    std::string text;
    for (size_t i = 0; i < levels; ++i) text += open;
    text += middle;
    for (size_t i = 0; i < levels; ++i) text += close;
    return text;
  };
  const auto objects = [](size_t bytes) {
    return filled("[", bytes, "]", [](size_t) { return std::string("{}"); });
  };
  const std::string all_of = R"({"allOf":[{"type":"object","properties":{"a":)";
  const std::string object = R"({"type":"object","properties":{"a":)";
  schema("const of objects", R"({"const":)" + objects(kLongest) + "}");
  schema("enum of objects", R"({"enum":)" + objects(kLongest) + "}");
  schema("unknown values", R"({"default":)" + objects(kLongest) + "}");
  schema("deep", nested(60, object, R"({"const":)" + objects(200'000) + "}", "}}"));
  schema("deep text", nested(60, object, R"({"const":")" + letters(200'000, 1) + "\"}", "}}"));
  schema("deep and merged", nested(60, all_of, R"({"const":)" + objects(200'000) + "}", "}}]}"));
  schema("deep and merged text",
         nested(60, all_of, R"({"const":")" + letters(200'000, 1) + "\"}", "}}]}"));
  schema(
      "deep names",
      nested(50, R"({"type":"object","properties":{")" + letters(5000, 1) + "\":", "true", "}}"));
  for (const char* reference :
       {R"({"$ref":"#/$defs/c"})", R"({"allOf":[{"$ref":"#/$defs/c"},{"type":"string"}]})",
        R"({"not":{"$ref":"#/$defs/c"}})"}) {
    schema("references", R"({"$defs":{"c":{"const":")" + letters(200'000, 1) +
                             R"("}},"type":"object","properties":{)" +
                             list("", 500, "}}", [&](size_t i) {
                               return fmt::format(R"("p{}":{})", i, reference);
                             }));
  }
  schema("oneOf", list(R"({"oneOf":[)", 400, "]}", [](size_t i) {
           return R"({"type":"object","description":")" + letters(500, static_cast<uint32_t>(i)) +
                  "\"}";
         }));
  schema("two of each", list(R"({"allOf":[)", 12, "]}", [](size_t i) {
           return fmt::format(R"({{"anyOf":[{{"required":["a{0}"]}},{{"required":["b{0}"]}}]}})",
                              i);
         }));
  schema("if", list(R"({"allOf":[)", 60, "]}", [](size_t i) {
           return fmt::format(
               R"({{"if":{{"required":["a{0}"]}},"then":{{"properties":{{"b{0}":false}}}}}})", i);
         }));
  schema("multiples", list(R"({"anyOf":[)", 900, "]}", [](size_t i) {
           return fmt::format(R"({{"multipleOf":{},"minimum":0,"maximum":100000}})", i + 2);
         }));
  schema("bounds", list(R"({"anyOf":[)", 2000, "]}", [](size_t i) {
           return fmt::format(R"({{"type":"integer","minimum":{},"maximum":{}}})", i * 7919,
                              1'000'000'007 * (i + 1));
         }));
}

}  // namespace
}  // namespace recurve::compile_memory_test
