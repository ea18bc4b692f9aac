// What the library takes, once a constraint has been looked through: byte by byte.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>

#include "server/constraint/constraint_library.h"
#include "tests/server/constraint/byte_vocabulary.h"
#include "tests/server/constraint/with_library.h"
#include "tests/support/amount.h"

namespace recurve::library_test {
namespace {

using Form = ConstraintText::Form;
using testing::byte_vocabulary;
using testing::takes;

class ConstraintLibraryTest : public testing::WithConstraintLibrary {
 protected:
  // With white space: most tests are about something else.
  std::shared_ptr<const Constraint> compile(Form form, const std::string& text,
                                            bool any_whitespace = true) {
    return library().compile({form, text, any_whitespace}, {});
  }
  std::string refusal_of(Form form, const std::string& text) {
    try {
      compile(form, text);
      return "";
    } catch (const ConstraintRefused& refused) {
      return refused.what();
    }
  }
  void expect(Form form, const std::string& text, const std::vector<std::string>& yes,
              const std::vector<std::string>& no) {
    const auto constraint = compile(form, text);
    for (const std::string& one : yes) EXPECT_TRUE(takes(*constraint, one)) << text << "\n" << one;
    for (const std::string& one : no) EXPECT_FALSE(takes(*constraint, one)) << text << "\n" << one;
  }
  void expect(const std::string& schema, const std::vector<std::string>& yes,
              const std::vector<std::string>& no) {
    expect(Form::kJsonSchema, schema, yes, no);
  }
};

TEST_F(ConstraintLibraryTest, AnyJson) {
  expect(Form::kJson, "",
         {"{}", "[]", "1", "-1.5e+3", "\"a\"", "true", "null", R"({"a":[1,{"b":null}]})",
          "\"\xc3\xa9\""},
         {"", "{", "{]", "tru", "01", "\"a", "'a'", "{\"a\"}", "[1,]", "\"\xff\"", "\"\n\""});
}

TEST_F(ConstraintLibraryTest, JsonIsCompactUnlessWhiteSpaceIsAllowed) {
  const std::string schema = R"({"type":"array","items":{"type":"string","maxLength":9}})";
  const std::string tags = R"({"triggers":["<a>"],"structures":[{"begin":"<a>","schema":)" +
                           schema + R"(,"end":"</a>"}]})";
  const std::vector<std::string> both = {R"([])", R"(["x"])", R"(["x", "\ny"])"},
                                 wide = {R"(["x","y"])", R"([ "x" ])", "[\n\t\"x\",  \"y\"]",
                                         R"(["x" , "y"])", "[\n]"};
  for (const bool any_whitespace : {false, true}) {
    for (const auto& [form, text] :
         {std::pair(Form::kJson, std::string()), std::pair(Form::kJsonSchema, schema),
          std::pair(Form::kStructuralTag, tags)}) {
      const auto constraint = compile(form, text, any_whitespace);
      const auto takes_json = [&](const std::string& json) {
        return takes(*constraint, form == Form::kStructuralTag ? "<a>" + json + "</a>" : json);
      };
      for (const std::string& json : both) EXPECT_TRUE(takes_json(json)) << json;
      for (const std::string& json : wide) EXPECT_EQ(takes_json(json), any_whitespace) << json;
      EXPECT_FALSE(takes_json("[" + std::string(17, ' ') + "]"));
    }
  }
  const std::string objects = R"({"a": {"b": 1}, "c": 2})";
  EXPECT_TRUE(takes(*compile(Form::kJson, "", false), objects));
  EXPECT_FALSE(takes(*compile(Form::kJson, "", false), R"({"a":1})"));
}

TEST_F(ConstraintLibraryTest, Objects) {
  expect(R"({"type":"object"})", {"{}", R"({"a":1})", R"({"a":{"b":[]}, "c" : 2})"}, {"[]", "1"});
  const std::string closed =
      R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},"required":["name"]})";
  expect(closed, {R"({"name":"x"})", R"({"name":"x","age":3})", R"({ "name" : "x" , "age" : 3 })"},
         {"{}", R"({"age":3})", R"({"name":3})", R"({"name":"x","age":"3"})",
          R"({"name":"x","b":1})", R"({"name":"x","age":1.5})", R"({"name":"x","name":"y"})"});
}

