// Sentences that quote a client, over HTTP: each text of each body, path, query and header.
#include <gmock/gmock.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/http/anthropic/message_fields.h"
#include "server/http/openai/fields/field_table.h"
#include "tests/support/hostile_text.h"
#include "tests/support/http_fixture.h"

namespace recurve::http_quoted_test {
namespace {

using nlohmann::json;
using testing::HttpClient;

// A body with everything that is read of it.
const std::vector<std::pair<std::string, json>> kBodies = {
    {"/v1/completions",
     json::parse(R"({"model": "fake", "prompt": ["p"], "stop": ["s"], "logit_bias": {"1": 1},
       "stop_token_ids": [1], "prefix": "use", "prefix_points": [1], "session": "s", "max_tokens": 1,
       "stream_options": {"include_usage": true}, "structured_outputs": {"choice": ["c"]}})")},
    {"/v1/chat/completions", json::parse(R"({"model": "fake", "max_tokens": 1, "messages": [
       {"role": "user", "content": "c"}, {"role": "user", "content": [{"type": "text", "text": "t"}]},
       {"role": "assistant", "tool_calls": [{"id": "i", "type": "function",
         "function": {"name": "f", "arguments": "{\"a\":\"x\"}"}}]},
       {"role": "tool", "content": "c", "tool_call_id": "i"}], "chat_template_kwargs": {"k": "v"}})")},
    {"/v1/responses",
     json::parse(R"({"model": "fake", "max_output_tokens": 1, "instructions": "i", "store": false,
       "include": ["message.output_text.logprobs"], "metadata": {"m": "v"}, "input": [
       {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "t"}]},
       {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
       {"type": "function_call_output", "call_id": "c", "output": "o"}]})")},
    {"/v1/messages", json::parse(R"({"model": "fake", "max_tokens": 1, "system": [{"type": "text",
       "text": "s"}], "stop_sequences": ["s"], "messages": [
       {"role": "user", "content": [{"type": "text", "text": "t"}]},
       {"role": "assistant", "content": [{"type": "thinking", "thinking": "h"},
         {"type": "tool_use", "id": "i", "name": "f", "input": {"a": "x"}}]},
       {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i", "content": "c",
         "is_error": true}]}]})")},
    {"/tokenize", json::parse(R"({"model": "fake", "prompt": "p"})")},
    {"/tokenize", json::parse(R"({"messages": [{"role": "user", "content": "c"}]})")},
    {"/detokenize", json::parse(R"({"model": "fake", "tokens": [1]})")},
    {"/v1/sessions", json::parse(R"({"session": "t", "ttl_seconds": 1, "durability": "none"})")},
    {"/v1/sessions/s/fork", json::parse(R"({"session": "u", "durability": "none"})")},
    {"/v1/sessions/s/marks", json::parse(R"({"mark": "m"})")},
    {"/v1/sessions/s/rewind", json::parse(R"({"mark": "m"})")},
};

class HttpQuotedTest : public testing::HttpFixture {
 protected:
  void SetUp() override {
    template_ =
        "{% for m in messages %}{% if m.role != 'other' %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", "
        "\"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}{% else %}"
        "{{ raise_exception('not this: ' + m.content) }}{% endif %}{% endfor %}";
    start();
    engine_->answer_sessions({.sessions = {{.name = "s"}}});
    client_.emplace(server_->port());
  }

  // What is refused is refused in few words.
  void expect_readable_of(const HttpClient::Response& got, const std::string& what) {
    ASSERT_GE(got.status, 200) << what;
    EXPECT_LT(got.status, 500) << what << got.body;
    EXPECT_TRUE(is_valid_utf8(got.body)) << what;
    if (got.status < 400) return;
    ++refused_;
    EXPECT_LE(got.body.size(), 2 * kMostSaid) << what << got.body;
    const json error = got.object().value("error", json::object());
    expect_readable(error.value("message", ""), what);
    if (error.contains("param") && error["param"].is_string()) {
      EXPECT_LE(error["param"].get<std::string>().size(), kMostQuoted + 3) << what;
    }
  }
  // Of a body of an answer; empty: of others.
  static std::span<const RequestField> fields_of(const std::string& path) {
    if (path == "/v1/messages") return table_of(MessagesResource::kMessages).fields;
    const bool openai =
        path == "/v1/completions" || path == "/v1/chat/completions" || path == "/v1/responses";
    if (openai) return table_of(OpenAiResource::kCompletions).fields;
    return {};
  }
  // By one connection, which stays.
  void send_body(const std::string& path, const json& body) {
    const std::string text = body.dump(-1, ' ', false, json::error_handler_t::replace);
    client_->post(path, json(text));
    const HttpClient::Response got = client_->read();
    expect_readable_of(got, path + " " + text.substr(0, 300));
    EXPECT_EQ(got.head.find("Connection: close"), std::string::npos) << path << got.head;
  }
  void send_head(const std::string& head) {
    HttpClient client(server_->port());
    client.send(head + "\r\n\r\n");
    expect_readable_of(client.read(), head.substr(0, 200));
  }
  static std::vector<std::string> texts() {
    std::vector<std::string> all = hostile_texts();
    for (std::string& small : hostile_texts(300)) all.push_back(std::move(small));
    return all;
  }
  // As the bytes of a path or a query.
  static std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) out += fmt::format("%{:02x}", static_cast<unsigned char>(c));
    return out;
  }

  std::optional<HttpClient> client_;
  int refused_ = 0;
};

