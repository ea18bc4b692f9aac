// Anthropic's Messages API, before an engine that emits what a test wants. The same conversation
// in OpenAI's dialect says which prompt a body must become.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/constraint/constraint_library.h"
#include "tests/support/http_fixture.h"

namespace recurve::messages_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::HttpClient;

constexpr const char* kTemplate =
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}[{{ m.role }}:"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content or [] %}"
    "{{ p.text }}+{% endfor %}{% endif %}{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": "
    "\"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>"
    "{{ c.id }}{% endfor %}{{ m.tool_call_id }}]{% endfor %}"
    "{% if add_generation_prompt %}[assistant:{% endif %}";

class MessagesTest : public testing::HttpFixture {
 protected:
  void SetUp() override { template_ = kTemplate; }
  static json body_of(const json& messages) {
    return {{"model", "fake"}, {"max_tokens", 200}, {"messages", messages}};
  }
  static json said(const char* content) { return {{{"role", "user"}, {"content", content}}}; }
  json ask(const json& body) {
    const auto got = post("/v1/messages", body);
    EXPECT_EQ(got.status, 200) << got.body;
    return got.object();
  }
  std::string refusal(const json& body, const char* type = "invalid_request_error") {
    const auto got = post("/v1/messages", body);
    EXPECT_EQ(got.object()["type"], "error") << got.body;
    EXPECT_EQ(got.object()["error"]["type"], type) << got.body;
    return got.object()["error"]["message"];
  }
  std::vector<int32_t> prompt() { return engine_->last_request().prompt.ids; }
  std::string prompt_text() {
    std::string text;
    for (const int32_t id : prompt()) {
      if (id < 256) text += static_cast<char>(id);
    }
    return text;
  }
  // The events of a stream, each with its type twice.
  std::vector<json> stream(json body) {
    body["stream"] = true;
    const auto got = post("/v1/messages", body);
    EXPECT_EQ(got.status, 200) << got.body;
    std::vector<json> events;
    size_t at = 0;
    for (size_t end; (end = got.body.find("\n\n", at)) != std::string::npos; at = end + 2) {
      const std::string event = got.body.substr(at, end - at);
      const size_t data = event.find("\ndata: ");
      EXPECT_EQ(event.substr(0, 7), "event: ");
      events.push_back(json::parse(event.substr(data + 7)));
      EXPECT_EQ(events.back()["type"], event.substr(7, data - 7));
    }
    EXPECT_EQ(at, got.body.size());
    return events;
  }
  static json tools() {
    return json::parse(R"([{"name": "weather", "description": "of a city", "input_schema":
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}])");
  }
};

TEST_F(MessagesTest, AConversationIsThePromptThatOpenAisDialectMakesOfIt) {
  start();
  const json in_openai = json::parse(R"([
      {"role": "system", "content": [{"type": "text", "text": "be"}, {"type": "text", "text": "brief"}]},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "reasoning_content": "hm", "content": "c", "tool_calls": [
        {"id": "i1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Ulm\"}"}},
        {"id": "i2", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Bonn\"}"}}]},
      {"role": "tool", "tool_call_id": "i1", "content": "sun"},
      {"role": "tool", "tool_call_id": "i2", "content": [{"type": "text", "text": "r"}, {"type": "text", "text": "s"}]},
      {"role": "user", "content": "and?"},
      {"role": "assistant", "content": "d"},
      {"role": "user", "content": "e"}])");
  json openai = {{"model", "fake"}, {"messages", in_openai}};
  openai["tool_choice"] = "none";
  json here = body_of(json::parse(R"([
      {"role": "user", "content": "a"},
      {"role": "user", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]},
      {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "redacted_thinking", "data": "y"}, {"type": "text", "text": "c"},
        {"type": "tool_use", "id": "i1", "name": "weather", "input": {"city": "Ulm"}},
        {"type": "tool_use", "id": "i2", "name": "weather", "input": {"city": "Bonn"}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i1", "content": "sun"},
        {"type": "tool_result", "tool_use_id": "i2", "content": [{"type": "text", "text": "r"},
          {"type": "text", "text": "s"}]}, {"type": "text", "text": "and?"}]},
      {"role": "assistant", "content": "d"},
      {"role": "user", "content": "e"}])"));
  here["system"] = in_openai[0]["content"];
  here["tools"] = tools();
  here["tool_choice"] = {{"type", "none"}};
  ASSERT_EQ(post("/v1/chat/completions", openai).status, 200);
  const auto expected = prompt();
  ask(here);
  EXPECT_EQ(prompt(), expected);

  json counted = here;
  counted.erase("max_tokens");
  EXPECT_EQ(post("/v1/messages/count_tokens", counted).object(),
            (json{{"input_tokens", expected.size()}}));
}

