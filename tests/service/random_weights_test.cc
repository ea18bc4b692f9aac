// recurve-server --random-weights: only a config, and requests of token ids; --tokenizer: none for
// a real checkpoint, or that of another directory. And whole checkpoints of random weights, for the
// families without a trained one here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "clients/cpp/client.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::random_weights_test {

using ::testing::HasSubstr;

const std::string kConfig =
    std::string(RECURVE_SOURCE_DIR) + "/tests/golden/xlstm/single/config.json";

v1::GenerateRequest ids_request(const std::vector<int32_t>& ids) {
  v1::GenerateRequest request;
  request.mutable_ids()->mutable_ids()->Assign(ids.begin(), ids.end());
  request.mutable_stop()->set_max_tokens(20);
  request.mutable_sampling()->set_seed(3);
  return request;
}

std::vector<int32_t> answer(Client& client, const v1::GenerateRequest& request) {
  std::vector<int32_t> ids;
  client.generate(request, [&](const v1::GenerateResponse& response) {
    for (const int32_t id : response.chunk().ids()) ids.push_back(id);
  });
  return ids;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const ClientError& error) {
    EXPECT_EQ(error.code(), grpc::StatusCode::INVALID_ARGUMENT) << error.what();
    return error.what();
  }
  return "";
}

TEST(RandomWeightsTest, AreTheSameEachTimeAndServeIds) {
  std::vector<std::vector<int32_t>> answers;
  const std::string directory = kConfig.substr(0, kConfig.rfind('/'));
  for (const std::string& model : {kConfig, directory}) {
    ServerProcess server({"--model", model, "--random-weights", "--slots", "2"});
    Client client(server.address());
    EXPECT_GT(client.model_info().token_count(), 0);
    EXPECT_EQ(client.model_info().token_count(), client.model_info().vocab_size());
    EXPECT_EQ(client.model_info().eos_ids_size(), 0);
    answers.push_back(answer(client, ids_request({1, 2, 3})));
    EXPECT_EQ(answers.back().size(), 20u);
    EXPECT_NE(answer(client, ids_request({3, 2, 1})), answers.back());
    EXPECT_EQ(server.stop(), 0);
  }
  EXPECT_EQ(answers[0], answers[1]);
}

TEST(RandomWeightsTest, TextIsRefused) {
  ServerProcess server({"--model", kConfig, "--random-weights", "--slots", "1"});
  Client client(server.address());
  constexpr const char* kSentence = "text must be empty, as this server has no tokenizer";
  v1::GenerateRequest text;
  text.set_text("Call me Ishmael.");
  EXPECT_THAT(refusal([&] { answer(client, text); }), HasSubstr(kSentence));
  v1::GenerateRequest stop = ids_request({1});
  stop.mutable_stop()->add_stop_strings("the");
  EXPECT_THAT(refusal([&] { answer(client, stop); }), HasSubstr("stop_strings must be empty"));
  v1::TokenizeRequest tokenize;
  tokenize.set_text("whale");
  EXPECT_THAT(refusal([&] { client.tokenize(tokenize); }), HasSubstr(kSentence));
  v1::DetokenizeRequest detokenize;
  detokenize.add_ids(1);
  EXPECT_THAT(refusal([&] { client.detokenize(detokenize); }), HasSubstr("ids have no text"));
  const auto ignore = [](const v1::ScoreResponse&) {};
  EXPECT_THAT(refusal([&] { client.score({}, "A whale is a fish.", ignore); }),
              HasSubstr(kSentence));
}

TEST(TokenizerFlag, NoneServesOnlyIds) {
  const std::string demo = std::string(RECURVE_SOURCE_DIR) + "/weights_tools/demo/xlstm-books";
  ServerProcess with_text({"--model", demo, "--slots", "1"});
  Client text_client(with_text.address());
  v1::TokenizeRequest tokenize;
  tokenize.set_text("The old man");
  tokenize.set_add_special_tokens(false);
  const auto ids = text_client.tokenize(tokenize).ids();
  const std::vector<int32_t> prompt(ids.begin(), ids.end());
  const std::vector<int32_t> wanted = answer(text_client, ids_request(prompt));
  EXPECT_FALSE(wanted.empty());

  ServerProcess ids_alone({"--model", demo, "--tokenizer", "none", "--slots", "1"});
  Client client(ids_alone.address());
  EXPECT_EQ(answer(client, ids_request(prompt)), wanted);
  // That of the config, and with the tokenizer the tokenizer's.
  EXPECT_THAT(client.model_info().eos_ids(), ::testing::ElementsAre(1));
  EXPECT_THAT(text_client.model_info().eos_ids(), ::testing::ElementsAre(1, 2));
  EXPECT_THAT(refusal([&] { client.tokenize(tokenize); }), HasSubstr("no tokenizer: send ids"));
}

