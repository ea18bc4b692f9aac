// Adapters of a server: several in one batch give the tokens of each alone, to the bit; sessions
// are bound to theirs; tenants see those that the keys file lets them see; what is unknown, of
// another model or damaged is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "server/identity/key_file.h"
#include "tests/support/adapter_writer.h"
#include "tests/support/served_calls.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::adapters_of_a_server_test {

using grpc::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

constexpr const char* kText = "Once upon a time there was";

v1::GenerateRequest request_of(const std::string& text, const std::string& adapter,
                               const std::string& session = "") {
  v1::GenerateRequest request = drawn_request(text, session);
  request.set_adapter(adapter);
  return request;
}

v1::Session open(Client& client, const std::string& name, const std::string& adapter,
                 v1::Durability durability = v1::DURABILITY_NONE) {
  v1::OpenSessionRequest request = open_request(name, durability);
  request.set_adapter(adapter);
  request.set_rewind_tokens(1000);
  return client.open_session(request);
}

// An adapter of two modules of xlstm-books, whose width is 256.
void write_adapter(const std::filesystem::path& folder, uint64_t seed, int64_t rank,
                   int64_t width = 256) {
  AdapterWriter adapter;
  adapter.config["r"] = rank;
  std::mt19937_64 random(seed);
  for (const char* layer : {"0", "1"}) {
    adapter.add("backbone.blocks." + std::string(layer) + ".mlstm_layer.out_proj", width, width,
                rank, /*bf16=*/false, random);
  }
  adapter.write(folder);
}

// A text of several chunks.
std::string long_text() {
  std::string text;
  while (text.size() < 1200) text += " and the king said to the queen that the sea was wide";
  return text;
}

class Adapters : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = std::make_unique<TempDir>();
    write_adapter(*dir_ / "story", 1, 4);
    write_adapter(*dir_ / "law", 2, 8);
    // Without a limit: requests of a batch wait for each other.
    server_ = std::make_unique<ServerProcess>(flags(join(both(), {"--ttft-ms", "0"})));
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(server_->stop(), 0);
    server_.reset();
    dir_.reset();
  }
  static Flags named(const std::string& name, const std::string& folder = "") {
    return {"--adapter", name + "=" + (*dir_ / (folder.empty() ? name : folder)).string()};
  }
  static Flags both() { return join(named("story"), named("law")); }
  auto refused(const v1::GenerateRequest& request) {
    return failure_of([&] { ask(client_, request); });
  }

  static std::unique_ptr<TempDir> dir_;
  static std::unique_ptr<ServerProcess> server_;
  Client client_{server_->address()};
};
std::unique_ptr<TempDir> Adapters::dir_;
std::unique_ptr<ServerProcess> Adapters::server_;

TEST_F(Adapters, OfSeveralRequestsInABatchGiveTheTokensOfEachAlone) {
  std::map<std::pair<std::string, std::string>, std::vector<int32_t>> alone;
  for (const char* adapter : {"", "story", "law"}) {
    for (const std::string& text :
         {std::string(kText), std::string("Call me Ishmael"), long_text()}) {
      alone[{adapter, text}] = ask(client_, request_of(text, adapter)).ids;
    }
  }
  EXPECT_NE((alone[{"", kText}]), (alone[{"story", kText}]));
  EXPECT_NE((alone[{"", kText}]), (alone[{"law", kText}]));
  EXPECT_NE((alone[{"law", kText}]), (alone[{"story", kText}]));
  for (int again = 0; again < 3; ++again) {
    std::vector<std::future<std::vector<int32_t>>> all;
    for (const auto& [of, ids] : alone) {
      v1::GenerateRequest request = request_of(of.second, of.first);
      request.set_prefix(v1::PREFIX_MODE_OFF);
      all.push_back(
          std::async(std::launch::async, [this, request] { return ask(client_, request).ids; }));
    }
    auto next = all.begin();
    for (const auto& [of, ids] : alone) EXPECT_EQ((next++)->get(), ids) << of.first;
  }
}

