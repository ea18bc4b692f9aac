// Reasoning in each dialect, before an engine that emits what a test wants.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/constraint/constraint_library.h"
#include "tests/support/http_fixture.h"

namespace recurve::reasoning_http_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// Writes the switches, and earlier reasoning.
constexpr const char* kTemplate =
    "{% for m in messages %}{{ m.role }}:{% if m.reasoning_content %}({{ m.reasoning_content }})"
    "{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": "
    "\"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>"
    "{% endfor %}|{% endfor %}{% if reasoning_effort %}effort={{ reasoning_effort }} {% endif %}"
    "{% if add_generation_prompt %}assistant:{% if enable_thinking is defined and not "
    "enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}{% endif %}";

const std::string kAnswer = "Let me see.\n</think>\n\nIt rains.";

class ReasoningTest : public testing::HttpFixture {
 protected:
  void SetUp() override { template_ = kTemplate; }
  json ask(const char* path, const json& body) {
    const auto got = post(path, body);
    EXPECT_EQ(got.status, 200) << got.body;
    return got.object();
  }
  // The events of a stream with names.
  std::vector<json> named_events(const char* path, json body) {
    body["stream"] = true;
    const std::string text = post(path, body).body;
    std::vector<json> events;
    for (size_t at = 0; (at = text.find("data: ", at)) != std::string::npos;) {
      const size_t end = text.find('\n', at);
      events.push_back(json::parse(text.substr(at + 6, end - at - 6)));
      at = end;
    }
    return events;
  }
};

TEST_F(ReasoningTest, AChatHasItApart) {
  answer(kAnswer);
  const json got = ask("/v1/chat/completions", chat("hi"));
  EXPECT_EQ(got["choices"][0]["message"]["content"], "It rains.");
  EXPECT_EQ(got["choices"][0]["message"]["reasoning_content"], "Let me see.");
  const int64_t tokens = got["usage"]["completion_tokens_details"]["reasoning_tokens"];
  EXPECT_EQ(tokens, static_cast<int64_t>(std::string("Let me see.\n</think>").size()));

  json body = chat("hi");
  body["stream"] = true;
  std::string content, reasoning;
  for (const json& event : events(post("/v1/chat/completions", body).body)) {
    const json& delta = event["choices"][0]["delta"];
    const std::string more = delta.value("content", "");
    if (!more.empty()) EXPECT_EQ(reasoning + delta.value("reasoning_content", ""), "Let me see.");
    content += more;
    reasoning += delta.value("reasoning_content", "");
  }
  EXPECT_EQ(content, "It rains.");
  EXPECT_EQ(reasoning, "Let me see.");
}

