// LoRA adapters: against PEFT's results (tests/golden/adapters), the bits of rows with and without
// an adapter in one step, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <optional>

#include "tests/support/adapter_writer.h"
#include "tests/support/engine/model_runner.h"
#include "tests/support/kernels/compare.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::adapter_test {

namespace fs = std::filesystem;
using Floats = std::vector<float>;

// ---- against PEFT

constexpr double kTolerance = 2e-5;  // fp32 against fp64, of the largest value: as in golden_test

double apart(const Floats& found, const Floats& wanted) {
  EXPECT_EQ(found.size(), wanted.size());
  double largest = 0, difference = 0;
  for (size_t i = 0; i < std::min(found.size(), wanted.size()); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
    const double one = std::abs(static_cast<double>(found[i]) - wanted[i]);
    difference = std::isnan(one) ? INFINITY : std::max(difference, one);
  }
  return difference / largest;
}

std::vector<std::string> golden_adapters() {
  std::vector<std::string> names;
  for (const auto& at : fs::directory_iterator(golden_dir() / "adapters")) {
    if (at.is_directory()) names.push_back(at.path().filename());
  }
  std::ranges::sort(names);
  return names;
}

ModelCase base_of(const std::string& name) {
  std::ifstream in(golden_dir() / "adapters" / name / "adapter_config.json");
  const std::string base = nlohmann::json::parse(in)["base_model_name_or_path"];
  return {base, stored_type(golden_dir() / base)};
}

using GoldenParam = std::tuple<std::string, std::string /* device */, int /* rows a step */>;
class GoldenAdapterTest : public ::testing::TestWithParam<GoldenParam> {};

TEST_P(GoldenAdapterTest, LogitsArePeftsAndThoseOfMergedWeights) {
  const auto& [name, device, step] = GetParam();
  if (const std::string why = why_unusable(base_of(name), device); !why.empty()) {
    GTEST_SKIP() << why;
  }
  const fs::path folder = golden_dir() / "adapters" / name;
  const Golden golden(folder / "golden.safetensors");
  ModelRunner runner(base_of(name), device);
  runner.plan_adapters();
  const AdapterPtr adapter = runner.load_adapter(folder);
  for (const std::string s : {"0", "1"}) {
    const std::vector<int32_t> tokens = golden.ids("tokens." + s);
    const StateSlot slot = *runner.pool().acquire();
    Floats logits;
    for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(step)) {
      const auto end =
          static_cast<ptrdiff_t>(std::min(tokens.size(), at + static_cast<size_t>(step)));
      const Floats part = runner.forward(
          {{&slot, {tokens.begin() + static_cast<ptrdiff_t>(at), tokens.begin() + end}, adapter}});
      logits.insert(logits.end(), part.begin(), part.end());
    }
    EXPECT_LE(apart(logits, golden.floats("logits." + s)), kTolerance) << s;
    if (s == "1") {
      EXPECT_LE(apart(logits, golden.floats("merged.1")), kTolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Peft, GoldenAdapterTest,
                         ::testing::Combine(::testing::ValuesIn(golden_adapters()),
                                            ::testing::ValuesIn(all_devices()),
                                            ::testing::Values(1, 64, 256)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" +
                                  test_name(std::get<1>(info.param)) + "_" +
                                  std::to_string(std::get<2>(info.param));
                         });

// ---- several in one step

struct Setting {
  ModelCase model;
  std::string device;
  WeightFormats weights;
  std::string name;
  ActivationType narrowest = ActivationType::kF32;
};

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const ModelCase& model : model_cases()) {
    std::string name = model.directory;
    // Of formats that PEFT knows no modules of.
    if (name.starts_with("rnn/") || name.starts_with("xlstm_blocks/")) continue;
    std::ranges::replace(name, '/', '_');
    const WeightFormats bf16 = WeightFormats::named("bf16");
    for (const std::string& device : all_devices()) {
      const std::string of_device = name + "_" + test_name(device);
      all.push_back({model, device, model.weights, of_device});
      if (device == "reference") continue;
      all.push_back({model, device, WeightFormats::named("int8"), of_device + "_int8"});
      all.push_back({model, device, WeightFormats::named("int4"), of_device + "_int4"});
      if (device != "cpu") all.push_back({model, device, bf16, of_device + "_bf16"});
    }
    if (host_devices().back() != "cpu") continue;
    all.push_back({model, "cpu", bf16, name + "_cpu_x_bf16", ActivationType::kBF16});
  }
  return all;
}