TEST_F(ConstraintLibraryTest, AdditionalPropertiesAreNoneOfTheNamed) {
  const std::string open =
      R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"string"}})";
  expect(open, {R"({"a":1})", R"({"a":1,"b":"x"})", R"({"b":"x"})"},
         {R"({"a":"x"})", R"({"a":1,"a":"x"})", R"({"b":1})", R"({"b":"x","a":"x"})",
          R"({"\u0061":"x"})"});
  expect(
      R"({"type":"object","properties":{"ab":{"type":"integer"},"abc":{"type":"integer"},"a.b":{"type":"null"}},"additionalProperties":{"type":"string"}})",
      {R"({"a":"x"})", R"({"abcd":"x","b":"y"})", R"({"ab":1,"a":"x"})", R"({"":"x"})",
       R"({"a-b":"x"})"},
      {R"({"ab":"x"})", R"({"abc":"x"})", R"({"a.b":"x"})"});
  // A name that is not of ASCII is none of the others either.
  expect(
      R"({"type":"object","properties":{"\u00fcb":{"type":"integer"},"\u007f":{"type":"integer"},"-^]":{"type":"null"}},"additionalProperties":{"type":"string"}})",
      {"{\"\xc3\xbc"
       R"(b":1,"ub":"x"})",
       R"({"a ~!#[]":"x"})", R"({"-":"x","-^":"","-^]]":""})"},
      {"{\"\xc3\xbc"
       R"(b":"x"})",
       "{\"\x7f\":\"x\"}", R"({"-^]":"x"})", R"({"a\"":"x"})"});
}

TEST_F(ConstraintLibraryTest, Numbers) {
  expect(R"({"type":"integer","minimum":-3,"maximum":12})", {"-3", "0", "12", "7"},
         {"-4", "13", "1.5", "007", "-0.5", "1e1"});
  expect(R"({"type":"integer","exclusiveMinimum":0})", {"1", "100000"}, {"0", "-1"});
  expect(R"({"type":"integer","multipleOf":5})", {"0", "5", "25", "-10"}, {"3", "51"});
  expect(R"({"type":"integer","multipleOf":5,"minimum":-7,"exclusiveMaximum":10})",
         {"-5", "0", "5"}, {"-10", "-7", "10", "1"});
  expect(R"({"type":"integer","multipleOf":2500,"minimum":0,"maximum":1000000})", {"0", "997500"},
         {"1000001", "1002500", "2501", "-2500"});
  expect(R"({"type":"number","minimum":0.5,"maximum":2})", {"0.5", "1", "2", "1.75", "2.0"},
         {"0.4", "2.1", "-1", "3"});
  expect(R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1})", {"0.5", "0.001"},
         {"0", "1", "0.0", "1.0", "-0.1"});
}

TEST_F(ConstraintLibraryTest, Strings) {
  expect(R"({"type":"string","minLength":2,"maxLength":3})",
         {R"("ab")", R"("abc")", "\"\xc3\xa9\xc3\xa9\""},
         {R"("a")", R"("abcd")", R"("a\)", "\"ab", "\"a\x01\"", "\"a\tb\""});
  expect(R"({"type":"string","minLength":1})", {R"("a")", R"("abcdefgh")"}, {R"("")", "\"\x1f\""});
  expect(R"({"type":"string","pattern":"^[a-c]+-\\d{2}$"})", {R"("ab-12")"},
         {R"("ab-1")", R"("d-12")"});
  expect(R"({"type":"string","pattern":"^[^\\s]+$"})", {R"("a-Z/")"},
         {R"("a b")", "\"\xe3\x80\x80\"", R"("a"b")"});
  expect(R"({"type":"string","pattern":"^[^a]+$"})", {R"("bcd")"},
         {R"("a")", R"("b"c")", "\"b\n\""});
  expect(R"({"type":"string","pattern":".*"})", {R"("")", R"("xyz")", R"("x\ty")"},
         {R"("x"y")", "\"x\ty\"", R"("\u0041")"});
  expect(R"({"type":"string","pattern":"[a-z]{2}","minLength":2,"maxLength":2})", {R"("ab")"},
         {R"("a")", R"("abc")", R"("1a")"});
  expect(R"({"type":"string","pattern":"[\"\n]","maxLength":3})",
         {R"("\"")", R"("\n\n\n")", R"("ab\n")", "\"\xe4\xb8\x96\\\"a\""},
         {R"("")", R"("abc")", R"("abc\n")", R"("\n\n\n\n")"});
  expect(R"({"type":"string","format":"hostname","minLength":4,"maxLength":5})",
         {R"("a.bc")", R"("abcde")"}, {R"("abc")", R"("abcdef")", R"("a..b")"});
  // As agents' tools have it.
  expect(R"({"type":"string","pattern":"\\S"})",
         {R"("a")", R"("  \n a\"b\\ \t")", "\"\xe4\xb8\x96\"", R"("\"")"},
         {R"("")", R"(" \n\t ")", "\"\xe2\x80\x83\"", R"(1)"});
  expect(R"({"type":"string","pattern":"^\\w+\\W\\D$"})", {R"("a_1-x")", "\"a\xc3\xa9\xc3\xa9\""},
         {R"("a-1")", R"("a")", R"("-x")"});
  expect(R"({"type":"string","pattern":"^a\"\\n|b$"})", {R"("a\"\n")", R"("a\"\nxyz")", R"("xb")"},
         {R"("xa\"\n")", R"("bx")", R"("a")"});
  expect(R"({"type":"string","format":"date"})", {R"("2024-02-28")"},
         {R"("2024-02-30")", R"("2024-13-01")"});
  expect(R"({"type":"string","format":"ipv4"})", {R"("10.0.255.1")"},
         {R"("10.0.256.1")", R"("01.2.3.4")"});
  expect(R"({"type":"string","format":"uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"},
         {R"("123e4567")"});
  expect(R"({"enum":["red","blue",3,null]})", {R"("red")", "3", "null"}, {R"("green")", "4"});
  expect(R"({"const":{"a":[1]}})", {R"({"a":[1]})"}, {R"({"a":[2]})"});
}