TEST_F(Adapters, HaveSeveralChoicesAndScores) {
  v1::GenerateRequest request = request_of(kText, "story");
  request.set_n(3);
  std::vector<std::vector<int32_t>> choices(3);
  client_.generate(request, [&](const v1::GenerateResponse& response) {
    auto& ids = choices.at(static_cast<size_t>(response.chunk().choice()));
    ids.insert(ids.end(), response.chunk().ids().begin(), response.chunk().ids().end());
  });
  for (size_t c = 0; c < choices.size(); ++c) {
    v1::GenerateRequest one = request_of(kText, "story");
    one.mutable_sampling()->set_seed(7 + c);
    EXPECT_EQ(choices[c], ask(client_, one).ids) << c;
  }
  const auto score = [&](const std::string& model, const std::string& adapter) {
    v1::ScoreOptions options;
    options.set_model(model);
    options.set_adapter(adapter);
    return client_.score(options, std::string_view(kText), [](const auto&) {}).sum_logprob();
  };
  EXPECT_NE(score("", "story"), score("", ""));
  EXPECT_EQ(score("story", ""), score("", "story"));
  const auto embedded = [&](const std::string& adapter) {
    v1::EmbedRequest embed;
    embed.add_inputs()->set_text(kText);
    embed.set_adapter(adapter);
    std::vector<float> values;
    client_.embed(embed, [&](const v1::EmbedResponse& response) {
      const auto& of = response.embedding().values();
      values.insert(values.end(), of.begin(), of.end());
    });
    return values;
  };
  EXPECT_NE(embedded("story"), embedded(""));
  EXPECT_EQ(embedded("story"), embedded("story"));
}

TEST_F(Adapters, AreChosenInPlaceOfTheModelToo) {
  const std::vector<int32_t> want = ask(client_, request_of(kText, "law")).ids;
  for (const char* name : {"law", "xlstm-books:law"}) {
    v1::GenerateRequest request = request_of(kText, "");
    request.set_model(name);
    EXPECT_EQ(ask(client_, request).ids, want) << name;
    request.set_adapter("law");
    EXPECT_EQ(ask(client_, request).ids, want) << name;
    request.set_adapter("story");
    EXPECT_THAT(refused(request), Pair(StatusCode::INVALID_ARGUMENT,
                                       HasSubstr("adapter is \"story\", but the model is")));
  }
  v1::GenerateRequest unknown = request_of(kText, "");
  for (const char* name : {"lore", "xlstm-books:lore", "other:law"}) {
    unknown.set_model(name);
    EXPECT_THAT(refused(unknown),
                Pair(StatusCode::NOT_FOUND,
                     HasSubstr("this server has \"xlstm-books\" and the adapters \"story\", "
                               "\"law\"")))
        << name;
  }
  EXPECT_THAT(refused(request_of(kText, "lore")),
              Pair(StatusCode::NOT_FOUND, HasSubstr("unknown adapter \"lore\": this model has "
                                                    "\"story\", \"law\"")));
  const auto adapters = client_.model_info().adapters();
  ASSERT_EQ(adapters.size(), 2);
  EXPECT_EQ(adapters[1].name(), "law");
  EXPECT_EQ(adapters[1].rank(), 8);
  EXPECT_EQ(adapters[1].matrices(), 2);
  EXPECT_GT(adapters[1].bytes(), 0);
  EXPECT_EQ(adapters[1].digest().size(), 32u);
}

