#include <gmock/gmock.h>

#include <limits>

#include "tests/support/rpc_fixture.h"

namespace recurve::sessions_test {

constexpr int32_t kBos = FakeTokenizer::kBos;

using grpc::StatusCode;
using ::testing::HasSubstr;
using Kind = SessionCommand::Kind;
using Stub = v1::Sessions::Stub;

class SessionsTest : public RpcFixture {
 protected:
  template <typename Request, typename Response>
  grpc::Status call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    return (sessions_.get()->*method)(&context, request, response);
  }
  SessionCommand last() { return engine_->commands().back(); }
};

TEST_F(SessionsTest, EveryCallBecomesItsCommand) {
  start();
  v1::Session session;
  v1::OpenSessionRequest open;
  open.set_name("story-1");
  open.set_ttl_seconds(2.5);
  ASSERT_TRUE(call(&Stub::Open, open, &session).ok());
  EXPECT_EQ(last().kind, Kind::kOpen);
  EXPECT_EQ(last().name, "story-1");
  EXPECT_EQ(last().ttl_seconds, 2.5);

  v1::GetSessionRequest get;
  get.set_name("story-1");
  ASSERT_TRUE(call(&Stub::Get, get, &session).ok());
  EXPECT_EQ(last().kind, Kind::kGet);

  v1::ForkSessionRequest fork;
  fork.set_name("story-1");
  fork.set_new_name("story-2");
  ASSERT_TRUE(call(&Stub::Fork, fork, &session).ok());
  EXPECT_EQ(last().kind, Kind::kFork);
  EXPECT_EQ(last().other, "story-2");
  EXPECT_EQ(last().ttl_seconds, std::nullopt);

  v1::MarkSessionRequest mark;
  mark.set_name("story-1");
  mark.set_mark("here");
  ASSERT_TRUE(call(&Stub::Mark, mark, &session).ok());
  EXPECT_EQ(last().kind, Kind::kMark);
  EXPECT_EQ(last().other, "here");

  v1::RewindSessionRequest rewind;
  rewind.set_name("story-1");
  rewind.set_mark("here");
  ASSERT_TRUE(call(&Stub::Rewind, rewind, &session).ok());
  EXPECT_EQ(last().kind, Kind::kRewind);
  EXPECT_EQ(last().position, std::nullopt);
  rewind.clear_mark();
  rewind.set_position(9);
  ASSERT_TRUE(call(&Stub::Rewind, rewind, &session).ok());
  EXPECT_EQ(last().position, 9);

  v1::UnmarkSessionRequest unmark;
  unmark.set_name("story-1");
  unmark.set_mark("here");
  ASSERT_TRUE(call(&Stub::Unmark, unmark, &session).ok());
  EXPECT_EQ(last().kind, Kind::kUnmark);

  v1::CloseSessionRequest close;
  close.set_name("story-1");
  v1::CloseSessionResponse closed;
  ASSERT_TRUE(call(&Stub::Close, close, &closed).ok());
  EXPECT_EQ(last().kind, Kind::kClose);
}

// Only the engine knows whether the session is empty when the request runs.
TEST_F(SessionsTest, TextIsReadBothAsAStartAndAsContinued) {
  marks_start_ = true;
  start();
  v1::GenerateRequest request = text_request("ab");
  ASSERT_TRUE(generate(request).status.ok());
  EXPECT_EQ(engine_->last_request().prompt.ids, (std::vector<int32_t>{kBos, ' ', 'a', 'b'}));
  EXPECT_FALSE(engine_->last_request().continued_prompt);
  request.set_session("s");
  ASSERT_TRUE(generate(request).status.ok());
  EXPECT_EQ(engine_->last_request().prompt.ids, (std::vector<int32_t>{kBos, ' ', 'a', 'b'}));
  EXPECT_EQ(engine_->last_request().continued_prompt->ids, (std::vector<int32_t>{'a', 'b'}));
  EXPECT_TRUE(engine_->last_request().begins_with_bos);
  ASSERT_TRUE(engine_->last_request().control_ids);
  EXPECT_EQ(*engine_->last_request().control_ids,
            (std::vector<uint64_t>{0, 0, 0, 0, 0b11}))  // kBos and kEos are 256 and 257
      << "so that the engine can tell where the text begins";
}

