// recurve-server --random-weights: a config alone, and requests of token ids; --tokenizer: none for
// a real checkpoint, or that of another directory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

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

TEST(RandomWeightsTest, AreTheSameEachTimeAndAnswerIds) {
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

TEST(TokenizerFlag, NoneServesIdsAlone) {
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
  EXPECT_THAT(client.model_info().eos_ids(),
              ::testing::ElementsAreArray(text_client.model_info().eos_ids()));
  EXPECT_THAT(refusal([&] { client.tokenize(tokenize); }), HasSubstr("no tokenizer: send ids"));
}

TEST(TokenizerFlag, TakesOneFromElsewhere) {
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

}  // namespace recurve::testing::random_weights_test