struct Outcome {
  Floats logits;
  StateBytes state;
};

class MixedAdaptersTest : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    const Setting& s = GetParam();
    if (const std::string why = why_unusable(s.device); !why.empty()) GTEST_SKIP() << why;
    runner_.emplace(golden_dir() / s.model.directory, s.weights, s.device, 0, 2, DType::kF32, false,
                    s.narrowest);
  }

  AdapterPtr random_adapter(int64_t r, bool bf16) {
    const fs::path folder = folder_ / ("r" + std::to_string(r));
    AdapterWriter::of_all(runner_->targets(), r, static_cast<uint64_t>(r), bf16).write(folder);
    return runner_->load_adapter(folder);
  }

  std::vector<int32_t> tokens(size_t count, int32_t seed) {
    std::vector<int32_t> tokens;
    for (size_t t = 0; t < count; ++t) {
      const int64_t number = int64_t{seed} * 131 + static_cast<int64_t>(t) * 7919;
      tokens.push_back(static_cast<int32_t>(number % runner_->model().info().vocab));
    }
    return tokens;
  }

  // In parts of the given sizes, one step each.
  Outcome alone(const std::vector<int32_t>& tokens, const AdapterPtr& adapter,
                const std::vector<size_t>& sizes) {
    const StateSlot slot = *runner_->pool().acquire();
    Floats logits;
    auto at = tokens.begin();
    for (const size_t size : sizes) {
      const auto end = at + static_cast<ptrdiff_t>(size);
      const Floats part = runner_->forward({{&slot, {at, end}, adapter}});
      logits.insert(logits.end(), part.begin(), part.end());
      at = end;
    }
    return {logits, state_in(runner_->pool(), slot)};
  }

  TempDir folder_;
  std::optional<ModelRunner> runner_;
};

void expect_same_bits(const Outcome& found, const Outcome& wanted, const std::string& what) {
  EXPECT_TRUE(bit_equal(found.logits, wanted.logits)) << what << ": logits";
  EXPECT_TRUE(found.state == wanted.state) << what << ": state";
}

// The rows without one have the bits that they have before there are adapters.
TEST_P(MixedAdaptersTest, SequencesHaveTheBitsOfEachAlone) {
  ASSERT_FALSE(runner_->targets().tensors().empty());
  const std::vector<size_t> lengths = {1, 70, 65, 1, 3, 2};
  std::vector<std::vector<int32_t>> prompts;
  for (const size_t length : lengths) {
    prompts.push_back(tokens(length, static_cast<int32_t>(prompts.size())));
  }
  const Outcome base = alone(prompts[1], nullptr, {lengths[1]});
  runner_->plan_adapters();
  const AdapterPtr some = random_adapter(5, false), others = random_adapter(16, true);
  const std::vector<AdapterPtr> adapters = {some, nullptr, others, others, some, nullptr};
  std::vector<Outcome> wanted;
  for (size_t b = 0; b < lengths.size(); ++b) {
    wanted.push_back(alone(prompts[b], adapters[b], {lengths[b]}));
  }
  expect_same_bits(wanted[1], base, "without an adapter");
  EXPECT_FALSE(bit_equal(alone(prompts[1], some, {lengths[1]}).logits, base.logits));

  std::vector<StateSlot> slots;
  std::vector<ModelRunner::Part> parts;
  for (size_t b = 0; b < lengths.size(); ++b) slots.push_back(*runner_->pool().acquire());
  const std::vector<size_t> order = {2, 0, 4, 1, 5, 3};
  for (const size_t b : order) parts.push_back({&slots[b], prompts[b], adapters[b]});
  const Floats logits = runner_->forward(parts);
  auto at = logits.begin();
  for (const size_t b : order) {
    const auto end = at + static_cast<ptrdiff_t>(wanted[b].logits.size());
    expect_same_bits({{at, end}, state_in(runner_->pool(), slots[b])}, wanted[b],
                     "sequence " + std::to_string(b));
    at = end;
  }
}

TEST_P(MixedAdaptersTest, CutsOnTheGridChangeNothing) {
  ASSERT_FALSE(runner_->targets().tensors().empty());
  runner_->plan_adapters();
  const AdapterPtr adapter = random_adapter(3, false);
  const std::vector<int32_t> prompt = tokens(150, 1);
  expect_same_bits(alone(prompt, adapter, {64, 64, 22}), alone(prompt, adapter, {150}), "3 parts");
}

