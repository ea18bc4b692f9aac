// The server as a process, over a real socket, with the trained demo checkpoint.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cmath>
#include <thread>

#include "tests/support/generate_outcome.h"
#include "tests/support/server_process.h"

namespace recurve::testing::service_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kModel = std::string(RECURVE_SOURCE_DIR) + "/weights_tools/demo/xlstm-books";

struct Answer {
  std::string text;
  std::vector<int32_t> ids;
  v1::GenerateFinal final;
};

Answer ask(Client& client, const v1::GenerateRequest& request, const CallOptions& options = {}) {
  Answer answer;
  answer.final = client.generate(
      request,
      [&](const v1::GenerateResponse& response) {
        answer.text += response.chunk().text();
        for (const int32_t id : response.chunk().ids()) answer.ids.push_back(id);
      },
      options);
  return answer;
}

grpc::StatusCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ClientError& error) {
    return error.code();
  }
  return grpc::StatusCode::OK;
}

// One server for the tests that do not change it.
class ServiceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = new ServerProcess(
        {"--model", kModel, "--slots", "4", "--max-queue", "8", "--ttft-ms", "0"});
    address_ = new std::string(server_->address());
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(server_->stop(), 0) << server_->log();
    delete server_;
    delete address_;
  }
  void SetUp() override { client_ = std::make_unique<Client>(*address_); }
  // Every slot is free, and nothing waits.
  void TearDown() override {
    for (const auto& session : client_->list_sessions()) client_->close_session(session.name());
    for (int tries = 0; tries < 500; ++tries) {
      const v1::Load load = client_->load();
      if (load.slots().free() == load.slots().total() && load.requests_waiting() == 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    FAIL() << client_->load().DebugString();
  }

  static ServerProcess* server_;
  static std::string* address_;
  std::unique_ptr<Client> client_;
};
ServerProcess* ServiceTest::server_ = nullptr;
std::string* ServiceTest::address_ = nullptr;

TEST_F(ServiceTest, StreamsTextAndCountsTokens) {
  int chunks = 0;
  std::string text;
  const v1::GenerateFinal final = client_->generate(generate_request("The old house", 40),
                                                    [&](const v1::GenerateResponse& response) {
                                                      if (!response.has_chunk()) return;
                                                      ++chunks;
                                                      text += response.chunk().text();
                                                    });
  EXPECT_GT(chunks, 0);  // a slow client gets several tokens in one
  EXPECT_THAT(text, Not(IsEmpty()));
  EXPECT_EQ(final.usage().generated_tokens(), 40);
  EXPECT_EQ(final.choices(0).reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_GT(final.usage().prefill_seconds(), 0);
  EXPECT_GT(final.usage().decode_seconds(), 0);
}

TEST_F(ServiceTest, TheSameSeedGivesTheSameTokensUnderLoad) {
  const auto request = generate_request("She opened the letter and", 30, 7);
  const Answer alone = ask(*client_, request);
  std::vector<std::thread> others;
  for (int i = 0; i < 6; ++i) {
    others.emplace_back([&, i] {
      Client other(*address_);
      ask(other, generate_request("Chapter " + std::to_string(i) + ". It rained", 60, 100 + i));
    });
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask(*client_, request).ids, alone.ids);
  for (auto& other : others) other.join();
}

TEST_F(ServiceTest, InterleavedSessionsRememberTheirText) {
  for (const std::string name : {"a", "b", "quiet"}) {
    v1::OpenSessionRequest open;
    open.set_name(name);
    client_->open_session(open);
  }
  const auto turn = [&](const std::string& session, const std::string& text, uint64_t seed) {
    auto request = generate_request(text, 12, seed);
    request.set_session(session);
    return ask(*client_, request).ids;
  };
  const auto a1 = turn("a", "The ship left the harbour", 1), b1 = turn("b", "My dear sister,", 2);
  const auto a2 = turn("a", " and then", 3), b2 = turn("b", " I", 4);
  EXPECT_EQ(turn("quiet", "The ship left the harbour", 1), a1);
  EXPECT_EQ(turn("quiet", " and then", 3), a2);
  EXPECT_NE(a2, b2);
  EXPECT_EQ(client_->get_session("a").position(), client_->get_session("quiet").position());
}

// The tokenizer marks the start of a text, and drops the mark from an answer that starts it.
TEST_F(ServiceTest, TextAfterControlTokensBeginsTheText) {
  constexpr int32_t kBos = 1, kEnd = 2;
  const auto open = [&](const std::string& name) {
    v1::OpenSessionRequest request;
    request.set_name(name);
    client_->open_session(request);
    v1::GenerateRequest controls;
    controls.set_session(name);
    controls.mutable_ids()->add_ids(kBos);
    controls.mutable_stop()->set_max_tokens(0);
    ask(*client_, controls);
  };
  const auto greedy = [](v1::GenerateRequest request) {
    request.mutable_sampling()->set_temperature(0);
    return request;
  };
  const v1::GenerateRequest text = greedy(generate_request("Call me Ishmael.", 8));
  const Answer alone = ask(*client_, text);
  open("controls");
  v1::GenerateRequest within = text;
  within.set_session("controls");
  const Answer answer = ask(*client_, within);
  EXPECT_EQ(answer.ids, alone.ids);
  EXPECT_EQ(answer.text, alone.text);
  EXPECT_EQ(answer.final.usage().prompt_tokens() + 1, alone.final.usage().prompt_tokens());

  v1::GenerateRequest ids = greedy(generate_request("", 8));
  ids.mutable_ids()->add_ids(kBos);
  ids.mutable_ids()->add_ids(kEnd);
  const Answer start = ask(*client_, ids);
  open("start");
  ids.set_session("start");
  ids.mutable_ids()->clear_ids();
  ids.mutable_ids()->add_ids(kEnd);
  EXPECT_EQ(ask(*client_, ids).text, start.text) << "the answer begins the text";
}

TEST_F(ServiceTest, MoreSessionsThanSlotsMoveToHostMemoryAndBack) {
  const auto turn = [&](const std::string& session, const std::string& text) {
    auto request = generate_request(text, 8, 5);
    request.set_session(session);
    return ask(*client_, request).ids;
  };
  const auto name = [](int i) { return "s" + std::to_string(i); };
  for (int i = 0; i < 7; ++i) {
    v1::OpenSessionRequest open;
    open.set_name(name(i));
    client_->open_session(open);
    turn(name(i), i % 2 == 0 ? "It was night." : "It was day.");
  }
  EXPECT_EQ(client_->get_session("s0").tier(), v1::SESSION_TIER_HOST);
  const auto first = turn("s0", " And");
  for (int i = 2; i < 7; i += 2) EXPECT_EQ(turn(name(i), " And"), first);
  EXPECT_NE(turn("s1", " And"), first);
}

TEST_F(ServiceTest, ForkMarkAndRewind) {
  v1::OpenSessionRequest open;
  open.set_name("story");
  client_->open_session(open);
  const auto turn = [&](const std::string& session, const std::string& text, uint64_t seed) {
    auto request = generate_request(text, 10, seed);
    request.set_session(session);
    return ask(*client_, request).ids;
  };
  turn("story", "Once there was a king", 1);
  client_->mark_session("story", "here");
  v1::ForkSessionRequest fork;
  fork.set_name("story");
  fork.set_new_name("other");
  client_->fork_session(fork);
  const auto next = turn("story", "", 2);
  EXPECT_EQ(turn("other", "", 2), next);
  client_->rewind_session("story", "here");
  EXPECT_EQ(turn("story", "", 2), next);
}

TEST_F(ServiceTest, AStopStringEndsASessionAtOneToken) {
  v1::OpenSessionRequest open;
  open.set_name("stop");
  client_->open_session(open);
  auto request = generate_request("The captain said", 200, 3);
  request.set_session("stop");
  request.mutable_stop()->add_stop_strings("the");
  const Answer answer = ask(*client_, request);
  ASSERT_EQ(answer.final.choices(0).reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_THAT(answer.text, Not(HasSubstr("the")));
  const v1::Session session = client_->get_session("stop");
  // The token that completed the stop string is pending; all others are processed.
  EXPECT_EQ(session.position(),
            answer.final.usage().prompt_tokens() + answer.final.usage().generated_tokens() - 1);
  EXPECT_EQ(session.pending_token(), answer.ids.back());
}

TEST_F(ServiceTest, CancelMidStreamFreesTheSlot) {
  Canceller canceller;
  int chunks = 0;
  const auto code = code_of([&] {
    client_->generate(generate_request("It was", 100000),
                      [&](const v1::GenerateResponse& response) {
                        if (response.has_chunk() && ++chunks == 6) canceller.cancel();
                      },
                      {.timeout = {}, .canceller = &canceller});
  });
  EXPECT_EQ(code, grpc::StatusCode::CANCELLED);
}

TEST_F(ServiceTest, AbortEndsAnotherClientsRequest) {
  auto request = generate_request("It was", 100000);
  request.set_request_id("long-one");
  std::atomic<bool> begun = false;
  std::thread other([&] {
    Client client(*address_);
    EXPECT_EQ(code_of([&] { client.generate(request, [&](const auto&) { begun = true; }); }),
              grpc::StatusCode::CANCELLED);
  });
  while (!begun) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  client_->abort("long-one");
  other.join();
  EXPECT_EQ(code_of([&] { client_->abort("long-one"); }), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ServiceTest, DeadlinesApplyInTheQueueAndWhileRunning) {
  const CallOptions soon{.timeout = std::chrono::milliseconds(300), .canceller = nullptr};
  EXPECT_EQ(code_of([&] { ask(*client_, generate_request("It was", 1000000), soon); }),
            grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(ServiceTest, AFullQueueReturnsARetryTime) {
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Canceller>> cancellers;
  // Endless requests, until the load is as expected.
  const auto occupy = [&](int requests, const std::function<bool(const v1::Load&)>& reached) {
    for (int i = 0; i < requests; ++i) {
      cancellers.push_back(std::make_unique<Canceller>());
      threads.emplace_back([&, canceller = cancellers.back().get()] {
        Client client(*address_);
        code_of([&] {
          ask(client, generate_request("On", 1000000), {.timeout = {}, .canceller = canceller});
        });
      });
    }
    for (int tries = 0; tries < 1000 && !reached(client_->load()); ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_TRUE(reached(client_->load())) << client_->load().DebugString();
  };
  // The slots first: a request that waits for a free one counts as waiting too.
  occupy(4, [](const v1::Load& load) { return load.requests_running() == 4; });
  occupy(8, [](const v1::Load& load) { return load.requests_waiting() == 8; });
  try {
    ask(*client_, generate_request("One too many", 5), {.timeout = std::chrono::seconds(20)});
    ADD_FAILURE() << "was not refused";
  } catch (const ClientError& error) {
    EXPECT_EQ(error.code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << error.what();
    EXPECT_TRUE(error.retry_after().has_value());
  }
  for (auto& canceller : cancellers) canceller->cancel();
  for (auto& thread : threads) thread.join();
}

TEST_F(ServiceTest, BadRequestsAreRefusedWithoutEffect) {
  std::string quiet_text = ask(*client_, generate_request("The road", 20)).text;
  const auto refused = [&](const std::function<void(v1::GenerateRequest&)>& spoil) {
    auto request = generate_request("The road", 20);
    spoil(request);
    return code_of([&] { ask(*client_, request); });
  };
  using grpc::StatusCode;
  EXPECT_EQ(refused([](auto& r) { r.set_text(""); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.mutable_ids()->add_ids(1 << 30); }),
            StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.mutable_ids()->add_ids(-1); }), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.mutable_sampling()->set_temperature(NAN); }),
            StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.mutable_sampling()->set_top_p(-1); }),
            StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.mutable_stop()->set_min_tokens(21); }),
            StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& r) { r.set_n(5); }), StatusCode::INVALID_ARGUMENT);  // 4 slots
  EXPECT_EQ(refused([](auto& r) { r.set_session("unknown"); }), StatusCode::NOT_FOUND);
  EXPECT_EQ(refused([](auto& r) { r.set_text(std::string(20 << 20, 'x')); }),
            StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ask(*client_, generate_request("The road", 20)).text, quiet_text);
}

