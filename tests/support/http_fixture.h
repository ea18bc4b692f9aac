#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/http/anthropic/api.h"
#include "server/http/openai/api.h"
#include "server/http/server.h"
#include "server/http/server_api.h"
#include "tests/support/engine/fake_engine.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/http_client.h"

namespace recurve::testing {

using nlohmann::json;

// As the server has them.
inline std::vector<HttpApi> http_apis(ServerCore& core, int64_t max_response_bytes = 64 << 20) {
  return {openai_api(core, max_response_bytes), anthropic_api(core), server_api(core),
          load_api(core), page_api()};
}

// The HTTP frontend before a fake engine that echoes the prompt.
class HttpFixture : public ::testing::Test {
 protected:
  void start(FakeEngine::Options options = {}, HttpOptions http = {},
             int64_t max_response_bytes = 64 << 20) {
    http.listen = "127.0.0.1:0";
    Chat chat{
        .format = std::make_shared<const ChatTemplate>(template_, "", jinja::Template::Variables{}),
        .exists = true,
        .tool_form = tool_form_of(template_),
        .reasoning_form = reasoning_form_of(template_),
        .problem = ""};
    engine_.emplace(queue_, std::move(options));
    server_.emplace(http, http_apis(core_, max_response_bytes), core_, connections_);
    core_.serve(*served_, tokenizer_,
                {.model_name = "fake",
                 .vocab_rows = FakeTokenizer::kSize,
                 .hidden_width = 4,
                 .max_session_tokens = max_session_tokens_,
                 .system_fingerprint = "fp_fake",
                 .tokens = {.bos = FakeTokenizer::kBos, .eos = {FakeTokenizer::kEos}},
                 .slots = 8,
                 .read_state = [](std::string_view) -> std::shared_ptr<const ReadyState> {
                   throw StateError(EndReason::kForeignState, "none is one");
                 }},
                std::move(chat));
  }
  void TearDown() override {
    if (server_) server_->shutdown();
    EXPECT_EQ(core_.under_way(), 0);
    EXPECT_EQ(core_.message_bytes.used(), 0);
    EXPECT_EQ(core_.gathered_bytes.used(), 0);
    engine_.reset();
  }
  // Starts before an engine that answers with this text.
  void answer(const std::string& text) { start({.script = FakeEngine::text(text)}); }
  // The text of the last prompt, without control tokens.
  std::string prompt_text() {
    std::string text;
    for (const int32_t id : engine_->last_request().prompt.ids) {
      if (id < 256) text += static_cast<char>(id);
    }
    return text;
  }
  // Until the engine has been told so; it may be told behind the response.
  void await_command(SessionCommand::Kind kind, const std::string& name) {
    const auto told = [&] {
      const auto commands = engine_->commands();
      return std::any_of(commands.begin(), commands.end(), [&](const SessionCommand& command) {
        return command.kind == kind && command.name == name;
      });
    };
    const auto end = Clock::now() + std::chrono::minutes(1);
    while (!told() && Clock::now() < end) std::this_thread::yield();
    EXPECT_TRUE(told()) << name;
  }
  HttpClient::Response ask(const std::string& line) {
    HttpClient client(server_->port());
    client.send(line + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    return client.read();
  }
  HttpClient::Response post(const std::string& path, const json& body,
                            const std::string& headers = "") {
    HttpClient client(server_->port());
    client.post(path, body, headers);
    return client.read();
  }
  static json completion(const std::string& prompt) {
    return {{"model", "fake"}, {"prompt", prompt}};
  }
  static json chat(const std::string& content) {
    return {{"model", "fake"}, {"messages", {{{"role", "user"}, {"content", content}}}}};
  }
  // The objects of a stream, which must end as the dialect says.
  static std::vector<json> events(const std::string& body) {
    std::vector<json> events;
    size_t at = 0;
    for (size_t end; (end = body.find("\n\n", at)) != std::string::npos; at = end + 2) {
      EXPECT_EQ(body.substr(at, 6), "data: ");
      const std::string data = body.substr(at + 6, end - at - 6);
      if (data == "[DONE]") {
        EXPECT_EQ(end + 2, body.size());
        return events;
      }
      events.push_back(json::parse(data));
    }
    ADD_FAILURE() << "no [DONE]: " << body;
    return events;
  }

  std::shared_ptr<const Tokenizer> tokenizer_ = std::make_shared<FakeTokenizer>();
  int64_t max_session_tokens_ = 0;  // of the model; set before start()
  // One that sessions can go on with.
  static constexpr const char* kOfSessions =
      "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}|{% endfor %}"
      "{% if add_generation_prompt %}a:{% endif %}";
  const char* template_ = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}|{% endfor %}";
  Metrics metrics_;
  const std::shared_ptr<ServedModel> served_ = std::make_shared<ServedModel>(16);
  AdmissionQueue& queue_ = served_->queue;
  Connections connections_{{.in_all = 100, .by_network = 100}};
  ServerCore core_{{}, {served_}, metrics_};
  std::optional<FakeEngine> engine_;
  std::optional<HttpServer> server_;
};

}  // namespace recurve::testing
