#include "server/constraint/schema/schema_walk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "server/constraint/constraint.h"
#include "server/constraint/schema/schema_keywords.h"

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

// What the library would refuse with its own message.
TEST(SchemaWalk, FewerThanAreWantedIsRefusedByItsKeyword) {
  EXPECT_THAT(refusal_of(R"({"properties":{"a":{}},"required":["a","a"],"maxProperties":0})"),
              HasSubstr("maxProperties at #: more properties are required"));
  EXPECT_EQ(refusal_of(R"({"properties":{"a":{}},"required":["a","a"],"maxProperties":1})"), "");
  EXPECT_THAT(refusal_of(R"({"properties":{"a":{}},"minProperties":2})"),
              HasSubstr("minProperties at #: there are fewer properties"));
  EXPECT_THAT(refusal_of(R"({"type":"object","additionalProperties":false,"minProperties":1})"),
              HasSubstr("minProperties at #: there are fewer properties"));
  EXPECT_THAT(refusal_of(R"({"prefixItems":[{}],"items":false,"minItems":2})"),
              HasSubstr("minItems at #: there are fewer items"));
  EXPECT_THAT(refusal_of(R"({"items":false,"minItems":1})"),
              HasSubstr("minItems at #: there are fewer items"));
  // Of several schemas, such a one adds nothing.
  EXPECT_EQ(walked(R"({"anyOf":[{"type":"null"},{"items":false,"minItems":1}]})"),
            Json::parse(R"({"type":"null"})"));
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
  EXPECT_GE(refused, 8);
}