TEST_F(Adapters, AreThoseOfASession) {
  EXPECT_EQ(open(client_, "tale", "story").adapter(), "story");
  open(client_, "plain", "");
  ask(client_, request_of(kText, "", "plain"));
  const std::vector<int32_t> first = ask(client_, request_of(kText, "", "tale")).ids;
  EXPECT_EQ(first, ask(client_, request_of(kText, "story")).ids);
  const v1::Session after = client_.get_session("tale");
  v1::ForkSessionRequest fork;
  fork.set_name("tale");
  fork.set_new_name("copy");
  EXPECT_EQ(client_.fork_session(fork).adapter(), "story");
  const std::string state = exported(client_, "tale");
  EXPECT_EQ(imported(client_, "twin", state).adapter(), "story");
  EXPECT_EQ(imported(client_, "same", state, "story").adapter(), "story");
  EXPECT_THAT(failure_of([&] { imported(client_, "other", state, "law"); }),
              Pair(StatusCode::INVALID_ARGUMENT,
                   HasSubstr("adapter is \"law\", but the state was computed with \"story\"")));
  EXPECT_THAT(failure_of([&] { imported(client_, "other", exported(client_, "plain"), "law"); }),
              Pair(StatusCode::INVALID_ARGUMENT, HasSubstr("was computed without one")));
  const std::vector<int32_t> second = ask(client_, request_of(" a ship", "story", "tale")).ids;
  EXPECT_EQ(ask(client_, request_of(" a ship", "", "copy")).ids, second);
  EXPECT_EQ(ask(client_, request_of(" a ship", "", "twin")).ids, second);

  EXPECT_THAT(refused(request_of("x", "law", "tale")),
              Pair(StatusCode::INVALID_ARGUMENT,
                   HasSubstr("adapter is \"law\", but session \"tale\" began with \"story\"")));
  EXPECT_THAT(refused(request_of("x", "story", "plain")),
              Pair(StatusCode::INVALID_ARGUMENT, HasSubstr("began without one")));
  // It absorbs tokens again, with the adapter.
  v1::RewindSessionRequest back;
  back.set_name("tale");
  back.set_position(after.position());
  client_.rewind_session(back);
  EXPECT_EQ(ask(client_, request_of(" a ship", "", "tale")).ids, second);
  back.set_position(0);
  client_.rewind_session(back);
  EXPECT_EQ(ask(client_, request_of(kText, "", "tale")).ids, first);

  ServerProcess without(flags());
  Client other(without.address());
  EXPECT_THAT(failure_of([&] { imported(other, "twin", state); }),
              Pair(StatusCode::FAILED_PRECONDITION,
                   HasSubstr("computed with the adapter \"story\", which this server does not")));
  EXPECT_EQ(without.stop(), 0);
}

TEST_F(Adapters, AreThoseOfAnInitialState) {
  open(client_, "begun", "story");
  ask(client_, request_of(kText, "", "begun"));
  const std::string file = (*dir_ / "begun.state").string();
  std::ofstream(file, std::ios::binary) << exported(client_, "begun");
  const Flags initial = {"--initial-state", "begun=" + file};
  ServerProcess server(flags(join(both(), initial)));
  Client client(server.address());
  v1::GenerateRequest request = request_of(" a ship", "story");
  request.set_initial_state("begun");
  EXPECT_EQ(ask(client, request).ids, ask(client_, request_of(" a ship", "", "begun")).ids);
  for (const char* other : {"", "law"}) {
    request.set_adapter(other);
    EXPECT_THAT(failure_of([&] { ask(client, request); }),
                Pair(StatusCode::INVALID_ARGUMENT,
                     HasSubstr("with which the initial_state \"begun\" was computed, \"story\"")));
  }
  EXPECT_EQ(server.stop(), 0);
  EXPECT_THAT(why_not(join(named("law"), initial)),
              HasSubstr("--initial-state begun: it was computed with the adapter \"story\""));
}

TEST_F(Adapters, HavePrefixesOfTheirOwn) {
  const std::string text = "In the beginning" + long_text();
  const WholeAnswer cold = ask(client_, request_of(text, "story"));
  EXPECT_EQ(cold.usage.prefix_tokens(), 0);
  EXPECT_EQ(ask(client_, request_of(text, "")).usage.prefix_tokens(), 0);
  EXPECT_EQ(ask(client_, request_of(text, "law")).usage.prefix_tokens(), 0);
  const WholeAnswer warm = ask(client_, request_of(text, "story"));
  EXPECT_GT(warm.usage.prefix_tokens(), 0);
  EXPECT_EQ(warm.ids, cold.ids);
  open(client_, "warm", "story");
  const WholeAnswer in_session = ask(client_, request_of(text, "", "warm"));
  EXPECT_EQ(in_session.usage.prefix_tokens(), warm.usage.prefix_tokens());
  EXPECT_EQ(in_session.ids, cold.ids);
}

