// A dialect that the HTTP server does not know: what adding one takes.
#include <gmock/gmock.h>

#include <atomic>
#include <latch>
#include <memory>
#include <thread>

#include "server/http/http_answer.h"
#include "tests/support/http_fixture.h"

namespace recurve::http_dialect_test {

using testing::HttpClient;
using testing::json;

// Its body is the prompt, and its answer {"echo": TEXT}.
class Echo final : public AnswerDialect {
 public:
  static inline std::atomic<std::thread::id> reader;

  Echo(std::shared_ptr<ServedModel> model, std::shared_ptr<std::latch> after)
      : model_(std::move(model)), after_(std::move(after)) {}

  Refused read(std::string body, const WorkLimits&, std::vector<TextRequest>* asked) override {
    reader = std::this_thread::get_id();
    if (body == "{}") return invalid("body", "there is nothing to echo");
    asked->push_back({.model = model_, .prompt = std::move(body)});
    return {};
  }
  bool prepare(std::vector<TextRequest>*, std::function<void(Refused)> go) override {
    if (after_ == nullptr) return true;
    const auto after = after_;
    go({});
    after->wait();
    return false;
  }
  bool streams() const override { return false; }
  std::string take(size_t, const AnswerEvent& event) override {
    if (const auto* delta = std::get_if<AnswerDelta>(&event)) text_ += delta->text;
    return {};
  }
  std::string stream_end() override { return {}; }
  std::string broken(const Refusal&) override { return {}; }
  std::string whole() override { return json{{"echo", text_}}.dump(); }

 private:
  const std::shared_ptr<ServedModel> model_;
  const std::shared_ptr<std::latch> after_;
  std::string text_;
};

json echo_error(int status, const std::string& message, const std::string&) {
  return {{"failed", message}, {"with", status}};
}

HttpApi echo_api(ServerCore& core, std::shared_ptr<std::latch> after = nullptr) {
  const Route::Begin echo = [&core, after](std::shared_ptr<Connection> connection,
                                           HttpRequest request) {
    return std::make_shared<HttpAnswer>(
        std::move(connection), core, std::move(request),
        [&](const HttpRequest&) { return std::make_unique<Echo>(core.models().front(), after); });
  };
  return {.routes = {{boost::beast::http::verb::post, "/echo", Route::Body::kJson, echo}},
          .error_body = echo_error};
}

class HttpDialectTest : public testing::HttpFixture {
 protected:
  void start_with(HttpApi api) {
    start();
    server_->shutdown();
    server_.emplace(HttpOptions{.listen = "127.0.0.1:0"},
                    std::vector{server_api(core_), std::move(api)}, core_, connections_);
  }
};

TEST_F(HttpDialectTest, ADialectIsOneEntryOfTheServersList) {
  start_with(echo_api(core_));
  const auto answer = post("/echo", json("hello"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.object(), (json{{"echo", "hello"}}));
  EXPECT_EQ(ask("GET /health").status, 200);
}

TEST_F(HttpDialectTest, ItsErrorsHaveItsForm) {
  start_with(echo_api(core_));
  const auto refused = post("/echo", json::object());
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.object(), (json{{"failed", "there is nothing to echo"}, {"with", 400}}));
  EXPECT_EQ(ask("DELETE /echo").object()["with"], 405);
  EXPECT_EQ(ask("POST /echo").object()["with"], 415);
  EXPECT_EQ(ask("GET /nothing").object()["error"]["message"], "unknown endpoint /nothing");
}

// A body is read and its prompt tokenized by one task of a text thread, of which there are two.
TEST_F(HttpDialectTest, ARequestHopsToATextThreadOnce) {
  static std::atomic<int> elsewhere;
  elsewhere = 0;
  start_with(echo_api(core_));
  FakeTokenizer::before_push = [](std::string_view) {
    if (std::this_thread::get_id() != Echo::reader.load()) ++elsewhere;
  };
  for (int i = 0; i < 50; ++i) EXPECT_EQ(post("/echo", json("hello")).status, 200);
  FakeTokenizer::before_push = nullptr;
  EXPECT_EQ(elsewhere, 0);
}

// The text thread that began an answer may be the last to have a reference to it.
TEST_F(HttpDialectTest, NothingIsReservedOnceTheServerIsShutDown) {
  const auto after = std::make_shared<std::latch>(1);
  start_with(echo_api(core_, after));
  EXPECT_EQ(post("/echo", json("hello")).status, 200);
  server_->shutdown();
  EXPECT_EQ(core_.under_way(), 0);
  EXPECT_EQ(core_.message_bytes.used(), 0);
  EXPECT_EQ(core_.gathered_bytes.used(), 0);
  after->count_down();
}

}  // namespace recurve::http_dialect_test