// Each escape is one character; what JSON writes as two is not among them.
TEST_F(ConstraintLibraryTest, StringsOfCountedLengthHaveEscapes) {
  expect(R"({"type":"string","minLength":2,"maxLength":3})",
         {R"("a\n")", R"("\"\\")", R"("\/\b\f")", R"("\u00e9x")", R"("\uD7ff\ue000")",
          "\"\\n\xc3\xa9\""},
         {R"("\n")", R"("\u00e9")", R"("\ud83d\ude00xy")", R"("\n\n\n\n")", R"("\ud83dx")",
          R"("\ude00x")", R"("\ud83d\u0041")", R"("\x41a")", R"("a\)", "\"a\n\""});
  expect(R"({"type":"string"})", {R"("\"\\\u0000")", R"("\uDBFF\uDFFF")", R"("\ud83d\ude00")"},
         {R"("\ud83d")", R"("\udc00")", R"("\ud83d\n")"});
}

TEST_F(ConstraintLibraryTest, LongStringsAreCountedToTheCharacter) {
  constexpr int kAny = 1 << 20;
  for (const auto& [least, most] :
       {std::pair(0, 128), std::pair(0, 129), std::pair(128, 129), std::pair(129, 129),
        std::pair(300, 500), std::pair(129, kAny)}) {
    std::string schema = fmt::format(R"({{"type":"string","minLength":{})", least);
    if (most != kAny) schema += fmt::format(R"(,"maxLength":{})", most);
    const auto constraint = compile(Form::kJsonSchema, schema + "}");
    for (const int bound : {least, most == kAny ? 600 : most}) {
      for (const int count : {bound - 1, bound, bound + 1}) {
        std::string text = "\"";
        for (int i = 0; i < count; ++i)
          text += i % 3 == 0 ? "\\\"" : i % 3 == 1 ? "\xc3\xa9" : "\\u00e9";
        EXPECT_EQ(takes(*constraint, text + "\""), std::max(count, 0) >= least && count <= most)
            << schema << " of " << count;
      }
    }
  }
}

// Up to the longest, within the memory of a compilation.
TEST_F(ConstraintLibraryTest, StringsOfAPatternAreCountedToTheCharacter) {
  for (const char* pattern : {R"(^[a-z]+$)", R"(\\S)", R"(^.*@.*\\..*$)"}) {
    for (const auto& [least, most] : {std::pair(0, 10), std::pair(999, 1000)}) {
      const auto constraint =
          compile(Form::kJsonSchema,
                  fmt::format(R"({{"type":"string","pattern":"{}","minLength":{},"maxLength":{}}})",
                              pattern, least, most));
      const bool is_email = std::string_view(pattern).find('@') != std::string_view::npos;
      for (const int bound : {least, most}) {
        for (const int count : {bound - 1, bound, bound + 1}) {
          const int shortest = is_email ? 2 : 1;
          if (count < shortest) continue;
          const std::string text =
              is_email ? std::string(count - 2, 'a') + "@." : std::string(count, 'a');
          EXPECT_EQ(takes(*constraint, '"' + text + '"'), count >= least && count <= most)
              << pattern << " of " << count;
        }
      }
    }
  }
}

TEST_F(ConstraintLibraryTest, TextIsUtf8) {
  // A surrogate, something overlong, something beyond the last character, half a character.
  for (const char* bytes :
       {"\xed\xa0\x80", "\xc0\xaf", "\xe0\x80\x80", "\xf4\x90\x80\x80", "\xc3"}) {
    const std::string text = '"' + std::string(bytes) + '"';
    for (const char* schema : {R"({"type":"string"})", R"({"type":"string","maxLength":9})",
                               R"({"type":"string","pattern":".*"})"}) {
      EXPECT_FALSE(takes(*compile(Form::kJsonSchema, schema), text)) << schema;
    }
    EXPECT_FALSE(takes(*compile(Form::kRegex, ".*"), bytes));
  }
  expect(Form::kRegex, ".*", {"\xed\x9f\xbf", "\xf4\x8f\xbf\xbf", "\xe2\x82\xac"}, {});
}

TEST_F(ConstraintLibraryTest, Arrays) {
  expect(R"({"type":"array"})", {"[]", "[1,\"a\"]"}, {"{}"});
  expect(R"({"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":2})",
         {"[true]", "[true, false]"}, {"[]", "[true,true,true]", "[1]"});
  expect(R"({"type":"array","prefixItems":[{"type":"integer"},true],"items":false})", {"[1,\"x\"]"},
         {"[1,2,3]", "[\"x\",1]"});
}