TEST_F(Adapters, OfDurableSessionsAndPrefixesOutliveTheServer) {
  const TempDir state_dir;
  const Flags folder = {"--state-dir", state_dir.path().string()};
  v1::GenerateRequest turn = request_of(long_text(), "", "lasting");
  turn.set_request_id("turn-1");
  std::vector<int32_t> ids, next;
  {
    ServerProcess server(flags(join(both(), folder)));
    Client client(server.address());
    open(client, "lasting", "story", v1::DURABILITY_LOCAL);
    open(client, "unused", "story", v1::DURABILITY_LOCAL);
    ids = ask(client, turn).ids;
    EXPECT_EQ(ask(client, turn).ids, ids) << "recorded";
    EXPECT_GT(ask(client, request_of(long_text(), "story")).usage.prefix_tokens(), 0);
    EXPECT_TRUE(comes_true([&] { return client.load().prefixes().disk_states() > 0; }));
    server.signal(SIGKILL);
    server.wait();
  }
  {
    ServerProcess server(flags(join(both(), folder)));
    Client client(server.address());
    EXPECT_EQ(client.get_session("lasting").adapter(), "story");
    EXPECT_EQ(ask(client, turn).ids, ids);
    EXPECT_EQ(ask(client, request_of(long_text(), "")).usage.prefix_tokens(), 0);
    EXPECT_EQ(ask(client, request_of(long_text(), "law")).usage.prefix_tokens(), 0);
    const WholeAnswer warm = ask(client, request_of(long_text(), "story"));
    EXPECT_GT(warm.usage.prefix_tokens(), 0) << "from the disk";
    EXPECT_EQ(warm.ids, ids);
    EXPECT_EQ(ask(client, request_of(long_text(), "", "unused")).ids, ids);
    EXPECT_EQ(server.stop(), 0);
  }
  const auto turn_fails = [&](const Flags& more, const char* why) {
    ServerProcess server(flags(join(more, folder)));
    Client client(server.address());
    EXPECT_THAT(failure_of([&] { ask(client, request_of("x", "", "lasting")); }),
                Pair(StatusCode::FAILED_PRECONDITION,
                     AllOf(HasSubstr("session \"lasting\""), HasSubstr("adapter \"story\""),
                           HasSubstr(why))));
    EXPECT_EQ(ask(client, turn).ids, ids) << "the recorded answer is there";
    EXPECT_EQ(client.get_session("lasting").adapter(), "story");
    EXPECT_EQ(server.stop(), 0);
  };
  turn_fails(named("law"), "which this server does not have");
  turn_fails(named("story", "law"), "whose files have changed");
  ServerProcess server(flags(join(both(), folder)));
  Client client(server.address());
  EXPECT_EQ(ask(client, turn).ids, ids);
  EXPECT_FALSE(ask(client, request_of("x", "story", "lasting")).ids.empty()) << "it has stayed";
  EXPECT_EQ(server.stop(), 0);
}

