// Initial states of a server: requests and sessions that start from an exported session are like
// one that was imported, to the bit; what is unknown, damaged or of another model is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/served_calls.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::initial_states_of_a_server_test {

using grpc::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Pair;

v1::GenerateRequest request_of(const std::string& text, const std::string& initial_state,
                               const std::string& session = "") {
  v1::GenerateRequest request = drawn_request(text, session);
  request.mutable_sampling()->set_repetition_penalty(1.3f);  // depends on all previous tokens
  request.set_initial_state(initial_state);
  return request;
}

v1::Session open(Client& client, const std::string& name, const std::string& initial_state,
                 v1::Durability durability = v1::DURABILITY_NONE) {
  v1::OpenSessionRequest request = open_request(name, durability);
  request.set_initial_state(initial_state);
  return client.open_session(request);
}

class InitialStates : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = std::make_unique<TempDir>();
    ServerProcess server(flags());
    Client client(server.address());
    for (const auto& [name, text] : {std::pair("tale", "Once upon a time there was"),
                                     std::pair("whale", "Call me Ishmael. Some years ago")}) {
      open(client, name, "");
      ask(client, request_of(text, "", name));
      states_[name] = exported(client, name);
      std::ofstream(*dir_ / name, std::ios::binary) << states_[name];
    }
    EXPECT_EQ(server.stop(), 0);
    server_ = std::make_unique<ServerProcess>(flags(join(named("tale"), named("whale"))));
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(server_->stop(), 0);
    server_.reset();
    dir_.reset();
  }
  static Flags named(const std::string& name) {
    return {"--initial-state", name + "=" + (*dir_ / name).string()};
  }

  static std::unique_ptr<TempDir> dir_;
  static std::map<std::string, std::string> states_;
  static std::unique_ptr<ServerProcess> server_;
  Client client_{server_->address()};
};
std::unique_ptr<TempDir> InitialStates::dir_;
std::map<std::string, std::string> InitialStates::states_;
std::unique_ptr<ServerProcess> InitialStates::server_;

TEST_F(InitialStates, ContinueLikeASessionThatWasImported) {
  const v1::Session twin = imported(client_, "twin", states_["tale"]);
  const v1::Session opened = open(client_, "opened", "tale");
  EXPECT_EQ(opened.position(), twin.position());
  EXPECT_EQ(opened.pending_token(), twin.pending_token());
  EXPECT_EQ(opened.initial_state(), "tale");
  EXPECT_EQ(client_.get_session("twin").initial_state(), "");
  const WholeAnswer first = ask(client_, request_of(" a king", "", "twin"));
  const WholeAnswer in_session = ask(client_, request_of(" a king", "tale", "opened"));
  const WholeAnswer alone = ask(client_, request_of(" a king", "tale"));
  EXPECT_EQ(in_session.ids, first.ids);
  EXPECT_EQ(alone.ids, first.ids);
  EXPECT_EQ(alone.position, twin.position());
  EXPECT_EQ(alone.usage.prompt_tokens(), first.usage.prompt_tokens()) << "none of the state's";
  EXPECT_EQ(ask(client_, request_of("", "", "twin")).ids,
            ask(client_, request_of("", "", "opened")).ids);
  EXPECT_NE(ask(client_, request_of(" a king", "")).ids, first.ids);
  EXPECT_NE(ask(client_, request_of(" a king", "whale")).ids, first.ids);
  // The state itself is as it was; its pending token needs no prompt.
  EXPECT_EQ(ask(client_, request_of(" a king", "tale")).ids, first.ids);
  imported(client_, "third", states_["tale"]);
  EXPECT_EQ(ask(client_, request_of("", "tale")).ids,
            ask(client_, request_of("", "", "third")).ids);
}