// As validators read them; $anchor and its like only name a place, which a $ref here cannot use.
TEST(SchemaWalk, AnnotationsAndUnknownKeywordsHaveNoEffect) {
  const Json typed{{"type", "string"}, {"minLength", 2}};
  const std::string expected = enforceable_schema(typed.dump());
  for (const char* name :
       {"$schema",          "$comment",   "comment",        "title",       "default",
        "examples",         "deprecated", "readOnly",       "x-order",     "contentSchema",
        "contentMediaType", "nullable",   "discriminator",  "minlength",   "min",
        "version",          "$anchor",    "$dynamicAnchor", "$vocabulary", "minContains",
        "maxContains",      "then",       "else",           "$defs",       "additionalItems"}) {
    for (const Json& value : {Json(1), Json("y"), Json::object({{"contains", true}}), Json()}) {
      Json schema = typed;
      schema[name] = value;
      EXPECT_EQ(enforceable_schema(schema.dump()), expected) << schema;
    }
    EXPECT_EQ(walked(Json{{name, 1}}.dump()), Json::object()) << name;
    EXPECT_EQ(walked(Json{{name, 1}, {"enum", {"a"}}}.dump()), Json({{"enum", {"a"}}})) << name;
    EXPECT_NE(refusal_of(Json{{"not", {{name, 1}}}}.dump()), "") << name;
  }
  // What a $ref names is read wherever it stands.
  EXPECT_THAT(refusal_of(R"({"parts":{"a":{"contains":{}}},"items":{"$ref":"#/parts/a"}})"),
              HasSubstr("contains at #/parts/a"));
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
  EXPECT_EQ(walked(R"({"enum":[1,2,"x",[]],"minimum":2,"maxItems":0})"),
            Json::parse(R"({"enum":[2,"x",[]]})"));
  EXPECT_EQ(walked(R"({"enum":["a","\u00e9\u20ac","abc"],"const":"\u00e9\u20ac","maxLength":2})"),
            Json::parse(R"({"enum":["\u00e9\u20ac"]})"));
  EXPECT_THAT(refusal_of(R"({"enum":[1],"minimum":2})"), HasSubstr("enum at #: no value is valid"));
  EXPECT_THAT(refusal_of(R"({"enum":["a"],"pattern":"a"})"),
              HasSubstr("pattern at #: it cannot be combined with enum"));
}

TEST(SchemaWalk, BoundsOfIntegersAreWhole) {
  EXPECT_EQ(walked(R"({"type":"integer","minimum":1.5,"exclusiveMaximum":9})"),
            Json::parse(R"({"type":"integer","minimum":2,"maximum":8})"));
  EXPECT_THAT(refusal_of(R"({"type":"integer","minimum":5,"maximum":4})"), HasSubstr("minimum"));
  EXPECT_THAT(refusal_of(R"({"type":"number","multipleOf":0.5})"), HasSubstr("multipleOf"));
  EXPECT_EQ(walked(R"({"type":"integer","minimum":-7,"maximum":7,"multipleOf":3})"),
            Json::parse(R"({"enum":[-6,-3,0,3,6]})"));
  const auto multiples = [](const std::string& rest) {
    return refusal_of(R"({"type":"integer","multipleOf":)" + rest + "}");
  };
  EXPECT_THAT(multiples(R"(5,"minimum":0)"), HasSubstr("multipleOf at #: with only one bound"));
  EXPECT_THAT(multiples(R"(5,"maximum":0)"), HasSubstr("multipleOf at #: with only one bound"));
  EXPECT_THAT(multiples("1025"),
              HasSubstr("multipleOf at #: without bounds it must be at most 1024"));
  EXPECT_THAT(multiples(R"(5,"minimum":1,"maximum":4)"), HasSubstr("no multiple is within"));
  EXPECT_THAT(multiples(R"(2,"minimum":0,"maximum":9007199254740992)"),
              HasSubstr("multipleOf at #: 4503599627370497 multiples are within the bounds"));
  for (const char* empty :
       {R"("exclusiveMinimum":1,"maximum":1)", R"("exclusiveMinimum":0,"maximum":1e-7)",
        R"("exclusiveMinimum":0.5,"exclusiveMaximum":0.500001)",
        R"("minimum":0.1234561,"maximum":0.1234569)",
        R"("minimum":9007199254740991,"exclusiveMaximum":9007199254740991)"}) {
    EXPECT_THAT(refusal_of(R"({"type":"number",)" + std::string(empty) + "}"),
                HasSubstr("no number of six decimals"))
        << empty;
  }
  for (const char* some :
       {R"("minimum":0.1,"maximum":0.1)", R"("exclusiveMinimum":0,"maximum":1e-6)",
        R"("minimum":123456789012.7,"maximum":123456789012.7)",
        R"("exclusiveMinimum":-0.3,"exclusiveMaximum":-0.299998)"}) {
    EXPECT_EQ(refusal_of(R"({"type":"number",)" + std::string(some) + "}"), "") << some;
  }
  // All of a schema together.
  EXPECT_THAT(
      refusal_of(R"({"prefixItems":[{"type":"integer","multipleOf":2,"minimum":0,"maximum":12000},)"
                 R"({"type":"integer","multipleOf":2,"minimum":0,"maximum":12000}]})"),
      HasSubstr("at most 10000 values"));
  EXPECT_THAT(refusal_of(R"({"type":"integer","exclusiveMinimum":true})"),
              HasSubstr("exclusiveMinimum at #: it must be a number"));
}

TEST(SchemaWalk, FormatsAreOfTheirOwnType) {
  const auto same = [](const char* written, const char* meant) {
    EXPECT_EQ(enforceable_schema(written), enforceable_schema(meant)) << written;
  };
  same(R"({"type":"integer","format":"int32"})",
       R"({"type":"integer","minimum":-2147483648,"maximum":2147483647})");
  same(R"({"type":"number","format":"uint8","maximum":9.5})",
       R"({"type":"integer","minimum":0,"maximum":9})");
  same(R"({"type":"integer","format":"int64"})",
       R"({"type":"integer","minimum":-9007199254740992,"maximum":9007199254740992})");
  same(R"({"type":"number","format":"double"})", R"({"type":"number"})");
  same(R"({"type":["integer","string"],"format":"date"})",
       R"({"anyOf":[{"type":"integer"},{"type":"string","format":"date"}]})");
  for (const char* type : {"integer", "number", "string", "array", "object", "null", "boolean"}) {
    const Json alone{{"type", type}}, schema{{"type", type}, {"format", "utc-millisec"}};
    EXPECT_EQ(enforceable_schema(schema.dump()), enforceable_schema(alone.dump()));
  }
  same(R"({"type":"string","format":"int32"})", R"({"type":"string"})");
  same(R"({"type":"string","format":"phone","pattern":"a"})", R"({"type":"string","pattern":"a"})");
  same(R"({"format":"table","properties":{"a":{}}})", R"({"properties":{"a":{}}})");
  same(R"({"format":"table","enum":["a",{}]})", R"({"enum":["a",{}]})");
  EXPECT_THAT(refusal_of(R"({"type":"integer","format":3})"), HasSubstr("format at #"));
}

TEST(SchemaWalk, CountsAboveTheMostAreGivenAsItOrRefused) {
  for (const auto& [type, least, most] :
       {std::tuple("string", "minLength", "maxLength"), std::tuple("array", "minItems", "maxItems"),
        std::tuple("object", "minProperties", "maxProperties")}) {
    const Json wide{{"type", type}, {most, 5000}};
    EXPECT_EQ(walked(wide.dump())[most], 1000) << "narrower, and no invalid answer";
    const Json long_ones{{"type", type}, {least, 1001}, {most, 5000}};
    EXPECT_THAT(refusal_of(long_ones.dump()),
                AllOf(HasSubstr(least), HasSubstr("at #: it must be at most 1000")));
    const Json longer{{"type", type}, {"not", {{most, 1500}}}};
    EXPECT_THAT(refusal_of(longer.dump()), HasSubstr("not at #"));
  }
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
                                       "bad":{"contains":{}}},"$ref":"#/$defs/t"})");
  EXPECT_EQ(out["$defs"].size(), 2u);
  EXPECT_THAT(refusal_of(R"({"$ref":"#/$defs/t","$defs":{"t":{"contains":{}}}})"),
              HasSubstr("contains at #/$defs/t"));
  EXPECT_THAT(refusal_of(R"({"$ref":"#/$defs/x"})"), HasSubstr("the schema has no"));
  EXPECT_THAT(refusal_of(R"({"$ref":"http://a/b"})"), HasSubstr("$ref"));
  EXPECT_THAT(refusal_of(R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}})"),
              HasSubstr("it refers to itself"));
  EXPECT_EQ(walked(R"({"$ref":"#/$defs/a","minimum":3,"$defs":{"a":{"maximum":9}}})"),
            Json::parse(R"({"type":"number","minimum":3,"maximum":9})"));
}

// No value would follow from it.
TEST(SchemaWalk, WhatIsItselfWithNothingInBetweenIsRefused) {
  for (
      const char* schema :
      {R"({"anyOf":[{"$ref":"#"}]})", R"({"anyOf":[{"type":"null"},{"$ref":"#"}]})",
       R"({"anyOf":[{"type":"null"},{"anyOf":[{"type":"string"},{"$ref":"#"}]}]})",
       R"({"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"},{"type":"null"}]},
            "b":{"anyOf":[{"type":"string"},{"$ref":"#/$defs/a"}]}}})",
       R"({"type":"array","items":{"$ref":"#/$defs/a"},"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"}]}}})"}) {
    EXPECT_THAT(refusal_of(schema), HasSubstr("it refers to itself")) << schema;
  }
  for (const char* schema :
       {R"({"anyOf":[{"type":"null"},{"type":"array","items":{"$ref":"#"}}]})",
        R"({"anyOf":[{"$ref":"#/$defs/a"},{"type":"object","properties":{"a":{"$ref":"#"}}}],
            "$defs":{"a":{"anyOf":[{"type":"null"},{"type":"array","items":{"$ref":"#/$defs/a"}}]}}})"}) {
    EXPECT_EQ(refusal_of(schema), "") << schema;
  }
  // As long as a schema may be: one after another, and then the first again.
  Json definitions = Json::object();
  constexpr int kMany = 3000;
  for (int i = 0; i < kMany; ++i) {
    const std::string next = "#/$defs/d" + std::to_string((i + 1) % kMany);
    definitions["d" + std::to_string(i)] = {{"anyOf", {{{"type", "null"}}, {{"$ref", next}}}}};
  }
  EXPECT_THAT(refusal_of(Json{{"$ref", "#/$defs/d0"}, {"$defs", definitions}}.dump()),
              HasSubstr("it refers to itself"));
}

