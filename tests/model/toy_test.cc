// What it takes to add a family and an op: their own files, of which this one stands for both, and
// a line in a list for each. Nothing that is there is changed for the two below.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/reference/table.h"
#include "model/families/family_list.h"
#include "model/layers/required_ops.h"
#include "model/weights/linear_weights.h"
#include "tests/support/model_runner.h"

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
                                 info_.vocab, options.weights);
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
    ADD_FAILURE() << "a family that nobody lists was loaded";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rnn, echo, found \"other\""));
  }
}

}  // namespace recurve::testing::toy_test
