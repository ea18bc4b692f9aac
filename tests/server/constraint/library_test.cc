// What the library takes, once a constraint has been looked through: byte by byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "server/constraint/constraint_library.h"
#include "tests/server/constraint/byte_vocabulary.h"

namespace recurve::library_test {
namespace {

using Form = ConstraintText::Form;
using testing::byte_vocabulary;
using testing::takes;

class ConstraintLibraryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  }
  std::shared_ptr<const Constraint> compile(Form form, const std::string& text) {
    static const auto library = make_constraint_library(byte_vocabulary());
    return library->compile({form, text});
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
}

TEST_F(ConstraintLibraryTest, Numbers) {
  expect(R"({"type":"integer","minimum":-3,"maximum":12})", {"-3", "0", "12", "7"},
         {"-4", "13", "1.5", "007", "-0.5", "1e1"});
  expect(R"({"type":"integer","exclusiveMinimum":0})", {"1", "100000"}, {"0", "-1"});
  expect(R"({"type":"integer","multipleOf":5})", {"0", "5", "25", "-10"}, {"3", "51"});
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
  expect(R"({"type":"string","pattern":"^[^a]+$"})", {R"("bcd")"},
         {R"("a")", R"("b"c")", "\"b\n\""});
  expect(R"({"type":"string","pattern":".*"})", {R"("")", R"("xyz")"}, {R"("x"y")", "\"x\ty\""});
  expect(R"({"type":"string","format":"date"})", {R"("2024-02-28")"},
         {R"("2024-02-30")", R"("2024-13-01")"});
  expect(R"({"type":"string","format":"ipv4"})", {R"("10.0.255.1")"},
         {R"("10.0.256.1")", R"("01.2.3.4")"});
  expect(R"({"type":"string","format":"uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"},
         {R"("123e4567")"});
  expect(R"({"enum":["red","blue",3,null]})", {R"("red")", "3", "null"}, {R"("green")", "4"});
  expect(R"({"const":{"a":[1]}})", {R"({"a":[1]})"}, {R"({"a":[2]})"});
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
  EXPECT_NE(refusal_of(Form::kJsonSchema, R"({"type":"integer","minimum":1,"multipleOf":7})"), "");
  EXPECT_NE(refusal_of(Form::kGrammar, "root ::= other"), "");
  EXPECT_NE(refusal_of(Form::kGrammar, "root ::= ("), "");
  EXPECT_NE(refusal_of(Form::kGrammar, "start ::= \"a\""), "");
}

TEST_F(ConstraintLibraryTest, Regexes) {
  expect(Form::kRegex, "(yes|no)!{1,2}", {"yes!", "no!!"}, {"", "yes", "yes!!!", "maybe!"});
  expect(Form::kRegex, "^\\d{4}-\\d{2}$", {"2024-11"}, {"2024-1", "x2024-11"});
  expect(Form::kRegex, "[\xc3\xa9\xc3\xa0]+", {"\xc3\xa9\xc3\xa0"}, {"e", "\xc3"});
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
