// Memory of a compilation, of each form of constraint: at most 4 times the text and 16 MB.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "server/constraint/constraint_library.h"
#include "tests/support/counted_memory.h"

namespace recurve::compile_memory_test {
namespace {

using Form = ConstraintText::Form;

constexpr size_t kMost = size_t{16} << 20;

std::string letters(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::string text(count, ' ');
  for (char& c : text) c = static_cast<char>('a' + random() % 26);
  return text;
}

// Bytes, and words of which many begin as others do.
TokenTexts vocabulary() {
  constexpr size_t kTokens = 32768;
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
  static Taken compile(Form form, const std::string& text) {
    static const auto library = make_constraint_library(vocabulary());
    const testing::MostLiveBytes most;
    Taken taken;
    try {
      library->compile({form, text}, {});
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
  // What a client may well ask for.
  static void expect_compiled(const char* name, Form form, const std::string& text) {
    expect_bounded(name, form, text);
    EXPECT_EQ(compile(form, text).refusal, "") << name;
  }
};

TEST_F(CompileMemory, OfLargeConstraintsThatAreServed) {
  expect_compiled("60 tools", Form::kToolCalls, tool_calls(60, 10));
  expect_compiled("anyOf of 500", Form::kJsonSchema,
                  list(R"({"anyOf":[)", 500, "]}", object_of_kind));
  expect_compiled("2,000 choices", Form::kChoice, list("[", 2000, "]", [](size_t i) {
                    return quoted(letters(30, static_cast<uint32_t>(i)));
                  }));
  expect_compiled("enum of 64 KB", Form::kJsonSchema,
                  filled(R"({"enum":[)", 64 << 10, "]}",
                         [](size_t i) { return quoted(letters(8, static_cast<uint32_t>(i))); }));
  expect_compiled("const of 128 KB", Form::kJsonSchema,
                  R"({"const":")" + letters(128 << 10, 1) + "\"}");
  expect_compiled("500 properties", Form::kJsonSchema,
                  list(R"({"type":"object","properties":{)", 500, "}}", [](size_t i) {
                    return fmt::format(R"("p{}":{{"type":"string","maxLength":{}}})", i,
                                       i % 8 * 32 + 32);
                  }));
}

}  // namespace
}  // namespace recurve::compile_memory_test
