// States that a client carries from request to request, over real sockets, before a fake engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/message.h"
#include "tests/support/http_fixture.h"

namespace recurve::http_carried_state_test {

using nlohmann::json;
using Kind = SessionCommand::Kind;

// A state of so many bytes, whatever it is exported from.
class FakeState final : public StateSource {
 public:
  explicit FakeState(std::string bytes) : bytes_(std::move(bytes)) {}
  uint64_t bytes() override { return bytes_.size(); }
  void read(uint64_t offset, std::span<char> to) override {
    std::ranges::copy(bytes_.substr(offset, to.size()), to.begin());
  }

 private:
  const std::string bytes_;
};

class CarriedStateTest : public testing::HttpFixture {
 protected:
  CarriedStateTest() { template_ = kOfSessions; }
  void start_with(const std::string& state) {
    start();
    served_->info.read_state = [this](std::string_view written) {
      const std::lock_guard lock(read_mutex_);
      read_ = written;
      return std::make_shared<ReadyState>();
    };
    engine_->answer_sessions({.sessions = {}, .state = std::make_shared<FakeState>(state)});
  }
  std::vector<Kind> kinds() const {
    std::vector<Kind> kinds;
    for (const SessionCommand& command : engine_->commands()) kinds.push_back(command.kind);
    return kinds;
  }
  void await_close() { await_command(Kind::kClose, engine_->commands().front().name); }
  std::string read() {
    const std::lock_guard lock(read_mutex_);
    return read_;
  }

 private:
  std::mutex read_mutex_;
  std::string read_;  // on the server's thread
};

TEST_F(CarriedStateTest, IsThatOfASessionWhileTheRequestRuns) {
  start_with("a state");
  for (json body : {completion("hi"), chat("hi")}) {
    body["return_state"] = true;
    body["state"] = "b2xk";  // "old"
    const char* path = body.contains("prompt") ? "/v1/completions" : "/v1/chat/completions";
    EXPECT_EQ(post(path, body).object()["state"], "YSBzdGF0ZQ==");
    EXPECT_EQ(read(), "old");
    const std::string session = engine_->last_request().session;
    EXPECT_EQ(session.front(), kReserved);
    await_command(Kind::kClose, session);
    body["stream"] = true;
    EXPECT_EQ(events(post(path, body).body).back()["state"], "YSBzdGF0ZQ==");
  }
}

TEST_F(CarriedStateTest, IsOpenedTakenAndClosedAsAsked) {
  start_with("s");
  json body = completion("hi");
  body["return_state"] = true;
  EXPECT_EQ(post("/v1/completions", body).object()["state"], "cw==");
  await_close();
  EXPECT_EQ(kinds(), (std::vector{Kind::kOpen, Kind::kExport, Kind::kClose}));
  EXPECT_FALSE(post("/v1/completions", completion("hi")).object().contains("state"));
  EXPECT_EQ(kinds().size(), 3u);
  engine_->answer_sessions({.reason = EndReason::kExhausted, .message = "no capacity"});
  EXPECT_EQ(post("/v1/completions", body).status, 429);
}

TEST_F(CarriedStateTest, ATooLargeOneIsRefused) {
  const int64_t most = core_.options.max_gathered_bytes / 10;
  start_with(std::string(static_cast<size_t>(most) + 1, 's'));
  json body = completion("hi");
  body["return_state"] = true;
  auto got = post("/v1/completions", body);  // known when it is there, as that of a text that grows
  EXPECT_EQ(got.status, 400);
  EXPECT_EQ(got.object()["error"]["param"], "return_state");
  await_close();
  const size_t commands = kinds().size();
  served_->info.state_bytes = most + 1;  // known before anything is computed
  EXPECT_EQ(post("/v1/completions", body).status, 400);
  EXPECT_EQ(kinds().size(), commands);
}

TEST_F(CarriedStateTest, WhatCannotHaveOneIsRefusedByName) {
  start_with("s");
  const auto refuse = [&](const char* field, const json& fields) {
    json body = completion("hi");
    body.update(fields);
    const auto got = post("/v1/completions", body);
    EXPECT_EQ(got.status, 400) << got.body;
    EXPECT_EQ(got.object()["error"]["param"], field) << got.body;
  };
  refuse("return_state", {{"return_state", true}, {"n", 2}});
  refuse("return_state", {{"return_state", true}, {"prompt", {"a", "b"}}});
  refuse("return_state", {{"return_state", true}, {"session", "s"}});
  refuse("echo", {{"return_state", true}, {"echo", true}});
  refuse("return_state", {{"return_state", 1}});
  for (const json& state :
       {json(5), json("a"), json("a==="), json("ab=c"), json("a\nbc"), json("=")}) {
    refuse("state", {{"state", state}});
  }
  EXPECT_TRUE(engine_->commands().empty());
  EXPECT_EQ(post("/v1/responses", {{"input", "a"}, {"return_state", true}}).status, 400);
  EXPECT_EQ(post("/v1/messages",
                 {{"messages", chat("a")["messages"]}, {"max_tokens", 4}, {"state", "YQ=="}})
                .status,
            400);
}

}  // namespace recurve::http_carried_state_test
