// What agents send to /v1/responses, before an engine that emits what a test wants. The shapes are
// those of the public types of the openai package, and of Codex.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/constraint/constraint_library.h"
#include "tests/support/http_fixture.h"

namespace recurve::agents_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kTemplate =
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}"
    "{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": "
    "\"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>"
    "{% endfor %}|{% endfor %}";

const std::string kCall =
    "<tool_call>\n{\"name\": \"shell\", \"arguments\": {\"command\": \"ls\"}}\n</tool_call>";

class AgentsTest : public testing::HttpFixture {
 protected:
  void SetUp() override { template_ = kTemplate; }
  json get(const std::string& path, int status = 200) {
    const auto got = ask("GET " + path);
    EXPECT_EQ(got.status, status) << got.body;
    return got.object();
  }
  static json request() {
    return json::parse(R"({
      "model": "fake", "instructions": "You write code.", "stream": false, "store": false,
      "tool_choice": "auto", "parallel_tool_calls": true, "prompt_cache_key": "c1",
      "client_metadata": {"installation": "i"}, "include": ["reasoning.encrypted_content"],
      "reasoning": {"effort": "medium", "summary": "auto"},
      "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List files."}]}],
      "tools": [
        {"type": "function", "name": "shell", "description": "Runs a command.", "strict": false,
         "parameters": {"type": "object", "properties": {"command": {"type": "string"}},
                        "required": ["command"], "additionalProperties": false}},
        {"type": "custom", "name": "apply_patch", "description": "Edits files.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}},
        {"type": "web_search", "external_web_access": false},
        {"type": "namespace", "name": "mcp", "description": "More.", "tools": []}]})");
  }
};

TEST_F(AgentsTest, ToolsThatAreNoFunctionsAreLeftOutAndNamed) {
  if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  answer(kCall);
  const auto got = post("/v1/responses", request());
  ASSERT_EQ(got.status, 200) << got.body;
  const json response = got.object();
  EXPECT_THAT(prompt_text(),
              StartsWith("[shell]system:You write code.\n\nBe brief.|user:List files.|"));
  EXPECT_EQ(response["ignored_tools"], json::parse(R"([{"type": "custom", "name": "apply_patch"},
                {"type": "web_search"}, {"type": "namespace", "name": "mcp"}])"));
  ASSERT_EQ(response["tools"].size(), 1u);
  EXPECT_EQ(response["tools"][0]["name"], "shell");
  EXPECT_EQ(response["prompt_cache_key"], "c1");
  EXPECT_EQ(response["reasoning"], request()["reasoning"]);
  EXPECT_EQ(response["store"], false);
  ASSERT_EQ(response["output"].size(), 1u);
  EXPECT_EQ(response["output"][0]["name"], "shell");
  EXPECT_EQ(get("/v1/responses/" + response["id"].get<std::string>(), 404)["error"]["code"], 404);

  // The client answers the call, and sends all items again.
  json more = request();
  more["input"].push_back(response["output"][0]);
  more["input"].push_back({{"type", "function_call_output"},
                           {"call_id", response["output"][0]["call_id"]},
                           {"output", "a.txt"}});
  ASSERT_EQ(post("/v1/responses", more).status, 200);
  EXPECT_THAT(prompt_text(), HasSubstr("|assistant:" + kCall + "|tool:a.txt|"));
}

TEST_F(AgentsTest, WithoutFunctionsThereAreNoTools) {
  answer("x");
  json body = {{"input", "hi"}, {"tools", {{{"type", "web_search"}}}}};
  const auto got = post("/v1/responses", body);
  ASSERT_EQ(got.status, 200) << got.body;
  EXPECT_EQ(got.object()["tools"], json::array());
  EXPECT_EQ(got.object()["ignored_tools"], json::parse(R"([{"type": "web_search"}])"));
  EXPECT_THAT(prompt_text(), StartsWith("user:hi|"));
  const auto refused = [&](const char* field, const json& value) {
    json wrong = body;
    wrong[field] = value;
    const auto answer = post("/v1/responses", wrong);
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(answer.object()["error"]["param"], field) << answer.body;
  };
  refused("tool_choice", "required");
  refused("tool_choice", {{"type", "web_search"}});
  refused("tools", {{{"name", "f"}}});
  refused("tools", {"f"});
  refused("include", {"everything"});
}

TEST_F(AgentsTest, WhatChangesWhoCallsAToolIsRefusedByName) {
  start();
  const auto refused = [&](const char* field, const json& value) {
    const json tool = {{"type", "function"}, {"name", "f"}, {field, value}};
    const auto got = post("/v1/responses", {{"input", "hi"}, {"tools", {tool}}});
    EXPECT_EQ(got.status, 400) << got.body;
    EXPECT_THAT(got.body, ::testing::HasSubstr(field));
  };
  refused("allowed_callers", {"programmatic"});
  refused("allowed_callers", 1);
  refused("defer_loading", true);
  refused("async", true);
  refused("async", 1);
  refused("input_examples", {{{"a", 1}}});
}

