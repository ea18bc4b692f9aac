// What a client may nest: as deep as is allowed, and one deeper, on a quarter of the stack that the
// threads have which compile: frames are large where nothing is optimised.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "server/constraint/regex_walk.h"
#include "server/constraint/schema/schema_merge.h"
#include "server/constraint/schema/schema_walk.h"
#include "server/constraint/tag_walk.h"
#include "server/constraint/text_walk.h"
#include "tests/server/constraint/with_library.h"
#include "tests/support/small_stack.h"

namespace recurve::recursion_test {
namespace {

constexpr size_t kStack = 2 << 20;

std::string nested(int levels, const std::string& open, const std::string& core,
                   const std::string& close) {
  std::string text = core;
  for (int i = 0; i < levels; ++i) text = open + text + close;
  return text;
}

using Form = ConstraintText::Form;

// A text that nests so many levels.
struct Nested {
  const char* name;
  Form form;
  int most;  // levels
  std::string (*text)(int levels);
};

const Nested kNested[] = {
    {"items", Form::kJsonSchema, kMostSchemaDepth,
     [](int n) { return nested(n, R"({"type":"array","items":)", "true", "}"); }},
    {"properties", Form::kJsonSchema, kMostSchemaDepth,
     [](int n) { return nested(n, R"({"type":"object","properties":{"a":)", "true", "}}"); }},
    {"anyOf", Form::kJsonSchema, kMostSchemaDepth,
     [](int n) { return nested(n, R"({"anyOf":[{"type":"null"},)", "true", "]}"); }},
    {"enum", Form::kJsonSchema, kMostJsonNesting,
     [](int n) { return R"({"enum":)" + nested(n - 1, "[", "1", "]") + "}"; }},
    {"regex", Form::kRegex, kMostNesting, [](int n) { return nested(n, "(?:", "a", ")"); }},
    {"grammar", Form::kGrammar, kMostNesting,
     [](int n) { return "root ::= " + nested(n, "(", "\"a\"", ")"); }},
};

std::string refusal_of(const std::function<void()>& run) {
  try {
    run();
    return "";
  } catch (const ConstraintRefused& refused) {
    return refused.what();
  }
}

// What the server does with it before the library has it.
void walk(const ConstraintText& text) {
  switch (text.form) {
    case Form::kRegex:
      ebnf_of_regex(text.text);
      return;
    case Form::kGrammar:
      check_grammar(text.text);
      return;
    default:
      enforceable_schema(text.text);
  }
}

TEST(RecursionOfWalks, TheDeepestIsReadOnASmallStack) {
  for (const Nested& one : kNested) {
    const ConstraintText text{one.form, one.text(one.most)};
    on_small_stack([&] { EXPECT_EQ(refusal_of([&] { walk(text); }), "") << one.name; }, kStack);
  }
}

TEST(RecursionOfWalks, OneDeeperAndMuchDeeperAreRefused) {
  for (const Nested& one : kNested) {
    for (const int levels : {one.most + 1, 10'000}) {
      const ConstraintText text{one.form, one.text(levels)};
      on_small_stack(
          [&] {
            EXPECT_THAT(refusal_of([&] { walk(text); }), ::testing::ContainsRegex("nest|at most"))
                << one.name << " " << levels;
          },
          kStack);
    }
  }
}

// What the library's own recursion takes.
class RecursionOfLibrary : public testing::WithConstraintLibrary {};

TEST_F(RecursionOfLibrary, TheDeepestCompiles) {
  library();
  for (const Nested& one : kNested) {
    const ConstraintText text{one.form, one.text(one.most)};
    const auto compile = [&] {
      EXPECT_EQ(refusal_of([&] { library().compile(text, {.most_seconds = 60}); }), "") << one.name;
    };
    on_small_stack(compile, kStack);
  }
}

// What is walked and never handed to the library.
TEST(RecursionOfWalks, AnySchemaOfTheDeepestJson) {
  const auto schema = [](const char* open, const char* close, int levels) {
    const std::string text = nested(levels, open, "{}", close);
    on_small_stack([&] { refusal_of([&] { enforceable_schema(text); }); }, kStack);
  };
  for (const int levels : {64, 256, 10'000}) {
    schema(R"({"not":)", "}", levels);
    schema(R"({"allOf":[)", "]}", levels);
    schema(R"({"oneOf":[{"type":"null"},)", "]}", levels);
    schema(R"({"if":)", "}", levels);
    schema(R"({"const":)", "}", levels);
    schema(R"({"contains":)", "}", levels);
    schema(R"({"dependentSchemas":{"a":)", "}}", levels);
    schema(R"({"additionalProperties":)", "}", levels);
    schema(R"({"$defs":{"a":)", "}}", levels);
    const std::string tags =
        R"({"triggers":["<a"],"structures":[{"begin":"<a>","end":"","schema":)" +
        nested(levels, R"({"items":)", "{}", "}") + "}]}";
    on_small_stack([&] { refusal_of([&] { enforceable_tags(tags); }); }, kStack);
  }
}

}  // namespace
}  // namespace recurve::recursion_test