TEST_F(ConstraintLibraryTest, BranchesAndReferences) {
  expect(R"({"anyOf":[{"type":"integer"},{"type":"string"}]})", {"1", "\"a\""}, {"null", "1.5"});
  expect(R"({"type":["integer","null"]})", {"1", "null"}, {"\"a\""});
  const std::string tree =
      R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"c":{"type":"array","items":{"$ref":"#/$defs/n"}}}}}})";
  expect(tree, {"{}", R"({"c":[{},{"c":[]}]})"}, {R"({"c":[1]})"});
}

TEST_F(ConstraintLibraryTest, WhatItWouldLeaveOutIsRefused) {
  // Schemas of oneOf that do not exclude each other would become anyOf.
  EXPECT_NE(refusal_of(Form::kJsonSchema, R"({"oneOf":[{"type":"integer"},{"type":"number"}]})"),
            "");
  // Bounds on one side would make it leave multipleOf out.
  const std::string refusal =
      refusal_of(Form::kJsonSchema, R"({"type":"integer","minimum":1,"multipleOf":7})");
  EXPECT_NE(refusal, "");
  EXPECT_EQ(refusal.find("ignoring"), std::string::npos) << refusal;
  EXPECT_NE(refusal_of(Form::kGrammar, "root ::= other"), "");
  EXPECT_NE(refusal_of(Form::kGrammar, "root ::= ("), "");
  EXPECT_NE(refusal_of(Form::kGrammar, "start ::= \"a\""), "");
}

TEST_F(ConstraintLibraryTest, Regexes) {
  expect(Form::kRegex, "(yes|no)!{1,2}", {"yes!", "no!!"}, {"", "yes", "yes!!!", "maybe!"});
  expect(Form::kRegex, "^\\d{4}-\\d{2}$", {"2024-11"}, {"2024-1", "x2024-11"});
  expect(Form::kRegex, "[\xc3\xa9\xc3\xa0]+", {"\xc3\xa9\xc3\xa0"}, {"e", "\xc3"});
  expect(Form::kRegex, "a.b",
         {"axb", "a\tb",
          "a\xc3\xa9"
          "b"},
         {"a\nb", "a\rb",
          "a\xe2\x80\xa8"
          "b",
          "a\xe2\x80\xa9"
          "b",
          "ab"});
  expect(Form::kRegex, "[\\s\\S]*", {"", "a\n\xe3\x80\x80"}, {});
}

TEST_F(ConstraintLibraryTest, Grammars) {
  expect(Form::kGrammar, "root ::= \"(\" root \")\" | \"x\"", {"x", "((x))"}, {"(x", "()"});
  expect(Form::kChoice, R"(["yes","no","a \"b\" \\ \n"])", {"yes", "no", "a \"b\" \\ \n"},
         {"", "y", "yesno"});
}

TEST_F(ConstraintLibraryTest, StructuralTags) {
  const std::string tags =
      R"({"triggers":["<fn="],"structures":[{"begin":"<fn=add>","schema":{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]},"end":"</fn>"}]})";
  expect(Form::kStructuralTag, tags,
         {"hello", "a < b", "so: <fn=add>{\"x\":1}</fn> done",
          "<fn=add>{\"x\":1}</fn><fn=add>{\"x\":2}</fn>"},
         {"<fn=sub>{}</fn>", "<fn=add>{\"x\":\"a\"}</fn>", "<fn=add>{\"x\":1}"});
  EXPECT_NE(
      refusal_of(Form::kStructuralTag,
                 R"({"triggers":["<a"],"structures":[{"begin":"<b>","schema":{},"end":"x"}]})"),
      "");
  EXPECT_NE(refusal_of(Form::kStructuralTag, "[]"), "");
}

// As server/serving/tool_use.cc says them: one takes a city, the other nothing.
std::string calls(const std::string& shape, const std::string& rest) {
  return R"({"shape":")" + shape +
         R"(","calls":[{"name":"w","begin":"{\"name\": \"w\", \"arguments\": ","end":"}","schema":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}},{"name":"now","begin":"{\"name\": \"now\", \"arguments\": ","end":"}","schema":{"type":"object","properties":{}}}],)" +
         rest + "}";
}
const std::string kWeather = R"({"name": "w", "arguments": {"city": "x"}})";
const std::string kNow = R"({"name": "now", "arguments": {}})";

TEST_F(ConstraintLibraryTest, ToolCallsBetweenMarks) {
  const std::string marks = R"("mark":"<call>\n","close":"\n</call>")";
  const std::string weather = "<call>\n" + kWeather + "\n</call>",
                    now = "<call>\n" + kNow + "\n</call>";
  const std::vector<std::string> never = {"<call>\n{}\n</call>", "<call>\n" + kWeather, "<call>",
                                          R"(<call>\n{"name": "other", "arguments": {}}\n</call>)",
                                          "<call>\n{\"name\": \"w\", \"arguments\": {}}\n</call>"};
  expect(Form::kToolCalls, calls("marked", marks + R"(,"required":false,"single":false)"),
         {"", "hello", "a < b <call", weather, "so: " + weather + "\n" + now, now + " done"},
         never);
  expect(Form::kToolCalls, calls("marked", marks + R"(,"required":false,"single":true)"),
         {"hello", "so: " + weather}, {weather + "\n" + now});
  expect(Form::kToolCalls, calls("marked", marks + R"(,"required":true,"single":false)"),
         {weather, weather + "\n" + now}, {"", "hello", "so: " + weather, weather + " done"});
  expect(Form::kToolCalls, calls("marked", marks + R"(,"required":true,"single":true)"),
         {weather, now}, {"", weather + "\n" + now});
}