TEST_F(ReasoningTest, AnAnswerThatIsCutWithinItHasNoContent) {
  answer(kAnswer);
  json body = chat("hi");
  body["max_tokens"] = 8;
  const json choice = ask("/v1/chat/completions", body)["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "");
  EXPECT_EQ(choice["message"]["reasoning_content"], "Let me s");
  EXPECT_EQ(choice["finish_reason"], "length");
}

TEST_F(ReasoningTest, WithoutAFormItIsText) {
  template_ = "{% for m in messages %}{{ m.content }}{% endfor %}";
  answer("<think>hm</think>yes");
  const json message = ask("/v1/chat/completions", chat("hi"))["choices"][0]["message"];
  EXPECT_EQ(message["content"], "<think>hm</think>yes");
  EXPECT_FALSE(message.contains("reasoning_content"));
}

TEST_F(ReasoningTest, CallsOfToolsFollowIt) {
  if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  const std::string call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  answer("I could " + call + "\n</think>\n\n" + call);
  json body = chat("hi");
  body["tools"] = {{{"type", "function"}, {"function", {{"name", "now"}}}}};
  const json message = ask("/v1/chat/completions", body)["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "I could " + call);
  EXPECT_EQ(message["content"], nullptr);
  EXPECT_EQ(message["tool_calls"].size(), 1u);
}

TEST_F(ReasoningTest, ConstraintsBeginBehindIt) {
  if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  answer("x");
  const auto takes = [&](const std::string& text) {
    const auto matcher = engine_->last_request().sampling.constraint->begin();
    for (const char byte : text) {
      if (!matcher->accept(static_cast<unsigned char>(byte))) return false;
    }
    return matcher->may_end();
  };
  json body = chat("hi");
  body["guided_regex"] = "[ab]+";
  ask("/v1/chat/completions", body);
  EXPECT_TRUE(takes("Let me see.\n</think>\n\nab"));
  EXPECT_FALSE(takes("ab"));
  EXPECT_FALSE(takes("Let me see.\n</think>\n\nc"));
  body["reasoning_effort"] = "none";
  ask("/v1/chat/completions", body);
  EXPECT_TRUE(takes("ab"));
  EXPECT_FALSE(takes("Let me see.\n</think>\n\nab"));
}

TEST_F(ReasoningTest, SwitchesReachTheTemplate) {
  answer("x");
  json body = chat("hi");
  body["reasoning_effort"] = "low";
  ask("/v1/chat/completions", body);
  EXPECT_THAT(prompt_text(), HasSubstr("effort=low assistant:<think>\n"));
  body["reasoning_effort"] = "none";
  ask("/v1/chat/completions", body);
  EXPECT_THAT(prompt_text(), HasSubstr("assistant:<think>\n\n</think>\n\n"));
  body["chat_template_kwargs"] = {{"enable_thinking", true}};
  ask("/v1/chat/completions", body);
  EXPECT_THAT(prompt_text(), ::testing::EndsWith("assistant:<think>\n"));
  body = chat("hi");
  body["enable_thinking"] = false;
  EXPECT_EQ(ask("/v1/chat/completions", body)["choices"][0]["message"]["content"], "x");
  body["reasoning_effort"] = "enormous";
  EXPECT_EQ(post("/v1/chat/completions", body).object()["error"]["param"], "reasoning_effort");

  const json reasoning = {{"effort", "high"}, {"summary", "auto"}};
  const json got = ask("/v1/responses", {{"input", "hi"}, {"reasoning", reasoning}});
  EXPECT_EQ(got["reasoning"], reasoning);
  EXPECT_THAT(prompt_text(), HasSubstr("effort=high "));
  for (const json& wrong : {json{{"effort", "enormous"}}, json{{"mode", "pro"}}, json{{"x", 1}}}) {
    const auto refused = post("/v1/responses", {{"input", "hi"}, {"reasoning", wrong}});
    EXPECT_EQ(refused.status, 400) << wrong;
    EXPECT_EQ(refused.object()["error"]["param"], "reasoning");
  }
}

TEST_F(ReasoningTest, AResponseHasAnItemForIt) {
  answer(kAnswer);
  const json got = ask("/v1/responses", {{"input", "hi"}});
  ASSERT_EQ(got["output"].size(), 2u) << got;
  const json& item = got["output"][0];
  EXPECT_EQ(item["type"], "reasoning");
  EXPECT_EQ(item["summary"], json::array());
  EXPECT_EQ(item["content"], json::parse(R"([{"type": "reasoning_text", "text": "Let me see."}])"));
  EXPECT_EQ(got["output"][1]["content"][0]["text"], "It rains.");
  EXPECT_EQ(got["usage"]["output_tokens_details"]["reasoning_tokens"], 20);

  std::string text;
  std::vector<std::string> types;
  for (const json& event : named_events("/v1/responses", {{"input", "hi"}})) {
    const std::string type = event["type"];
    if (type == "response.reasoning_text.delta") text += event["delta"];
    if (types.empty() || types.back() != type) types.push_back(type);
  }
  EXPECT_EQ(text, "Let me see.");
  EXPECT_THAT(types, ::testing::ElementsAre(
                         "response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added", "response.reasoning_text.delta",
                         "response.reasoning_text.done", "response.content_part.done",
                         "response.output_item.done", "response.output_item.added",
                         "response.content_part.added", "response.output_text.delta",
                         "response.output_text.done", "response.content_part.done",
                         "response.output_item.done", "response.completed"));

  // A client that stores nothing here sends the items back.
  json input = {{{"role", "user"}, {"content", "hi"}}};
  for (const json& one : got["output"]) input.push_back(one);
  input.push_back({{"role", "user"}, {"content", "and?"}});
  ask("/v1/responses", {{"input", input}, {"store", false}});
  EXPECT_THAT(prompt_text(), HasSubstr("user:hi|assistant:(Let me see.)It rains.|user:and?|"));
  ask("/v1/responses",
      {{"input", "and?"}, {"previous_response_id", got["id"]}, {"instructions", "x"}});
  EXPECT_THAT(prompt_text(), HasSubstr("user:hi|assistant:(Let me see.)It rains.|user:and?|"));
}

TEST_F(ReasoningTest, AMessageHasABlockForIt) {
  answer(kAnswer);
  json body = {{"max_tokens", 100}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  const json thinking = json::parse(R"({"type": "thinking", "thinking": "Let me see."})");
  const json text = json::parse(R"({"type": "text", "text": "It rains."})");
  json got = ask("/v1/messages", body);
  ASSERT_EQ(got["content"].size(), 2u) << got;
  EXPECT_TRUE(got["content"][0].contains("signature"));
  got["content"][0].erase("signature");
  EXPECT_EQ(got["content"], (json{thinking, text}));
  EXPECT_EQ(got["usage"]["output_tokens_details"]["thinking_tokens"], 20);

  body["thinking"] = {{"type", "enabled"}, {"budget_tokens", 1024}};
  std::string thought, said;
  std::vector<std::string> types;
  for (const json& event : named_events("/v1/messages", body)) {
    std::string type = event["type"];
    if (type == "content_block_delta") type = event["delta"]["type"];
    if (type == "thinking_delta") thought += event["delta"]["thinking"];
    if (type == "text_delta") said += event["delta"]["text"];
    if (types.empty() || types.back() != type) types.push_back(type);
  }
  EXPECT_EQ(thought, "Let me see.");
  EXPECT_EQ(said, "It rains.");
  EXPECT_THAT(types, ::testing::ElementsAre(
                         "message_start", "ping", "content_block_start", "thinking_delta",
                         "signature_delta", "content_block_stop", "content_block_start",
                         "text_delta", "content_block_stop", "message_delta", "message_stop"));

  body["thinking"]["display"] = "omitted";
  got = ask("/v1/messages", body);
  ASSERT_EQ(got["content"].size(), 2u) << got;
  EXPECT_EQ(got["content"][0]["thinking"], "");
  body["thinking"] = {{"type", "disabled"}};
  ask("/v1/messages", body);
  EXPECT_THAT(prompt_text(), HasSubstr("assistant:<think>\n\n</think>\n\n"));
  body["output_config"] = {{"effort", "low"}};
  ask("/v1/messages", body);
  EXPECT_THAT(prompt_text(), HasSubstr("effort=low "));
}

}  // namespace
}  // namespace recurve::reasoning_http_test