TEST(SchemaWalk, WhatDoesNotGoTogetherIsRefused) {
  for (const auto& [schema, named] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"type":"string","pattern":"^a{2,3}$","minLength":4})",
            "pattern at #: no string of this length matches it"},
           {R"({"type":"string","format":"date","maxLength":2})",
            "format at #: no string of this length matches it"},
           {R"({"type":"string","pattern":"a.{20}$","maxLength":50})",
            "pattern at #: with minLength or maxLength its automaton has more than 4096 states"},
           {R"({"propertyNames":{"pattern":"^a","maxLength":5}})", "propertyNames at #"},
           {R"({"type":"string","format":"regex"})", "format"},
           {R"j({"type":"string","pattern":"(?=a)"})j", "pattern"},
           {R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})", "two schemas have"},
           {R"({"allOf":[{"type":"string"},{"type":"integer"}]})", "type at #/allOf/1"},
           {R"({"allOf":[{"patternProperties":{"a":{}}},{"additionalProperties":false}]})",
            "additionalProperties of one"},
           {R"({"allOf":[{"items":{"minimum":1}},{"prefixItems":[{}]}]})", "items of one"},
           {R"({"allOf":[{"$ref":"#"}]})", "contains itself"},
           {R"({"allOf":[{},false]})", "false at #/allOf/1: no value is valid"},
           {R"({"not":{}})", "no value is valid"},
           {R"({"not":{"items":{"type":"string"}}})", "not at #/not"},
           {R"({"not":{"contains":{}}})", "contains at #/not"},
           {R"({"not":{"minimun":3}})", "false at #/not"},
           {R"({"properties":{"a":{"$id":"b","$ref":"#"}}})", "$id at #/properties/a"},
           {R"({"allOf":[]})", "allOf"},
           {R"({"type":"array","uniqueItems":true})", "uniqueItems"},
           {R"({"type":"array","items":[{}]})", "items"},
           {R"({"type":"object","minProperties":2})", "minProperties"},
           {R"({"properties":{"a":{}},"patternProperties":{"b":{}}})", "patternProperties"},
           {R"({"patternProperties":{"a":{},"b":{}}})", "patternProperties"},
           {R"({"type":"strin"})", "type"},
           {R"({"type":"string","minLength":-1})", "minLength"},
           {R"({"type":"string","minLength":100000})", "minLength"},
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
  EXPECT_THAT(refusal_of(doubling + R"("a40":{}}})"), HasSubstr("too many"));
}

// Each is compared with another way to say it, or less than it.
TEST(SchemaWalk, SiblingKeywordsApplyToAllBranches) {
  const auto same = [](const char* written, const char* meant) {
    EXPECT_EQ(enforceable_schema(written), enforceable_schema(meant)) << written;
  };
  same(
      R"({"type":"integer","anyOf":[{"maximum":1},{"minimum":9,"type":"number"},{"type":"null"}]})",
      R"({"anyOf":[{"type":"integer","maximum":1},{"type":"integer","minimum":9}]})");
  same(R"({"properties":{"a":{"type":"string"}},"allOf":[{"properties":{"a":{"maxLength":3}}}]})",
       R"({"properties":{"a":{"type":"string","maxLength":3}}})");
  same(R"({"allOf":[{"properties":{"a":{"type":"null"}},"additionalProperties":false},)"
       R"({"properties":{"b":{}}}]})",
       R"({"properties":{"a":{"type":"null"}},"additionalProperties":false})");
  same(
      R"({"properties":{"b":{"maxLength":2}},"allOf":[{"additionalProperties":{"type":"string"}}]})",
      R"({"properties":{"b":{"type":"string","maxLength":2}},)"
      R"("additionalProperties":{"type":"string"}})");
  same(R"({"items":{"type":"number"},"allOf":[{"items":{"minimum":1}}]})",
       R"({"items":{"type":"number","minimum":1}})");
  same(R"({"type":"string","pattern":"^[a-z]{2,4}$","minLength":1,"maxLength":4})",
       R"({"type":"string","pattern":"^[a-z]{2,4}$"})");
  same(R"({"type":"string","pattern":"^[a-z]+$","minLength":1})",
       R"({"type":"string","pattern":"^[a-z]+$"})");
  same(R"({"anyOf":[{"pattern":"^a{2}$","minLength":3},{"type":"null"}]})", R"({"type":"null"})");
  same(
      R"({"$defs":{"a":{"$ref":"#/$defs/b","required":["x"]},"b":{"properties":{"x":{"type":"null"}}}},
          "items":{"$ref":"#/$defs/a"}})",
      R"({"$defs":{"a":{"properties":{"x":{"type":"null"}},"required":["x"]}},
          "items":{"$ref":"#/$defs/a"}})");
  same(R"({"type":"string","maxLength":100000})", R"({"type":"string","maxLength":1000})");
}