TEST_F(ConstraintLibraryTest, ToolCallsInAList) {
  const std::string mark = R"("mark":"[CALLS] ","close":"")";
  const std::string one = "[CALLS] [" + kNow + "]",
                    two = "[CALLS] [" + kWeather + ", " + kNow + "]";
  expect(Form::kToolCalls, calls("list", mark + R"(,"required":false,"single":false)"),
         {"", "hello [CALL", one, two, "so: " + two},
         {"[CALLS] []", "[CALLS] hello", one + "x", "[CALLS] [{}]"});
  expect(Form::kToolCalls, calls("list", mark + R"(,"required":true,"single":true)"), {one},
         {"", "hello", two, "so: " + one});

  const std::string marks = R"("mark":"<CALLS>","close":"</CALLS>")";
  const std::string closed = "<CALLS>[" + kWeather + ", " + kNow + "]</CALLS>";
  expect(Form::kToolCalls, calls("list", marks + R"(,"required":false,"single":false)"),
         {"", "hello <CALL", closed, "so: " + closed},
         {"<CALLS>[]</CALLS>", "<CALLS>[" + kNow + "]", closed + "x"});
  expect(Form::kToolCalls, calls("list", marks + R"(,"required":true,"single":true)"),
         {"<CALLS>[" + kNow + "]</CALLS>"}, {"", closed, "so: <CALLS>[" + kNow + "]</CALLS>"});
}

TEST_F(ConstraintLibraryTest, ToolCallsWithParameters) {
  const auto tool = [](const std::string& schema, const std::string& rest = "") {
    return R"({"shape":"parameters","mark":"<tool_call>\n","close":"\n</tool_call>","required":true,"single":true,"calls":[{"name":"f","begin":"<function=f>\n","end":"</function>",)" +
           rest + R"("schema":)" + schema + "}]}";
  };
  const auto call = [](const std::string& parameters) {
    return "<tool_call>\n<function=f>\n" + parameters + "</function>\n</tool_call>";
  };
  const auto value = [&](const std::string& text) {
    return call("<parameter=x>\n" + text + "\n</parameter>\n");
  };
  const auto values = [&](const std::string& schema, const std::vector<std::string>& yes,
                          const std::vector<std::string>& no) {
    std::vector<std::string> right, wrong;
    for (const std::string& one : yes) right.push_back(value(one));
    for (const std::string& one : no) wrong.push_back(value(one));
    expect(Form::kToolCalls,
           tool(R"({"type":"object","properties":{"x":)" + schema + R"(},"required":["x"]})"),
           right, wrong);
  };
  values(R"({"type":"string"})", {"", "a", "5", "a\n<b>\n</par \xc3\xa9\"\n"},
         {"a</parameter>\nb", "\xc3"});
  values(R"({"type":"string","maxLength":2})", {"", "a", "\xc3\xa9\n"}, {"abc", "<"});
  values(R"({"type":"string","pattern":"^[^a]+[;<].$"})", {"b;c", "b;;", "b;\""},
         {"b<c", "a;b", "b;\n", ""});
  values(R"({"type":"string","pattern":"^[^a]+[;<].$","maxLength":4})", {"b;c", "bc;\""},
         {"b<c", "bcd;e", "a;b", ""});
  values(R"({"type":"string","format":"date"})", {"2024-02-28"}, {"2024-02-30", ""});
  values(R"({"enum":["a b","c",3,null]})", {"a b", "c", "3", "null"}, {"d", "\"c\"", "4", ""});
  values(R"({"enum":["4",3]})", {"3"}, {"4"});
  values(R"({"const":"a"})", {"a"}, {"", "b"});
  values(R"({"type":"integer","minimum":1,"maximum":20})", {"7", "20"}, {"21", "x", "\"7\"", ""});
  values(R"({"type":"boolean"})", {"true"}, {"True", ""});
  values(R"({"type":"array","items":{"type":"string"}})", {R"(["a", "</parameter>"])"},
         {"a", "[1]", "[\"a\n\"]"});
  values(R"({"type":["string","null"]})", {"null", "a", "5"}, {});
  values(R"({"anyOf":[{"type":"string"},{"type":"integer","minimum":5}]})", {"", "a", "x7"},
         {"3", " 3", "<"});
  values(
      R"({"anyOf":[{"type":"string","minLength":1},{"type":"array","items":{"type":"string"}}]})",
      {"a", R"(["a"])"}, {"[1]", ""});
  values("{}", {"", "a", "5", "{"}, {});
  values(
      R"({"$ref":"#/$defs/t"}},"$defs":{"t":{"type":"object","properties":{"t":{"$ref":"#/$defs/t"}}})",
      {"{}", R"({"t": {"t": {}}})"}, {"a", R"({"t": 1})"});

  const std::string two =
      R"({"type":"object","properties":{"x":{"type":"string"},"n":{"type":"integer"}},"required":["n"]})";
  const std::string x = "<parameter=x>\na\n</parameter>\n", n = "<parameter=n>\n1\n</parameter>\n";
  expect(Form::kToolCalls, tool(two), {call(x + n), call(n)},
         {call(x), call(n + x), call(n + n), call(""), call(x + n + "x"), "hello"});
  expect(Form::kToolCalls, tool(R"({"type":"object","properties":{}})"), {call("")}, {call(x)});
  expect(Form::kToolCalls, tool(R"({"type":"object"})"), {call(""), call(x), call(x + n)},
         {call("<parameter=>\na\n</parameter>\n"), call("x")});
  expect(Form::kToolCalls, tool(R"({"type":"object","additionalProperties":{"type":"integer"}})"),
         {call(n)}, {call(x)});

  const std::string contains = R"({"type":"object","properties":{"x":{"contains":{}}}})";
  EXPECT_THAT(refusal_of(Form::kToolCalls, tool(contains)),
              ::testing::HasSubstr("the parameters of f: schema, contains at #/properties/x"));
  expect(Form::kToolCalls, tool(contains, R"("strict":false,)"), {call(x), call("")}, {"hello"});
  for (
      const char* refused :
      {R"({"type":"object","properties":{"a":{}},"minProperties":1})",
       R"({"type":"object","patternProperties":{"^a":{}},"additionalProperties":false})",
       R"({"anyOf":[{"type":"object","properties":{"a":{}}},{"type":"object","properties":{}}]})",
       R"({"type":"object","properties":{"a>b":{}}})",
       R"({"type":"object","properties":{"a":{"type":"string","pattern":"<"}},"required":["a"]})"}) {
    EXPECT_THAT(refusal_of(Form::kToolCalls, tool(refused)),
                ::testing::HasSubstr("the model's form of calls"))
        << refused;
  }
}

