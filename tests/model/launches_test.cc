// What a GPU is asked to compute in the steps of every family, op by op with all arguments, is what
// tests/golden/launches/launches.txt says: without a GPU, with what the kernels of the two
// generations say of themselves, and functions that write the calls down. A line there is a model,
// a table, a step, the number of calls and a hash of them. Where a change of the calls is meant:
//   RECURVE_LAUNCHES=DIR build/release/bin/model_test --gtest_filter='Launches.*'
// writes DIR/launches.txt anew and the calls themselves, a file a step, to be compared.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

#include "kernels/cuda/common/capabilities.h"
#include "kernels/cuda/sm90/capabilities.h"
#include "model/layers/required_ops.h"
#include "tests/support/engine/listing_backend.h"
#include "tests/support/engine/model_runner.h"

namespace recurve::testing::launches_test {

namespace fs = std::filesystem;

constexpr int kSlots = 128;

Kernels sm80() {
  Kernels kernels;
  cuda::set_sm80_capabilities(kernels);
  return kernels;
}

Kernels sm90() {
  Kernels kernels = sm80();
  cuda::set_sm90_capabilities(kernels);
  return kernels;
}

// As sm90, but small matrices count as large ones: so the small checkpoints, which have every
// variety of every family, go the ways that only large models go on a GPU.
Kernels sm90_no_matrix_small() {
  Kernels kernels = sm90();
  kernels.linear.rounds = cuda::sm80::linear_bf16_takes;
  kernels.linear.convolves = [](const LinearArgs& args, const CausalConv1dArgs& conv) {
    return cuda::sm80::linear_bf16_takes(args.W) && cuda::sm90::can_end_with(args, conv);
  };
  return kernels;
}

struct Step {
  const char* name;
  std::vector<int> lengths;  // rows of each sequence
  int logits;
};

const std::vector<Step>& steps() {
  static const std::vector<Step> kSteps = {{"decode_3", std::vector<int>(3, 1), 3},
                                           {"decode_100", std::vector<int>(100, 1), 100},
                                           {"prompts", {70, 1, 5}, 2},
                                           {"prompt_300", {300}, 0}};
  return kSteps;
}

// A loaded model, and memory for any of the steps.
class Listed {
 public:
  Listed(const fs::path& config, const Kernels& kernels)
      : backend_(kernels), stream_(backend_.make_stream()) {
    Checkpoint checkpoint = Checkpoint::random_from(config, 1);
    checkpoint.leave_out_copies();
    model_ = load_model(checkpoint, backend_, {.weights = DType::kBF16});
    pool_.emplace(backend_, model_->state_layout(), kSlots, *stream_);
    arena_.emplace(backend_, model_->arena_bytes({.rows = 512, .logits = 512}));
    for (Buffer& buffer : inputs_) buffer = backend_.allocate(1);
  }

  std::vector<std::string> calls(const Step& step) {
    int rows = 0, longest = 0;
    for (const int length : step.lengths) {
      rows += length;
      longest = std::max(longest, length);
    }
    const StepBatch batch{.seqs = {.num_seqs = static_cast<int>(step.lengths.size()),
                                   .rows = rows,
                                   .max_len = longest,
                                   .begin = inputs_[0].as<int32_t>(),
                                   .slot = inputs_[1].as<int32_t>()},
                          .tokens = inputs_[2].as<int32_t>(),
                          .num_logits = step.logits,
                          .logit_rows = inputs_[3].as<int32_t>()};
    return ListingBackend::calls_of(
        [&] { model_->forward(batch, *pool_, *arena_, *stream_, inputs_[4].as<float>()); });
  }

 private:
  ListingBackend backend_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<const Model> model_;
  std::optional<StatePool> pool_;
  std::optional<Arena> arena_;
  std::array<Buffer, 5> inputs_;  // begins, slots, tokens, rows with logits; logits
};

// FNV-1a, 64 bits, with a line's end after each.
uint64_t hash_of(const std::vector<std::string>& lines) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](char byte) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  };
  for (const std::string& line : lines) {
    for (const char byte : line) add(byte);
    add('\n');
  }
  return hash;
}

// All steps of a model with a table, a line each; and the calls, if a folder is given.
std::string listed(const std::string& name, const fs::path& config, const std::string& table,
                   const Kernels& kernels, const char* folder) {
  Listed model(config, kernels);
  std::string lines;
  for (const Step& step : steps()) {
    const auto calls = model.calls(step);
    lines +=
        fmt::format("{} {} {} {} {:016x}\n", name, table, step.name, calls.size(), hash_of(calls));
    if (folder == nullptr) continue;
    std::string file_name = fmt::format("{}.{}.{}.calls", name, table, step.name);
    std::ranges::replace(file_name, '/', '_');
    std::ofstream file(fs::path(folder) / file_name);
    for (const std::string& call : calls) file << call << '\n';
  }
  return lines;
}

std::vector<std::string> lines_of(std::istream& text) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

TEST(Launches, AreThoseOfTheGolden) {
  const char* folder = std::getenv("RECURVE_LAUNCHES");
  std::vector<fs::path> configs;
  for (const auto& entry : fs::directory_iterator(fs::path(RECURVE_SOURCE_DIR) / "tests/configs")) {
    configs.push_back(entry.path());
  }
  std::ranges::sort(configs);
  std::string found;
  for (const fs::path& config : configs) {
    found += listed(config.stem(), config, "sm80", sm80(), folder);
    found += listed(config.stem(), config, "sm90", sm90(), folder);
  }
  for (const ModelCase& model_case : model_cases()) {
    const fs::path config = golden_dir() / model_case.directory / "config.json";
    found += listed(model_case.directory, config, "sm90_all", sm90_no_matrix_small(), folder);
  }
  if (folder != nullptr) std::ofstream(fs::path(folder) / "launches.txt") << found;

  std::ifstream file(golden_dir() / "launches/launches.txt");
  std::istringstream text(found);
  const auto wanted = lines_of(file), got = lines_of(text);
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], wanted[i]);
}

// What a model calls, its family has asked for before it loads anything.
TEST(Launches, AreOfOpsThatFamiliesAskFor) {
  for (const ModelCase& model_case : model_cases()) {
    const fs::path config = golden_dir() / model_case.directory / "config.json";
    std::set<std::string> called;
    Listed model(config, sm80());
    for (const Step& step : steps()) {
      for (const std::string& call : model.calls(step))
        called.insert(call.substr(0, call.find(' ')));
    }
    Kernels::for_each_op([&](const char* name, auto) {
      if (!called.contains(name)) return;
      ListingBackend without(sm80(), name);
      Checkpoint checkpoint = Checkpoint::random_from(config, 1);
      EXPECT_THROW(load_model(checkpoint, without, {}), MissingKernels)
          << model_case.directory << " without " << name;
    });
  }
}

}  // namespace recurve::testing::launches_test
