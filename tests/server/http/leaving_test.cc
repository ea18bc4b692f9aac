// Clients that leave, at every point that a client can tell from another.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "tests/support/http_fixture.h"

namespace recurve::leaving_test {

using testing::HttpClient;
using testing::json;

class HttpLeaving : public testing::HttpFixture {
 protected:
  void SetUp() override { start(); }

  static std::string request(const std::string& path, const json& body) {
    const std::string text = body.dump();
    return "POST " + path +
           " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
           "Content-Type: application/json\r\nContent-Length: " +
           std::to_string(text.size()) + "\r\n\r\n" + text;
  }

  // Sends its request in pieces and reads the response line by line, and leaves after so many of
  // these steps. How many it has done.
  int ask(const std::string& request, int most) {
    constexpr size_t kPieces = 4;
    HttpClient client(server_->port());
    int done = 0;
    for (size_t p = 0; p < kPieces && done < most; ++p, ++done) {
      const size_t from = request.size() * p / kPieces, to = request.size() * (p + 1) / kPieces;
      client.send(request.substr(from, to - from));
    }
    while (done < most && !client.read_to("\r\n").empty()) ++done;
    return done;
  }

  // Several at a time, of which each is at another point.
  void leave_everywhere(const std::string& request) {
    constexpr int kRounds = 10, kAll = 1'000'000;
    const int points = ask(request, kAll);
    std::atomic<int> next = 0;
    std::vector<std::thread> clients;
    for (int c = 0; c < 4; ++c) {
      clients.emplace_back([&] {
        for (int n = next++; n < points * kRounds; n = next++) ask(request, n % points);
      });
    }
    for (std::thread& client : clients) client.join();
    HttpClient client(server_->port());
    client.send(request);
    EXPECT_EQ(client.read().status / 100, 2);
  }
};

TEST_F(HttpLeaving, StreamsOfSeveralPrompts) {
  leave_everywhere(request("/v1/completions", {{"prompt", {"ab", "cd", "ef"}}, {"stream", true}}));
}
TEST_F(HttpLeaving, AnswersInOneObject) {
  leave_everywhere(request("/v1/completions", {{"prompt", {"ab", "cd", "ef"}}}));
}
TEST_F(HttpLeaving, Responses) {
  leave_everywhere(request("/v1/responses", {{"input", "abcdef"}, {"stream", true}}));
}
TEST_F(HttpLeaving, WhatTextThreadsAnswer) {
  leave_everywhere(request("/tokenize", {{"prompt", "abcdef"}}));
}
TEST_F(HttpLeaving, WhatTheEngineAnswers) {
  engine_->answer_sessions({.sessions = {{.name = "abcdef"}}});
  leave_everywhere(request("/v1/sessions", {{"session", "abcdef"}}));
}

}  // namespace recurve::leaving_test