TEST_F(ConstraintLibraryTest, AnAnswerThatIsAToolCall) {
  expect(Form::kToolCalls,
         calls("whole", R"("mark":"","close":"","required":false,"single":false)"),
         {"", "hello { \xc3\xa9 }", kWeather, kNow}, {"{}", kNow + kNow, kNow + " ", " " + kNow});
  expect(Form::kToolCalls, calls("whole", R"("mark":"","close":"","required":true,"single":true)"),
         {kWeather, kNow}, {"", "hello", "{}"});
}

// Marks that are control tokens: id 0 of the vocabulary is one.
TEST_F(ConstraintLibraryTest, ToolCallsBehindAControlToken) {
  const auto takes_behind = [](const Constraint& constraint, const std::string& before,
                               const std::string& behind) {
    const auto matcher = constraint.begin();
    std::vector<uint32_t> mask((byte_vocabulary().size() + 31) / 32);
    const auto go = [&](const std::string& text) {
      return std::ranges::all_of(
          text, [&](char byte) { return matcher->accept(static_cast<unsigned char>(byte) + 1); });
    };
    if (!go(before)) return false;
    matcher->fill(mask);
    const bool named = (mask[0] & 1) != 0;
    EXPECT_EQ(named, matcher->fork()->accept(0));
    if (!named || !matcher->accept(0)) return false;
    matcher->fill(mask);
    EXPECT_EQ(mask[0] & 1, 0u) << "once";
    return go(behind) && matcher->may_end();
  };
  const std::string mark = R"("mark":"[CALLS] ","mark_id":0,"close":"")";
  const auto any =
      compile(Form::kToolCalls, calls("list", mark + R"(,"required":false,"single":false)"));
  EXPECT_TRUE(takes_behind(*any, "", " [" + kNow + "]"));
  EXPECT_TRUE(takes_behind(*any, "so: ", " [" + kNow + ", " + kWeather + "]"));
  EXPECT_TRUE(takes(*any, "hello"));
  EXPECT_FALSE(takes_behind(*any, "", " hello"));
  EXPECT_FALSE(takes_behind(*any, "\xc3", " [" + kNow + "]")) << "within a character";
  const auto calls_alone =
      compile(Form::kToolCalls, calls("list", mark + R"(,"required":true,"single":false)"));
  EXPECT_TRUE(takes_behind(*calls_alone, "", " [" + kNow + "]"));
  EXPECT_FALSE(takes(*calls_alone, "hello"));
}

