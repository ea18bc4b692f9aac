// Turns of durable sessions that the client repeats.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "clients/cpp/client.h"
#include "clients/cpp/repeats.h"
#include "tests/clients/cli_process.h"
#include "tests/clients/fake_server.h"

namespace recurve::testing::client_turn_test {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const grpc::Status kLost(StatusCode::UNAVAILABLE, "Socket closed");

TEST(RepeatsTest, RepeatsWhatMayHaveBeenLostOrCannotBeTakenNow) {
  for (const grpc::Status& status : {
           kLost,
           grpc::Status(StatusCode::ABORTED, "another server has it"),
           grpc::Status(StatusCode::RESOURCE_EXHAUSTED, "the queue is full"),
           grpc::Status(StatusCode::CANCELLED, "CANCELLED"),
           grpc::Status(StatusCode::INTERNAL, "Received RST_STREAM with error code 2"),
       }) {
    EXPECT_TRUE(Repeats().pause_after(status, {})) << status.error_message();
  }
  for (const grpc::Status& status : {
           grpc::Status(StatusCode::INVALID_ARGUMENT, "top_p"),
           grpc::Status(StatusCode::INTERNAL, "the engine has failed"),
           grpc::Status(StatusCode::CANCELLED, "the request was aborted"),
           grpc::Status(StatusCode::DEADLINE_EXCEEDED, "late"),
           grpc::Status(StatusCode::DATA_LOSS, "in doubt"),
           grpc::Status(StatusCode::ALREADY_EXISTS, "it has other contents"),
           grpc::Status(StatusCode::FAILED_PRECONDITION, "it serves another request"),
       }) {
    EXPECT_FALSE(Repeats().pause_after(status, {})) << status.error_message();
  }
}

TEST(RepeatsTest, IsBusyForAWhileAfterALossWhichIsNoAttempt) {
  Repeats repeats;
  const auto now = Repeats::Clock::now();
  const grpc::Status exists(StatusCode::ALREADY_EXISTS, "a running request has that id");
  ASSERT_TRUE(repeats.pause_after(kLost, {}, now));
  std::vector<int64_t> pauses;
  for (int i = 0; i < 7; ++i) pauses.push_back(repeats.pause_after(exists, {}, now)->count());
  EXPECT_THAT(pauses, ElementsAre(5, 10, 20, 40, 80, 100, 100));
  EXPECT_FALSE(repeats.pause_after(exists, {}, now + seconds(6)));
}

TEST(RepeatsTest, IsBoundedInAttemptsAndTime) {
  Repeats repeats;
  for (const int most : {100, 200, 400, 800}) {
    const auto pause = repeats.pause_after(kLost, {});
    ASSERT_TRUE(pause);
    EXPECT_GE(pause->count(), most / 2);
    EXPECT_LE(pause->count(), most);
  }
  EXPECT_FALSE(repeats.pause_after(kLost, {}));
  Repeats waits;
  EXPECT_EQ(waits.pause_after(kLost, seconds(40)), seconds(40));
  EXPECT_FALSE(waits.pause_after(kLost, seconds(21))) << "60 s in all";
}

v1::GenerateRequest request_of(const std::string& text) {
  v1::GenerateRequest request;
  request.set_session("s");
  request.set_text(text);
  return request;
}

// Fails with each of the statuses after as many chunks as it says, then answers.
OnGenerate failing(std::vector<std::pair<int, grpc::Status>> failures) {
  auto next = std::make_shared<std::atomic<size_t>>(0);
  return [failures, next](grpc::ServerContext* context, const v1::GenerateRequest& request,
                          GenerateWriter* writer) {
    const size_t attempt = (*next)++;
    if (attempt >= failures.size()) {
      return answer_with({"Once", " upon", " a time"})(context, request, writer);
    }
    const char* const kTexts[] = {"On", "ce up"};  // in other pieces
    writer->Write(prompt_message(request));
    for (int i = 0; i < failures[attempt].first; ++i) writer->Write(chunk_message(kTexts[i]));
    return failures[attempt].second;
  };
}

class ClientTurnTest : public ::testing::Test {
 protected:
  v1::GenerateFinal ask(const v1::GenerateRequest& request, const CallOptions& options = {}) {
    return client_.generate_turn(
        request, [&](const v1::GenerateResponse& one) { text_ += one.chunk().text(); },
        [&] { text_ += "|"; }, options);
  }
  size_t asked() const { return server_.inference.generate_requests().size(); }