TEST_F(AgentsTest, AnUpgradeIsRefusedSoThatClientsPost) {
  answer("x");
  testing::HttpClient client(server_->port());
  client.send(
      "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
      "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n");
  const auto got = client.read();
  EXPECT_EQ(got.status, 426) << got.body;
  EXPECT_THAT(got.object()["error"]["message"].get<std::string>(), HasSubstr("POST"));
  EXPECT_EQ(ask("GET /v1/responses").status, 405);
}

TEST_F(AgentsTest, AStoredResponseListsTheItemsOfItsInput) {
  answer("So: ");
  const json input = json::parse(R"([{"role": "user", "content": "hi"},
      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"z\": 1, \"a\": 2}"},
      {"type": "function_call_output", "call_id": "c", "output": "y"}, {"role": "user", "content": "go"}])");
  const json response = post("/v1/responses", {{"input", input}}).object();
  const std::string path = "/v1/responses/" + response["id"].get<std::string>() + "/input_items";
  const json all = get(path + "?order=asc");
  ASSERT_EQ(all["data"].size(), 4u) << all;
  EXPECT_EQ(all["object"], "list");
  EXPECT_EQ(all["has_more"], false);
  EXPECT_EQ(all["data"][0]["content"], json::parse(R"([{"type": "input_text", "text": "hi"}])"));
  EXPECT_EQ(all["data"][1]["arguments"], R"({"z":1,"a":2})");
  EXPECT_EQ(all["data"][2]["output"], "y");
  EXPECT_EQ(all["first_id"], all["data"][0]["id"]);
  EXPECT_EQ(all["last_id"], all["data"][3]["id"]);
  const json page = get(path + "?limit=2&after=" + all["data"][3]["id"].get<std::string>());
  EXPECT_EQ(page["data"], (json{all["data"][2], all["data"][1]}));
  EXPECT_EQ(page["has_more"], true);
  EXPECT_EQ(get(path + "?limit=&after=&order=asc")["data"], all["data"]);
  EXPECT_EQ(get(path + "?limit=0", 400)["error"]["param"], "limit");
  EXPECT_EQ(get(path + "?limit=101", 400)["error"]["param"], "limit");
  EXPECT_EQ(get(path + "?order=up", 400)["error"]["param"], "order");
  EXPECT_EQ(get(path + "?after=x", 400)["error"]["param"], "after");
  get("/v1/responses/none/input_items", 404);

  // A chain: the call of one response, and its result.
  const json next =
      post("/v1/responses", {{"input", "and?"}, {"previous_response_id", response["id"]}}).object();
  EXPECT_EQ(get("/v1/responses/" + next["id"].get<std::string>() + "/input_items")["data"].size(),
            1u);
}

TEST_F(AgentsTest, AResponseThatHasEndedCannotBeCancelled) {
  answer("x");
  const json response = post("/v1/responses", {{"input", "hi"}}).object();
  const std::string id = response["id"];
  const auto got = post("/v1/responses/" + id + "/cancel", json::object());
  EXPECT_EQ(got.status, 400);
  EXPECT_THAT(got.body, HasSubstr("has ended"));
  EXPECT_EQ(post("/v1/responses/none/cancel", json::object()).status, 404);
}

TEST_F(AgentsTest, InputTokensAreThoseOfTheResponse) {
  answer("x");
  const auto counted = post("/v1/responses/input_tokens", request());
  ASSERT_EQ(counted.status, 200) << counted.body;
  EXPECT_EQ(counted.object()["object"], "response.input_tokens");
  json stored = request();
  stored["store"] = true;
  const json response = post("/v1/responses", stored).object();
  EXPECT_EQ(counted.object()["input_tokens"], response["usage"]["input_tokens"]);
  const auto refused =
      post("/v1/responses/input_tokens", {{"input", "hi"}, {"previous_response_id", "resp_1"}});
  EXPECT_EQ(refused.status, 404);
  EXPECT_EQ(refused.object()["error"]["param"], "previous_response_id");
  // Other tools: the earlier messages are read again.
  const json next = {{"input", "and?"}, {"previous_response_id", response["id"]}};
  const json more = post("/v1/responses/input_tokens", next).object();
  EXPECT_GT(more["input_tokens"], 0) << more;
  EXPECT_EQ(more["input_tokens"], post("/v1/responses", next).object()["usage"]["input_tokens"]);
}

}  // namespace
}  // namespace recurve::agents_test
