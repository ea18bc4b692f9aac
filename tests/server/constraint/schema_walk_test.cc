#include "server/constraint/schema_walk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "server/constraint/constraint.h"
#include "server/constraint/schema_keywords.h"

namespace recurve::schema_walk_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

Json walked(const std::string& schema) { return Json::parse(enforceable_schema(schema)); }

std::string refusal_of(const std::string& schema) {
  try {
    enforceable_schema(schema);
    return "";
  } catch (const ConstraintRefused& refused) {
    return refused.what();
  }
}

TEST(SchemaWalk, RefusesEachKeywordThatIsNotEnforcedByItsName) {
  int refused = 0;
  for (const SchemaKeyword& keyword : kSchemaKeywords) {
    if (keyword.use != KeywordUse::kRefused) continue;
    const Json schema{{"type", "object"},
                      {"properties", {{"a", {{std::string(keyword.name), true}}}}}};
    EXPECT_THAT(refusal_of(schema.dump()),
                AllOf(HasSubstr(std::string(keyword.name)), HasSubstr("#/properties/a")));
    ++refused;
  }
  EXPECT_GT(refused, 10);
  EXPECT_THAT(refusal_of(R"({"nullable":true})"), HasSubstr("nullable at #"));
  EXPECT_EQ(refusal_of(R"({"x-order":1})"), "");
}

TEST(SchemaWalk, KeepsTheOrderOfProperties) {
  EXPECT_EQ(
      walked(R"({"type":"object","properties":{"z":{},"a":{"type":"null"}},"required":["z"]})"),
      Json::parse(R"({"type":"object","additionalProperties":false,
                            "properties":{"z":{},"a":{"type":"null"}},"required":["z"]})"));
  EXPECT_EQ(walked(R"({"properties":{"z":{},"a":{}}})")["properties"].begin().key(), "z");
}

TEST(SchemaWalk, GivesTypesToKeywordsThatHaveNone) {
  EXPECT_EQ(walked(R"({"minimum":3})"), Json::parse(R"({"type":"number","minimum":3})"));
  EXPECT_EQ(walked(R"({"minLength":3})"), Json::parse(R"({"type":"string","minLength":3})"));
  EXPECT_EQ(walked(R"({"type":["string","null"],"minLength":3})"),
            Json::parse(R"({"anyOf":[{"type":"string","minLength":3},{"type":"null"}]})"));
  EXPECT_EQ(walked("true"), Json::parse("{}"));
}

TEST(SchemaWalk, AnArrayHasItemsAndAnObjectOfNothingHasAny) {
  EXPECT_EQ(walked(R"({"type":"array"})"), Json::parse(R"({"type":"array","items":{}})"));
  EXPECT_EQ(walked(R"({"type":"object"})"),
            Json::parse(R"({"type":"object","additionalProperties":{}})"));
}

TEST(SchemaWalk, ValuesAreOfTheirType) {
  EXPECT_EQ(walked(R"({"type":"integer","enum":[1,2.0,2.5,"x"]})"),
            Json::parse(R"({"enum":[1,2.0]})"));
  EXPECT_THAT(refusal_of(R"({"type":"string","const":3})"), HasSubstr("no value is valid"));
  EXPECT_THAT(refusal_of(R"({"enum":[1],"minimum":2})"),
              HasSubstr("minimum at #: it may not stand"));
}

TEST(SchemaWalk, BoundsOfIntegersAreWhole) {
  EXPECT_EQ(walked(R"({"type":"integer","minimum":1.5,"exclusiveMaximum":9})"),
            Json::parse(R"({"type":"integer","minimum":2,"maximum":8})"));
  EXPECT_THAT(refusal_of(R"({"type":"integer","minimum":5,"maximum":4})"), HasSubstr("minimum"));
  EXPECT_THAT(refusal_of(R"({"type":"number","multipleOf":0.5})"), HasSubstr("multipleOf"));
  EXPECT_THAT(refusal_of(R"({"type":"integer","exclusiveMinimum":true})"),
              HasSubstr("exclusiveMinimum at #: it must be a number"));
}

TEST(SchemaWalk, RequiredNamesBecomeProperties) {
  const Json out =
      walked(R"({"type":"object","required":["a"],"additionalProperties":{"type":"null"}})");
  EXPECT_EQ(out["properties"], Json::parse(R"({"a":{"type":"null"}})"));
  EXPECT_THAT(refusal_of(R"({"properties":{"a":false},"required":["a"]})"), HasSubstr("required"));
}