INSTANTIATE_TEST_SUITE_P(Models, MixedAdaptersTest, ::testing::ValuesIn(settings()),
                         [](const auto& info) { return info.param.name; });

// ---- files

class AdapterFileTest : public ::testing::Test {
 protected:
  AdapterFileTest() : AdapterFileTest("mamba/hf") {}
  explicit AdapterFileTest(const std::string& model)
      : backend_(make_backend("reference")),
        model_(ModelRunner::load(golden_dir() / model, stored_type(golden_dir() / model), *backend_,
                                 0, DType::kF32, false, &targets_)) {}

  // One module of mamba/hf: (192, 48).
  static AdapterWriter in_proj(int64_t r = 4) {
    std::mt19937_64 random(1);
    AdapterWriter adapter;
    adapter.config["r"] = r;
    return adapter.add("backbone.layers.0.mixer.in_proj", 192, 48, r, false, random);
  }
  AdapterPtr load() { return load_adapter(*targets_, *backend_, "one", folder_ / "adapter"); }
  // What both functions say, the one that reads no values first.
  std::string refusal() {
    for (const bool loads : {false, true}) {
      try {
        loads ? static_cast<void>(load())
              : static_cast<void>(adapter_bytes(*targets_, *backend_, folder_ / "adapter"));
      } catch (const std::runtime_error& error) {
        return error.what();
      }
    }
    return "";
  }
  std::string refusal(const AdapterWriter& adapter) {
    adapter.write(folder_ / "adapter");
    return refusal();
  }
  std::string refusal_of_config(const std::string& key, const nlohmann::json& value) {
    AdapterWriter adapter = in_proj();
    adapter.config[key] = value;
    return refusal(adapter);
  }
  std::string refusal_of_tensor(const std::string& name, const std::vector<int64_t>& shape,
                                float value = 1) {
    AdapterWriter adapter = in_proj();
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    adapter.tensors.add_f32("base_model.model." + name, shape,
                            Floats(static_cast<size_t>(count), value));
    return refusal(adapter);
  }

  TempDir folder_;
  std::unique_ptr<Backend> backend_;
  std::shared_ptr<const AdapterTargets> targets_;
  std::unique_ptr<const Model> model_;
};

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(AdapterFileTest, IsLoadedIntoThePlannedMemory) {
  ASSERT_EQ(refusal(in_proj()), "");
  const size_t before = backend_->allocated();
  const AdapterPtr adapter = load();
  const AdapterInfo& info = info_of(*adapter);
  EXPECT_EQ(info.name, "one");
  EXPECT_EQ(info.rank, 4);
  EXPECT_EQ(info.matrices, 1);
  EXPECT_EQ(info.parameters, 4 * (192 + 48));
  EXPECT_EQ(info.digest.size(), 32u);
  EXPECT_EQ(info.bytes, adapter_bytes(*targets_, *backend_, folder_ / "adapter"));
  EXPECT_EQ(backend_->allocated() - before, 4u * 4 * (192 + 48));
  EXPECT_GE(info.bytes, backend_->allocated() - before);
}

TEST_F(AdapterFileTest, DigestIsOfWhatChangesTheResult) {
  const auto digest = [&](const AdapterWriter& adapter) {
    EXPECT_EQ(refusal(adapter), "");
    return info_of(*load()).digest;
  };
  AdapterWriter adapter = in_proj();
  const std::string first = digest(adapter);
  adapter.config["lora_dropout"] = 0.5;
  EXPECT_EQ(digest(adapter), first);
  adapter.config["lora_alpha"] = 9;
  EXPECT_NE(digest(adapter), first);
}

TEST_F(AdapterFileTest, PrefixesOfOtherClassesAreTaken) {
  for (const char* prefix : {"", "model.", "backbone.", "model.language_model."}) {
    std::mt19937_64 random(1);
    AdapterWriter adapter;
    adapter.add(std::string(prefix) + "layers.1.mixer.x_proj", 35, 96, 4, false, random);
    EXPECT_EQ(refusal(adapter), "") << prefix;
  }
}