TEST_F(ConstraintLibraryTest, ParametersThatCannotBeEnforcedAreRefusedByName) {
  const auto with = [](const char* strict) {
    return R"({"shape":"whole","mark":"","close":"","required":true,"single":true,"calls":[{"name":"w","begin":"{\"name\": \"w\", \"arguments\": ","end":"}","strict":)" +
           std::string(strict) + R"(,"schema":{"type":"object","contains":{}}}]})";
  };
  const std::string refusal = refusal_of(Form::kToolCalls, with("true"));
  EXPECT_THAT(refusal, ::testing::HasSubstr("the parameters of w"));
  EXPECT_THAT(refusal, ::testing::HasSubstr("contains at #"));
  expect(Form::kToolCalls, with("false"), {R"({"name": "w", "arguments": {"a": 1}})"},
         {R"({"name": "w", "arguments": 1})"});
}

TEST_F(ConstraintLibraryTest, ACompilationIsGivenUp) {
  const auto library = make_constraint_library(byte_vocabulary());
  const ConstraintText slow{Form::kRegex, "(.{0,10}){25}[a-z]{0,200}"};
  try {
    library->compile(slow, {.most_seconds = 0.01});
    FAIL() << "it took no time";
  } catch (const ConstraintRefused& refused) {
    EXPECT_THAT(refused.what(), ::testing::HasSubstr("more than 0.01 s"));
  }
  const auto unwanted = [](double) { throw CompileUnwanted(); };
  EXPECT_THROW(library->compile(slow, {.on_progress = unwanted}), CompileUnwanted);
  EXPECT_TRUE(takes(*library->compile({Form::kRegex, "a+"}, {}), "aa")) << "it goes on";
}

// Whatever takes its time: from where it is not wanted any more to where it has been given up.
TEST_F(ConstraintLibraryTest, EachPartOfACompilationIsGivenUpSoon) {
  TokenTexts texts = byte_vocabulary();
  for (int i = 0; i < 20'000; ++i) texts.push_back(std::to_string(i * 7919) + " a{\"}");
  const auto library = make_constraint_library(texts);
  std::string properties = R"({"type":"object","properties":{)";
  for (int i = 0; i < 300; ++i) {
    properties +=
        fmt::format("{}\"p{}\":{}", i > 0 ? "," : "", i, R"({"type":"string","maxLength":1000})");
  }
  const std::vector<ConstraintText> slow = {
      {Form::kRegex, ".{0,200}"},
      {Form::kRegex, "((a|b|ab)*c){50}(x+x+)+y"},
      {Form::kJsonSchema, properties + "}}"},
      {Form::kGrammar, "root ::= [^x]{0,250} [a-z]{3,250} root | \"\""},
      {Form::kGrammar, "root ::= root root | root root root | \"\""}};
  for (const ConstraintText& text : slow) {
    const auto thread_seconds = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
    const double began = thread_seconds();
    try {
      library->compile(text, {.most_seconds = 0.1});
    } catch (const ConstraintRefused&) {
    }
    EXPECT_LT(thread_seconds() - began, 1.1) << text.text.substr(0, 40);
  }
}

TEST_F(ConstraintLibraryTest, MasksSayWhatIsTaken) {
  const TokenTexts texts = byte_vocabulary();
  const auto constraint = compile(
      Form::kJsonSchema,
      R"({"type":"object","properties":{"name":{"type":"string"},"n":{"type":"integer"}}})");
  const auto matcher = constraint->begin();
  std::vector<uint32_t> mask((texts.size() + 31) / 32);
  for (const char byte : std::string("{\"name\": \"a \xc3\xa9\", \"n\": 12}")) {
    matcher->fill(mask);
    for (size_t id = 0; id < texts.size(); ++id) {
      const bool allowed = (mask[id / 32] >> (id % 32) & 1) != 0;
      EXPECT_EQ(allowed, matcher->fork()->accept(static_cast<int32_t>(id))) << texts[id];
    }
    EXPECT_EQ(mask[0] & 1, 0u) << "a control token";
    ASSERT_TRUE(matcher->accept(static_cast<unsigned char>(byte) + 1));
  }
  EXPECT_TRUE(matcher->may_end());
}

// Each of 20 rules may be two of the next or one: a text can be read in more and more ways.
TEST_F(ConstraintLibraryTest, WhatTakesLongToFollowIsGivenUp) {
  std::string doubled = "root ::= r0";
  for (int i = 0; i < 20; ++i) {
    const std::string next = "r" + std::to_string(i + 1);
    doubled += "\nr" + std::to_string(i) + " ::= " + next + " " + next + " | " + next;
  }
  const auto matcher = compile(Form::kGrammar, doubled + "\nr20 ::= [a-z] | [a-m] \"x\"?")->begin();
  std::vector<uint32_t> mask((byte_vocabulary().size() + 31) / 32);
  std::string refusal;
  double longest = 0;
  for (int i = 0; i < 100'000 && refusal.empty(); ++i) {
    const double began = thread_seconds();
    try {
      matcher->fill(mask);
      ASSERT_TRUE(matcher->accept('a' + 1));
    } catch (const ConstraintRefused& refused) {
      refusal = refused.what();
    }
    longest = std::max(longest, thread_seconds() - began);
  }
  EXPECT_THAT(refusal, ::testing::HasSubstr("to compute the next tokens"));
  EXPECT_LT(longest, 2 * (Matcher::kMostSeconds + 1)) << "of two calls, each with its last look";
}

// By which the cache is bounded.
TEST_F(ConstraintLibraryTest, BytesAreWhatTheAllocatorGave) {
  std::vector<std::pair<Form, std::string>> texts = {
      {Form::kJson, ""},
      {Form::kRegex, "([a-z]{1,8}[0-9]{2,4}-?){1,6}"},
      {Form::kJsonSchema, R"({"type":"array","items":{"type":"string","maxLength":40}})"}};
  for (const int count : {1, 8, 40}) {
    std::string properties;
    for (int i = 0; i < count; ++i) {
      properties +=
          fmt::format(R"({}"name{}":{{"type":["string","integer"],"pattern":"^[a-f]{{{}}}$"}})",
                      i == 0 ? "" : ",", i, i % 9 + 1);
    }
    texts.emplace_back(Form::kJsonSchema,
                       fmt::format(R"({{"type":"object","properties":{{{}}}}})", properties));
  }
  compile(Form::kJson, "");  // what is made once
  if (mallinfo2().uordblks == 0) GTEST_SKIP() << "this allocator does not say what it gave";
  for (const auto& [form, text] : texts) {
    const size_t before = mallinfo2().uordblks, rules = library().cached_bytes().rules;
    const auto constraint = compile(form, text);
    const size_t given = mallinfo2().uordblks - before;
    const size_t said = constraint->bytes() + library().cached_bytes().rules - rules;
    EXPECT_LT(given, said * 6 / 5) << text;
    EXPECT_GT(given, said * 3 / 4) << text;
  }
}

TEST_F(ConstraintLibraryTest, WhatItHasOfOthersIsNotWorkedOutAgain) {
  const auto library = make_constraint_library(byte_vocabulary());
  const auto grown_by = [&](const std::string& name, uint64_t client) {
    const size_t before = library->cached_bytes().rules;
    library->compile(
        {Form::kJsonSchema, R"({"type":"object","properties":{")" + name +
                                R"(":{"type":"string","maxLength":40},"born":{"format":"date"},)"
                                R"("tags":{"type":"array","items":{"type":"string"}}}})"},
        {.client = client});
    return library->cached_bytes().rules - before;
  };
  const size_t first = grown_by("name", 1);
  EXPECT_GT(first, 0u);
  EXPECT_EQ(grown_by("name", 2), 0u);
  EXPECT_LT(grown_by("other", 2), first / 4);
}