TEST(SchemaWalk, ReferencesAreReadOnce) {
  const Json out =
      walked(R"({"$defs":{"t":{"type":"object","properties":{"c":{"$ref":"#/$defs/t"}}},
                                       "bad":{"not":{}}},"$ref":"#/$defs/t"})");
  EXPECT_EQ(out["$defs"].size(), 2u);
  EXPECT_THAT(refusal_of(R"({"$ref":"#/$defs/t","$defs":{"t":{"not":{}}}})"),
              HasSubstr("not at #/$defs/t"));
  EXPECT_THAT(refusal_of(R"({"$ref":"#/$defs/x"})"), HasSubstr("the schema has no"));
  EXPECT_THAT(refusal_of(R"({"$ref":"http://a/b"})"), HasSubstr("$ref"));
  EXPECT_THAT(refusal_of(R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}})"),
              HasSubstr("it refers to itself"));
  EXPECT_THAT(refusal_of(R"({"$ref":"#/$defs/a","minimum":3,"$defs":{"a":{}}})"),
              HasSubstr("minimum at #: it may not stand beside $ref"));
}

TEST(SchemaWalk, WhatDoesNotGoTogetherIsRefused) {
  for (
      const auto& [schema, named] : std::initializer_list<std::pair<const char*, const char*>>{
          {R"({"type":"string","pattern":"a","minLength":2})", "minLength"},
          {R"({"type":"string","format":"date","maxLength":2})", "maxLength"},
          {R"({"type":"string","format":"uri-template"})", "format"},
          {R"j({"type":"string","pattern":"(?=a)"})j", "pattern"},
          {R"({"anyOf":[{}],"properties":{}})", "properties"},
          {R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})", "allOf at #: two of its schemas say"},
          {R"({"allOf":[{"type":"string"},{"type":"integer"}]})", "of type"},
          {R"({"allOf":[{"properties":{"a":{"minimum":1}}},{"properties":{"a":{"maximum":1}}}]})",
           "the property \"a\""},
          {R"({"allOf":[{"properties":{"a":{}},"additionalProperties":false},{"properties":{"b":{}}}]})",
           "additionalProperties of one"},
          {R"({"properties":{"b":{}},"allOf":[{"additionalProperties":{"type":"string"}}]})",
           "additionalProperties of one"},
          {R"({"allOf":[{"items":{"minimum":1}},{"prefixItems":[{}]}]})", "items of one"},
          {R"({"allOf":[{"$ref":"#"}]})", "within itself"},
          {R"({"allOf":[{},false]})", "for which there are values"},
          {R"({"allOf":[{"not":{}}]})", "not at #"},
          {R"({"allOf":[]})", "allOf"},
          {R"({"type":"array","uniqueItems":true})", "uniqueItems"},
          {R"({"type":"array","items":[{}]})", "items"},
          {R"({"type":"object","minProperties":2})", "minProperties"},
          {R"({"properties":{"a":{}},"patternProperties":{"b":{}}})", "patternProperties"},
          {R"({"patternProperties":{"a":{},"b":{}}})", "patternProperties"},
          {R"({"type":"strin"})", "type"},
          {R"({"type":"string","minLength":-1})", "minLength"},
          {R"({"type":"string","maxLength":100000})", "maxLength"},
          {R"(false)", "false"},
          {R"([])", "schema"}}) {
    EXPECT_THAT(refusal_of(schema), HasSubstr(named)) << schema;
    EXPECT_NE(refusal_of(schema), "") << schema;
  }
}

TEST(SchemaWalk, SchemasOfAllOfBecomeOne) {
  const auto same = [](const char* written, const char* meant) {
    EXPECT_EQ(enforceable_schema(written), enforceable_schema(meant)) << written;
  };
  same(R"({"allOf":[{"minimum":1},{"maximum":9},{"minimum":3}],"type":"integer"})",
       R"({"type":"integer","minimum":3,"maximum":9})");
  same(
      R"({"$defs":{"a":{"type":"object","properties":{"x":{"type":"null"}},"required":["x"]}},
          "allOf":[{"$ref":"#/$defs/a"},{"properties":{"y":{"type":"null"}},"required":["y","x"]}],
          "description":"both"})",
      R"({"type":"object","properties":{"x":{"type":"null"},"y":{"type":"null"}},"required":["x","y"]})");
  same(R"({"allOf":[{"type":"string"},true,{"allOf":[{"maxLength":3}]}]})",
       R"({"type":"string","maxLength":3})");
  same(
      R"({"allOf":[{"type":"object","properties":{"x":{}},"additionalProperties":true},{"required":["x"]}]})",
      R"({"type":"object","properties":{"x":{}},"additionalProperties":true,"required":["x"]})");
  // Each of forty refers to the next twice.
  std::string doubling = R"({"$ref":"#/$defs/a0","$defs":{)";
  for (int i = 0; i < 40; ++i) {
    const std::string next = R"({"$ref":"#/$defs/a)" + std::to_string(i + 1) + R"("})";
    doubling += "\"a" + std::to_string(i) + R"(":{"allOf":[)" + next + "," + next + "]},";
  }
  EXPECT_THAT(refusal_of(doubling + R"("a40":{}}})"), HasSubstr("at most 256 schemas"));
}

TEST(SchemaWalk, BoundsWhatItReads) {
  std::string deep, end;
  for (int i = 0; i < 2000; ++i) deep += R"({"items":)", end += "}";
  EXPECT_THAT(refusal_of(deep + "true" + end), HasSubstr("deep"));
  EXPECT_THAT(refusal_of("{\"title\":\"" + std::string(1 << 20, 'a') + "\"}"),
              HasSubstr("at most 262144 bytes"));
  Json wide = Json::array();
  for (int i = 0; i < 20000; ++i) wide.push_back(i);
  EXPECT_THAT(refusal_of(Json{{"enum", wide}}.dump()), HasSubstr("at most 10000"));
  EXPECT_THAT(refusal_of("{"), HasSubstr("no JSON"));
  EXPECT_THAT(refusal_of("{\"title\":\"\xff\"}"), HasSubstr("no JSON"));
}

}  // namespace
}  // namespace recurve::schema_walk_test
