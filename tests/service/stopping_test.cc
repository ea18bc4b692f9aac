// How the server stops: by signals, by Drain, and by both.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/support/generate_outcome.h"
#include "tests/support/server_process.h"

namespace recurve::testing::stopping_test {

using std::chrono::seconds;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

const std::string kModel = std::string(RECURVE_SOURCE_DIR) + "/weights_tools/demo/xlstm-books";

// A server that is generating an answer of so many tokens.
class StoppingTest : public ::testing::Test {
 protected:
  void start(int tokens, const std::string& drain_seconds = "60") {
    server_.emplace(std::vector<std::string>{"--model", kModel, "--slots", "2", "--drain-seconds",
                                             drain_seconds});
    address_ = server_->address();
    stub_ = v1::Inference::NewStub(own_channel(address_));
    std::promise<void> begun;
    auto is_under_way = begun.get_future();
    outcome_ = std::async(std::launch::async, [this, tokens, begun = std::move(begun)]() mutable {
      grpc::ClientContext context;
      bool first = true;
      return generate(*stub_, generate_request("It was", tokens), context, [&](const auto&) {
        if (std::exchange(first, false)) begun.set_value();
      });
    });
    is_under_way.wait();
  }
  void drain(double within) { EXPECT_EQ(Client(address_).drain(within).requests_under_way(), 1); }
  bool says_now(const std::string& text) const {
    return server_->log().find(text) != std::string::npos;
  }
  // Waits until the server's log has such a line.
  bool says(const std::string& text) {
    return comes_true([&] { return says_now(text); }, seconds(20));
  }
  // Signals within StopSignal::kSameStop of the first one have no effect.
  int repeat_until_it_ends(int signal) {
    EXPECT_TRUE(comes_true(
        [&] {
          server_->signal(signal);
          return says_now("second signal");
        },
        seconds(20)));
    return server_->wait_for(seconds(20));
  }
  void expect_whole(int tokens) {
    const Outcome outcome = outcome_.get();
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_TRUE(outcome.proper());
    EXPECT_EQ(outcome.ids.size(), static_cast<size_t>(tokens));
  }
  void expect_cut() {
    EXPECT_EQ(outcome_.get().status.error_code(), grpc::StatusCode::UNAVAILABLE);
  }

  static constexpr int kSome = 500, kEndless = 1'000'000;

  std::optional<ServerProcess> server_;
  std::string address_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::future<Outcome> outcome_;
};

TEST_F(StoppingTest, SigtermFinishesRequests) {
  start(kSome);
  server_->signal(SIGTERM);
  expect_whole(kSome);
  EXPECT_EQ(server_->wait_for(seconds(20)), 0) << server_->log();
}

TEST_F(StoppingTest, SigtermEndsRequestsAtItsLimit) {
  start(kEndless, "0.2");
  server_->signal(SIGTERM);
  expect_cut();
  EXPECT_EQ(server_->wait_for(seconds(20)), 0) << server_->log();
}

// A preStop hook calls Drain, and then the orchestrator sends SIGTERM.
TEST_F(StoppingTest, SigtermAfterADrainCutsNothing) {
  start(kSome);
  drain(60);
  ASSERT_TRUE(says("event=draining"));
  server_->signal(SIGTERM);
  EXPECT_TRUE(says("event=signal"));
  expect_whole(kSome);
  EXPECT_EQ(server_->wait_for(seconds(20)), 0) << server_->log();
}

TEST_F(StoppingTest, SigtermAfterADrainKeepsItsDeadline) {
  start(kEndless, "0.1");
  drain(1);
  const auto drained = Clock::now();
  ASSERT_TRUE(says("event=draining"));
  server_->signal(SIGTERM);
  expect_cut();
  EXPECT_GE(Clock::now() - drained, std::chrono::milliseconds(800));
  EXPECT_EQ(server_->wait_for(seconds(20)), 0) << server_->log();
}

TEST_F(StoppingTest, ASecondDrainBringsTheDeadlineForward) {
  start(kEndless);
  drain(60);
  ASSERT_TRUE(says("event=draining"));
  const auto drained = Clock::now();
  drain(0.1);
  expect_cut();
  EXPECT_LT(Clock::now() - drained, seconds(30));
  EXPECT_EQ(server_->wait_for(seconds(20)), 0) << server_->log();
}

TEST_F(StoppingTest, ASecondDrainDoesNotPostponeTheDeadline) {
  start(kEndless);
  drain(1);
  ASSERT_TRUE(says("event=draining"));
  drain(3600);
  expect_cut();
  EXPECT_EQ(server_->wait_for(seconds(20)), 0) << server_->log();
}

TEST_F(StoppingTest, ADrainBringsTheDeadlineOfASignalForward) {
  start(kEndless);
  server_->signal(SIGTERM);
  ASSERT_TRUE(says("event=draining"));
  const auto drained = Clock::now();
  drain(0.1);
  expect_cut();
  EXPECT_LT(Clock::now() - drained, seconds(30));
  EXPECT_EQ(server_->wait_for(seconds(20)), 0) << server_->log();
}

// A process manager may signal a process and then its group, which is one stop.
TEST_F(StoppingTest, AStopThatIsDeliveredTwiceIsOneSignal) {
  for (const int second : {SIGTERM, SIGINT}) {
    start(kSome);
    server_->signal(SIGTERM);
    ASSERT_TRUE(says("event=draining"));
    server_->signal(second);
    expect_whole(kSome);
    EXPECT_EQ(server_->wait_for(seconds(20)), 0) << server_->log();
  }
}

TEST_F(StoppingTest, ASecondSignalEndsAtOnceWithASentence) {
  for (const int second : {SIGTERM, SIGINT}) {
    start(kEndless);
    server_->signal(SIGTERM);
    ASSERT_TRUE(says("event=draining"));
    EXPECT_EQ(repeat_until_it_ends(second), 128 + second);
    EXPECT_THAT(server_->log(), HasSubstr("recurve-server: second signal: exiting now"));
    expect_cut();
  }
}

TEST_F(StoppingTest, ASecondSignalAfterADrainEndsAtOnce) {
  start(kEndless);
  drain(60);
  ASSERT_TRUE(says("event=draining"));
  server_->signal(SIGINT);
  ASSERT_TRUE(says("event=signal"));
  EXPECT_EQ(repeat_until_it_ends(SIGTERM), 128 + SIGTERM);
  expect_cut();
}

TEST_F(StoppingTest, SighupChangesNothing) {
  start(kSome);
  server_->signal(SIGHUP);
  expect_whole(kSome);
  EXPECT_EQ(Client(address_).server_info().state(), v1::SERVER_STATE_SERVING);
  EXPECT_EQ(server_->stop(), 0) << server_->log();
}

}  // namespace recurve::testing::stopping_test
