// What it takes to add a family, an op and a format of weights: their own files, of which this one
// stands for all, and a line in a list for each. Nothing that is there is changed for these.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/reference/table.h"
#include "kernels/weight_formats.h"
#include "model/families/family_list.h"
#include "model/layers/required_ops.h"
#include "model/weights/linear_weights.h"
#include "tests/support/engine/model_runner.h"
#include "tests/support/engine/poor_backend.h"

namespace recurve::testing::toy_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- an op: the header, the reference and the line

// y = -x.
struct NegateArgs {
  int count;
  const float* x;  // (count)
  float* y;        // (count)
};

struct NegateKernel {
  static constexpr const char* kName = "negate";
  Op<NegateArgs> negate;
  static constexpr auto kOp = &NegateKernel::negate;
};

void run(const NegateArgs& args, Stream&) {
  for (int j = 0; j < args.count; ++j) args.y[j] = -args.x[j];
}

using WithNegate = Kernels::With<NegateKernel>;

TEST(Toy, AnOpIsInTheTableByALineInTheList) {
  WithNegate kernels;
  reference::fill(kernels);
  std::vector<std::string> names, shipped;
  kernels.for_each([&](const char* name, const char* implementation) {
    names.emplace_back(name);
    EXPECT_STREQ(implementation, "reference") << name;
  });
  Kernels::for_each_op([&](const char* name, auto) { shipped.emplace_back(name); });
  shipped.emplace_back("negate");
  EXPECT_EQ(names, shipped);

  const auto stream = make_backend("reference")->make_stream();
  std::vector<float> x = {1, -2}, y(2);
  kernels.negate({.count = 2, .x = x.data(), .y = y.data()}, *stream);
  EXPECT_THAT(y, ElementsAre(-1, 2));
  kernels.add({.count = 2, .a = x.data(), .b = y.data(), .y = y.data()}, *stream);
  EXPECT_THAT(y, ElementsAre(0, 0));
}

// ---- a family: its file and the line

// Logits are the embedding of the token itself: (V, V).
class Echo final : public Model {
 public:
  Echo(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
       const Checkpoint::Progress& progress)
      : kernels_(backend.kernels()) {
    require_ops(backend, "echo", {"embed"});
    info_.family = "echo";
    info_.vocab = checkpoint.config().at("vocab_size").get<int64_t>();
    table_ = LinearWeights::load(backend, checkpoint, {{"embedding.weight", info_.vocab}},
                                 info_.vocab, options.weights.tokens);
    checkpoint.finish(progress);
  }
  const ModelInfo& info() const override { return info_; }
  StateLayout state_layout() const override { return {.arrays = {{.name = "last", .shape = {1}}}}; }
  size_t arena_bytes(const StepLimits&) const override { return 0; }
  void forward(const StepBatch& batch, const StatePool&, Arena&, Stream& stream,
               float* logits) const override {
    kernels_.embed(
        {.rows = batch.seqs.rows, .E = table_.matrix(), .token = batch.tokens, .x = logits},
        stream);
  }

 private:
  const Kernels& kernels_;
  LinearWeights table_;
  ModelInfo info_;
};

std::unique_ptr<const Model> load_echo(Checkpoint& checkpoint, Backend& backend,
                                       const LoadOptions& options,
                                       const Checkpoint::Progress& progress) {
  return std::make_unique<Echo>(checkpoint, backend, options, progress);
}

std::vector<Family> with_echo() {
  std::vector<Family> families(std::begin(kFamilies), std::end(kFamilies));
  families.push_back({{"echo"}, load_echo});
  return families;
}

