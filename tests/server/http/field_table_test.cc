// Each field that clients send, to each resource: read, refused by name or harmless, and nothing
// else.
#include "server/http/openai/fields/field_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "server/http/anthropic/message_fields.h"
#include "tests/support/http_fixture.h"

namespace recurve::field_table_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A resource, a body that it answers, and the fields that it reads.
struct Resource {
  const char* path;
  json body;
  FieldTable table;

  bool reads(const RequestField& field) const { return (field.read_by & table.resource) != 0; }
};

class FieldTableTest : public testing::HttpFixture {
 protected:
  void SetUp() override { start(); }

  testing::HttpClient::Response post_with(const Resource& resource, const char* field,
                                          const json& value) {
    json body = resource.body;
    body[field] = value;
    return post(resource.path, body);
  }
  testing::HttpClient::Response post_chat(const char* field, const json& value) {
    return post_with(resources_[1], field, value);
  }
  static bool is_refused(const testing::HttpClient::Response& got, const char* field) {
    if (got.status != 400) return false;
    const json error = got.object()["error"];
    if (error.contains("param")) {
      EXPECT_THAT(error["param"].get<std::string>(), StartsWith(field));
    } else {
      EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(field));
    }
    return true;
  }
  static bool means_absent(const RequestField& field, const char* text) {
    return std::ranges::any_of(field.same, [&](const char* same) {
      return same != nullptr && std::string_view(same) == text;
    });
  }

  const json said_ = json::array({{{"role", "user"}, {"content", "x"}}});
  const std::vector<Resource> resources_ = {
      {"/v1/completions", completion("x"), table_of(OpenAiResource::kCompletions)},
      {"/v1/chat/completions", chat("x"), table_of(OpenAiResource::kChatCompletions)},
      {"/v1/responses", {{"input", "x"}}, table_of(OpenAiResource::kResponses)},
      {"/v1/messages",
       {{"messages", said_}, {"max_tokens", 4}},
       table_of(MessagesResource::kMessages)},
      {"/v1/messages/count_tokens",
       {{"messages", said_}},
       table_of(MessagesResource::kCountTokens)},
  };
  // Nothing that any field takes, and what those take that take all objects does not.
  const json wrong_ = {{"unexpected", {1}}}, number_ = 17;
};

TEST_F(FieldTableTest, EachFieldStandsThereOnceAndEachHarmlessOneHasItsReason) {
  for (const Resource& one : resources_) {
    std::set<std::string> names;
    for (const RequestField& field : one.table.fields) {
      EXPECT_TRUE(names.insert(field.name).second) << field.name;
      const bool is_ignored = std::ranges::any_of(resources_, [&](const Resource& other) {
        return other.table.fields.data() == one.table.fields.data() && !other.reads(field);
      });
      EXPECT_EQ(field.why_harmless != nullptr && *field.why_harmless != 0,
                field.is_harmless && is_ignored)
          << field.name;
    }
  }
}

TEST_F(FieldTableTest, WhatIsNotReadIsRefusedByNameUnlessItIsHarmless) {
  for (const Resource& resource : resources_) {
    for (const RequestField& field : resource.table.fields) {
      if (resource.reads(field)) continue;
      const auto got = post_with(resource, field.name, wrong_);
      EXPECT_EQ(is_refused(got, field.name), !field.is_harmless) << field.name << "\n" << got.body;
      if (field.is_harmless) EXPECT_EQ(got.status, 200) << field.name << "\n" << got.body;
      for (const char* same : field.same) {
        if (same == nullptr) continue;
        const auto taken = post_with(resource, field.name, json::parse(same));
        EXPECT_EQ(taken.status, 200) << field.name << " " << same << "\n" << taken.body;
      }
    }
  }
}

TEST_F(FieldTableTest, WhatIsReadIsReadEachTime) {
  for (const Resource& resource : resources_) {
    for (const RequestField& field : resource.table.fields) {
      if (!resource.reads(field)) continue;
      EXPECT_TRUE(is_refused(post_with(resource, field.name, wrong_), field.name) ||
                  is_refused(post_with(resource, field.name, number_), field.name))
          << resource.path << ": " << field.name << " is dropped in silence";
    }
  }
}

TEST_F(FieldTableTest, WhatIsEmptyIsRefusedUnlessItMeansThatItIsLeftOut) {
  for (const Resource& resource : resources_) {
    for (const RequestField& field : resource.table.fields) {
      if (!resource.reads(field)) continue;
      for (const char* empty : {"[]", "{}"}) {
        const auto got = post_with(resource, field.name, json::parse(empty));
        if (!means_absent(field, empty)) {
          EXPECT_TRUE(is_refused(got, field.name)) << field.name << " " << empty << "\n"
                                                   << got.body;
        } else {
          EXPECT_EQ(got.status, post_with(resource, field.name, nullptr).status) << field.name;
        }
      }
    }
  }
}