TEST_F(InitialStates, HaveSeveralChoicesAndForks) {
  v1::GenerateRequest request = request_of(" a king", "tale");
  request.set_n(3);
  std::vector<std::vector<int32_t>> choices(3);
  client_.generate(request, [&](const v1::GenerateResponse& response) {
    auto& ids = choices.at(static_cast<size_t>(response.chunk().choice()));
    ids.insert(ids.end(), response.chunk().ids().begin(), response.chunk().ids().end());
  });
  for (size_t c = 0; c < choices.size(); ++c) {
    v1::GenerateRequest one = request_of(" a king", "tale");
    one.mutable_sampling()->set_seed(7 + c);
    EXPECT_EQ(choices[c], ask(client_, one).ids) << c;
  }
  open(client_, "original", "tale");
  v1::ForkSessionRequest fork;
  fork.set_name("original");
  fork.set_new_name("copy");
  EXPECT_EQ(client_.fork_session(fork).initial_state(), "tale");
  EXPECT_EQ(ask(client_, request_of(" a king", "tale", "copy")).ids, choices[0]);
}

TEST_F(InitialStates, HavePrefixesOfTheirOwn) {
  std::string text;
  while (text.size() < 600) text += " and the king said to the queen that the sea was wide";
  const WholeAnswer cold = ask(client_, request_of(text, "tale"));
  EXPECT_EQ(cold.usage.prefix_tokens(), 0);
  EXPECT_EQ(ask(client_, request_of(text, "")).usage.prefix_tokens(), 0);
  EXPECT_EQ(ask(client_, request_of(text, "whale")).usage.prefix_tokens(), 0);
  const WholeAnswer warm = ask(client_, request_of(text, "tale"));
  EXPECT_GT(warm.usage.prefix_tokens(), 0);
  EXPECT_EQ(warm.ids, cold.ids);
  EXPECT_EQ(warm.usage.session_position(), cold.usage.session_position());
}

TEST_F(InitialStates, AreRefusedByNameWhereTheyAreNotTheSessions) {
  const auto refused = [&](const v1::GenerateRequest& request) {
    return failure_of([&] { ask(client_, request); });
  };
  EXPECT_THAT(refused(request_of("x", "tail")),
              Pair(StatusCode::NOT_FOUND, AllOf(HasSubstr("unknown initial_state \"tail\""),
                                                HasSubstr("\"tale\", \"whale\""))));
  EXPECT_THAT(failure_of([&] { open(client_, "none", "tail"); }),
              Pair(StatusCode::NOT_FOUND, HasSubstr("this model has \"tale\", \"whale\"")));
  EXPECT_EQ(failure_of([&] { client_.get_session("none"); }).first, StatusCode::NOT_FOUND);
  open(client_, "bound", "tale");
  open(client_, "empty", "");
  EXPECT_THAT(refused(request_of("x", "whale", "bound")),
              Pair(StatusCode::INVALID_ARGUMENT, HasSubstr("began with \"tale\"")));
  EXPECT_THAT(refused(request_of("x", "tale", "empty")),
              Pair(StatusCode::INVALID_ARGUMENT, HasSubstr("began without one")));
  v1::RewindSessionRequest back;
  back.set_name("bound");
  back.set_position(0);
  EXPECT_THAT(failure_of([&] { client_.rewind_session(back); }),
              Pair(StatusCode::INVALID_ARGUMENT, HasSubstr("must be at least")));
  EXPECT_THAT(client_.model_info().initial_states(1).name(), "whale");
}

TEST_F(InitialStates, OverHttpAreTheSame) {
  const int port = server_->http_port();
  const auto answer_of = [](const nlohmann::json& answer) { return answer["choices"][0]["text"]; };
  nlohmann::json body = {{"prompt", " a king"}, {"max_tokens", 20}, {"temperature", 0}};
  const auto without = answer_of(posted(port, "/v1/completions", body, 200));
  body["initial_state"] = "tale";
  const auto with = answer_of(posted(port, "/v1/completions", body, 200));
  EXPECT_NE(with, without);
  posted(port, "/v1/sessions", {{"session", "web"}, {"initial_state", "tale"}}, 201);
  body["session"] = "web";
  EXPECT_EQ(answer_of(posted(port, "/v1/completions", body, 200)), with);
  body.erase("session");
  body["return_state"] = true;
  EXPECT_EQ(answer_of(posted(port, "/v1/completions", body, 200)), with);
  body["initial_state"] = "tail";
  EXPECT_THAT(posted(port, "/v1/completions", body, 404).dump(), HasSubstr("initial_state"));
  const nlohmann::json message = {{"max_tokens", 1},
                                  {"messages", {{{"role", "user"}, {"content", "x"}}}},
                                  {"initial_state", "tail"}};
  EXPECT_THAT(posted(port, "/v1/messages", message, 404).dump(), HasSubstr("initial_state"));
  const nlohmann::json response = {{"input", "x"}, {"initial_state", "tale"}};
  EXPECT_THAT(posted(port, "/v1/responses", response, 400).dump(), HasSubstr("initial_state"));
}