TEST(SchemaWalk, WhatIsNotValidIsSaidOtherwise) {
  const auto same = [](const char* written, const char* meant) {
    EXPECT_EQ(enforceable_schema(written), enforceable_schema(meant)) << written;
  };
  same(R"({"not":{"type":["object","integer"]}})",
       R"({"type":["null","boolean","string","array"]})");
  same(R"({"type":"number","not":{"minimum":5}})", R"({"type":"number","exclusiveMaximum":5})");
  same(R"({"not":{"not":{"maxLength":2,"type":"string"}}})", R"({"type":"string","maxLength":2})");
  same(R"({"properties":{"a":{},"b":{}},"not":{"required":["a"]},"type":"object"})",
       R"({"properties":{"b":{}},"type":"object"})");
  same(R"({"properties":{"a":{"not":{}},"b":{}}})", R"({"properties":{"b":{}}})");
  same(R"({"type":["boolean","null"],"not":{"enum":[true,3,true]}})",
       R"({"anyOf":[{"type":"null"},{"enum":[false]}]})");
  same(
      R"({"type":"string","not":{"enum":["a"]}})",
      R"j({"type":"string","pattern":"^([ -!#-\\[\\]-`b-~][ -!#-\\[\\]-~]*|a[ -!#-\\[\\]-~]+|)$"})j");
  EXPECT_THAT(refusal_of(R"({"not":{"maxLength":9223372036854775807}})"),
              HasSubstr("not at #/not"));
}

TEST(SchemaWalk, ConditionsAreAlternatives) {
  const auto same = [](const char* written, const char* meant) {
    EXPECT_EQ(enforceable_schema(written), enforceable_schema(meant)) << written;
  };
  same(R"({"type":"integer","if":{"minimum":5},"then":{"maximum":9},"else":{"minimum":1}})",
       R"({"anyOf":[{"type":"integer","minimum":5,"maximum":9},)"
       R"({"type":"integer","minimum":1,"exclusiveMaximum":5}]})");
  same(R"({"type":"object","properties":{"a":{},"b":{}},"dependentRequired":{"a":["b"]}})",
       R"({"anyOf":[{"type":"object","properties":{"a":{},"b":{}},"required":["a","b"]},)"
       R"({"type":"object","properties":{"b":{}}}]})");
  same(R"({"type":"object","properties":{"a":{},"b":{}},"dependencies":{"a":{"required":["b"]}}})",
       R"({"type":"object","properties":{"a":{},"b":{}},"dependentRequired":{"a":["b"]}})");
  EXPECT_THAT(refusal_of(R"({"if":{"items":{"type":"null"}},"then":{"maxItems":1}})"),
              HasSubstr("not at #"));
}

TEST(SchemaWalk, SchemasOfOneOfExcludeEachOther) {
  const auto same = [](const char* written, const char* meant) {
    EXPECT_EQ(enforceable_schema(written), enforceable_schema(meant)) << written;
  };
  same(R"({"oneOf":[{"type":"string","maxLength":3},{"type":"integer"}]})",
       R"({"anyOf":[{"type":"string","maxLength":3},{"type":"integer"}]})");
  // By a property that both have, or that one never has.
  const char* apart =
      R"({"oneOf":[{"type":"object","properties":{"k":{"const":1}},"required":["k"]},)"
      R"({"type":"object","properties":{"k":{"const":2},"x":{}},"required":["k"]}]})";
  EXPECT_EQ(walked(apart)["anyOf"].size(), 2u);
  // By what neither says itself.
  same(R"({"type":"object","properties":{"a":{},"b":{}},)"
       R"("oneOf":[{"required":["a"]},{"required":["b"]}]})",
       R"({"anyOf":[{"type":"object","properties":{"a":{}},"required":["a"]},)"
       R"({"type":"object","properties":{"b":{}},"required":["b"]}]})");
  EXPECT_THAT(refusal_of(R"({"oneOf":[{"enum":[{"a":1,"b":2}]},{"enum":[{"b":2,"a":1.0}]}]})"),
              HasSubstr("oneOf at #"));
  same(R"({"oneOf":[{"type":"integer","minimum":3},{"type":"integer","minimum":7}]})",
       R"({"type":"integer","minimum":3,"maximum":6})");
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
  EXPECT_THAT(refusal_of("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal_of("{\"title\":\"\xff\"}"), HasSubstr("not valid JSON"));
}

}  // namespace
}  // namespace recurve::schema_walk_test