TEST_F(AdapterFileTest, RefusesWhatItCannotCompute) {
  EXPECT_THAT(refusal_of_config("peft_type", "IA3"),
              AllOf(HasSubstr("adapter_config.json: peft_type"), HasSubstr("IA3")));
  EXPECT_THAT(refusal_of_config("use_dora", true), HasSubstr("use_dora"));
  EXPECT_THAT(refusal_of_config("bias", "all"), HasSubstr("bias"));
  EXPECT_THAT(refusal_of_config("modules_to_save", {"lm_head"}), HasSubstr("modules_to_save"));
  EXPECT_THAT(refusal_of_config("fan_in_fan_out", true), HasSubstr("fan_in_fan_out"));
  EXPECT_THAT(refusal_of_config("trainable_token_indices", {1}),
              HasSubstr("trainable_token_indices"));
  EXPECT_THAT(refusal_of_config("target_parameters", {"experts"}), HasSubstr("target_parameters"));
  EXPECT_THAT(refusal_of_config("init_lora_weights", "pissa"), HasSubstr("pissa"));
  EXPECT_THAT(refusal_of_config("some_new_option", 3), HasSubstr("some_new_option"));
  EXPECT_EQ(refusal_of_config("some_new_option", nullptr), "");
  EXPECT_EQ(refusal_of_config("another", false), "");
}

TEST_F(AdapterFileTest, RefusesRanksAndScalesThatAreNone) {
  EXPECT_THAT(refusal_of_config("r", 257), HasSubstr("from 1 to 256"));
  EXPECT_THAT(refusal_of_config("r", 0), HasSubstr("from 1 to 256"));
  EXPECT_THAT(refusal_of_config("r", 5), HasSubstr("wanted the rank 5"));
  EXPECT_THAT(refusal_of_config("lora_alpha", "much"), HasSubstr("lora_alpha"));
  EXPECT_THAT(refusal_of_config("lora_alpha", 1e300), HasSubstr("lora_alpha"));
  EXPECT_THAT(refusal_of_config("rank_pattern", {{"in_proj", 1000}}), HasSubstr("in_proj"));
  EXPECT_THAT(refusal_of_config("rank_pattern", {{"in_proj", 3}}), HasSubstr("wanted the rank 3"));
  EXPECT_THAT(refusal_of_config("alpha_pattern", {{"in_(proj|x)", 3}}), HasSubstr("alpha_pattern"));
  EXPECT_THAT(refusal_of_config("alpha_pattern", {{"in_proj", 3}, {"mixer.in_proj", 4}}),
              HasSubstr("with different values"));
}

TEST_F(AdapterFileTest, RefusesTensorsThatNothingHas) {
  EXPECT_THAT(
      refusal_of_tensor("backbone.layers.0.mixer.q_proj.lora_A.weight", {4, 48}),
      AllOf(HasSubstr("q_proj"), HasSubstr("layers.*.mixer.in_proj, layers.*.mixer.out_proj, "
                                           "layers.*.mixer.x_proj")));
  EXPECT_THAT(refusal_of_tensor("backbone.layers.0.mixer.dt_proj.lora_A.weight", {4, 3}),
              HasSubstr("cannot change"));
  EXPECT_THAT(refusal_of_tensor("lm_head.lora_A.weight", {4, 48}), HasSubstr("cannot change"));
  EXPECT_THAT(refusal_of_tensor("mtp.layers.0.mixer.in_proj.lora_A.weight", {4, 48}),
              HasSubstr("cannot change"));
  EXPECT_THAT(refusal_of_tensor("backbone.embeddings.lora_embedding_A", {4, 97}),
              HasSubstr("adapters of embeddings are not supported"));
  EXPECT_THAT(refusal_of_tensor("backbone.layers.0.mixer.in_proj.lora_magnitude_vector", {192}),
              HasSubstr("DoRA"));
  EXPECT_THAT(refusal_of_tensor("backbone.layers.0.mixer.in_proj.weight", {192, 48}),
              HasSubstr("lora_A.weight"));
  EXPECT_THAT(refusal_of_tensor("model.layers.0.mixer.in_proj.lora_A.weight", {4, 48}),
              HasSubstr("wanted one of its module"));
  EXPECT_THAT(refusal_of_tensor("backbone.layers.1.mixer.in_proj.lora_A.weight", {4, 48}),
              HasSubstr("wanted A and B"));
  EXPECT_THAT(refusal(AdapterWriter()), HasSubstr("found none"));
}

