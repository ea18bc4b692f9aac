// Tools and their calls in OpenAI's API, before an engine that emits what a test wants.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "server/constraint/constraint_library.h"
#include "tests/support/http_fixture.h"

namespace recurve::tool_calls_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* kHermes =
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.role }}:"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name "
    "}}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}|"
    "{% endfor %}";

using testing::HttpClient;

class ToolCallsTest : public testing::HttpFixture {
 protected:
  void SetUp() override {
    if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
    template_ = kHermes;
  }
  static json tools() {
    return json::parse(R"([{"type": "function", "function": {"name": "weather",
        "description": "of a city", "parameters": {"type": "object", "properties":
        {"city": {"type": "string"}}, "required": ["city"]}}},
        {"type": "function", "function": {"name": "now"}}])");
  }
  static json asked(const json& choice = "auto") {
    json body = chat("hi");
    body["tools"] = tools();
    body["tool_choice"] = choice;
    return body;
  }
  json refusal(const json& body, const std::string& path = "/v1/chat/completions") {
    const auto got = post(path, body);
    EXPECT_EQ(got.status, 400) << got.body;
    return got.object()["error"];
  }
  // Whether the last request may be answered with this text.
  bool takes(const std::string& text) {
    const auto matcher = engine_->last_request().sampling.constraint->begin();
    for (const char byte : text) {
      if (!matcher->accept(static_cast<unsigned char>(byte))) return false;
    }
    return matcher->may_end();
  }
};

const std::string kCall =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
const std::string kSecond = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";

TEST_F(ToolCallsTest, ACallInOneObject) {
  answer("Let me see. " + kCall + "\n" + kSecond);
  const auto got = post("/v1/chat/completions", asked());
  ASSERT_EQ(got.status, 200) << got.body;
  const json choice = got.object()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Let me see. ");
  const json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2u) << calls;
  EXPECT_EQ(calls[0]["type"], "function");
  EXPECT_EQ(calls[0]["function"],
            (json{{"name", "weather"}, {"arguments", "{\"city\": \"Paris\"}"}}));
  EXPECT_EQ(calls[1]["function"], (json{{"name", "now"}, {"arguments", "{}"}}));
  EXPECT_THAT(calls[0]["id"].get<std::string>(), HasSubstr("call_"));
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);
}

TEST_F(ToolCallsTest, TheTemplateSeesToolsInTheClientsOrder) {
  answer("");
  const std::string tool =
      R"({"type": "function", "function": {"name": "now", "description": "a", "arguments": {"z": 1, "b": 2}}})";
  const std::string body =
      R"({"messages": [{"role": "user", "content": "hi"}], "tools": [)" + tool + "]}";
  HttpClient client(server_->port());
  client.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_EQ(client.read().status, 200);
  EXPECT_THAT(prompt_text(), HasSubstr(tool));
}

TEST_F(ToolCallsTest, CallsAloneHaveNoContent) {
  answer(kCall);
  const json message = post("/v1/chat/completions", asked()).object()["choices"][0]["message"];
  EXPECT_EQ(message["content"], nullptr);
  EXPECT_EQ(message["tool_calls"].size(), 1u);
}

TEST_F(ToolCallsTest, AnAnswerWithoutACallIsText) {
  answer("It is 3 < 4.");
  const json choice = post("/v1/chat/completions", asked()).object()["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "It is 3 < 4.");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST_F(ToolCallsTest, AStreamHasTheirPartsAsTheyCome) {
  answer("So: " + kCall + "\n" + kSecond);
  json body = asked();
  body["stream"] = true;
  std::string content, arguments[2];
  json begun = json::array();
  std::string finish;
  for (const json& event : events(post("/v1/chat/completions", body).body)) {
    const json& choice = event["choices"][0];
    const bool shows = choice["delta"].value("content", json("")) != "" ||
                       choice["delta"].contains("tool_calls") || !choice["finish_reason"].is_null();
    EXPECT_TRUE(shows) << "an empty chunk: " << event;
    content += choice["delta"].value("content", json()).is_string()
                   ? choice["delta"]["content"].get<std::string>()
                   : "";
    for (const json& call : choice["delta"].value("tool_calls", json::array())) {
      if (call.contains("id")) begun.push_back(call);
      arguments[call.at("index").get<size_t>()] += call["function"]["arguments"].get<std::string>();
    }
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
  }
  EXPECT_EQ(content, "So: ");
  ASSERT_EQ(begun.size(), 2u);
  EXPECT_EQ(begun[0]["function"]["name"], "weather");
  EXPECT_EQ(begun[1]["function"]["name"], "now");
  EXPECT_EQ(arguments[0], "{\"city\": \"Paris\"}");
  EXPECT_EQ(arguments[1], "{}");
  EXPECT_EQ(finish, "tool_calls");
}

TEST_F(ToolCallsTest, ACallThatIsCutSaysSo) {
  answer(kCall);
  json body = asked();
  body["max_tokens"] = kCall.size() - 20;
  const json choice = post("/v1/chat/completions", body).object()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\": \"P");
}

