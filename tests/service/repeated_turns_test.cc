// Turns of durable sessions that the C++ client repeats, because their answers were lost: the
// session has each of them once.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "tests/clients/relay.h"
#include "tests/support/generate_outcome.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::repeated_turns_test {

// A server whose answers pass a relay.
class RepeatedTurnsTest : public ::testing::Test {
 protected:
  RepeatedTurnsTest()
      : server_({"--model", std::string(RECURVE_SOURCE_DIR) + "/weights_tools/demo/xlstm-books",
                 "--threads", "1", "--state-dir", (dir_ / "states").string()}),
        direct_(server_.address()),
        relay_(std::stoi(server_.address().substr(server_.address().rfind(':') + 1))),
        client_(relay_.address()) {}

  v1::GenerateRequest turn(const std::string& session) {
    v1::OpenSessionRequest open;
    open.set_name(session);
    open.set_durability(v1::DURABILITY_LOCAL);
    direct_.open_session(open);
    v1::GenerateRequest request = generate_request("Once upon a time", tokens_, 3);
    request.mutable_sampling()->set_temperature(1);
    request.set_session(session);
    return request;
  }
  // The whole answer, through the relay; on_first is called at its first token.
  template <class F>
  v1::GenerateFinal ask(const v1::GenerateRequest& request, F&& on_first) {
    ids_.clear();
    bool first = true;
    return client_.generate_turn(
        request,
        [&](const v1::GenerateResponse& response) {
          for (const int32_t id : response.chunk().ids()) ids_.push_back(id);
          if (response.has_chunk() && std::exchange(first, false)) on_first();
        },
        [&] {
          ++restarts_;
          ids_.clear();
        });
  }
  void wait_for_commit(const std::string& session) {
    while (direct_.get_session(session).commit().number() < 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  std::vector<int32_t> expected() {
    std::vector<int32_t> ids;
    direct_.generate(turn("expected"), [&](const v1::GenerateResponse& response) {
      for (const int32_t id : response.chunk().ids()) ids.push_back(id);
    });
    return ids;
  }
  void expect_one_turn(const std::string& session, const v1::GenerateFinal& final) {
    EXPECT_EQ(ids_, expected());
    EXPECT_EQ(restarts_, 1);
    const v1::Session now = direct_.get_session(session);
    EXPECT_EQ(now.commit().number(), 2u);  // 1: its opening
    EXPECT_EQ(now.position(), final.usage().session_position());
    EXPECT_EQ(now.position(), direct_.get_session("expected").position());
  }

  const TempDir dir_;
  ServerProcess server_;
  Client direct_;
  Relay relay_;
  Client client_;
  std::vector<int32_t> ids_;
  int restarts_ = 0;
  int tokens_ = 0;
};

TEST_F(RepeatedTurnsTest, AnAnswerThatIsLostAfterItsCommitIsTheRecordedOne) {
  tokens_ = 1000;  // more bytes than the relay passes
  relay_.hold_after(4096);
  const auto final = ask(turn("s"), [&] {
    wait_for_commit("s");
    relay_.drop();
  });
  EXPECT_TRUE(final.recorded());
  expect_one_turn("s", final);
}

TEST_F(RepeatedTurnsTest, AnAnswerThatIsLostBeforeItsCommitIsComputedAgain) {
  tokens_ = 3000;  // they take far longer than the first one needs to come here
  const auto final = ask(turn("s"), [&] { relay_.drop(); });
  EXPECT_FALSE(final.recorded());
  expect_one_turn("s", final);
}

}  // namespace recurve::testing::repeated_turns_test