TEST_F(ServiceTest, ABusySessionRefusesASecondRequest) {
  v1::OpenSessionRequest open;
  open.set_name("busy");
  client_->open_session(open);
  auto request = generate_request("It was", 100000);
  request.set_session("busy");
  Canceller canceller;
  std::atomic<bool> begun = false;
  std::thread other([&] {
    Client client(*address_);
    code_of([&] {
      client.generate(request, [&](const auto&) { begun = true; },
                      {.timeout = {}, .canceller = &canceller});
    });
  });
  while (!begun) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(code_of([&] { ask(*client_, request); }), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(code_of([&] { client_->close_session("busy"); }),
            grpc::StatusCode::FAILED_PRECONDITION);
  canceller.cancel();
  other.join();
  for (int tries = 0; tries < 500 && client_->get_session("busy").busy(); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

TEST_F(ServiceTest, TheScoreOfATextIsTheSumOverItsTokens) {
  const std::string text(
      "It is a truth universally acknowledged, that a single man in possession of a good fortune, "
      "must be in want of a wife.");
  v1::ScoreOptions options;
  options.set_top(0);
  double sum = 0;
  int64_t count = 0;
  const v1::ScoreFinal final =
      client_->score(options, text, [&](const v1::ScoreResponse& response) {
        for (const auto& token : response.progress().tokens()) sum += token.logprob(), ++count;
      });
  EXPECT_EQ(final.scored_tokens(), count);
  EXPECT_NEAR(final.sum_logprob(), sum, 1e-3);
  EXPECT_EQ(final.text_bytes(), static_cast<int64_t>(text.size()));
  const double bits = -final.sum_logprob() / std::log(2.0) / static_cast<double>(text.size());
  EXPECT_GT(bits, 0.1);
  EXPECT_LT(bits, 3.0);  // an untrained model would need 8
}

TEST_F(ServiceTest, AScoreInPiecesEqualsThatOfTheWholeAndOfAPrompt) {
  std::string text;
  while (text.size() < 3000)
    text += fmt::format("In the year {} the old house stood. ", text.size());
  v1::ScoreOptions options;
  options.set_top(0);
  const auto score = [&](size_t piece_bytes, std::vector<float>* logprobs) {
    size_t at = 0;
    const auto next = [&](std::stop_token, std::string* piece) {
      *piece = text.substr(at, piece_bytes);
      at += piece->size();
      return !piece->empty();
    };
    return client_->score(options, next, [&](const v1::ScoreResponse& response) {
      for (const auto& token : response.progress().tokens()) logprobs->push_back(token.logprob());
    });
  };
  std::vector<float> whole, pieces, prompted;
  const double sum = score(text.size(), &whole).sum_logprob();
  EXPECT_EQ(score(37, &pieces).sum_logprob(), sum);
  EXPECT_EQ(pieces, whole);
  v1::GenerateRequest request = generate_request(text, 0);
  request.set_prompt_logprobs(0);
  client_->generate(request, [&](const v1::GenerateResponse& response) {
    for (const auto& token : response.prompt_logprobs().tokens()) {
      prompted.push_back(token.logprob());
    }
  });
  EXPECT_EQ(prompted, whole);
}

TEST_F(ServiceTest, AThousandConnectionsThatOpenAndClose) {
  for (int i = 0; i < 1000; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port =
        htons(static_cast<uint16_t>(std::stoi(address_->substr(address_->find(':') + 1))));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0) << i;
    if (i % 3 == 0) {
      EXPECT_GT(write(fd, "PRI * HTTP/2.0\r\n\r\n", 18), 0);
    }
    close(fd);
  }
  EXPECT_EQ(ask(*client_, generate_request("The road", 5)).ids.size(), 5u);
}

// Four endless requests use all slots: the next one would wait forever.
TEST(ServerTest, ARequestThatWouldWaitTooLongIsRefusedAtOnce) {
  ServerProcess server({"--model", kModel, "--slots", "4", "--ttft-ms", "2500"});
  const std::string address = server.address();
  Client client(address);
  std::array<Canceller, 4> cancellers;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, canceller = &cancellers[static_cast<size_t>(i)]] {
      Client other(address);
      EXPECT_EQ(code_of([&] {
                  ask(other, generate_request("On", 1000000),
                      {.timeout = {}, .canceller = canceller});
                }),
                grpc::StatusCode::CANCELLED);
    });
    while (client.load().requests_running() <= i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  for (int tries = 0; tries < 1000 && client.load().expected_queue_seconds() <= 2; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  try {
    ask(client, generate_request("One too many", 5));
    ADD_FAILURE() << "was not refused";
  } catch (const ClientError& error) {
    EXPECT_EQ(error.code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << error.what();
    ASSERT_TRUE(error.retry_after().has_value());
    EXPECT_GT(*error.retry_after(), std::chrono::seconds(2));
  }
  for (Canceller& canceller : cancellers) canceller.cancel();
  for (auto& thread : threads) thread.join();
}

TEST(ServerTest, ReferenceAndCpuAgreeOnTheDemo) {
  std::vector<std::vector<int32_t>> greedy;
  for (const std::string device : {"reference", "cpu"}) {
    ServerProcess server({"--model", kModel, "--device", device, "--slots", "1"});
    Client client(server.address());
    auto request = generate_request("The captain looked out over the grey water", 20);
    request.mutable_sampling()->set_temperature(0);
    greedy.push_back(ask(client, request).ids);
  }
  EXPECT_EQ(greedy[0], greedy[1]);
}

TEST(ServerTest, RefusesToStartWithOneSentence) {
  const auto refusal = [](std::vector<std::string> flags) {
    ServerProcess server(std::move(flags));
    EXPECT_NE(server.wait(), 0);
    return server.log();
  };
  EXPECT_THAT(refusal({"--model", "/nowhere"}), HasSubstr("/nowhere"));
  EXPECT_THAT(refusal({"--model", kModel, "--device", "abacus"}), HasSubstr("abacus"));
  EXPECT_THAT(refusal({"--model", std::string(RECURVE_SOURCE_DIR) + "/tests/golden/xlstm/single"}),
              HasSubstr("tokenizer"));
  EXPECT_THAT(refusal({"--model", kModel, "--metrics", "127.0.0.1:1x"}), HasSubstr("127.0.0.1:1x"));
  EXPECT_THAT(refusal({"--model", kModel, "--slots", "1000000"}),
              AllOf(HasSubstr("not enough memory on device 'cpu': weights 0.01 + states"),
                    HasSubstr("GiB are free; --slots ")));
  EXPECT_THAT(refusal({"--model", kModel, "--device", "cuda:x"}), HasSubstr("'cuda:x'"));
  EXPECT_THAT(refusal({"--model", kModel, "--device", "cuda:77"}), HasSubstr("'cuda:77'"));
}

TEST(ServerTest, SlotsAreChosenWithoutAFlag) {
  ServerProcess server({"--model", kModel, "--slots", "auto"});
  EXPECT_EQ(Client(server.address()).load().slots().total(), 16);
  EXPECT_THAT(server.log(), HasSubstr("states (16 + 1) x"));
}

}  // namespace recurve::testing::service_test
