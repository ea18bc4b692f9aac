#include "clients/cpp/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/clients/fake_server.h"
#include "tests/clients/relay.h"

namespace recurve::client_test {

using ::testing::ElementsAre;
using testing::FakeServer;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Kind = ClientError::Kind;

v1::GenerateRequest request_of(const std::string& text) {
  v1::GenerateRequest request;
  request.set_text(text);
  return request;
}

template <class F>
ClientError error_of(F&& f) {
  try {
    f();
  } catch (const ClientError& error) {
    return error;
  }
  throw std::logic_error("nothing was thrown");
}

TEST(ClientTest, GenerateHandsOnEveryMessageInOrder) {
  FakeServer server;
  Client client(server.address());
  std::vector<std::string> events;
  const auto final = client.generate(request_of("x"), [&](const v1::GenerateResponse& response) {
    events.push_back(response.has_chunk()    ? response.chunk().text()
                     : response.has_prompt() ? "prompt"
                                             : "final");
  });
  EXPECT_THAT(events, ElementsAre("prompt", "Once", " upon", " a time", "final"));
  EXPECT_EQ(final.usage().generated_tokens(), 3);
}

TEST(ClientTest, StreamWithoutFinalMessageIsAnError) {
  FakeServer server;
  server.inference.set_on_generate([](auto*, const auto&, auto*) { return grpc::Status::OK; });
  Client client(server.address());
  const auto error = error_of([&] { client.generate(request_of("x"), [](const auto&) {}); });
  EXPECT_EQ(error.code(), grpc::StatusCode::INTERNAL);
}

TEST(ClientTest, ServersSentenceCodeAndPushbackArrive) {
  FakeServer server;
  server.inference.set_on_generate([](grpc::ServerContext* context, const auto&, auto*) {
    context->AddTrailingMetadata("grpc-retry-pushback-ms", "250");
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full");
  });
  Client client(server.address());
  const auto error = error_of([&] { client.generate(request_of("x"), [](const auto&) {}); });
  EXPECT_EQ(error.kind(), Kind::kRefused);
  EXPECT_STREQ(error.what(), "RESOURCE_EXHAUSTED: the queue is full");
  EXPECT_EQ(error.message(), "the queue is full");
  EXPECT_EQ(error.retry_after(), std::chrono::milliseconds(250));
  EXPECT_THAT(error.hint(), HasSubstr("250 ms"));
}

TEST(ClientTest, ExceptionOfTheCallbackCancelsTheCallAndPassesOn) {
  FakeServer server;
  std::atomic<bool> cancelled = false;
  server.inference.set_on_generate([&](grpc::ServerContext* context, const auto&, auto* writer) {
    writer->Write(testing::chunk_message("a"));
    cancelled = testing::wait_for_cancel(context);
    return grpc::Status::OK;
  });
  Client client(server.address());
  const auto stop = [](const v1::GenerateResponse&) { throw std::domain_error("enough"); };
  EXPECT_THROW(client.generate(request_of("x"), stop), std::domain_error);
  for (int i = 0; i < 500 && !cancelled; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(cancelled);
}

TEST(ClientTest, CancellerEndsACallOfAnotherThread) {
  FakeServer server;
  server.inference.set_on_generate([](grpc::ServerContext* context, const auto&, auto* writer) {
    writer->Write(testing::chunk_message("a"));
    testing::wait_for_cancel(context);
    return grpc::Status::OK;
  });
  Client client(server.address());
  Canceller canceller;
  std::jthread other;
  CallOptions options;
  options.canceller = &canceller;
  const auto error = error_of([&] {
    client.generate(
        request_of("x"), [&](const auto&) { other = std::jthread([&] { canceller.cancel(); }); },
        options);
  });
  EXPECT_EQ(error.kind(), Kind::kCancelled);
  EXPECT_TRUE(canceller.cancelled());
}

TEST(ClientTest, CallAfterCancelDoesNotRun) {
  FakeServer server;
  Client client(server.address());
  Canceller canceller;
  canceller.cancel();
  CallOptions options;
  options.canceller = &canceller;
  EXPECT_EQ(error_of([&] { client.load(options); }).kind(), Kind::kCancelled);
}

TEST(ClientTest, TimeoutIsTheCallsDeadline) {
  FakeServer server;
  server.inference.set_on_generate([](grpc::ServerContext* context, const auto&, auto*) {
    testing::wait_for_cancel(context);
    return grpc::Status::OK;
  });
  Client client(server.address());
  CallOptions options;
  options.timeout = std::chrono::milliseconds(100);
  const auto error =
      error_of([&] { client.generate(request_of("x"), [](const auto&) {}, options); });
  EXPECT_EQ(error.code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST(ClientTest, AClosedPortIsUnreachable) {
  std::string address;
  {
    FakeServer server;
    address = server.address();
  }
  Client client(address);
  const auto error = error_of([&] { client.load(); });
  EXPECT_EQ(error.kind(), Kind::kUnreachable);
  EXPECT_THAT(error.message(), HasSubstr(address));
  EXPECT_THAT(error.hint(), HasSubstr("recurve-server --model DIR --listen " + address));
}

TEST(ClientTest, LostConnectionIsUnreachable) {
  FakeServer server;
  testing::Relay relay(server.port());
  server.inference.set_on_generate([](grpc::ServerContext* context, const auto&, auto* writer) {
    writer->Write(testing::chunk_message("a"));
    testing::wait_for_cancel(context);
    return grpc::Status::OK;
  });
  Client client(relay.address());
  const auto error =
      error_of([&] { client.generate(request_of("x"), [&](const auto&) { relay.cut(); }); });
  EXPECT_EQ(error.kind(), Kind::kUnreachable) << error.what();
}

TEST(ClientTest, ServersOwnUnavailableIsNotUnreachable) {
  FakeServer server;
  server.control.set_state(v1::SERVER_STATE_LOADING);
  Client client(server.address());
  const auto error = error_of([&] { client.model_info(); });
  EXPECT_EQ(error.kind(), Kind::kUnavailable);
  EXPECT_EQ(error.message(), "the model loads");
}

// Not its words tell the two apart: this is what gRPC says of a connection that was lost.
TEST(ClientTest, WhatTheServerSaysMayBeWhatGrpcWouldSay) {
  FakeServer server;
  Client client(server.address());
  bool marked = true;
  server.inference.set_on_generate([&](grpc::ServerContext* context, const auto&, auto*) {
    if (marked) context->AddTrailingMetadata("recurve-state", "draining");
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "Socket closed");
  });
  const auto ask = [&] { client.generate(request_of("x"), [](const auto&) {}); };
  EXPECT_EQ(error_of(ask).kind(), Kind::kUnavailable);
  // What stands between, and what gRPC makes of it, has no such mark, whatever its words.
  marked = false;
  server.inference.set_on_generate([](auto*, const auto&, auto*) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "upstream is gone");
  });
  EXPECT_EQ(error_of(ask).kind(), Kind::kUnreachable);
}

TEST(ClientTest, WaitsForAServerThatServesLater) {
  FakeServer server;
  server.set_serving(false);
  Client client(server.address());
  EXPECT_EQ(client.health(), Health::kNotServing);
  using Clock = std::chrono::system_clock;
  const auto error =
      error_of([&] { client.wait_until_serving(Clock::now() + std::chrono::milliseconds(100)); });
  EXPECT_EQ(error.kind(), Kind::kUnavailable);
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    server.set_serving(true);
  });
  client.wait_until_serving(Clock::now() + std::chrono::seconds(20));
  EXPECT_EQ(client.health(), Health::kServing);
}

