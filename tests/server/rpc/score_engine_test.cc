// Score through the real engine: any division of the stream gives the same bits, and memory does
// not grow with the text.
#include <unistd.h>

#include <bit>
#include <fstream>
#include <random>

#include "server/engine/engine.h"
#include "tests/support/engine/null_model.h"
#include "tests/support/rpc_fixture.h"

#ifdef RECURVE_SANITIZED
extern "C" size_t __sanitizer_get_current_allocated_bytes();  // g++ comes without its header
#endif

namespace recurve::score_engine_test {

constexpr int kChunk = 8;

class ScoreEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    core_.serve(*served_, std::make_shared<FakeTokenizer>(), fake_info());
    thread_ = std::thread([this] { engine_.run(); });
  }
  void TearDown() override {
    server_.shutdown();
    queue_.close();
    thread_.join();
  }

  // Scores the text in the pieces that `next` returns; false: no more.
  v1::ScoreFinal score(const std::function<bool(std::string*)>& next,
                       std::vector<float>* logprobs = nullptr) {
    grpc::ClientContext context;
    const auto stream = inference_->Score(&context);
    std::thread writer([&] {
      v1::ScoreRequest request;
      if (logprobs != nullptr) request.mutable_options()->set_top(0);
      while (next(request.mutable_text()) && stream->Write(request)) request.clear_options();
      stream->WritesDone();
    });
    v1::ScoreResponse response;
    while (stream->Read(&response)) {
      for (const auto& token : response.progress().tokens()) logprobs->push_back(token.logprob());
    }
    writer.join();
    const grpc::Status status = stream->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.final();
  }

  const std::shared_ptr<ServedModel> served_ = std::make_shared<ServedModel>(16);
  AdmissionQueue& queue_ = served_->queue;
  Metrics metrics_;
  ServerCore core_{{}, {served_}, metrics_};
  RpcServer server_{{.listen = "127.0.0.1:0"}, core_};
  std::unique_ptr<Backend> backend_ = make_backend("cpu", 1);
  testing::NullModel model_{fake_info().vocab_rows, {.chunk = kChunk}};
  Engine engine_{model_,
                 *backend_,
                 {.rows = fake_info().vocab_rows, .usable = FakeTokenizer::kSize, .eos_ids = {}},
                 queue_,
                 served_->stats,
                 metrics_,
                 {.slots = 3, .rows_per_step = 512, .sessions = {}}};
  std::unique_ptr<v1::Inference::Stub> inference_ = v1::Inference::NewStub(grpc::CreateChannel(
      "127.0.0.1:" + std::to_string(server_.port()), grpc::InsecureChannelCredentials()));
  std::thread thread_;
};

std::string some_text(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < size) {
    text += random() % 9 == 0 ? "\u00E9" : std::string(1, static_cast<char>('a' + random() % 26));
  }
  return text;
}

std::function<bool(std::string*)> in_pieces(const std::string& text, uint32_t seed, size_t most) {
  return [&text, most, random = std::mt19937(seed), at = size_t{0}](std::string* piece) mutable {
    if (at == text.size()) return false;
    *piece = text.substr(at, 1 + random() % most);  // ends within characters too
    at += piece->size();
    return true;
  };
}

TEST_F(ScoreEngineTest, AnyDivisionGivesTheSameBits) {
  const std::string text = some_text(30'000, 1);
  std::vector<float> whole;
  const v1::ScoreFinal once = score(in_pieces(text, 1, text.size() * 1'000), &whole);
  EXPECT_EQ(once.scored_tokens(), static_cast<int64_t>(text.size()));
  double sum = 0;
  for (const float logprob : whole) sum += static_cast<double>(logprob);
  EXPECT_EQ(once.sum_logprob(), sum);
  EXPECT_LT(sum, -1.0);
  for (const size_t most : {1u, 7u, 300u, 4096u, 9000u}) {
    std::vector<float> pieces;
    const v1::ScoreFinal got = score(in_pieces(text, 2, most), most == 1 ? nullptr : &pieces);
    EXPECT_EQ(std::bit_cast<uint64_t>(got.sum_logprob()),
              std::bit_cast<uint64_t>(once.sum_logprob()))
        << most;
    EXPECT_EQ(got.text_bytes(), once.text_bytes());
    EXPECT_EQ(got.usage().prompt_tokens(), once.usage().prompt_tokens());
    EXPECT_TRUE(most == 1 || pieces == whole) << most;
  }
}

TEST_F(ScoreEngineTest, TokensAreAsLikelyAsInAPrompt) {
  const std::string text = some_text(10'000, 3);
  std::vector<float> scored;
  score(in_pieces(text, 1, 500), &scored);
  v1::GenerateRequest request;
  request.set_text(text);
  request.set_prompt_logprobs(0);
  request.mutable_stop()->set_max_tokens(0);
  grpc::ClientContext context;
  const auto reader = inference_->Generate(&context, request);
  std::vector<float> prompt;
  for (v1::GenerateResponse response; reader->Read(&response);) {
    for (const auto& token : response.prompt_logprobs().tokens()) prompt.push_back(token.logprob());
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(scored, prompt);
}

// Several at once, while other requests start and end.
TEST_F(ScoreEngineTest, NeighboursChangeNothing) {
  const std::string text = some_text(20'000, 4);
  const double alone = score(in_pieces(text, 1, 20'000)).sum_logprob();
  std::vector<double> sums(5);
  std::vector<std::thread> clients;
  for (size_t c = 0; c < sums.size(); ++c) {
    clients.emplace_back([&, c] {
      sums[c] = score(in_pieces(text, static_cast<uint32_t>(c), 50 * (c + 1))).sum_logprob();
    });
  }
  for (std::thread& client : clients) client.join();
  for (const double sum : sums) EXPECT_EQ(sum, alone);
}

// Memory of this process. Sanitizers delay the reuse of freed memory: there, allocated bytes count.
size_t memory_in_use() {
#ifdef RECURVE_SANITIZED
  return __sanitizer_get_current_allocated_bytes();
#endif
  size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Client, server and engine in one process. RECURVE_SCORE_BYTES asks for a longer text.
TEST_F(ScoreEngineTest, MemoryDoesNotGrowWithTheText) {
  const char* wanted = std::getenv("RECURVE_SCORE_BYTES");
  const size_t size = wanted != nullptr ? std::stoul(wanted) : 300'000;
  const std::string piece = some_text(50'000, 5);
  const auto score_bytes = [&](size_t bytes) {
    size_t sent = 0;
    const v1::ScoreFinal final = score([&](std::string* out) {
      if (sent >= bytes) return false;
      *out = piece;
      sent += piece.size();
      return true;
    });
    EXPECT_EQ(final.text_bytes(), static_cast<int64_t>(sent));
    EXPECT_EQ(final.scored_tokens(), static_cast<int64_t>(sent));
  };
  score_bytes(100'000);  // all that is kept from call to call is there now
  const size_t before = memory_in_use();
  score_bytes(size);
  const size_t after = memory_in_use();
  RecordProperty("grown_kib", static_cast<int>((after - std::min(before, after)) / 1024));
  EXPECT_LT(after, before + (size_t{2} << 20));  // eight bytes a token are more
}

}  // namespace recurve::score_engine_test