TEST_F(MessagesTest, ToolsReachTheTemplateInTheFormOfOpenAisDialect) {
  if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  start();
  json body = body_of(said("hi"));
  body["tools"] = tools();
  ask(body);
  const std::string text = prompt_text();
  const json tool = json::parse(text.substr(0, text.find("[user:")));
  EXPECT_EQ(tool, (json{{"type", "function"},
                        {"function",
                         {{"name", "weather"},
                          {"description", "of a city"},
                          {"parameters", tools()[0]["input_schema"]}}}}));
}

TEST_F(MessagesTest, AnAssistantsTurnAtTheEndIsContinued) {
  start();
  json messages = said("a");
  messages.push_back({{"role", "assistant"}, {"content", "The answer is ("}});
  json openai = {{"model", "fake"}, {"messages", messages}, {"continue_final_message", true}};
  ASSERT_EQ(post("/v1/chat/completions", openai).status, 200);
  const auto expected = prompt();
  ask(body_of(messages));
  EXPECT_EQ(prompt(), expected);
}

TEST_F(MessagesTest, AnAnswerIsAMessageWithItsUsage) {
  answer("Hello, \"you\"");
  const json got = ask(body_of(said("hi")));
  EXPECT_THAT(got["id"].get<std::string>(), ::testing::StartsWith("msg_"));
  EXPECT_EQ(got["type"], "message");
  EXPECT_EQ(got["role"], "assistant");
  EXPECT_EQ(got["model"], "fake");
  EXPECT_EQ(got["content"], json::parse(R"([{"type": "text", "text": "Hello, \"you\""}])"));
  EXPECT_EQ(got["stop_reason"], "end_turn");
  EXPECT_EQ(got["stop_sequence"], nullptr);
  EXPECT_EQ(got["usage"]["input_tokens"], prompt().size());
  EXPECT_EQ(got["usage"]["cache_read_input_tokens"], 0);
  EXPECT_GE(got["usage"]["output_tokens"], 12);
}

TEST_F(MessagesTest, SamplingAndStopsReachTheEngineAndEndTheAnswer) {
  answer("one two three");
  json body = body_of(said("hi"));
  body.update({{"temperature", 0.5}, {"top_p", 0.25}, {"top_k", 7}, {"stop_sequences", {"two"}}});
  const json stopped = ask(body);
  EXPECT_EQ(stopped["content"][0]["text"], "one ");
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "two");
  const SamplingParams sampling = engine_->last_request().sampling;
  EXPECT_EQ(sampling.temperature, 0.5F);
  EXPECT_EQ(sampling.top_p, 0.25F);
  EXPECT_EQ(sampling.top_k, 7);
  body = body_of(said("hi"));
  body["max_tokens"] = 3;
  const json cut = ask(body);
  EXPECT_EQ(cut["content"][0]["text"], "one");
  EXPECT_EQ(cut["stop_reason"], "max_tokens");
  EXPECT_EQ(cut["usage"]["output_tokens"], 3);
}

TEST_F(MessagesTest, AStreamOpensAndClosesEachBlock) {
  answer("It is: ok");
  const auto events = stream(body_of(said("hi")));
  ASSERT_GE(events.size(), 7U);
  EXPECT_EQ(events[0]["type"], "message_start");
  EXPECT_EQ(events[0]["message"]["content"], json::array());
  EXPECT_EQ(events[0]["message"]["stop_reason"], nullptr);
  EXPECT_EQ(events[0]["message"]["usage"]["input_tokens"], prompt().size());
  EXPECT_EQ(events[1]["type"], "ping");
  EXPECT_EQ(events[2], json::parse(R"({"type": "content_block_start", "index": 0, "content_block":
      {"type": "text", "text": ""}})"));
  std::string text;
  size_t at = 3;
  for (; events[at]["type"] == "content_block_delta"; ++at) {
    EXPECT_EQ(events[at]["index"], 0);
    EXPECT_EQ(events[at]["delta"]["type"], "text_delta");
    text += events[at]["delta"]["text"];
  }
  EXPECT_EQ(text, "It is: ok");
  ASSERT_EQ(events.size(), at + 3);
  EXPECT_EQ(events[at], json::parse(R"({"type": "content_block_stop", "index": 0})"));
  EXPECT_EQ(events[at + 1]["type"], "message_delta");
  EXPECT_EQ(events[at + 1]["delta"]["stop_reason"], "end_turn");
  EXPECT_GE(events[at + 1]["usage"]["output_tokens"], 9);
  EXPECT_EQ(events[at + 2], json::parse(R"({"type": "message_stop"})"));
}