// What the engine keeps answers to, in the tokens of a vocabulary of bytes.
TEST_F(ToolCallsTest, TheConstraintFollowsTheChoice) {
  answer("");
  post("/v1/chat/completions", asked());
  EXPECT_TRUE(takes("hello"));
  EXPECT_TRUE(takes(kCall + "\n" + kSecond));
  EXPECT_FALSE(takes("<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>"));
  post("/v1/chat/completions", asked("required"));
  EXPECT_FALSE(takes("hello"));
  EXPECT_TRUE(takes(kCall + "\n" + kSecond));
  json one = asked("required");
  one["parallel_tool_calls"] = false;
  post("/v1/chat/completions", one);
  EXPECT_TRUE(takes(kCall));
  EXPECT_FALSE(takes(kCall + "\n" + kSecond));
  post("/v1/chat/completions", asked({{"type", "function"}, {"function", {{"name", "now"}}}}));
  EXPECT_TRUE(takes(kSecond));
  EXPECT_FALSE(takes(kCall));
  const json now = {{"type", "function"}, {"function", {{"name", "now"}}}};
  json allowed = {{"mode", "auto"}, {"tools", {now}}};
  post("/v1/chat/completions", asked({{"type", "allowed_tools"}, {"allowed_tools", allowed}}));
  EXPECT_THAT(prompt_text(), HasSubstr("weather")) << "the prompt has all";
  EXPECT_TRUE(takes("text") && takes(kSecond));
  EXPECT_FALSE(takes(kCall));
  allowed["mode"] = "required";
  post("/v1/chat/completions", asked({{"type", "allowed_tools"}, {"allowed_tools", allowed}}));
  EXPECT_TRUE(takes(kSecond) && takes(kSecond + "\n" + kSecond));
  EXPECT_FALSE(takes("text") || takes(kCall));
  json response = {{"input", "hi"}, {"tools", json::array()}};
  for (const json& tool : tools()) {
    response["tools"].push_back(tool["function"]);
    response["tools"].back()["type"] = "function";
  }
  response["tool_choice"] = {{"type", "allowed_tools"},
                             {"mode", "required"},
                             {"tools", {{{"type", "function"}, {"name", "now"}}}}};
  const auto got = post("/v1/responses", response);
  EXPECT_EQ(got.object()["tool_choice"], response["tool_choice"]) << got.body;
  EXPECT_TRUE(takes(kSecond));
  EXPECT_FALSE(takes("text") || takes(kCall));
  post("/v1/chat/completions", asked("none"));
  EXPECT_EQ(engine_->last_request().sampling.constraint, nullptr);
  EXPECT_THAT(prompt_text(), Not(HasSubstr("weather")));
}

TEST_F(ToolCallsTest, AnAnswerIsCallsOrFollowsTheResponseFormat) {
  json body = asked();
  body["response_format"] = {
      {"type", "json_schema"},
      {"json_schema", {{"name", "n"}, {"schema", {{"required", {"a"}}, {"type", "object"}}}}}};
  const std::string object = "{\"a\": \"" + kSecond.substr(0, kSecond.find('\n')) + "\"}";
  answer(object);
  const json choice = post("/v1/chat/completions", body).object()["choices"][0];
  EXPECT_EQ(choice["message"]["content"], object) << "a mark in a string is text";
  EXPECT_EQ(choice["message"].count("tool_calls"), 0u);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(takes(object) && takes(kCall) && takes(kCall + "\n" + kSecond));
  EXPECT_FALSE(takes("text") || takes("{}") || takes(kCall + object) || takes(object + kCall) ||
               takes("{ \"a\": 1}"));
  answer(kCall);
  const json called = post("/v1/chat/completions", body).object()["choices"][0];
  EXPECT_EQ(called["message"]["tool_calls"][0]["function"]["name"], "weather");
  EXPECT_EQ(called["finish_reason"], "tool_calls");
  body["structured_outputs"] = {{"disable_any_whitespace", false}};
  post("/v1/chat/completions", body);
  EXPECT_TRUE(takes("{ \"a\" :\n1}") && takes(kCall));
  body["tool_choice"] = "required";
  post("/v1/chat/completions", body);
  EXPECT_TRUE(takes(kCall));
  EXPECT_FALSE(takes(object));
}