TEST_F(ConstraintLibraryTest, WhatTakesTooMuchMemoryIsRefused) {
  if (testing::kSanitized) GTEST_SKIP() << "memory is not counted with sanitizers";
  const std::string text(250'000, 'a');
  const auto expect_refused = [&](Form form, const std::string& whole) {
    EXPECT_THAT(
        refusal_of(form, whole),
        ::testing::HasSubstr("it takes more than 14 MB of memory to compile: write it with"));
  };
  expect_refused(Form::kGrammar, "root ::= \"" + text + '"');
  // Where what cannot be read is left out otherwise.
  const std::string copies = R"({"$defs":{"c":{"const":")" + text + R"("}},"properties":{)";
  std::string properties;
  for (int i = 0; i < 200; ++i) {
    properties +=
        fmt::format(R"({}"p{}":{{"allOf":[{{"$ref":"#/$defs/c"}},{{}}]}})", i == 0 ? "" : ",", i);
  }
  expect_refused(Form::kJsonSchema, copies + properties + "}}");
  expect_refused(Form::kToolCalls,
                 R"({"shape":"marked","mark":"<","close":">","calls":[{"name":"f","strict":false,)"
                 R"("begin":"{","end":"}","schema":)" +
                     copies + properties + "}}}]}");
  EXPECT_EQ(refusal_of(Form::kChoice, R"(["a","b"])"), "");
}

TEST_F(ConstraintLibraryTest, HostileOnesAreBounded) {
  const auto began = std::chrono::steady_clock::now();
  std::string optional = R"({"type":"object","properties":{)";
  for (int i = 0; i < 400; ++i) {
    optional +=
        (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + R"(":{"type":"string","maxLength":1000})";
  }
  refusal_of(Form::kJsonSchema, optional + "}}");
  refusal_of(Form::kRegex, "((a|b|ab)*c){50}(x+x+)+y");
  EXPECT_NE(refusal_of(Form::kRegex, "(.{0,100}){100}"), "");
  refusal_of(Form::kRegex, "(.{0,10}){25}");
  refusal_of(Form::kGrammar, "root ::= root root | root root root | \"\"");
  refusal_of(Form::kGrammar, "root ::= a\na ::= b\nb ::= a");
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  EXPECT_LT(took.count(), 60);
}

}  // namespace
}  // namespace recurve::library_test