TEST_F(FieldTableTest, ConstraintsHaveNoFieldsThatAreDropped) {
  const auto refuse = [&](const char* field, const char* value, const char* sentence) {
    const auto got = post_chat(field, json::parse(value));
    EXPECT_TRUE(is_refused(got, field)) << value << "\n" << got.body;
    EXPECT_THAT(got.body, HasSubstr(sentence));
  };
  const char* format = "response_format";
  refuse(format, R"({"type":"text","schema":{}})", "is not supported here");
  refuse(format, R"({"type":"json_object","json_schema":{}})", "is not supported here");
  refuse(format, R"({"type":"json_schema","json_schema":{"schema":{},"pattern":"a"}})",
         "is not supported here");
  refuse(format, R"({"type":"json_schema","schema":{}})", "is not supported here");
  refuse(format, R"({"type":"json_schema","json_schema":3})", "must be an object");
  refuse(format, R"(["json_object"])", "type must be");
  const char* outputs = "structured_outputs";
  refuse(outputs, R"({"jsn":{}})", "is not supported here");
  refuse(outputs, R"({"regex":null})", "must have one of json");
  refuse(outputs, R"({"json_object":false})", "must have one of json");
  refuse(outputs, R"({"disable_fallback":true})", "must have one of json");
  refuse(outputs, R"({"regex":"a","whitespace_pattern":" "})", "is not supported here");
  refuse(outputs, R"({"regex":"a","disable_any_whitespace":1})", "must be true or false");
  refuse(outputs, R"({"disable_any_whitespace":true})", "must have one of json");
  refuse(outputs, R"({"regex":"a","choice":["a"]})", "must not be combined with");
  refuse(outputs, R"({"structural_tag":"x"})", "a JSON object");
  refuse(outputs, R"("json")", "must be an object");
  refuse("guided_choice", R"("a")", "must be a list of strings");
  refuse("any_whitespace", "true", "must be left out without a constraint");
}

TEST_F(FieldTableTest, WhatConstrainsReachesTheEngine) {
  using Form = ConstraintText::Form;
  if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  const auto expect = [&](const char* field, const char* value, Form form,
                          const std::string& text) {
    const auto got = post_chat(field, json::parse(value));
    ASSERT_EQ(got.status, 200) << value << "\n" << got.body;
    const auto constraint = engine_->last_request().sampling.constraint;
    ASSERT_NE(constraint, nullptr) << value;
    EXPECT_EQ(constraint->text().form, form) << value;
    EXPECT_EQ(constraint->text().text, text) << value;
  };
  expect("response_format", R"({"type":"json_object","schema":{"type":"null"}})", Form::kJsonSchema,
         R"({"type":"null"})");
  expect("structured_outputs", R"({"json_object":true})", Form::kJsonSchema,
         R"({"type":"object"})");
  expect("structured_outputs", R"({"regex":"a","disable_fallback":true,"json":null})", Form::kRegex,
         "a");
  expect("structured_outputs",
         R"({"structural_tag":"{\"type\":\"structural_tag\",\"triggers\":[\"<a\"],)"
         R"(\"structures\":[{\"begin\":\"<a>\",\"schema\":{},\"end\":\"</a>\"}]}"})",
         Form::kStructuralTag,
         R"({"triggers":["<a"],"structures":[{"begin":"<a>","schema":{},"end":"</a>"}]})");
  expect("regex", R"("[ab]+")", Form::kRegex, "[ab]+");
  expect("ebnf", R"("root ::= \"a\"")", Form::kGrammar, "root ::= \"a\"");
  expect("json_schema", R"("{\"type\":\"null\"}")", Form::kJsonSchema, R"({"type":"null"})");
}

TEST_F(FieldTableTest, SessionsHaveNoUnknownFields) {
  for (const char* path :
       {"/v1/sessions", "/v1/sessions/s/fork", "/v1/sessions/s/marks", "/v1/sessions/s/rewind"}) {
    const auto got = post(path, {{"ttl", 5}});
    EXPECT_EQ(got.status, 400) << path << got.body;
    EXPECT_EQ(got.object()["error"]["param"], "ttl");
  }
  const auto got = post("/v1/sessions", {{std::string(1000, 'n'), 5}});
  EXPECT_EQ(got.status, 400);
  EXPECT_LT(got.object()["error"]["message"].get<std::string>().size(), 200u);
}

}  // namespace
}  // namespace recurve::field_table_test