TEST_F(ToolCallsTest, WhatCannotBeIsRefusedByName) {
  answer("");
  EXPECT_EQ(refusal(asked("always"))["param"], "tool_choice");
  EXPECT_EQ(refusal(asked({{"type", "function"}, {"function", {{"name", "absent"}}}}))["param"],
            "tool_choice");
  const json now = {{"type", "function"}, {"function", {{"name", "now"}}}},
             absent = {{"type", "function"}, {"function", {{"name", "absent"}}}};
  for (const json& allowed :
       {json{{"mode", "auto"}, {"tools", {now, absent}}},
        json{{"mode", "auto"}, {"tools", {{{"type", "web_search"}}}}},
        json{{"mode", "auto"}, {"tools", json::array()}}, json{{"mode", "none"}, {"tools", {now}}},
        json{{"tools", {now}}}, json{{"mode", "auto"}}, json("now"), json(nullptr)}) {
    const json choice = {{"type", "allowed_tools"}, {"allowed_tools", allowed}};
    EXPECT_EQ(refusal(asked(choice))["param"], "tool_choice") << allowed;
  }
  json body = asked();
  body["tools"].push_back(body["tools"][0]);
  EXPECT_THAT(refusal(body)["message"].get<std::string>(), HasSubstr("two have the name weather"));
  body = asked();
  body["tools"][0]["function"]["name"] = "a b";
  EXPECT_EQ(refusal(body)["param"], "tools");
  body = asked();
  body["tools"][0]["function"]["parameters"]["contains"] = json::object();
  const json refused = refusal(body);
  EXPECT_EQ(refused["param"], "tools");
  EXPECT_THAT(refused["message"].get<std::string>(), HasSubstr("the parameters of weather"));
  EXPECT_THAT(refused["message"].get<std::string>(), HasSubstr("contains at #"));
  body = asked();
  body["guided_regex"] = "a";
  EXPECT_EQ(refusal(body)["param"], "guided_regex");
  body = asked();
  body["response_format"] = {{"type", "json_object"}, {"schema", {{"contains", {}}}}};
  EXPECT_THAT(refusal(body)["message"].get<std::string>(),
              HasSubstr("response_format: schema, contains at #"));
  body = chat("hi");
  body["tool_choice"] = "required";
  EXPECT_EQ(refusal(body)["param"], "tool_choice");
  body = chat("hi");
  body["guided_regex"] = "(";
  EXPECT_EQ(refusal(body)["param"], "guided_regex");
}

TEST_F(ToolCallsTest, ATemplateOfNoKnownFormIsRefused) {
  template_ = "{% for m in messages %}{{ m.content }}{% endfor %}";
  answer("");
  const json refused = refusal(asked());
  EXPECT_EQ(refused["param"], "tools");
  EXPECT_THAT(refused["message"].get<std::string>(),
              HasSubstr("qwen3.5, hermes, mistral, nemotron, llama-3"));
}