TEST(ClientTest, WaitsForAServerThatIsNotThereYet) {
  std::string address;
  {
    FakeServer server;
    address = server.address();
  }
  Client client(address);
  const auto error = error_of([&] {
    client.wait_until_serving(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  });
  EXPECT_EQ(error.kind(), Kind::kUnreachable);
}

TEST(ClientTest, AServerThatTakesTheConnectionAndSaysNothingIsUnreachable) {
  FakeServer server;
  testing::Relay relay(server.port());
  relay.hold();
  Client client(relay.address());
  const auto error = error_of([&] {
    client.wait_until_serving(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  });
  EXPECT_EQ(error.kind(), Kind::kUnreachable) << error.what();
  EXPECT_THAT(error.message(), HasSubstr(relay.address()));
}

TEST(ClientTest, AnAnswerThatDoesNotComeLeavesWhatTheServerSaidBefore) {
  FakeServer server;
  server.set_serving(false);
  testing::Relay relay(server.port());
  Client client(relay.address());
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(3);
  std::jthread later([&] {
    std::this_thread::sleep_until(deadline - std::chrono::milliseconds(300));
    relay.hold();
  });
  const auto error = error_of([&] { client.wait_until_serving(deadline); });
  EXPECT_EQ(error.kind(), Kind::kUnavailable) << error.what();
}

TEST(ClientTest, LongTextsAreScoredInPiecesOfTheWholeText) {
  FakeServer server;
  Client client(server.address());
  std::string text;
  while (text.size() < 200'000) text += "naïve " + std::to_string(text.size());
  v1::ScoreOptions options;
  options.set_request_id("r");
  const auto final = client.score(options, text, [](const auto&) {});
  EXPECT_EQ(final.text_bytes(), static_cast<int64_t>(text.size()));
  const auto requests = server.inference.score_requests();
  ASSERT_GT(requests.size(), 2u);
  std::string joined;
  for (const auto& request : requests) joined += request.text();
  EXPECT_EQ(joined, text);
  EXPECT_EQ(requests[0].options().request_id(), "r");
  EXPECT_FALSE(requests[1].has_options());
}

TEST(ClientTest, TextIsScoredAsItIsRead) {
  FakeServer server;
  Client client(server.address());
  int pieces = 0;
  const auto next = [&](std::stop_token, std::string* piece) {
    *piece = std::to_string(pieces);
    return pieces++ < 20;
  };
  client.score({}, next, [](const auto&) {});
  std::string joined;
  for (const auto& request : server.inference.score_requests()) joined += request.text();
  EXPECT_EQ(joined, "012345678910111213141516171819");
}

TEST(ClientTest, AReaderThatFailsEndsTheScore) {
  FakeServer server;
  Client client(server.address());
  int pieces = 0;
  const auto next = [&](std::stop_token, std::string* piece) {
    if (++pieces == 3) throw std::runtime_error("the disk is gone");
    *piece = "x";
    return true;
  };
  EXPECT_THROW(client.score({}, next, [](const auto&) {}), std::runtime_error);
}

TEST(ClientTest, IdsAreScoredInPiecesOfAllIds) {
  FakeServer server;
  Client client(server.address());
  std::vector<int32_t> ids(40'000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  client.score({}, ids, [](const auto&) {});
  std::vector<int32_t> joined;
  for (const auto& request : server.inference.score_requests()) {
    joined.insert(joined.end(), request.ids().ids().begin(), request.ids().ids().end());
  }
  EXPECT_EQ(joined, ids);
}

TEST(ClientTest, EmptyTextIsOnePieceThatTheServerJudges) {
  FakeServer server;
  Client client(server.address());
  client.score({}, "", [](const auto&) {});
  EXPECT_EQ(server.inference.score_requests().size(), 1u);
}

TEST(ClientTest, SessionsAreListedAcrossPages) {
  FakeServer server;
  Client client(server.address());
  for (const char* name : {"b2", "a", "b3", "b1"}) {
    v1::OpenSessionRequest request;
    request.set_name(name);
    client.open_session(request);
  }
  std::vector<std::string> names;
  for (const auto& session : client.list_sessions("b")) names.push_back(session.name());
  EXPECT_THAT(names, ElementsAre("b1", "b2", "b3"));
}

TEST(ClientTest, ProxiesAreToldWhichSessionACallIsOf) {
  FakeServer server;
  Client client(server.address());
  const auto said = [&] { return server.sessions.said_to_proxies(); };
  // A session goes by the name under which it was made, so the client chooses it.
  const std::string open = client.open_session({}).name();
  EXPECT_THAT(open, StartsWith("cpp-"));
  EXPECT_EQ(said(), open);
  EXPECT_NE(client.open_session({}).name(), open);
  v1::ForkSessionRequest fork;
  fork.set_name(open);
  EXPECT_THAT(client.fork_session(fork).name(), StartsWith("cpp-"));
  EXPECT_EQ(said(), open) << "the fork is made where its parent is";
  v1::ExportRequest out;
  out.set_name("elsewhere");
  client.export_session(out, [](std::string_view, uint64_t) {});
  EXPECT_EQ(said(), "elsewhere");
  const auto nothing = [](std::string*) { return false; };
  const std::string imported = client.import_session({}, nothing).name();
  EXPECT_EQ(said(), imported);
  EXPECT_THAT(said(), StartsWith("cpp-"));
}

TEST(ClientTest, DrainSaysItsDeadlineOnlyWhereOneIsGiven) {
  FakeServer server;
  Client client(server.address());
  EXPECT_EQ(client.drain().requests_under_way(), 1);
  EXPECT_EQ(client.drain(3.0).requests_under_way(), 2);
}

TEST(ClientTest, AddressWithoutPortIsRefused) {
  EXPECT_THROW(Client("localhost"), std::invalid_argument);
  EXPECT_THROW(Client("http://localhost:1"), std::invalid_argument);
  EXPECT_THROW(Client("localhost:99999"), std::invalid_argument);
  EXPECT_THROW(Client(":5"), std::invalid_argument);
  EXPECT_NO_THROW(Client("[::1]:50051"));
}

}  // namespace recurve::client_test
