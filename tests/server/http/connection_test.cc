// What clients do on the wire, well and badly, before a fake engine.
#include "server/http/connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/engine/fake_engine.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/http_client.h"
#include "tests/support/http_fixture.h"

namespace recurve::http_connection_test {

using Client = testing::HttpClient;
using nlohmann::json;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kHost = "Host: localhost\r\n";
const std::string kJson = "Content-Type: application/json\r\n";
const std::string kPost = "POST /v1/completions HTTP/1.1\r\n" + kHost + kJson;
const std::string kChunked = kPost + "Transfer-Encoding: chunked\r\n\r\n";

class HttpConnection : public ::testing::Test {
 protected:
  void start(HttpOptions http = {}, FakeEngine::Options options = {}, ServerCoreOptions of = {}) {
    core_ = std::make_unique<ServerCore>(of, ServedModels{served_}, metrics_);
    engine_.emplace(queue_, std::move(options));
    http.listen = "127.0.0.1:0";
    server_.emplace(http, testing::http_apis(*core_), *core_, connections_);
    core_->serve(*served_, std::make_shared<FakeTokenizer>(),
                 {.model_name = "fake",
                  .vocab_rows = FakeTokenizer::kSize,
                  .state_bytes = 1234,
                  .tokens = {.bos = FakeTokenizer::kBos, .eos = {FakeTokenizer::kEos}},
                  .slots = 8},
                 {});
  }
  // An engine that has much to say.
  static FakeEngine::Options talkative() {
    return {.step = std::chrono::microseconds(100), .script = [](const Request&) {
              return FakeEngine::Play{{std::vector<int32_t>(1'000'000, 'a')}};
            }};
  }
  void TearDown() override {
    if (!server_) return;
    server_->shutdown();
    EXPECT_EQ(core_->under_way(), 0);
    EXPECT_EQ(core_->message_bytes.used(), 0);
    engine_.reset();
  }
  int port() const { return server_->port(); }

  static std::string completion(bool stream = false, int max_tokens = 16) {
    return json{{"prompt", "hello"}, {"stream", stream}, {"max_tokens", max_tokens}}.dump();
  }
  static std::string sized(const std::string& body) {
    return "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  // Everything that the server says to it, until it closes.
  std::string all(const std::string& bytes) {
    Client client(port());
    client.send(bytes);
    return client.read_to("nothing like this comes");
  }
  Client::Response get(const std::string& path, const std::string& headers = kHost) {
    Client client(port());
    client.get(path, headers);
    return client.read();
  }
  bool wait_until_empty() {
    return core_->registry.wait_until_empty(Clock::now() + std::chrono::minutes(1));
  }

  Metrics metrics_;
  const std::shared_ptr<ServedModel> served_ = std::make_shared<ServedModel>(16);
  AdmissionQueue& queue_ = served_->queue;
  Connections connections_{{.in_all = 1000, .by_network = 1000}};
  std::unique_ptr<ServerCore> core_;
  std::optional<FakeEngine> engine_;
  std::optional<HttpServer> server_;
};

TEST_F(HttpConnection, OfHttp10AnAnswerEndsWithItsConnection) {
  start();
  const std::string post = "POST /v1/completions HTTP/1.0\r\n" + kJson;  // without a Host
  EXPECT_THAT(all("GET /health HTTP/1.0\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Connection: close")));
  EXPECT_THAT(all(post + sized(completion())),
              AllOf(HasSubstr("Content-Length: "), HasSubstr(R"("text":"hello")")));
  const std::string stream = all(post + sized(completion(true)));
  EXPECT_THAT(stream, AllOf(HasSubstr("text/event-stream"), Not(HasSubstr("chunked")),
                            HasSubstr("Connection: close"), HasSubstr("\r\n\r\ndata: {")));
  EXPECT_TRUE(stream.ends_with("}\n\ndata: [DONE]\n\n")) << stream;
  EXPECT_THAT(all(post + "Connection: keep-alive\r\n" + sized(completion(true))),
              HasSubstr("Connection: close"))
      << "a stream has no other end";