// What the model writes, the client sends back, and the template renders is one text.
TEST_F(ToolCallsTest, ParametersAreTypedByTheSchemaAndRenderedBack) {
  std::ifstream file(RECURVE_SOURCE_DIR "/tests/golden/chat_template/xml_tools.jinja");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  template_ = text.c_str();
  const std::string call =
      "<tool_call>\n<function=book>\n<parameter=city>\n5\n</parameter>\n<parameter=nights>\n2\n"
      "</parameter>\n<parameter=note>\na \"b\"\n<c>\n</parameter>\n<parameter=guests>\n"
      "[\"</parameter>\", \"e\"]\n</parameter>\n</function>\n</tool_call>";
  answer(call);
  const json string = {{"type", "string"}};
  json body = chat("hi");
  body["tools"] = {{{"type", "function"},
                    {"function",
                     {{"name", "book"},
                      {"description", ""},
                      {"parameters",
                       {{"type", "object"},
                        {"properties",
                         {{"city", string},
                          {"nights", {{"type", "integer"}}},
                          {"note", string},
                          {"guests", {{"type", "array"}, {"items", string}}}}}}}}}}};
  const json message = post("/v1/chat/completions", body).object()["choices"][0]["message"];
  ASSERT_EQ(message["tool_calls"].size(), 1u) << message;
  EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "book");
  EXPECT_EQ(
      message["tool_calls"][0]["function"]["arguments"],
      R"({"city": "5", "nights": 2, "note": "a \"b\"\n<c>", "guests": ["</parameter>", "e"]})");
  EXPECT_EQ(message["content"], nullptr);
  body["messages"].push_back(message);
  ASSERT_EQ(post("/v1/chat/completions", body).status, 200);
  EXPECT_THAT(prompt_text(), HasSubstr(call));
}

TEST_F(ToolCallsTest, EarlierCallsHaveArgumentsAsTemplatesReadThem) {
  answer("");
  json body = asked();
  body["messages"].push_back(
      {{"role", "assistant"},
       {"content", nullptr},
       {"tool_calls",
        {{{"id", "x"},
          {"type", "function"},
          {"function", {{"name", "weather"}, {"arguments", R"({"z": 1, "a": [2]})"}}}}}}});
  body["messages"].push_back({{"role", "tool"}, {"tool_call_id", "x"}, {"content", "rain"}});
  ASSERT_EQ(post("/v1/chat/completions", body).status, 200);
  EXPECT_THAT(prompt_text(), HasSubstr(R"({"name": "weather", "arguments": {"z": 1, "a": [2]}})"));
  EXPECT_THAT(prompt_text(), HasSubstr("tool:rain"));
}

TEST_F(ToolCallsTest, AResponseHasThemAsItems) {
  answer("So: " + kCall);
  const json flat = {{"type", "function"},
                     {"name", "weather"},
                     {"parameters", tools()[0]["function"]["parameters"]},
                     {"strict", true}};
  const json body = {{"input", "hi"}, {"tools", {flat}}, {"store", true}};
  const auto got = post("/v1/responses", body);
  ASSERT_EQ(got.status, 200) << got.body;
  const json response = got.object();
  ASSERT_EQ(response["output"].size(), 2u) << response;
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "So: ");
  const json& call = response["output"][1];
  EXPECT_EQ(call["type"], "function_call");
  EXPECT_EQ(call["name"], "weather");
  EXPECT_EQ(call["arguments"], "{\"city\": \"Paris\"}");
  // The conversation goes on behind it.
  const json more = {
      {"previous_response_id", response["id"]},
      {"tools", {flat}},
      {"input",
       {{{"type", "function_call_output"}, {"call_id", call["call_id"]}, {"output", "rain"}}}}};
  EXPECT_EQ(post("/v1/responses", more).status, 200);
  EXPECT_THAT(prompt_text(), HasSubstr("tool:rain"));
}

// A client cannot use half a call: what was cut is not called complete, and is not gone on from.
TEST_F(ToolCallsTest, AStopStringInsideACallLeavesItIncomplete) {
  answer("So: " + kCall);
  const json flat = {{"type", "function"}, {"name", "weather"}};
  const json body = {{"input", "hi"}, {"tools", {flat}}, {"stop", "Par"}};
  const json response = post("/v1/responses", body).object();
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"], (json{{"reason", "stop"}}));
  ASSERT_EQ(response["output"].size(), 2u) << response;
  EXPECT_EQ(response["output"][0]["status"], "completed");
  EXPECT_EQ(response["output"][1]["status"], "incomplete");
  EXPECT_EQ(response["output"][1]["arguments"], "{\"city\": \"");
  json streamed = body;
  streamed["stream"] = true;
  EXPECT_THAT(post("/v1/responses", streamed).body, HasSubstr("event: response.incomplete\n"));

  const json more = {{"previous_response_id", response["id"]}, {"input", "and?"}};
  EXPECT_EQ(post("/v1/responses", more).status, 200);
  EXPECT_THAT(prompt_text(), HasSubstr("assistant:So: |user:and?|"));

  json chat = asked();
  chat["stop"] = "Par";
  EXPECT_EQ(post("/v1/chat/completions", chat).object()["choices"][0]["finish_reason"], "stop");
  chat["stop"] = "no such text";
  EXPECT_EQ(post("/v1/chat/completions", chat).object()["choices"][0]["finish_reason"],
            "tool_calls");
}