TEST_F(MessagesTest, CallsAreBlocks) {
  if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  answer(
      "Look: <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\"}}\n"
      "</tool_call>");
  json body = body_of(said("hi"));
  body["tools"] = tools();
  const json got = ask(body);
  EXPECT_EQ(got["stop_reason"], "tool_use");
  ASSERT_EQ(got["content"].size(), 2U) << got;
  EXPECT_EQ(got["content"][0]["type"], "text");
  json call = got["content"][1];
  EXPECT_FALSE(call["id"].get<std::string>().empty());
  call.erase("id");
  EXPECT_EQ(call,
            json::parse(R"({"type": "tool_use", "name": "weather", "input": {"city": "Ulm"}})"));

  std::string arguments;
  std::vector<json> begun;
  for (const json& event : stream(body)) {
    if (event["type"] == "content_block_start") begun.push_back(event);
    if (event["type"] != "content_block_delta" || event["index"] != 1) continue;
    EXPECT_EQ(event["delta"]["type"], "input_json_delta");
    arguments += event["delta"]["partial_json"];
  }
  ASSERT_EQ(begun.size(), 2U);
  EXPECT_EQ(begun[1]["index"], 1);
  EXPECT_EQ(begun[1]["content_block"]["name"], "weather");
  EXPECT_EQ(json::parse(arguments), json::parse(R"({"city": "Ulm"})"));
}

TEST_F(MessagesTest, ACallThatIsCutIsNoBlock) {
  if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  answer("<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ul");
  json body = body_of(said("hi"));
  body["tools"] = tools();
  body["max_tokens"] = 51;
  const json got = ask(body);
  EXPECT_EQ(got["stop_reason"], "max_tokens");
  for (const json& block : got["content"]) EXPECT_EQ(block["type"], "text");
}

TEST_F(MessagesTest, ChoicesOfTools) {
  if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  start();
  json body = body_of(said("hi"));
  body["tools"] = tools();
  for (const json& choice : {json{{"type", "any"}}, json{{"type", "tool"}, {"name", "weather"}}}) {
    body["tool_choice"] = choice;
    ask(body);
    EXPECT_NE(engine_->last_request().sampling.constraint, nullptr) << choice;
  }
  body["tool_choice"] = {{"type", "tool"}, {"name", "other"}};
  EXPECT_THAT(refusal(body), HasSubstr("other"));
  body["tool_choice"] = {{"type", "some"}};
  EXPECT_THAT(refusal(body), HasSubstr("tool_choice must be"));
  body.erase("tools");
  body["tool_choice"] = {{"type", "any"}};
  EXPECT_THAT(refusal(body), HasSubstr("tool_choice must be left out without tools"));
  body = body_of(said("hi"));
  body["tools"] = {{{"type", "web_search_20250305"}, {"name", "web_search"}}};
  EXPECT_THAT(refusal(body), HasSubstr("web_search_20250305"));
}

TEST_F(MessagesTest, ASchemaConstrainsTheAnswer) {
  if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  start();
  json body = body_of(said("hi"));
  body["output_config"] = {{"format", {{"type", "json_schema"}, {"schema", {{"type", "null"}}}}}};
  ask(body);
  const auto constraint = engine_->last_request().sampling.constraint;
  ASSERT_NE(constraint, nullptr);
  EXPECT_EQ(constraint->text().text, R"({"type":"null"})");
  EXPECT_FALSE(constraint->text().any_whitespace);
  body["any_whitespace"] = true;
  ask(body);
  EXPECT_TRUE(engine_->last_request().sampling.constraint->text().any_whitespace);
  body["any_whitespace"] = 1;
  EXPECT_THAT(refusal(body), HasSubstr("any_whitespace must be true or false"));
  body.erase("any_whitespace");
  body["output_config"] = {{"format", {{"type", "xml"}}}};
  EXPECT_THAT(refusal(body), HasSubstr("json_schema"));
  body["output_config"] = {{"unknown", 1}};
  EXPECT_THAT(refusal(body), HasSubstr("output_config.unknown"));
  body.erase("output_config");
  body["any_whitespace"] = true;
  EXPECT_THAT(refusal(body), HasSubstr("any_whitespace must be left out without a constraint"));
}