TEST_F(AdapterFileTest, RefusesOtherModels) {
  std::mt19937_64 random(1);
  AdapterWriter wide;
  wide.add("backbone.layers.0.mixer.in_proj", 192, 64, 4, false, random);
  EXPECT_THAT(refusal(wide), HasSubstr("wanted F32, BF16 or F16 [4, 48] for this model"));
  AdapterWriter tall;
  tall.add("backbone.layers.0.mixer.in_proj", 384, 48, 4, false, random);
  EXPECT_THAT(refusal(tall), HasSubstr("wanted F32, BF16 or F16 [192, 4] for this model"));
  AdapterWriter deep;
  deep.add("backbone.layers.2.mixer.in_proj", 192, 48, 4, false, random);
  EXPECT_THAT(refusal(deep), HasSubstr("layers.2.mixer.in_proj"));
}

TEST_F(AdapterFileTest, RefusesValuesThatAreNotFinite) {
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    AdapterWriter adapter = in_proj();
    Floats A(4 * 48, 1);
    A[77] = value;
    adapter.tensors.add_f32("base_model.model.backbone.layers.1.mixer.in_proj.lora_A.weight",
                            {4, 48}, A);
    adapter.tensors.add_f32("base_model.model.backbone.layers.1.mixer.in_proj.lora_B.weight",
                            {192, 4}, Floats(192 * 4, 1));
    EXPECT_THAT(refusal(adapter), HasSubstr("wanted finite values"));
  }
}

TEST_F(AdapterFileTest, RefusesFilesThatAreNone) {
  EXPECT_THAT(refusal(), HasSubstr("wanted the folder of a LoRA adapter"));
  in_proj().write(folder_ / "adapter");
  const fs::path file = folder_ / "adapter" / "adapter_model.safetensors";
  const std::string whole = in_proj().tensors.bytes();
  for (const size_t size : {size_t{0}, size_t{7}, size_t{60}, whole.size() - 1}) {
    write_file(file, std::string_view(whole).substr(0, size));
    EXPECT_THAT(refusal(), HasSubstr("adapter_model.safetensors")) << size;
  }
  write_file(file, safetensors_bytes(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                                     "1234", uint64_t{1} << 62));
  EXPECT_THAT(refusal(), HasSubstr("header"));
  const char* const huge = R"({"base_model.model.backbone.layers.0.mixer.in_proj.lora_A.weight":)"
                           R"({"dtype":"F32","shape":[9223372036854775807,48],)"
                           R"("data_offsets":[0,4]}})";
  write_file(file, safetensors_bytes(huge, "1234"));
  EXPECT_THAT(refusal(), HasSubstr("wanted a shape that fits the file"));
  fs::remove(file);
  write_file(folder_ / "adapter" / "adapter_model.bin", "pickle");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("adapter_model.bin is a pickle"),
                               HasSubstr("safe_serialization=True")));
  in_proj().write(folder_ / "adapter");
  fs::remove(folder_ / "adapter" / "adapter_config.json");
  EXPECT_THAT(refusal(), HasSubstr("adapter_config.json"));
}

TEST_F(AdapterFileTest, RefusesBackendsWithoutTheKernel) {
  class Bare final : public Backend {
   public:
    Bare() : Backend("bare", Kernels()) {}
    std::unique_ptr<Stream> make_stream() override { return nullptr; }
    void upload(void*, const void*, size_t, Stream&) override {}
    void download(void*, const void*, size_t, Stream&) override {}
    void copy(void*, const void*, size_t, Stream&) override {}
    void zero(void*, size_t, Stream&) override {}

   private:
    std::byte* take_memory(size_t) override { return nullptr; }
    void give_memory(std::byte*, size_t) override {}
  };
  in_proj().write(folder_ / "adapter");
  Bare bare;
  EXPECT_THROW(
      {
        try {
          load_adapter(*targets_, bare, "one", folder_ / "adapter");
        } catch (const std::runtime_error& error) {
          EXPECT_THAT(error.what(), HasSubstr("backend 'bare' cannot compute adapters"));
          throw;
        }
      },
      std::runtime_error);
}

// Experts are no linear layers.
class ExpertsAdapterTest : public AdapterFileTest {
 protected:
  ExpertsAdapterTest() : AdapterFileTest("qwen3_5_moe/pattern") {}
};

TEST_F(ExpertsAdapterTest, ExpertsAreRefusedByName) {
  std::mt19937_64 random(1);
  for (const char* module :
       {"mlp.experts.0.gate_proj", "mlp.gate", "mlp.shared_expert.down_proj"}) {
    AdapterWriter adapter;
    adapter.add(std::string("model.layers.0.") + module, 12, 24, 4, false, random);
    EXPECT_THAT(refusal(adapter), AllOf(HasSubstr(module), HasSubstr("cannot change"))) << module;
  }
}

}  // namespace recurve::testing::adapter_test