TEST_F(InitialStates, OfDurableSessionsOutliveTheServer) {
  const TempDir state_dir;
  const Flags folder = {"--state-dir", state_dir.path().string()};
  v1::GenerateRequest turn = request_of(" a king", "tale", "lasting");
  turn.set_request_id("turn-1");
  std::vector<int32_t> ids, next;
  {
    ServerProcess server(flags(join(join(named("tale"), named("whale")), folder)));
    Client client(server.address());
    open(client, "lasting", "tale", v1::DURABILITY_LOCAL);
    open(client, "unused", "tale", v1::DURABILITY_LOCAL);
    ids = ask(client, turn).ids;
    EXPECT_EQ(ask(client, turn).ids, ids) << "recorded";
    v1::GenerateRequest other = turn;
    other.clear_initial_state();
    EXPECT_EQ(failure_of([&] { ask(client, other); }).first, StatusCode::ALREADY_EXISTS);
    server.signal(SIGKILL);
    server.wait();
  }
  ServerProcess server(flags(join(named("tale"), folder)));
  Client client(server.address());
  EXPECT_EQ(client.get_session("lasting").initial_state(), "tale");
  EXPECT_EQ(ask(client, turn).ids, ids);
  EXPECT_EQ(ask(client, request_of(" a king", "tale", "unused")).ids, ids);
  EXPECT_EQ(server.stop(), 0);
  // The name may be another state's then.
  ServerProcess changed(
      flags(join({"--initial-state", "tale=" + (*dir_ / "whale").string()}, folder)));
  Client again(changed.address());
  EXPECT_THAT(failure_of([&] { ask(again, request_of("x", "tale", "lasting")); }),
              Pair(StatusCode::INVALID_ARGUMENT, HasSubstr("another file of that name")));
  EXPECT_EQ(changed.stop(), 0);
}

TEST_F(InitialStates, ThatCannotBeUsedKeepTheServerFromStarting) {
  const std::string damaged = (*dir_ / "damaged").string();
  std::string bytes = states_["tale"];
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(damaged, std::ios::binary) << bytes;
  EXPECT_THAT(why_not({"--initial-state", "x=" + damaged}),
              AllOf(HasSubstr("--initial-state x="), HasSubstr("checksum")));
  std::ofstream(damaged, std::ios::binary) << states_["tale"].substr(0, 5000);
  EXPECT_THAT(why_not({"--initial-state", "x=" + damaged}), HasSubstr("--initial-state x="));
  EXPECT_THAT(why_not({"--initial-state", "x=/nowhere"}), HasSubstr("/nowhere"));
  EXPECT_THAT(why_not(join(named("tale"), named("tale"))), HasSubstr("have the name \"tale\""));
  EXPECT_THAT(why_not({"--initial-state", "other:x=" + damaged}),
              HasSubstr("there is no model \"other\""));
  EXPECT_THAT(why_not({"--initial-state", damaged}), HasSubstr("must be NAME=PATH"));
  ServerProcess other(flags(named("tale"), "parity-mamba"));
  EXPECT_NE(other.wait(), 0);
  EXPECT_THAT(other.log(), HasSubstr("--initial-state tale="));
}