TEST_F(ToolCallsTest, EarlierCallsWithoutAnObjectAreRefusedByName) {
  answer("x");
  for (const char* bad : {"{\"city\": ", "[1]", "", "Paris"}) {
    json body = asked();
    body["messages"].push_back({{"role", "assistant"},
                                {"tool_calls",
                                 {{{"id", "x"},
                                   {"type", "function"},
                                   {"function", {{"name", "now"}, {"arguments", bad}}}}}}});
    EXPECT_THAT(refusal(body)["message"].get<std::string>(),
                HasSubstr("[1].tool_calls[0].function.arguments must be a JSON object"));
    const json call = {
        {"type", "function_call"}, {"name", "now"}, {"call_id", "x"}, {"arguments", bad}};
    const json error = refusal({{"input", {call}}}, "/v1/responses");
    EXPECT_EQ(error["message"], "arguments of a function_call in input must be a JSON object");
    EXPECT_EQ(error["param"], "input");
  }
}

TEST_F(ToolCallsTest, WhatIsNoTextIsRefusedByName) {
  answer("x");
  const auto error = [&](const json& message) {
    json body = chat("hi");
    body["messages"].push_back(message);
    const json refused = refusal(body);
    EXPECT_EQ(refused["param"], "messages");
    return refused["message"].get<std::string>();
  };
  const json image = {{"type", "image_url"}, {"image_url", {{"url", "data:,"}}}};
  EXPECT_THAT(error({{"role", "user"}, {"content", {image}}}),
              HasSubstr("[1].content[0] must be of type \"text\", got \"image_url\""));
  EXPECT_THAT(error({{"role", "assistant"}}), HasSubstr("[1] must have content or tool_calls"));
  EXPECT_THAT(error({{"role", "user"}, {"content", {{{"type", "refusal"}, {"refusal", "no"}}}}}),
              HasSubstr("[1].content[0] must be of type \"text\", got \"refusal\""));
  EXPECT_THAT(refusal({{"input", {{{"role", "user"}, {"content", {{{"type", "input_image"}}}}}}}},
                      "/v1/responses")["message"]
                  .get<std::string>(),
              HasSubstr("input_image"));
}

TEST_F(ToolCallsTest, PartsAreJoinedAndDevelopersWriteSystemMessages) {
  answer("x");
  const json parts = {{{"type", "text"}, {"text", "one "}}, {{"type", "text"}, {"text", "two"}}};
  const json messages = {{{"role", "system"}, {"content", "Be kind."}},
                         {{"role", "developer"}, {"content", parts}},
                         {{"role", "user"}, {"content", parts}},
                         {{"role", "assistant"}, {"content", "a"}, {"refusal", nullptr}}};
  ASSERT_EQ(post("/v1/chat/completions", {{"messages", messages}}).status, 200);
  EXPECT_THAT(prompt_text(), HasSubstr("system:Be kind.\n\none two|user:one two|assistant:a|"));
  const json body = {
      {"instructions", "Be kind."},
      {"input",
       {{{"role", "developer"}, {"content", "Be brief."}}, {{"role", "user"}, {"content", "hi"}}}}};
  ASSERT_EQ(post("/v1/responses", body).status, 200);
  EXPECT_THAT(prompt_text(), HasSubstr("system:Be kind.\n\nBe brief.|user:hi|"));
}

TEST_F(ToolCallsTest, ItemsOfOtherServersAreTaken) {
  answer("x");
  const json input = {
      {{"role", "user"}, {"content", "hi"}},
      {{"type", "message"}, {"role", "assistant"}, {"content", nullptr}},
      {{"type", "custom_tool_call"}, {"call_id", "c"}, {"name", "shell"}, {"input", "ls \"x\""}},
      {{"type", "custom_tool_call_output"}, {"call_id", "c"}, {"output", "y"}},
      {{"type", "message"},
       {"role", "assistant"},
       {"content",
        {{{"type", "output_text"}, {"text", "No: "}},
         {{"type", "refusal"}, {"refusal", "I cannot."}}}}},
      {{"role", "user"}, {"content", "why"}}};
  const auto got = post("/v1/responses", {{"input", input}});
  ASSERT_EQ(got.status, 200) << got.body;
  EXPECT_THAT(prompt_text(), HasSubstr(R"({"name": "shell", "arguments": {"input": "ls \"x\""}})"));
  EXPECT_THAT(prompt_text(), HasSubstr("tool:y|assistant:No: I cannot.|user:why|"));
  EXPECT_EQ(post("/v1/responses", {{"input", {{{"role", "user"}, {"content", nullptr}}}}}).status,
            400);
}