  Client keeps(port());
  for (int i = 0; i < 3; ++i) {
    keeps.send("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    const auto got = keeps.read();
    EXPECT_EQ(got.status, 200);
    EXPECT_THAT(got.head, HasSubstr("Connection: keep-alive"));
  }
}

TEST_F(HttpConnection, AHeadIsAllThatHeadGets) {
  start();
  Client client(port());
  client.send("HEAD /v1/models HTTP/1.1\r\n" + kHost + "\r\nHEAD / HTTP/1.1\r\n" + kHost + "\r\n");
  for (int i = 0; i < 2; ++i) {
    const std::string head = client.read_to("\r\n\r\n");
    EXPECT_THAT(head, AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("Content-Length: ")));
    EXPECT_THAT(head, Not(HasSubstr("Content-Length: 0\r\n")));
  }
  client.get("/health");
  EXPECT_EQ(client.read().body, R"({"status":"ok"})") << "nothing came in between";
}

TEST_F(HttpConnection, OptionsSayWhatThereIs) {
  start();
  Client client(port());
  client.send("OPTIONS /v1/completions HTTP/1.1\r\n" + kHost + "\r\n");
  const std::string options = client.read_to("\r\n\r\n");
  EXPECT_THAT(options, AllOf(StartsWith("HTTP/1.1 204"), HasSubstr("Allow: POST\r\n"),
                             Not(HasSubstr("Access-Control")), Not(HasSubstr("Content-Length"))));
  client.send("OPTIONS /nothing HTTP/1.1\r\n" + kHost + "\r\n");
  EXPECT_EQ(client.read().status, 404);
}

// A browser shows a page of elsewhere an answer that says so, and asks before it sends JSON.
TEST_F(HttpConnection, PagesOfAnAllowedOriginCanUseIt) {
  start({.origins = {"https://ui.example"}});
  const std::string origin = "Origin: https://ui.example\r\n";
  Client client(port());
  client.send("OPTIONS /v1/completions HTTP/1.1\r\n" + kHost + origin +
              "Access-Control-Request-Method: POST\r\n\r\n");
  EXPECT_THAT(client.read_to("\r\n\r\n"),
              AllOf(HasSubstr("Access-Control-Allow-Origin: https://ui.example\r\n"),
                    HasSubstr("Access-Control-Allow-Methods: POST\r\n"),
                    HasSubstr("Access-Control-Allow-Headers: ")));
  for (const bool stream : {false, true}) {
    client.send(kPost + origin + sized(completion(stream)));
    const auto got = client.read();
    EXPECT_EQ(got.status, 200);
    EXPECT_THAT(got.head, HasSubstr("Access-Control-Allow-Origin: https://ui.example\r\n"));
  }
  EXPECT_EQ(get("/health", kHost + "Origin: https://other.example\r\n").status, 403);
}

TEST_F(HttpConnection, WhatCouldBeReadInTwoWaysIsRefused) {
  start();
  const auto refused = [&](const std::string& bytes, int status) {
    const std::string said = all(bytes);
    EXPECT_THAT(said, StartsWith("HTTP/1.1 " + std::to_string(status))) << bytes;
    EXPECT_THAT(said, Not(HasSubstr("HTTP/1.1 200"))) << "nothing behind it is a request";
  };
  const std::string next = "GET /health HTTP/1.1\r\n" + kHost + "\r\n";
  refused(kPost + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + next, 400);
  refused(kPost + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + next, 400);
  refused(kPost + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + next, 400);
  refused(kPost + "Content-Length: -1\r\n\r\n" + next, 400);
  refused(kPost + "Content-Length: 99999999999999999999999\r\n\r\n" + next, 400);
  refused(kChunked + "zz\r\n" + next, 400);
  refused("GET /health HTTP/1.1\r\n" + kHost + kHost + "\r\n" + next, 400);
  refused("GET /health HTTP/1.1\r\n\r\n" + next, 400);
  refused("GET /health HTTP/2.0\r\n" + kHost + "\r\n" + next, 400);
  refused("GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n" + next, 400);
  for (const char* encoding : {"xchunked", "chunked, identity", "gzip", "\"chunked\"", "",
                               "identity", "gzip, chunked", "chunked;q=1", "chunked,"}) {
    const std::string field = std::string("Transfer-Encoding: ") + encoding + "\r\n";
    refused(kPost + field + "\r\n" + next, 400);
    refused(kPost + field + "Content-Length: 0\r\n\r\n" + next, 400);
    refused("GET /health HTTP/1.1\r\n" + kHost + field + "\r\n" + next, 400);
  }
  const std::string encodings = "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n";
  refused(kPost + encodings + "\r\n0\r\n\r\n" + next, 400);
  refused(
      "GET /health HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: "
      "chunked\r\n\r\n0\r\n\r\n" +
          next,
      400);
  for (const std::string twice :
       {"Authorization: Bearer a\r\n", "x-recurve-session: a\r\n", "Origin: http://localhost\r\n",
        "x-request-id: a\r\n", "x-recurve-timeout-ms: 100\r\n"}) {
    refused("GET /health HTTP/1.1\r\n" + kHost + twice + twice + "\r\n" + next, 400);
  }
  refused(kPost + kJson + sized(completion()) + next, 400);
  refused("GET http://127.0.0.1/health HTTP/1.1\r\n" + kHost + "\r\n" + next, 400);
}

TEST_F(HttpConnection, WhatComesBehindABodyIsNoFieldOfTheHead) {
  start();
  const std::string body = completion();
  const std::string said = all(kPost + "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" +
                               fmt::format("{:x}\r\n{}\r\n0\r\n", body.size(), body) +
                               "x-request-id: forged\r\nx-recurve-session: forged\r\n\r\n");
  EXPECT_THAT(said, AllOf(StartsWith("HTTP/1.1 200"), Not(HasSubstr("forged"))));
  EXPECT_EQ(engine_->last_request().session, "");
}

TEST_F(HttpConnection, AChunkedBodyIsReadInAnyCase) {
  start();
  for (const char* chunked : {"chunked", "Chunked", " chunked "}) {
    Client client(port());
    const std::string body = completion();
    client.send(kPost + "Transfer-Encoding: " + chunked + "\r\n\r\n" +
                fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", body.size(), body));
    EXPECT_EQ(client.read().status, 200) << chunked;
  }
}

TEST_F(HttpConnection, AProxyMaySendTheWholeAddress) {
  start();
  EXPECT_EQ(get("http://localhost/health").status, 200);
  EXPECT_EQ(get("/health?deep=1").status, 200);
  EXPECT_EQ(get("http://evil.example/health", "Host: evil.example\r\n").status, 403);
  Client client(port());
  client.send("GET http://evil.example/health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.read().status, 403) << "the target's host is what was asked";
}

TEST_F(HttpConnection, ABodyThatNeverEndsIsRefused) {
  start({.max_body_bytes = 100'000});
  const auto flood = [&](const std::string& head, const std::string& again) {
    Client client(port());
    client.send(head);
    for (int64_t sent = 0; sent < (int64_t{8} << 20); sent += static_cast<int64_t>(again.size())) {
      if (!client.try_send(again)) break;
    }
    return client.read().status;
  };
  EXPECT_EQ(flood(kChunked, "3e8\r\n" + std::string(1000, 'x') + "\r\n"), 413);
  EXPECT_EQ(flood(kChunked + "5;", std::string(1000, 'x')), 431) << "one extension without an end";
  EXPECT_EQ(flood(kChunked + "0\r\n", "x: " + std::string(1000, 'x') + "\r\n"), 431) << "trailers";
  EXPECT_EQ(flood("GET /", std::string(1000, 'x')), 431);
  EXPECT_EQ(flood("GET /health HTTP/1.1\r\n" + kHost, "a: b\r\n"), 431);
}

TEST_F(HttpConnection, WhoTakesTooLongIsClosed) {
  start({.times = {.head = milliseconds(200),
                   .body = milliseconds(200),
                   .idle = milliseconds(200),
                   .linger = milliseconds(200)}});
  const auto closed_after = [&](const std::string& bytes) {
    const auto began = Clock::now();
    const std::string said = all(bytes);
    EXPECT_LT(Clock::now() - began, std::chrono::seconds(20)) << bytes;
    return said;
  };
  EXPECT_EQ(closed_after(""), "");
  EXPECT_EQ(closed_after("GET /health HT"), "");
  EXPECT_EQ(closed_after(kPost + "Content-Length: 10\r\n\r\n{"), "");
  EXPECT_THAT(closed_after("GET /health HTTP/1.1\r\n" + kHost + "\r\n"), HasSubstr("200 OK"));
  EXPECT_THAT(closed_after("GET /nothing HTTP/1.1\r\n" + kHost + "\r\n"), HasSubstr("404"));

  // A byte now and then is no reason to wait on, not even in a second request.
  Client trickle(port());
  trickle.get("/health");
  EXPECT_EQ(trickle.read().status, 200);
  const auto began = Clock::now();
  while (trickle.try_send("G") && Clock::now() - began < std::chrono::seconds(30)) {
    std::this_thread::sleep_for(milliseconds(5));  // which is what is tried
  }
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(20));
}

TEST_F(HttpConnection, HalfARequestDoesNotKeepTheOthersOut) {
  start();
  std::vector<Client> half;
  for (int i = 0; i < 300; ++i) {
    half.emplace_back(port());
    half.back().send(i % 2 ? "GET /health HTT" : kPost + "Content-Length: 100\r\n\r\n{");
  }
  EXPECT_EQ(get("/health").status, 200);
}

TEST_F(HttpConnection, BodiesOnTheirWayAreCounted) {
  start({}, {}, {.max_bytes_under_way = 1 << 20});
  std::vector<Client> slow;
  for (int i = 0; i < 3; ++i) {  // each counts as 256 KiB
    slow.emplace_back(port());
    slow.back().send(kPost + "Content-Length: 1000000\r\n\r\n" + std::string(200'000, ' '));
  }
  while (core_->message_bytes.used() < 3 << 18) std::this_thread::yield();
  Client client(port());
  client.send(kPost + "Content-Length: 300000\r\n\r\n" + std::string(300'000, ' '));
  const auto refused = client.read();
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("try again later"));
  client = Client(port());
  client.send(kPost + sized(completion()));
  EXPECT_EQ(client.read().status, 200) << "there is room for a small one";
  slow.clear();
  while (core_->message_bytes.used() > 0) std::this_thread::yield();
}

// Of two text threads one is kept free of long prompts, whose sizes are known from their bodies.
TEST_F(HttpConnection, LongPromptsDoNotKeepShortOnesWaiting) {
  static std::latch* gate;
  std::latch opens(1);
  gate = &opens;
  FakeTokenizer::before_push = [](std::string_view text) {
    if (text.starts_with('l')) gate->wait();
  };
  start({}, {}, {.text_threads = 2});
  const std::string long_one =
      json{{"prompt", std::string(200'000, 'l')}, {"max_tokens", 1}}.dump();
  std::vector<Client> slow;
  for (int i = 0; i < 3; ++i) {
    slow.emplace_back(port());
    slow.back().send(kPost + sized(long_one));
  }
  while (core_->message_bytes.used() < 600'000) std::this_thread::yield();
  for (int i = 0; i < 20 && !HasFailure(); ++i) {
    Client client(port());
    client.send(kPost + sized(completion()));
    EXPECT_EQ(client.read().status, 200) << i;
  }
  opens.count_down();
  for (Client& client : slow) EXPECT_EQ(client.read().status, 200);
  FakeTokenizer::before_push = nullptr;
}

TEST_F(HttpConnection, ARequestUnderWayIsCountedOnce) {
  start({}, talkative());
  Client client(port());
  client.send(kPost + sized(completion(true, 1'000'000)));
  client.read_to("data: {");
  EXPECT_EQ(core_->under_way(), 1);
  EXPECT_GT(core_->message_bytes.used(), 0);
}

// It may be a client that has gone: of the two, only sending to it would tell.
TEST_F(HttpConnection, WhoClosesItsSideIsGone) {
  start({}, talkative());
  for (const bool stream : {false, true}) {
    Client client(port());
    client.send(kPost + sized(completion(stream, 1'000'000)));
    while (engine_->running() == 0) std::this_thread::yield();
    client.close_half();
    EXPECT_TRUE(wait_until_empty());
    while (engine_->running() > 0) std::this_thread::yield();  // or the next is taken for begun
  }
  EXPECT_EQ(engine_->cancelled(), 2);
  Client client(port());
  client.get("/health");
  client.close_half();
  EXPECT_EQ(client.read().status, 200) << "what is known at once is said";
}

TEST_F(HttpConnection, WhoHasSentNextRequestsIsMissedTooWhenItGoes) {
  start({}, talkative());
  Client client(port());
  client.send(kPost + sized(completion(false, 1'000'000)));
  while (engine_->running() == 0) std::this_thread::yield();
  client.send(kPost + sized(completion(false, 1'000'000)));
  client.leave();
  EXPECT_TRUE(wait_until_empty());
  EXPECT_EQ(engine_->cancelled(), 1) << "the second never began";
}

TEST_F(HttpConnection, AClientMaySayHowLongAnAnswerMayTake) {
  start({}, talkative());
  const auto ask = [&](const std::string& milliseconds, bool stream) {
    Client client(port());
    client.post("/v1/completions", json::parse(completion(stream, 1'000'000)),
                "x-recurve-timeout-ms: " + milliseconds + "\r\n");
    return client.read();
  };
  const auto whole = ask("50", false);
  EXPECT_EQ(whole.status, 504);
  EXPECT_THAT(whole.body, HasSubstr("deadline"));
  const auto stream = ask("50", true);
  EXPECT_EQ(stream.status, 200);
  EXPECT_THAT(stream.body, AllOf(HasSubstr("504"), HasSubstr("data: [DONE]\n\n")));
  EXPECT_TRUE(wait_until_empty());
  for (const char* wrong : {"0", "-5", "soon", "1.5", "1000000001"}) {
    const auto refused = ask(wrong, false);
    EXPECT_EQ(refused.status, 400) << wrong;
    EXPECT_EQ(refused.object()["error"]["param"], "x-recurve-timeout-ms") << wrong;
  }
}

TEST_F(HttpConnection, AReaderThatStandsStillIsCutOff) {
  start(
      {},
      {.script =
           [](const Request&) { return FakeEngine::Play{{std::vector<int32_t>(4'000'000, 'a')}}; }},
      {.stall_seconds = 0.3, .max_generated_tokens = 1 << 30});
  Client still(port(), 4096);
  still.send(kPost + sized(completion(true, 4'000'000)));
  while (engine_->running() == 0) std::this_thread::yield();
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_TRUE(wait_until_empty());
  while (engine_->running() > 0) std::this_thread::yield();
}

// Proxies cut what says nothing for long: also before a slot is free, and during a long prompt.
TEST_F(HttpConnection, AStreamThatIsSilentHasComments) {
  start({.times = {.silence = milliseconds(20)}});
  engine_->hold(true);
  Client client(port());
  client.send(kPost + sized(completion(true)));
  const std::string head = client.read_to("\r\n\r\n");
  EXPECT_THAT(head, AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("text/event-stream")));
  for (int comments = 0; comments < 3; ++comments) {
    EXPECT_EQ(client.read_to("\n\n\r\n"), "b\r\n: waiting\n\n\r\n");
  }
  Client whole(port());
  whole.send(kPost + sized(completion(false)));
  while (queue_.waiting() + engine_->running() < 1) std::this_thread::yield();
  engine_->hold(false);
  const std::string rest = client.read_to("0\r\n\r\n");
  EXPECT_THAT(rest, AllOf(HasSubstr("\r\ndata: {"), HasSubstr("data: [DONE]\n\n")));
  EXPECT_THAT(whole.read().body, HasSubstr("\"text\":\"hello\"")) << "one object has no comments";
}

// An answer may come to its end between a client's going and the failure of what is on its way.
TEST_F(HttpConnection, WhoGoesWhileBytesAreOnTheirWayIsMissed) {
  start({}, talkative());
  for (int round = 0; round < 20; ++round) {
    std::vector<Client> clients;
    for (int c = 0; c < 8; ++c) {
      clients.emplace_back(port());
      clients.back().send(kPost + sized(completion(true, 1'000'000)));
    }
    for (Client& client : clients) client.read_to("data: ");
    clients.clear();
    ASSERT_TRUE(wait_until_empty()) << round;
  }
}

TEST_F(HttpConnection, TheMetricsHaveAListenerWithNothingElse) {
  start();
  metrics_.add_generated_tokens(42);
  Connections scrapers({.in_all = 4, .by_network = 4});
  HttpServer listener({.listen = "127.0.0.1:0", .origins = {"*"}}, {server_api(*core_)}, *core_,
                      scrapers);
  const auto status = [&](const std::string& path) {
    Client client(listener.port());
    client.get(path, "Host: metrics.example\r\n");
    return client.read();
  };
  const auto got = status("/metrics");
  EXPECT_EQ(got.status, 200);
  EXPECT_THAT(got.head, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(got.body, HasSubstr("\nrecurve_generated_tokens_total 42\n"));
  EXPECT_EQ(status("/health").status, 200);
  for (const char* other : {"/", "/v1/models", "/v1/load", "/v1/completions", "/page/app.js"}) {
    EXPECT_EQ(status(other).status, 404) << other;
  }
  EXPECT_THAT(get("/metrics").body, HasSubstr("\nrecurve_generated_tokens_total 42\n"));
}

TEST_F(HttpConnection, TheLoadIsTheEngines) {
  start();
  served_->stats.publish(
      {.running = 3, .slots = 8, .sessions = 5, .responses = 4, .generated_tokens = 77});
  const json load = get("/v1/load").object();
  EXPECT_EQ(load["object"], "load");
  EXPECT_EQ(load["model"], "fake");
  EXPECT_EQ(load["state_bytes"], 1234);
  EXPECT_EQ(load["chat"], false);
  EXPECT_EQ(load["slots"]["running"], 3);
  EXPECT_EQ(load["slots"]["total"], 8);
  EXPECT_EQ(load["sessions"]["total"], 5);
  EXPECT_EQ(load["sessions"]["responses"], 4);
  EXPECT_EQ(load["generated_tokens"], 77);
  EXPECT_EQ(load["max_queue"], 16);
}

TEST_F(HttpConnection, ThePageUsesNoOtherServer) {
  start();
  const auto page = get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.head, AllOf(HasSubstr("Content-Type: text/html"),
                               HasSubstr("Content-Security-Policy: default-src 'none'; "),
                               HasSubstr("frame-ancestors 'none'")));
  EXPECT_THAT(page.head, Not(HasSubstr("unsafe")));
  EXPECT_THAT(page.body, StartsWith("<!doctype html>"));
  EXPECT_THAT(get("/page/app.js").head, HasSubstr("Content-Type: text/javascript"));
  EXPECT_EQ(get("/page/none.js").status, 404);
  EXPECT_EQ(get("/page/../page.cc").status, 404);
  EXPECT_THAT(get("/page/marked.min.js").body, HasSubstr("MIT Licensed"));
  for (const PageFile& file : kPageFiles) {
    const std::string path = "/page/" + std::string(file.name);
    const auto got = get(path);
    EXPECT_EQ(got.status, 200) << path;
    EXPECT_EQ(got.body, file.content);
    // The namespace of a picture is an address, and the library has that of its project.
    if (file.name.ends_with(".svg") || file.name == "marked.min.js") continue;
    EXPECT_THAT(got.body, Not(HasSubstr("://"))) << path;
    const size_t tag = got.head.find("ETag: ") + 6;
    const std::string etag = got.head.substr(tag, got.head.find("\r\n", tag) - tag);
    Client again(port());
    again.get(path, kHost + "If-None-Match: " + etag + "\r\n");
    EXPECT_THAT(again.read_to("\r\n\r\n"), StartsWith("HTTP/1.1 304"));
  }
}

TEST_F(HttpConnection, ThePageCanBeLeftOut) {
  start();
  HttpServer bare({.listen = "127.0.0.1:0"}, {server_api(*core_)}, *core_, connections_);
  const auto get = [&](const std::string& path) {
    Client client(bare.port());
    client.get(path);
    return client.read();
  };
  EXPECT_EQ(get("/").status, 404);
  EXPECT_EQ(get("/page/app.js").status, 404);
  EXPECT_EQ(get("/health").status, 200);
}

}  // namespace recurve::http_connection_test