TEST(Toy, AFamilyIsLoadedByALineInTheList) {
  const auto backend = make_backend("reference");
  const auto stream = backend->make_stream();
  Checkpoint checkpoint = Checkpoint::random({{"model_type", "echo"}, {"vocab_size", 8}}, 1);
  const auto model = load_model_of(with_echo(), checkpoint, *backend, {});
  EXPECT_EQ(model->info().family, "echo");

  StatePool pool(*backend, model->state_layout(), 1, *stream);
  Arena arena(*backend, model->arena_bytes({.rows = 1, .logits = 1}));
  const int32_t begin[] = {0, 1}, slot[] = {1}, row[] = {0};
  const auto logits_of = [&](int32_t token) {
    std::vector<float> logits(8);
    model->forward({.seqs = {.num_seqs = 1, .rows = 1, .max_len = 1, .begin = begin, .slot = slot},
                    .tokens = &token,
                    .num_logits = 1,
                    .logit_rows = row},
                   pool, arena, *stream, logits.data());
    return logits;
  };
  EXPECT_EQ(logits_of(3), logits_of(3));
  EXPECT_NE(logits_of(3), logits_of(4));
}

TEST(Toy, TheOthersAreStillThere) {
  const auto backend = make_backend("reference");
  Checkpoint known = Checkpoint::open(golden_dir() / "mamba/hf");
  EXPECT_EQ(load_model_of(with_echo(), known, *backend, {})->info().family, "mamba");
  Checkpoint unknown = Checkpoint::random({{"model_type", "other"}}, 1);
  try {
    load_model_of(with_echo(), unknown, *backend, {});
    ADD_FAILURE() << "a family that is not registered was loaded";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("granitemoehybrid, nemotron_h, falcon_h1, echo, found \"other\""));
  }
}

// ---- a format of weights: its values in memory, the linear layers and the line

// Signs: the values of three columns are +s or -s, s their mean size. A byte each, s in fp32.
constexpr int64_t kSigns = 3;

void pack_signs(const float* row, int64_t K, std::byte* data, std::byte* scales) {
  for (int64_t begin = 0; begin < K; begin += kSigns) {
    const int64_t end = std::min(begin + kSigns, K);
    float size = 0;
    for (int64_t k = begin; k < end; ++k) size += std::abs(row[k]) / static_cast<float>(kSigns);
    for (int64_t k = begin; k < end; ++k) data[k] = std::byte{row[k] < 0};
    std::memcpy(scales + begin / kSigns * 4, &size, 4);
  }
}

void unpack_signs(const std::byte* data, const std::byte* scales, int64_t K, float* row) {
  for (int64_t k = 0; k < K; ++k) {
    std::memcpy(&row[k], scales + k / kSigns * 4, 4);
    if (data[k] != std::byte{0}) row[k] = -row[k];
  }
}

const WeightFormat kSignWeights = {.name = "signs",
                                   .dtype = DType::kPacked,
                                   .group = kSigns,
                                   .group_bytes = kSigns,
                                   .group_scale = 4,
                                   .pack = pack_signs,
                                   .unpack = unpack_signs};

// The memory of the host, and kernels that know the format.
class SignBackend final : public Backend {
 public:
  SignBackend() : Backend("signs", with_signs()), host_(make_backend("reference")) {}
  std::unique_ptr<Stream> make_stream() override { return host_->make_stream(); }
  void upload(void* to, const void* from, size_t bytes, Stream&) override {
    std::memcpy(to, from, bytes);
  }
  void download(void* to, const void* from, size_t bytes, Stream&) override {
    std::memcpy(to, from, bytes);
  }
  void copy(void* to, const void* from, size_t bytes, Stream&) override {
    std::memcpy(to, from, bytes);
  }
  void zero(void* device, size_t bytes, Stream&) override { std::memset(device, 0, bytes); }

 private:
  static Kernels with_signs() {
    Kernels kernels = reference::table();
    kernels.linear.put({&kSignWeights, reference::run, "toy"});
    return kernels;
  }
  std::byte* take_memory(size_t bytes) override {
    memory_.push_back(std::make_unique<std::byte[]>(bytes));
    return memory_.back().get();
  }
  void give_memory(std::byte*, size_t) override {}

  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::unique_ptr<Backend> host_;
};

