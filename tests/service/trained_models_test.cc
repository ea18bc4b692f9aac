// Checkpoints trained by others or by weights_tools, served as a user would: the server reaches
// their published results.
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <random>

#include "clients/cpp/client.h"
#include "tests/server/text/data.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::trained_models_test {

// Characters [begin, end) of a UTF-8 text, without a byte order mark, its lines ended by "\n".
std::string characters(const std::string& bytes, size_t begin, size_t end) {
  std::string text;
  size_t count = 0;
  for (size_t i = bytes.starts_with("\xEF\xBB\xBF") ? 3 : 0; i < bytes.size(); ++i) {
    if (bytes.compare(i, 2, "\r\n") == 0) continue;
    if ((bytes[i] & 0xC0) != 0x80 && ++count > end) break;
    if (count > begin) text += bytes[i];
  }
  return text;
}

bool convert(const std::filesystem::path& source, const std::filesystem::path& target,
             const std::string& options = "") {
  const std::string command = "cd " RECURVE_SOURCE_DIR
                              " && PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 -m weights_tools "
                              "convert " +
                              options + " '" + source.string() + "' '" + target.string() +
                              "' > /dev/null";
  return std::system(command.c_str()) == 0;
}

struct CharacterLstm {
  const char* name;
  const char* text;
  double bits;  // per character, of characters 30,000 to 33,000 of its text
};

class CharacterLstmTest : public ::testing::TestWithParam<CharacterLstm> {};

TEST_P(CharacterLstmTest, ScoresItsTextAsItsDataSheetSays) {
  const std::filesystem::path data = shared_data();
  const auto source = data / "weights/ml5-charRNN" / GetParam().name;
  RECURVE_NEEDS_DATA(source);
  const TempDir dir;
  ASSERT_TRUE(convert(source, dir / "model", "--forget-bias 1"));
  ServerProcess server({"--model", dir / "model", "--slots", "1"});
  Client client(server.address());
  const std::string text = characters(read_text(data / "corpora" / GetParam().text), 30000, 33000);
  const v1::ScoreFinal final = client.score({}, text, [](const v1::ScoreResponse&) {});
  EXPECT_GT(final.scored_tokens(), 2800);  // without characters that the model does not know
  EXPECT_LT(final.scored_tokens(), 3000);
  const double bits =
      -final.sum_logprob() / std::log(2.0) / static_cast<double>(final.scored_tokens());
  EXPECT_NEAR(bits, GetParam().bits, 0.01);
}

INSTANTIATE_TEST_SUITE_P(Ml5, CharacterLstmTest,
                         ::testing::Values(CharacterLstm{"shakespeare", "tinyshakespeare.txt",
                                                         2.55},
                                           CharacterLstm{"charlotte_bronte", "bronte.txt", 2.00},
                                           CharacterLstm{"darwin", "darwin.txt", 2.54},
                                           CharacterLstm{"dubois", "dubois.txt", 2.95}),
                         [](const auto& info) { return std::string(info.param.name); });

// Parity of random bits, trained on up to 40 of them (the FlashRNN paper's table 2): after the
// bits, the likelier of "0" and "1" must be their sum modulo 2. Every length from 40 to 256.
class ParityTest : public ::testing::TestWithParam<const char*> {};

constexpr int kShortest = 40, kLongest = 256;

std::string likelier_bit(Client& client, const std::string& bits) {
  v1::GenerateRequest request;
  request.set_text(bits);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->add_allowed_token_ids(0);
  request.mutable_sampling()->add_allowed_token_ids(1);
  request.mutable_stop()->set_max_tokens(1);
  std::string answer;
  const auto final = client.generate(
      request, [&](const v1::GenerateResponse& response) { answer += response.chunk().text(); });
  EXPECT_EQ(final.usage().prompt_tokens(), static_cast<int64_t>(bits.size()));
  return answer;
}

TEST_P(ParityTest, AccuracyFromLength40To256) {
  const std::string cell = GetParam();
  // These cannot track a state; their result is only reported.
  const bool reported_only = cell == "mlstm" || cell == "mamba";
  const int sequences = reported_only ? 2 : 6;  // of each length
  ServerProcess server(
      {"--model", RECURVE_SOURCE_DIR "/weights_tools/demo/parity-" + cell, "--slots", "1"});
  Client client(server.address());
  std::mt19937 random(40);
  int right = 0, all = 0;
  for (int length = kShortest; length <= kLongest; ++length) {
    for (int i = 0; i < sequences; ++i, ++all) {
      std::string bits;
      unsigned parity = 0;
      for (int t = 0; t < length; ++t) {
        const unsigned bit = random() >> 7 & 1;
        bits += bit ? '1' : '0';
        parity ^= bit;
      }
      right += likelier_bit(client, bits) == (parity ? "1" : "0");
    }
  }
  std::cout << "parity-" << cell << ": " << right << " of " << all << " sequences\n";
  if (!reported_only) {
    EXPECT_EQ(right, all);
  }
}

INSTANTIATE_TEST_SUITE_P(Cells, ParityTest,
                         ::testing::Values("elman", "lstm", "gru", "slstm", "mlstm", "mamba"),
                         [](const auto& info) { return std::string(info.param); });

// A checkpoint of state-spaces in its original form and converted: the same tokens and
// log-probabilities to the bit.
class OriginalTest : public ::testing::TestWithParam<const char*> {};

std::vector<std::pair<int32_t, float>> greedy(const std::filesystem::path& model) {
  ServerProcess server({"--model", model, "--slots", "1"});
  Client client(server.address());
  v1::GenerateRequest request;
  for (const int32_t id : {1, 0, 2, 3, 1}) request.mutable_ids()->add_ids(id);
  request.mutable_sampling()->set_temperature(0);
  request.set_logprobs(0);
  request.mutable_stop()->set_max_tokens(40);
  request.mutable_stop()->set_ignore_eos(true);
  std::vector<std::pair<int32_t, float>> tokens;
  client.generate(request, [&](const v1::GenerateResponse& response) {
    for (const auto& token : response.chunk().logprobs()) {
      tokens.emplace_back(token.id(), token.logprob());
    }
  });
  return tokens;
}

TEST_P(OriginalTest, ServesTheSameTokensAsBeforeItsConversion) {
  const std::filesystem::path root(RECURVE_SOURCE_DIR);
  const TempDir dir;
  std::filesystem::copy(root / "tests/golden" / GetParam(), dir / "original");
  std::filesystem::copy(root / "weights_tools/demo/parity-lstm/tokenizer.json",
                        dir / "original/tokenizer.json");  // any that has no more ids than rows
  ASSERT_TRUE(convert(dir / "original", dir / "converted"));
  EXPECT_NE(read_text(dir / "converted/config.json"), read_text(dir / "original/config.json"));
  const auto wanted = greedy(dir / "original");
  EXPECT_EQ(wanted.size(), 40u);
  EXPECT_EQ(greedy(dir / "converted"), wanted);
}

INSTANTIATE_TEST_SUITE_P(StateSpaces, OriginalTest,
                         ::testing::Values("mamba/original", "mamba2/original"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(0, name.find('/'));
                         });

}  // namespace recurve::testing::trained_models_test