TEST_F(SessionsTest, TheAnswerIsThatOfTheEngine) {
  start();
  const SessionInfo info{.name = "s",
                         .parent = "p",
                         .position = 10,
                         .pending_token = 3,
                         .tier = Tier::kHost,
                         .busy = true,
                         .epoch = 4,
                         .idle_seconds = 1.5,
                         .ttl_seconds = 60,
                         .state_bytes = 1024,
                         .host_bytes = 2048,
                         .marks = {{"here", 7}}};
  engine_->answer_sessions({.sessions = {info}});
  v1::GetSessionRequest get;
  get.set_name("s");
  v1::Session session;
  ASSERT_TRUE(call(&Stub::Get, get, &session).ok());
  EXPECT_EQ(session.name(), "s");
  EXPECT_EQ(session.parent(), "p");
  EXPECT_EQ(session.position(), 10);
  EXPECT_EQ(session.pending_token(), 3);
  EXPECT_EQ(session.tier(), v1::SESSION_TIER_HOST);
  EXPECT_TRUE(session.busy());
  EXPECT_EQ(session.epoch(), 4u);
  EXPECT_EQ(session.idle_seconds(), 1.5);
  EXPECT_EQ(session.ttl_seconds(), 60);
  EXPECT_EQ(session.state_bytes(), 1024);
  EXPECT_EQ(session.host_bytes(), 2048);
  ASSERT_EQ(session.marks_size(), 1);
  EXPECT_EQ(session.marks(0).name(), "here");
  EXPECT_EQ(session.marks(0).position(), 7);
}

TEST_F(SessionsTest, MissingNamesAreGenerated) {
  start();
  v1::Session session;
  ASSERT_TRUE(call(&Stub::Open, {}, &session).ok());
  const std::string first = last().name;
  ASSERT_TRUE(call(&Stub::Open, {}, &session).ok());
  EXPECT_FALSE(first.empty());
  EXPECT_NE(last().name, first);
}

TEST_F(SessionsTest, ListContinuesAfterThePage) {
  start();
  engine_->answer_sessions({.sessions = {{.name = "a"}, {.name = "b"}}, .more = true});
  v1::ListSessionsRequest request;
  request.set_prefix("p");
  request.set_page_size(2);
  v1::ListSessionsResponse page;
  ASSERT_TRUE(call(&Stub::List, request, &page).ok());
  EXPECT_EQ(last().name, "p");
  EXPECT_EQ(last().other, "");
  EXPECT_EQ(last().limit, 2);
  EXPECT_EQ(page.sessions_size(), 2);
  request.set_page_token(page.next_page_token());
  engine_->answer_sessions({});
  page.Clear();
  ASSERT_TRUE(call(&Stub::List, request, &page).ok());
  EXPECT_EQ(last().other, "b");
  EXPECT_EQ(page.next_page_token(), "");
  request.set_page_size(0);
  EXPECT_EQ(call(&Stub::List, request, &page).error_code(), StatusCode::INVALID_ARGUMENT);
}

TEST_F(SessionsTest, StatusesHaveTheirCodes) {
  start();
  const std::vector<std::pair<EndReason, StatusCode>> cases = {
      {EndReason::kNoSession, StatusCode::NOT_FOUND},
      {EndReason::kSessionBusy, StatusCode::FAILED_PRECONDITION},
      {EndReason::kExists, StatusCode::ALREADY_EXISTS},
      {EndReason::kExhausted, StatusCode::RESOURCE_EXHAUSTED},
      {EndReason::kInvalid, StatusCode::INVALID_ARGUMENT},
      {EndReason::kDraining, StatusCode::UNAVAILABLE}};
  for (const auto& [reason, code] : cases) {
    engine_->answer_sessions({.reason = reason, .message = "because of this"});
    v1::GetSessionRequest get;
    get.set_name("s");
    v1::Session session;
    const grpc::Status got = call(&Stub::Get, get, &session);
    EXPECT_EQ(got.error_code(), code);
    EXPECT_EQ(got.error_message(), "because of this");
  }
}

TEST_F(SessionsTest, BadNamesAndTimesDoNotReachTheEngine) {
  start();
  v1::Session session;
  for (const std::string& name : {std::string("a b"), std::string("é"), std::string(129, 'a')}) {
    v1::OpenSessionRequest open;
    open.set_name(name);
    EXPECT_EQ(call(&Stub::Open, open, &session).error_code(), StatusCode::INVALID_ARGUMENT);
  }
  for (const double ttl : {-1.0, 1e10, std::numeric_limits<double>::quiet_NaN()}) {
    v1::OpenSessionRequest open;
    open.set_ttl_seconds(ttl);
    const grpc::Status status = call(&Stub::Open, open, &session);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("ttl_seconds"));
  }
  v1::MarkSessionRequest mark;
  mark.set_name("s");
  EXPECT_EQ(call(&Stub::Mark, mark, &session).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(engine_->commands().empty());
}

}  // namespace recurve::sessions_test