TEST(Toy, AFormatIsTakenByEveryLinearLayerByALineInTheTable) {
  const char* config = "mamba/hf";
  const auto logits_of = [&](const WeightFormats& formats) {
    SignBackend backend;
    const auto stream = backend.make_stream();
    Checkpoint checkpoint = Checkpoint::open(golden_dir() / config);
    const auto model = load_model(checkpoint, backend, {.weights = formats});
    EXPECT_EQ(checkpoint.weight_formats(), formats.linear.format->name);
    StatePool pool(backend, model->state_layout(), 1, *stream);
    Arena arena(backend, model->arena_bytes({.rows = 3, .logits = 3}));
    const int32_t begin[] = {0, 3}, slot[] = {1}, rows[] = {0, 1, 2}, tokens[] = {5, 6, 7};
    std::vector<float> logits(3 * static_cast<size_t>(model->info().vocab));
    model->forward({.seqs = {.num_seqs = 1, .rows = 3, .max_len = 3, .begin = begin, .slot = slot},
                    .tokens = tokens,
                    .num_logits = 3,
                    .logit_rows = rows},
                   pool, arena, *stream, logits.data());
    return std::pair(logits, model->info().weight_bytes);
  };
  const auto [signs, sign_bytes] = logits_of({kSignWeights, true});
  const auto [whole, whole_bytes] = logits_of({kF32Weights, true});
  EXPECT_NE(signs, whole);
  EXPECT_LT(sign_bytes, whole_bytes);
  for (const float logit : signs) ASSERT_TRUE(std::isfinite(logit));
}

// The layer computes with the values that are read back, and with nothing else.
TEST(Toy, AFormatIsTheValuesThatAreReadBack) {
  SignBackend backend;
  const auto stream = backend.make_stream();
  Checkpoint checkpoint = Checkpoint::random({{"model_type", "any"}}, 7);
  const int64_t N = 5, K = 7;  // the last group of a row has one column
  const LinearWeights signs =
      LinearWeights::load(backend, checkpoint, {{"a", 2}, {"b", 3}}, K, {&kSignWeights});
  const LinearWeights plain =
      LinearWeights::load(backend, checkpoint, {{"a", 2}, {"b", 3}}, K, DType::kF32);
  checkpoint.finish();
  EXPECT_EQ(signs.bytes(), static_cast<size_t>(N * 3 * (kSigns + 4)));
  std::vector<float> values(N * K), x = {1, -2, 3, 0.5, 0, 4, -1}, y(N), expected(N);
  for (int64_t n = 0; n < N; ++n) {
    unpack_row(signs.matrix(), n, values.data() + n * K);
    for (int64_t k = 0; k < K; ++k) {
      const float was = static_cast<const float*>(plain.matrix().data)[n * K + k];
      EXPECT_EQ(std::signbit(values[n * K + k]), was < 0);
    }
  }
  backend.kernels().linear({.rows = 1, .W = signs.matrix(), .x = x.data(), .y = y.data()}, *stream);
  backend.kernels().linear({.rows = 1,
                            .W = {.N = N, .K = K, .data = values.data()},
                            .x = x.data(),
                            .y = expected.data()},
                           *stream);
  EXPECT_EQ(y, expected);
}

TEST(Toy, ABackendWithoutTheFormatSaysWhichItHas) {
  PoorBackend backend(reference::table());
  Checkpoint checkpoint = Checkpoint::open(golden_dir() / "mamba/hf");
  try {
    load_model(checkpoint, backend, {.weights = {kSignWeights, true}});
    ADD_FAILURE() << "weights were loaded that nothing multiplies with";
  } catch (const MissingFormat& error) {
    EXPECT_THAT(error.what(), HasSubstr("backend 'poor' cannot take weights in signs"));
    EXPECT_THAT(error.what(), HasSubstr("f32, bf16"));
  }
}

}  // namespace recurve::testing::toy_test