TEST_F(Adapters, OverHttpAreModels) {
  const int port = server_->http_port();
  const auto answer_of = [](const nlohmann::json& answer) { return answer["choices"][0]["text"]; };
  nlohmann::json body = {{"prompt", kText}, {"max_tokens", 20}, {"temperature", 0}};
  const auto without = answer_of(posted(port, "/v1/completions", body, 200));
  body["model"] = "story";
  const nlohmann::json by_model = posted(port, "/v1/completions", body, 200);
  EXPECT_EQ(by_model["model"], "story");
  const auto with = answer_of(by_model);
  EXPECT_NE(with, without);
  body["model"] = "xlstm-books";
  body["adapter"] = "story";
  EXPECT_EQ(answer_of(posted(port, "/v1/completions", body, 200)), with);
  EXPECT_EQ(posted(port, "/v1/sessions", {{"session", "web"}, {"model", "story"}}, 201)["adapter"],
            "story");
  body["session"] = "web";
  EXPECT_EQ(answer_of(posted(port, "/v1/completions", body, 200)), with);
  const std::string state = get(port, "/v1/sessions/web/state").body;
  const HttpClient::Response imported = put(port, "/v1/sessions/web_twin/state?model=story", state);
  EXPECT_EQ(imported.status, 201) << imported.body;
  EXPECT_EQ(imported.object()["adapter"], "story");
  const HttpClient::Response other = put(port, "/v1/sessions/web_other/state?model=law", state);
  EXPECT_EQ(other.status, 400);
  EXPECT_THAT(other.body, HasSubstr("the state was computed with"));
  body.erase("session");
  body["return_state"] = true;
  const nlohmann::json carried = posted(port, "/v1/completions", body, 200);
  EXPECT_EQ(answer_of(carried), with);
  body["state"] = carried["state"];
  EXPECT_EQ(posted(port, "/v1/completions", body, 200)["model"], "xlstm-books");
  body["adapter"] = "law";
  EXPECT_THAT(posted(port, "/v1/completions", body, 400).dump(),
              HasSubstr("the state was computed with"));
  body.erase("state");
  body["adapter"] = "lore";
  EXPECT_THAT(posted(port, "/v1/completions", body, 404).dump(), HasSubstr("unknown adapter"));
  const nlohmann::json message = {
      {"max_tokens", 1}, {"messages", {{{"role", "user"}, {"content", "x"}}}}, {"adapter", "lore"}};
  EXPECT_THAT(posted(port, "/v1/messages", message, 404).dump(), HasSubstr("unknown adapter"));

  HttpClient client(port);
  client.get("/v1/models");
  const nlohmann::json models = client.read().object()["data"];
  ASSERT_EQ(models.size(), 3u);
  EXPECT_FALSE(models[0].contains("parent"));
  EXPECT_EQ(models[2]["id"], "law");
  EXPECT_EQ(models[2]["parent"], "xlstm-books");
  client.get("/v1/models/story");
  EXPECT_EQ(client.read().object()["parent"], "xlstm-books");
  EXPECT_EQ(posted(port, "/tokenize", {{"prompt", "x"}, {"model", "law"}}, 200)["count"],
            posted(port, "/tokenize", {{"prompt", "x"}}, 200)["count"]);
}

TEST_F(Adapters, AreSeenByTheTenantsThatTheKeysFileNames) {
  const TempDir dir;
  const std::string keys = (dir / "keys.json").string();
  const std::string alice = add_key(keys, "alice", Role::kUser, {}),
                    bob = add_key(keys, "bob", Role::kUser, {});
  KeyFile file = read_key_file(keys);
  file.tenants["alice"];
  file.listed["alice"].adapters = {"law"};
  std::ofstream(keys) << to_text(file);
  ServerProcess server(flags(join(both(), {"--keys", keys})));
  Client of_alice(Endpoint(server.address(), {}, alice)),
      of_bob(Endpoint(server.address(), {}, bob));
  const std::vector<int32_t> law = ask(of_alice, request_of(kText, "law")).ids;
  EXPECT_EQ(law, ask(client_, request_of(kText, "law")).ids);
  EXPECT_EQ(ask(of_bob, request_of(kText, "story")).ids,
            ask(of_alice, request_of(kText, "story")).ids);
  EXPECT_EQ(of_alice.model_info().adapters_size(), 2);
  ASSERT_EQ(of_bob.model_info().adapters_size(), 1);
  EXPECT_EQ(of_bob.model_info().adapters(0).name(), "story");

  // As if there were none of that name.
  const auto same_but_for_the_name = [&](const std::function<void(const std::string&)>& call) {
    auto hidden = failure_of([&] { call("law"); }), unknown = failure_of([&] { call("low"); });
    EXPECT_EQ(hidden.first, StatusCode::NOT_FOUND);
    const size_t at = hidden.second.find("law");
    ASSERT_NE(at, std::string::npos) << hidden.second;
    EXPECT_EQ(hidden.second.replace(at, 3, "low"), unknown.second);
    EXPECT_EQ(hidden.first, unknown.first);
  };
  same_but_for_the_name([&](const std::string& name) { ask(of_bob, request_of(kText, name)); });
  same_but_for_the_name([&](const std::string& name) { open(of_bob, "s", name); });
  same_but_for_the_name([&](const std::string& name) {
    v1::GenerateRequest request = request_of(kText, "");
    request.set_model(name);
    ask(of_bob, request);
  });
  open(of_alice, "brief", "law");
  ask(of_alice, request_of(kText, "", "brief"));
  const std::string state = exported(of_alice, "brief");
  EXPECT_THAT(failure_of([&] { imported(of_bob, "mine", state); }),
              Pair(StatusCode::FAILED_PRECONDITION, HasSubstr("does not have")));
  EXPECT_EQ(imported(of_alice, "mine", state).adapter(), "law");
  EXPECT_EQ(server.stop(), 0);
}