TEST_F(HttpQuotedTest, EachTextOfEachBody) {
  for (const std::string& text : texts()) {
    for (const auto& [path, good] : kBodies) {
      for (const json& body : changed_somewhere(good, text)) send_body(path, body);
    }
  }
  EXPECT_GT(refused_, 500);
}

TEST_F(HttpQuotedTest, EachFieldOfEachResource) {
  for (const std::string& text : {hostile_texts()[0], hostile_texts(300)[2]}) {
    for (const auto& [path, good] : kBodies) {
      const auto fields = fields_of(path);
      json least = good;
      for (const char* needless : {"structured_outputs", "session", "stream_options"}) {
        least.erase(needless);
      }
      for (const RequestField& field : fields) {
        const std::vector<json> values = {
            text, json::array({text}), {{text, {text}}}, json::array({{{"type", text}}})};
        for (const json& value : values) {
          json body = least;
          body[field.name] = value;
          body["max_tokens"] = 1;
          send_body(path, body);
        }
      }
    }
  }
  EXPECT_GT(refused_, 1000);
}

TEST_F(HttpQuotedTest, ConstraintsAndTools) {
  for (const std::string& text : texts()) {
    json body = chat("c");
    body["max_tokens"] = 1;
    for (const json& schema : changed_somewhere(kSchema, text)) {
      body["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", schema}}}};
      send_body("/v1/chat/completions", body);
    }
    for (const json& tags : changed_somewhere(kTags, text)) {
      body["response_format"] = tags;
      if (tags.is_object()) body["response_format"]["type"] = "structural_tag";
      send_body("/v1/chat/completions", body);
    }
    body.erase("response_format");
    for (const json& tools : changed_somewhere(kTools, text)) {
      body["tools"] = tools;
      send_body("/v1/chat/completions", body);
    }
    body["tools"] = kTools;
    body["tool_choice"] = {{"type", "function"}, {"function", {{"name", text}}}};
    send_body("/v1/chat/completions", body);
    json raised = chat(text);
    raised["messages"][0]["role"] = "other";
    send_body("/v1/chat/completions", raised);
    send_body("/v1/completions", json(text));
  }
  EXPECT_GT(refused_, 100);
}

TEST_F(HttpQuotedTest, PathsQueriesAndHeaders) {
  constexpr size_t kFits = 2000;  // a head, with three bytes for one
  std::vector<Route> routes;
  for (HttpApi& api : testing::http_apis(core_)) {
    routes.insert(routes.end(), api.routes.begin(), api.routes.end());
  }
  for (const std::string& raw : hostile_texts(kFits)) {
    const std::string text = escaped(raw);
    for (const Route& route : routes) {
      std::string path(route.path);
      for (size_t at; (at = path.find('*')) != std::string::npos;) path.replace(at, 1, text);
      for (const char* method : {"GET", "POST", "DELETE", "PATCH"}) {
        send_head(
            fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0", method, path));
        send_head(fmt::format("{} {}/{} HTTP/1.1\r\nHost: localhost", method, route.path, text));
      }
      send_head(fmt::format("{} HTTP/1.1\r\nHost: localhost", text + " " + path));
      for (const char* name : {"prefix", "after", "limit", "x"}) {
        send_head(fmt::format("GET {}?{}={} HTTP/1.1\r\nHost: localhost", path, name, text));
      }
    }
    for (const char* name :
         {"Host", "Origin", "x-request-id", "Idempotency-Key", "x-recurve-session", "Content-Type",
          "x-recurve-timeout-ms", "traceparent", "tracestate", "Expect", "Authorization",
          "Transfer-Encoding", "Connection", "Range", "x"}) {
      for (const std::string& value : {text, std::string(kFits, 'q')}) {
        const bool is_host = std::string(name) == "Host";
        send_head(fmt::format("POST /v1/completions HTTP/1.1\r\n{}{}: {}\r\nContent-Length: 0",
                              is_host ? "" : "Host: localhost\r\n", name, value));
      }
    }
    send_head("GET / " + text + "\r\nHost: localhost");
    send_head("GET / HTTP/1.1\r\nHost: localhost\r\n" + text + ": x");
  }
  EXPECT_GT(refused_, 500);
}

}  // namespace
}  // namespace recurve::http_quoted_test