  FakeServer server_;
  Client client_{server_.address()};
  std::string text_;
};

TEST_F(ClientTurnTest, IsRepeatedWithItsIdAndSeed) {
  server_.inference.set_on_generate(
      failing({{0, kLost}, {2, kLost}, {0, {StatusCode::ALREADY_EXISTS, "it still runs"}}}));
  ask(request_of("x"));
  EXPECT_EQ(text_, "Once up|Once upon a time");
  const auto requests = server_.inference.generate_requests();
  ASSERT_EQ(requests.size(), 4u);
  for (const auto& request : requests) EXPECT_EQ(request.DebugString(), requests[0].DebugString());
  EXPECT_THAT(requests[0].request_id(), ::testing::StartsWith("cpp-"));
  EXPECT_TRUE(requests[0].sampling().has_seed());
  v1::GenerateRequest named = request_of("x");
  named.set_request_id("mine");
  named.mutable_sampling()->set_seed(9);
  ask(named);
  EXPECT_EQ(server_.inference.generate_requests().back().DebugString(), named.DebugString());
  ask(request_of("x"));
  EXPECT_NE(server_.inference.generate_requests().back().request_id(), requests[0].request_id());
}

TEST_F(ClientTurnTest, IsNotRepeatedOnceItHasBegunIfNoneCanForget) {
  server_.inference.set_on_generate(failing({{1, kLost}}));
  EXPECT_THROW(client_.generate_turn(request_of("x"), [](const auto&) {}), ClientError);
  EXPECT_EQ(asked(), 1u);
}

TEST_F(ClientTurnTest, EndsWithTheLastErrorAfterFiveAttempts) {
  const std::pair<int, grpc::Status> aborted{0, {StatusCode::ABORTED, "another server has it"}};
  server_.inference.set_on_generate(failing({9, aborted}));
  try {
    ask(request_of("x"));
    FAIL();
  } catch (const ClientError& error) {
    EXPECT_EQ(error.code(), StatusCode::ABORTED);
  }
  EXPECT_EQ(asked(), 5u);
}

// A minute in which the server does not want the turn.
OnGenerate full() {
  return [](grpc::ServerContext* context, const auto&, auto*) {
    context->AddTrailingMetadata("grpc-retry-pushback-ms", "59000");
    return grpc::Status(StatusCode::RESOURCE_EXHAUSTED, "the queue is full");
  };
}

TEST_F(ClientTurnTest, IsNotWaitedForBeyondItsTimeout) {
  server_.inference.set_on_generate(full());
  const auto began = std::chrono::steady_clock::now();
  EXPECT_THROW(ask(request_of("x"), {.timeout = seconds(30)}), ClientError);
  EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(20));
  EXPECT_EQ(asked(), 1u);
}

TEST_F(ClientTurnTest, IsCancelledWhileItWaits) {
  server_.inference.set_on_generate(full());
  Canceller canceller;
  auto ended = std::async(std::launch::async, [&] {
    EXPECT_THROW(ask(request_of("x"), {.canceller = &canceller}), ClientError);
  });
  while (asked() == 0) std::this_thread::yield();
  canceller.cancel();
  EXPECT_EQ(ended.wait_for(seconds(30)), std::future_status::ready);
  EXPECT_EQ(asked(), 1u);
}

TEST_F(ClientTurnTest, TheServersDurabilitySaysWhatIsDoneOnce) {
  v1::Session session;
  v1::GenerateRequest request;
  EXPECT_FALSE(is_done_once(request, session));
  session.set_durability(v1::DURABILITY_NONE);
  EXPECT_FALSE(is_done_once(request, session));
  for (const v1::Durability durable : {v1::DURABILITY_LOCAL, v1::DURABILITY_REMOTE}) {
    session.set_durability(durable);
    EXPECT_TRUE(is_done_once(request, session));
  }
  request.set_durability(v1::DURABILITY_NONE);
  EXPECT_FALSE(is_done_once(request, session));
}

TEST_F(ClientTurnTest, TheCommandLinePrintsARepeatedAnswerOnce) {
  server_.sessions.put("s", v1::DURABILITY_REMOTE);
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"generate", "--prompt", "x"}, {"chat", "--raw"}}) {
    server_.inference.set_on_generate(failing({{1, kLost}, {2, kLost}, {0, kLost}}));
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--session", "s", "--server", server_.address()});
    const auto result = run_cli(arguments, "x\n");
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, ::testing::StartsWith("Once upon a time"));
    EXPECT_EQ(result.out.find("On", 1), std::string::npos);
  }
}

TEST_F(ClientTurnTest, TheCommandLineEndsIfTheRepeatedAnswerIsAnotherOne) {
  server_.sessions.put("s", v1::DURABILITY_LOCAL);
  std::atomic<int> attempt = 0;
  server_.inference.set_on_generate(
      [&](grpc::ServerContext*, const v1::GenerateRequest& request, GenerateWriter* writer) {
        writer->Write(prompt_message(request));
        writer->Write(chunk_message(attempt++ == 0 ? "Once" : "Onto"));
        return kLost;
      });
  const auto result =
      run_cli({"generate", "--prompt", "x", "--session", "s", "--server", server_.address()}, "");
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.out, "Once");
  EXPECT_THAT(result.err, HasSubstr("the repeated answer is another one"));
}

TEST_F(ClientTurnTest, TheCommandLineRepeatsNoTurnOfASessionThatIsNotDurable) {
  server_.sessions.put("s", v1::DURABILITY_NONE);
  server_.inference.set_on_generate(failing({{0, kLost}}));
  const auto result =
      run_cli({"generate", "--prompt", "x", "--session", "s", "--server", server_.address()}, "");
  EXPECT_EQ(result.code, 3);
  EXPECT_EQ(asked(), 1u);
}

}  // namespace recurve::testing::client_turn_test