TEST_F(Adapters, ThatCannotBeUsedKeepTheServerFromStarting) {
  EXPECT_THAT(why_not(join(named("story"), named("story"))), HasSubstr("have the name \"story\""));
  EXPECT_THAT(why_not(named("xlstm-books", "story")),
              HasSubstr("a model has the name \"xlstm-books\""));
  EXPECT_THAT(why_not(named("other:x", "story")), HasSubstr("there is no model \"other\""));
  EXPECT_THAT(why_not({"--adapter", (*dir_ / "story").string()}), HasSubstr("must be NAME=PATH"));
  EXPECT_THAT(why_not({"--adapter", "x=/nowhere"}),
              AllOf(HasSubstr("--adapter x="), HasSubstr("/nowhere")));
  EXPECT_THAT(why_not(named("story"), "parity-mamba"),
              AllOf(HasSubstr("--adapter story="), HasSubstr("out_proj")));
  const std::filesystem::path x = *dir_ / "x", tensors = x / "adapter_model.safetensors";
  const auto why = [&] { return why_not(named("x")); };
  write_adapter(x, 1, 4, /*width=*/128);
  EXPECT_THAT(why(), AllOf(HasSubstr("--adapter x="), HasSubstr("out_proj")));
  write_adapter(x, 1, /*rank=*/257);
  EXPECT_THAT(why(), AllOf(HasSubstr("--adapter x="), HasSubstr("256")));
  write_adapter(x, 1, 4);
  {
    std::fstream last(tensors, std::ios::binary | std::ios::in | std::ios::out);
    last.seekp(-4, std::ios::end).write("\x00\x00\xc0\x7f", 4);  // NaN
  }
  EXPECT_THAT(why(), AllOf(HasSubstr("--adapter x="), HasSubstr("finite")));
  std::filesystem::rename(tensors, x / "adapter_model.bin");
  EXPECT_THAT(why(), AllOf(HasSubstr("--adapter x="), HasSubstr("adapter_model")));
}

TEST_F(Adapters, OfAFileOfModels) {
  const std::string file = (*dir_ / "models.toml").string();
  std::ofstream(file) << "[books]\npath = \"" << kDemo << "xlstm-books\"\n"
                      << "adapters = { story = \"story\", \"law.v2\" = \"law\" }\n";
  ServerProcess server({"--models", file, "--threads", "1", "--http", "none"});
  Client client(server.address());
  EXPECT_EQ(ask(client, request_of(kText, "law.v2")).ids,
            ask(client_, request_of(kText, "law")).ids);
  EXPECT_THAT(server.log(), HasSubstr("law.v2 (rank 8, 2 matrices), story (rank 4, 2 matrices)"));
  EXPECT_EQ(server.stop(), 0);
}

TEST_F(Adapters, AreCounted) {
  ServerProcess server(flags(both()));
  Client client(server.address());
  ask(client, request_of(kText, "law"));
  open(client, "s", "law");
  ask(client, request_of(kText, "", "s"));
  ask(client, request_of(kText, ""));
  HttpClient http(server.http_port());
  http.get("/metrics");
  EXPECT_THAT(
      http.read().body,
      AllOf(HasSubstr("recurve_adapter_requests_total{adapter=\"law\",model=\"xlstm-books\"} 2"),
            Not(HasSubstr("adapter=\"story\""))));
  EXPECT_EQ(server.stop(), 0);
}

}  // namespace recurve::testing::adapters_of_a_server_test