// As Claude Code sends it.
TEST_F(MessagesTest, EditsOfTheContextAreRefusedUnlessTheyChangeNothing) {
  start();
  json body = body_of(said("hi"));
  const json all = {{"type", "clear_thinking_20251015"}, {"keep", "all"}};
  for (const json& same :
       {json::object(), json{{"edits", json::array()}}, json{{"edits", {all}}}}) {
    body["context_management"] = same;
    ask(body);
  }
  const json some = {{"type", "clear_thinking_20251015"},
                     {"keep", {{"type", "thinking_turns"}, {"value", 1}}}};
  const json calls = {{"type", "clear_tool_uses_20250919"}};
  for (const json& other : {json{{"edits", {some}}}, json{{"edits", {all, calls}}},
                            json{{"edits", {all}}, {"more", 1}}, json{{"edits", 1}}, json(1)}) {
    body["context_management"] = other;
    EXPECT_THAT(refusal(body), HasSubstr("context_management")) << other;
  }
}

TEST_F(MessagesTest, ADeferredToolIsInThePromptOnceAResultRefersToIt) {
  if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  start();
  json body = body_of(json::parse(R"([
      {"role": "user", "content": "hi"},
      {"role": "assistant", "content": [{"type": "tool_use", "id": "i", "name": "weather", "input": {}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i", "content": "no"}]}])"));
  body["tools"] = tools();
  body["tools"].push_back(
      {{"name", "later"}, {"input_schema", {{"type", "object"}}}, {"defer_loading", true}});
  ask(body);
  EXPECT_EQ(prompt_text().find("later"), std::string::npos);
  body["messages"][2]["content"][0]["content"] = {
      {{"type", "tool_reference"}, {"tool_name", "later"}}};
  ask(body);
  EXPECT_THAT(prompt_text(), AllOf(HasSubstr(R"("name": "later")"), HasSubstr("[tool:later")));
  body["tools"] = {
      {{"name", "now"}, {"input_schema", {{"type", "object"}}}, {"defer_loading", true}}};
  EXPECT_THAT(refusal(body), HasSubstr("one of tools must be without defer_loading"));
}

TEST_F(MessagesTest, WhatIsNoTextIsRefusedByItsType) {
  start();
  EXPECT_THAT(refusal(body_of(json::parse(
                  R"([{"role": "user", "content": [{"type": "image", "source": {}}]}])"))),
              HasSubstr("\"image\""));
  EXPECT_THAT(refusal(body_of(json::parse(
                  R"([{"role": "user", "content": [{"type": "tool_use", "input": {}}]}])"))),
              HasSubstr("\"tool_use\" from \"user\""));
  EXPECT_THAT(refusal(body_of(json::parse(R"([{"role": "tool", "content": "x"}])"))),
              HasSubstr("\"tool\""));
  EXPECT_THAT(refusal(body_of(json::array())), HasSubstr("messages"));
  json body = body_of(said("hi"));
  body.erase("max_tokens");
  EXPECT_THAT(refusal(body), HasSubstr("max_tokens must be given"));
  body = body_of(said("hi"));
  body["thinking"] = {{"type", "between_tools"}};
  EXPECT_THAT(refusal(body), HasSubstr("thinking"));
  body = body_of(said("hi"));
  body["model"] = "other";
  EXPECT_THAT(refusal(body, "not_found_error"), HasSubstr("other"));
}

TEST_F(MessagesTest, AStreamThatFailsSaysSo) {
  start({.script = [](const Request&) {
    return FakeEngine::Play{.tokens = {{'a'}}, .failure = EndReason::kInternal};
  }});
  const auto events = stream(body_of(said("hi")));
  EXPECT_EQ(events.back()["type"], "error");
  EXPECT_EQ(events.back()["error"]["type"], "api_error");
}

}  // namespace
}  // namespace recurve::messages_test
