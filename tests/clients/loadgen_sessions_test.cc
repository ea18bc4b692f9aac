// Conversations of the load generator: forks, and turns that share a session.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/clients/loadgen_run.h"

namespace recurve::loadgen::loadgen_sessions_test {

using std::chrono::milliseconds;
using testing::ask;
using testing::FakeServer;
using testing::GenerateWriter;
using ::testing::IsEmpty;
using testing::kSlack;
using testing::options_for;
using testing::run_once;
using testing::run_test;
using testing::ScriptedAnswers;

TEST(LoadgenSessionsTest, ForksAreOneRequestWithTheSlowestAnswersTpot) {
  ScriptedAnswers answers(milliseconds(20), milliseconds(10));
  FakeServer server;  // last: its threads use the others
  server.inference.set_on_generate(ask(answers));
  Options options = options_for(server, 0, 1);
  options.streams = 1;
  options.workload.forks = 3;
  const Report report = run_test(options);
  EXPECT_EQ(server.inference.generate_requests()[0].n(), 3);
  const Trial& trial = report.trials[0];
  EXPECT_NEAR(token_rate(trial) / request_rate(trial), 15, 3);
  EXPECT_NEAR(trial.result.records.tpot.quantile(0.5), answers.tpot(0.5), kSlack / 4);
  options.workload.forks = 17;
  EXPECT_THROW(run_test(options), std::invalid_argument);  // over the server's limit
}

TEST(LoadgenSessionsTest, TurnsShareASessionThinkAndCloseIt) {
  FakeServer server;
  Options options = options_for(server, 0, 1);
  options.streams = 2;
  options.workload.turns = 3;
  options.workload.think_seconds = Distribution(0.1);
  size_t asked_before = 0;
  int opened_before = 0;
  const Report report = run_test(options, [&] {
    asked_before = server.inference.generate_requests().size();
    opened_before = server.sessions.opened();
  });
  const auto requests = server.inference.generate_requests();
  for (const auto& request : requests) EXPECT_NE(request.session(), "");
  // Three requests a session, but for the two that the end of the run cut off.
  const auto opened = static_cast<size_t>(server.sessions.opened() - opened_before);
  const size_t asked = requests.size() - asked_before;
  EXPECT_GE(opened, 4u);
  EXPECT_LE(asked, 3 * opened);
  EXPECT_GE(asked + 2 * 3, 3 * opened);
  EXPECT_THAT(server.sessions.sessions(), IsEmpty());
  // 2 users, 3 turns in at least 0.2 s.
  EXPECT_LE(request_rate(report.trials[0]), 2 * 3 / 0.2 * 1.1);
  EXPECT_THAT(report.trials[0].result.records.errors, IsEmpty());
}

// The server ends a cancelled request with its next step, and keeps the session until then.
TEST(LoadgenSessionsTest, ASessionThatIsBusyStillIsClosedOnceItIsNot) {
  FakeServer server;
  server.inference.set_on_generate([&](grpc::ServerContext* context,
                                       const v1::GenerateRequest& request, GenerateWriter* writer) {
    server.sessions.set_busy(request.session(), true);
    writer->Write(testing::prompt_message(request));
    testing::wait_for_cancel(context);
    std::this_thread::sleep_for(milliseconds(100));
    server.sessions.set_busy(request.session(), false);
    return grpc::Status::CANCELLED;
  });
  Options options = options_for(server, 0, 0.2);
  options.streams = 3;
  options.workload.turns = 2;
  options.run.cooldown_seconds = 0;
  run_once(options);
  EXPECT_EQ(server.sessions.opened(), 3);
  EXPECT_THAT(server.sessions.sessions(), IsEmpty());
}

TEST(LoadgenSessionsTest, ASessionThatIsBeingOpenedAtTheEndIsClosed) {
  FakeServer server;
  server.sessions.set_opening_time(milliseconds(500));
  Options options = options_for(server, 0, 0.2);
  options.streams = 3;
  options.workload.turns = 2;
  options.run.cooldown_seconds = 0;
  run_once(options);
  EXPECT_THAT(server.sessions.sessions(), IsEmpty());
  EXPECT_EQ(server.sessions.opened(), 3);
}

// Fails each turn's first attempts in one way after the other.
class FailingAnswers {
 public:
  grpc::Status operator()(const v1::GenerateRequest& request, GenerateWriter* writer) {
    static const std::vector<grpc::Status> kFailures = {
        {grpc::StatusCode::UNAVAILABLE, "it drains"},
        {grpc::StatusCode::ALREADY_EXISTS, "an attempt still runs"},
        {grpc::StatusCode::ABORTED, "another server has it"},
        {grpc::StatusCode::INTERNAL, "Received RST_STREAM with error code 2"}};
    size_t attempt;
    {
      std::lock_guard lock(mutex_);
      attempt = attempts_[request.request_id()]++;
    }
    writer->Write(testing::prompt_message(request));
    writer->Write(testing::chunk_message("", 0));
    if (attempt < kFailures.size()) return kFailures[attempt];
    for (int t = 1; t < request.stop().max_tokens(); ++t) {
      writer->Write(testing::chunk_message("", 0));
    }
    writer->Write(testing::final_message(1));
    return grpc::Status::OK;
  }
  std::map<std::string, size_t> attempts() const {
    std::lock_guard lock(mutex_);
    return attempts_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, size_t> attempts_;  // by request id
};

TEST(LoadgenSessionsTest, TurnsOfDurableSessionsAreRepeatedWithTheirIds) {
  FailingAnswers answers;
  std::mutex mutex;
  std::map<std::string, std::vector<Answered>> answered;
  FakeServer server;
  server.inference.set_on_generate(ask(answers));
  Options options = options_for(server, 0, 1.5);
  options.streams = 2;
  options.workload.turns = 2;
  options.run.durability = v1::DURABILITY_REMOTE;
  options.run.leave_open = true;
  options.run.on_answer = [&](const Answered& one) {
    std::lock_guard lock(mutex);
    answered[fmt::format("{}.{}", one.session, one.turn)].push_back(one);
  };
  const Trial trial = run_test(options).trials[0];
  EXPECT_THAT(error_count(trial), 0u);
  EXPECT_GE(trial.result.records.repeated, 4u * 2);
  ASSERT_GE(answered.size(), 4u);
  for (const auto& [id, times] : answered) {
    EXPECT_EQ(answers.attempts().at(id), 5u);
    ASSERT_EQ(times.size(), 1u);
    // Of the last attempt alone.
    EXPECT_EQ(times[0].ids[0].size(), 5u);
  }
  for (const auto& [name, session] : server.sessions.sessions()) {
    EXPECT_EQ(session.ttl_seconds(), 600);  // the server's
  }
  EXPECT_THAT(server.sessions.said_to_proxies(), ::testing::StartsWith("loadgen-"));
  EXPECT_FALSE(server.sessions.sessions().empty());
}

}  // namespace recurve::loadgen::loadgen_sessions_test