TEST(TokenizerFlag, UsesThatOfAnotherFolder) {
  const std::string demo = std::string(RECURVE_SOURCE_DIR) + "/weights_tools/demo/";
  TempDir bare;
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::filesystem::copy_file(demo + "xlstm-books/" + name, bare / name);
  }
  ServerProcess server(
      {"--model", bare.path().string(), "--tokenizer", demo + "mamba-books", "--slots", "1"});
  Client client(server.address());
  v1::TokenizeRequest tokenize;
  tokenize.set_text("The old man");
  EXPECT_GT(client.tokenize(tokenize).ids_size(), 0);
}

// An end token from any file of the checkpoint.
TEST(EndIds, OfEveryFileEndAnswers) {
  const std::string demo = std::string(RECURVE_SOURCE_DIR) + "/weights_tools/demo/xlstm-books/";
  const auto answer_with = [&](const std::string& file, const nlohmann::json& eos) {
    TempDir dir;
    for (const char* name : {"config.json", "model.safetensors", "tokenizer.model"}) {
      std::filesystem::copy_file(demo + name, dir / name);
    }
    nlohmann::json values = nlohmann::json::object();
    if (std::ifstream there(dir / file); there) values = nlohmann::json::parse(there);
    if (!eos.is_null()) values["eos_token_id"] = eos;
    std::ofstream(dir / file) << values.dump();
    ServerProcess server({"--model", dir.path().string(), "--slots", "1"});
    Client client(server.address());
    std::vector<int32_t> ids;
    std::string why;
    client.generate(ids_request({700, 800}), [&](const v1::GenerateResponse& response) {
      for (const int32_t id : response.chunk().ids()) ids.push_back(id);
      for (const auto& choice : response.final().choices()) {
        why = v1::FinishReason_Name(choice.reason());
      }
    });
    return std::pair(ids, why);
  };
  const auto [all, length] = answer_with("config.json", nullptr);
  ASSERT_EQ(length, "FINISH_REASON_LENGTH");
  const int32_t word = all[7];
  // The id is the last.
  const std::vector<int32_t> head(all.begin(), std::ranges::find(all, word) + 1);
  const auto wanted = std::pair(head, std::string("FINISH_REASON_EOS"));
  for (const char* file : {"config.json", "generation_config.json"}) {
    EXPECT_EQ(answer_with(file, word), wanted) << file;
    EXPECT_EQ(answer_with(file, {4, word}), wanted) << file;
  }
}

class RandomCheckpoint : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string root(RECURVE_SOURCE_DIR);
    const std::string command =
        "cd '" + root + "' && PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -m weights_tools random" +
        " weights_tools/demo/configs/" + GetParam() + ".json '" + (dir_ / "model").string() +
        "' --tokenizer weights_tools/demo/xlstm-books > /dev/null";
    ASSERT_EQ(std::system(command.c_str()), 0);
  }
  ServerProcess server(std::vector<std::string> more) const {
    more.insert(more.end(), {"--model", (dir_ / "model").string(), "--slots", "2"});
    return ServerProcess(more);
  }
  // Two turns of a session; more tokens than the attention window, if there is one.
  static v1::GenerateRequest turn(int number) {
    v1::GenerateRequest request;
    request.set_text(number == 0 ? "The old man put down his pipe and" : " Then he said: ");
    request.set_session("s");
    request.set_logprobs(0);
    request.mutable_sampling()->set_seed(5);
    request.mutable_stop()->set_max_tokens(100);
    request.mutable_stop()->set_ignore_eos(true);
    return request;
  }
  using Output = std::vector<std::pair<int32_t, float>>;  // ids and log-probabilities
  static Output ask(Client& client, int number) {
    Output said;
    client.generate(turn(number), [&](const v1::GenerateResponse& response) {
      for (const auto& token : response.chunk().logprobs()) {
        said.emplace_back(token.id(), token.logprob());
      }
    });
    return said;
  }

  const TempDir dir_;
};

TEST_P(RandomCheckpoint, AnswersTextAndItsSessionOutlivesAKill) {
  Output first, second;
  {
    ServerProcess quiet = server({});
    Client client(quiet.address());
    EXPECT_EQ(client.model_info().family(), GetParam());
    v1::OpenSessionRequest open;
    open.set_name("s");
    client.open_session(open);
    first = ask(client, 0), second = ask(client, 1);
    EXPECT_EQ(first.size(), 100u);
    EXPECT_EQ(second.size(), 100u);
  }
  const std::vector<std::string> kept = {"--state-dir", (dir_ / "states").string()};
  {
    ServerProcess killed = server(kept);
    Client client(killed.address());
    v1::OpenSessionRequest open;
    open.set_name("s");
    open.set_durability(v1::DURABILITY_LOCAL);
    client.open_session(open);
    EXPECT_EQ(ask(client, 0), first);
    killed.signal(SIGKILL);
    killed.wait();
  }
  ServerProcess again = server(kept);
  Client client(again.address());
  EXPECT_EQ(ask(client, 1), second);
}

INSTANTIATE_TEST_SUITE_P(Families, RandomCheckpoint,
                         ::testing::Values("delta_net", "gated_deltanet", "recurrent_gemma"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace recurve::testing::random_weights_test