TEST_F(ToolCallsTest, ChatsTakeRefusalsAndCallsOfCustomTools) {
  answer("x");
  const json parts = {{{"type", "text"}, {"text", "No: "}},
                      {{"type", "refusal"}, {"refusal", "I cannot."}}};
  const json call = {
      {"id", "c"}, {"type", "custom"}, {"custom", {{"name", "shell"}, {"input", "ls \"x\""}}}};
  const json messages = {{{"role", "user"}, {"content", "hi"}},
                         {{"role", "assistant"}, {"content", parts}},
                         {{"role", "user"}, {"content", "why"}},
                         {{"role", "assistant"}, {"content", nullptr}, {"refusal", "I must not."}},
                         {{"role", "assistant"}, {"content", "Well, "}, {"refusal", "no."}},
                         {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}},
                         {{"role", "tool"}, {"tool_call_id", "c"}, {"content", "y"}}};
  const auto got = post("/v1/chat/completions", {{"messages", messages}});
  ASSERT_EQ(got.status, 200) << got.body;
  EXPECT_THAT(prompt_text(), HasSubstr("user:hi|assistant:No: I cannot.|user:why|"
                                       "assistant:I must not.|assistant:Well, no.|"));
  EXPECT_THAT(prompt_text(), HasSubstr(R"({"name": "shell", "arguments": {"input": "ls \"x\""}})"));
}

TEST_F(ToolCallsTest, AMessageAndItsCallsAreOneTurnOfAResponsesInput) {
  answer("x");
  const auto call = [](const char* id, const char* name) {
    return json{{"type", "function_call"}, {"call_id", id}, {"name", name}, {"arguments", "{}"}};
  };
  const auto output = [](const char* id) {
    return json{{"type", "function_call_output"}, {"call_id", id}, {"output", "y"}};
  };
  const json input = {{{"role", "user"}, {"content", "hi"}},
                      {{"role", "assistant"}, {"content", "So: "}},
                      call("a", "one"),
                      {{"type", "reasoning"}, {"summary", json::array()}},
                      call("b", "two"),
                      output("a"),
                      output("b"),
                      call("c", "three"),
                      output("c")};
  ASSERT_EQ(post("/v1/responses", {{"input", input}}).status, 200);
  const std::string chat = prompt_text();
  // What a chat makes of the same turns.
  const auto called = [](const char* id, const char* name) {
    return json{
        {"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", "{}"}}}};
  };
  const auto result = [](const char* id) {
    return json{{"role", "tool"}, {"tool_call_id", id}, {"content", "y"}};
  };
  const json messages = {
      {{"role", "user"}, {"content", "hi"}},
      {{"role", "assistant"},
       {"content", "So: "},
       {"tool_calls", {called("a", "one"), called("b", "two")}}},
      result("a"),
      result("b"),
      {{"role", "assistant"}, {"content", ""}, {"tool_calls", {called("c", "three")}}},
      result("c")};
  ASSERT_EQ(post("/v1/chat/completions", {{"messages", messages}}).status, 200);
  EXPECT_EQ(chat, prompt_text());
}

TEST_F(ToolCallsTest, AResponseStreamsThem) {
  answer(kCall);
  const json body = {{"input", "hi"},
                     {"stream", true},
                     {"tool_choice", "required"},
                     {"tools", {{{"type", "function"}, {"name", "weather"}}}}};
  const std::string events = post("/v1/responses", body).body;
  size_t at = 0;
  for (const char* type :
       {"response.created", "response.output_item.added", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.output_item.done",
        "response.completed"}) {
    at = events.find(std::string("event: ") + type + "\n", at);
    ASSERT_NE(at, std::string::npos) << type << "\n" << events;
  }
  EXPECT_EQ(events.find("output_text"), std::string::npos) << "no message";
}

}  // namespace
}  // namespace recurve::tool_calls_test