// Requests and sessions from the state against a session that is imported with it.
void expect_same(Client& client, const std::string& state, const std::string& text) {
  imported(client, "twin", state);
  open(client, "opened", "tale");
  const WholeAnswer want = ask(client, request_of(" and she", "", "twin"));
  for (int again = 0; again < 3; ++again) {  // in slots that others have left
    EXPECT_EQ(ask(client, request_of(" and she", "tale")).ids, want.ids);
    ask(client, request_of(text, ""));
  }
  EXPECT_EQ(ask(client, request_of(" and she", "tale", "opened")).ids, want.ids);
  EXPECT_EQ(ask(client, request_of("", "", "twin")).ids,
            ask(client, request_of("", "", "opened")).ids);
  v1::GenerateRequest many = request_of(" and she", "tale");
  many.set_n(2);
  std::vector<int32_t> first;
  client.generate(many, [&](const v1::GenerateResponse& response) {
    if (response.chunk().choice() != 0) return;
    first.insert(first.end(), response.chunk().ids().begin(), response.chunk().ids().end());
  });
  EXPECT_EQ(first, want.ids);
}

// Of other families, one of which has states that grow by pages.
class InitialStateOf : public ::testing::TestWithParam<const char*> {};

TEST_P(InitialStateOf, ContinuesLikeASessionThatWasImported) {
  const TempDir dir;
  const std::string file = (dir / "tale").string();
  std::string state, text = "Once upon a time there was a king";
  for (int i = 0; i < 6; ++i) text += " who had a ship and a daughter";
  {
    ServerProcess server(flags({}, GetParam()));
    Client client(server.address());
    open(client, "tale", "");
    ask(client, request_of(text, "", "tale"));
    state = exported(client, "tale");
    EXPECT_EQ(server.stop(), 0);
  }
  std::ofstream(file, std::ios::binary) << state;
  for (const char* slots : {"2", "5"}) {
    ServerProcess server(flags({"--initial-state", "tale=" + file, "--slots", slots}, GetParam()));
    Client client(server.address());
    expect_same(client, state, text);
    EXPECT_EQ(server.stop(), 0);
  }
}

// Pages for the state and a little more: what starts from it shares them, and other requests get
// them.
TEST(InitialStatePages, AreSharedAndGivenUp) {
  const TempDir dir;
  const std::string file = (dir / "tale").string(), model = "qwen35-books";
  std::string text = "Once upon a time there was a king";
  while (text.size() < 1'200) text += " who had a ship and a daughter";
  int64_t position = 0, page_bytes = 0;
  std::vector<int32_t> want, cold;
  {
    ServerProcess server(flags({}, model));
    Client client(server.address());
    open(client, "tale", "");
    ask(client, request_of(text, "", "tale"));
    std::ofstream(file, std::ios::binary) << exported(client, "tale");
    position = client.get_session("tale").position();
    page_bytes = client.model_info().state_bytes_per_token() * 64;
    want = ask(client, request_of(" and she", "", "tale")).ids;
    cold = ask(client, request_of(text + text, "")).ids;
    EXPECT_EQ(server.stop(), 0);
  }
  const int64_t full = position / 64;
  ASSERT_GE(full, 3);
  const int64_t pages = 2 * full + 4;  // of the doubled text, or of the state and of one more
  ServerProcess server(flags({"--initial-state", "tale=" + file, "--slots", "4", "--kv-memory",
                              std::to_string(pages * page_bytes), "--prefix-memory", "0"},
                             model));
  Client client(server.address());
  for (int again = 0; again < 3; ++again) {
    EXPECT_EQ(ask(client, request_of(" and she", "tale")).ids, want);
    EXPECT_LE(client.load().pages().free(), pages - full) << "it stays";
    EXPECT_EQ(ask(client, request_of(" and she", "tale")).ids, want);
    EXPECT_EQ(ask(client, request_of(text + text, "")).ids, cold) << "in all pages";
  }
  EXPECT_EQ(client.load().slots().idle_session(), 0);
  EXPECT_EQ(server.stop(), 0);
}

INSTANTIATE_TEST_SUITE_P(Families, InitialStateOf,
                         ::testing::Values("qwen35-books", "rwkv7-books", "mamba-books"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace recurve::testing::initial_states_of_a_server_test
