#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/activation_type.h"
#include "model/adapters/adapter_rows.h"
#include "model/layers/required_ops.h"
#include "model/load_model.h"
#include "tests/support/engine/state_bytes.h"
#include "tests/support/golden.h"
#include "tests/support/kernels/devices.h"

namespace recurve::testing {

// A small checkpoint of a family, with the results of an independent implementation.
struct ModelCase {
  std::string directory;  // under tests/golden
  DType weights;          // as stored, so that nothing is rounded
  int written_every = 1;  // LoadOptions
};

// Whether a checkpoint has weights in bf16. directory: under tests/golden.
inline DType stored_type(const std::filesystem::path& directory) {
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    if (file.path().extension() != ".safetensors") continue;
    if (file.path().filename() == "golden.safetensors") continue;
    const SafetensorsFile weights(file.path());
    for (const TensorView& tensor : weights.tensors()) {
      if (tensor.type == StoredType::kBF16) return DType::kBF16;
    }
  }
  return DType::kF32;
}

// Every golden checkpoint of a model there is: tests/golden/FAMILY/NAME, by name.
inline const std::vector<ModelCase>& model_cases() {
  static const std::vector<ModelCase> kCases = [] {
    std::vector<ModelCase> cases;
    for (const auto& family : std::filesystem::directory_iterator(golden_dir())) {
      if (!family.is_directory()) continue;
      for (const auto& at : std::filesystem::directory_iterator(family)) {
        if (!exists(at.path() / "config.json") || !exists(at.path() / "golden.safetensors"))
          continue;
        cases.push_back({at.path().lexically_relative(golden_dir()), stored_type(at.path())});
      }
    }
    std::ranges::sort(cases, {}, &ModelCase::directory);
    return cases;
  }();
  return kCases;
}

// Some whose states are written once in several rows, where the backend can do that.
inline const std::vector<ModelCase>& held_model_cases() {
  static const std::vector<ModelCase> kCases = {
      {"mamba2/groups", DType::kF32, 3},          {"mamba2/bf16", DType::kBF16, 8},
      {"granite_hybrid/pattern", DType::kF32, 4}, {"nemotron_h/groups", DType::kF32, 2},
      {"falcon_h1/pattern", DType::kF32, 8},
  };
  return kCases;
}
inline std::vector<std::string> holding_devices() {
  std::vector<std::string> devices = all_devices();
  std::erase_if(devices, [](const std::string& device) { return device.starts_with("cpu"); });
  return devices;
}

// A model on a backend with everything it needs to run, and no engine.
class ModelRunner {
 public:
  ModelRunner(const ModelCase& model_case, const std::string& device, int chunk = 0,
              int threads = 2, DType state = DType::kF32)
      : ModelRunner(golden_dir() / model_case.directory, model_case.weights, device, chunk, threads,
                    state, false, ActivationType::kF32, model_case.written_every) {}
  ModelRunner(const std::filesystem::path& directory, const WeightFormats& weights,
              const std::string& device, int chunk = 0, int threads = 2, DType state = DType::kF32,
              bool mapped = false, ActivationType narrowest = ActivationType::kF32,
              int written_every = 1)
      : backend_(make_backend(device, threads, narrowest)),
        stream_(backend_->make_stream()),
        model_(load(directory, weights, *backend_, chunk, state, mapped, &targets_, written_every)),
        pool_(*backend_, model_->state_layout(), kSlots, *stream_, nullptr, {kPages, kMostTokens}),
        arena_(*backend_, model_->arena_bytes({.rows = kMaxRows, .logits = kMaxRows})) {}

  struct Part {
    const StateSlot* slot;
    std::vector<int32_t> tokens;
    AdapterPtr adapter = {};
  };

  // To be called before a step has adapters: allocates what such steps take.
  void plan_adapters() { adapters_.emplace(*targets_, *backend_, kMaxRows); }
  AdapterPtr load_adapter(const std::filesystem::path& folder) {
    return recurve::load_adapter(*targets_, *backend_, folder.filename(), folder);
  }
  const AdapterTargets& targets() const { return *targets_; }

  // One step; the logits of every row, in the order of the parts: (rows, vocab).
  std::vector<float> forward(const std::vector<Part>& parts) {
    std::vector<int32_t> tokens, begin{0}, slots, rows;
    int max_len = 0;
    for (const Part& part : parts) {
      grow(*part.slot, static_cast<int64_t>(part.tokens.size()));
      tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
      begin.push_back(static_cast<int32_t>(tokens.size()));
      slots.push_back(part.slot->id());
      max_len = std::max(max_len, static_cast<int>(part.tokens.size()));
    }
    stream_->set_adapters(adapters_of(parts));
    std::vector<int32_t> table(pool_.table_words());
    pool_.send_table(table);
    stream_->wait();
    for (size_t r = 0; r < tokens.size(); ++r) rows.push_back(static_cast<int32_t>(r));
    const size_t vocab = static_cast<size_t>(model_->info().vocab);
    std::vector<float> logits(tokens.size() * vocab);
    const Buffer on_device = backend_->allocate(logits.size() * sizeof(float));
    const Buffer token_ids = to_device(tokens), begins = to_device(begin);
    const Buffer slot_ids = to_device(slots), logit_rows = to_device(rows);
    model_->forward({.seqs = {.num_seqs = static_cast<int>(parts.size()),
                              .rows = static_cast<int>(tokens.size()),
                              .max_len = max_len,
                              .begin = begins.as<int32_t>(),
                              .slot = slot_ids.as<int32_t>()},
                     .tokens = token_ids.as<int32_t>(),
                     .num_logits = static_cast<int>(rows.size()),
                     .logit_rows = logit_rows.as<int32_t>()},
                    pool_, arena_, *stream_, on_device.as<float>());
    backend_->download(logits.data(), on_device.data(), on_device.bytes(), *stream_);
    stream_->wait();
    return logits;
  }

  // A slot's array, e.g. "C", over all layers: (layers, shape), or (layers, tokens, shape) where it
  // grows.
  std::vector<float> state(const StateSlot& slot, const std::string& name) {
    const StateLayout& layout = pool_.layout();
    const int64_t tokens = layout.grows() ? tokens_in(slot) : 0;
    const NewImage made = make_image(layout, tokens);
    pool_.save(slot, made);
    pool_.wait_until_ready(slot);
    const auto divided = layout.pieces(tokens);
    const auto arrays = spans_of_arrays(layout, divided, spans_of(made.image));
    std::vector<float> values;
    size_t in_page = 0;
    for (size_t a = 0; a < layout.arrays.size(); ++a) {
      const StateArray& array = layout.arrays[a];
      if (array.name == name && !array.per_token()) {
        const auto* data = reinterpret_cast<const float*>(arrays[a].data());
        values.insert(values.end(), data, data + array.elements());
      } else if (array.name == name) {
        add_rows(array, *made.image, layout.pieces().size(), in_page, tokens, values);
      }
      if (array.per_token()) in_page += array.bytes() * kPageTokens;
    }
    return values;
  }

  StatePool& pool() { return pool_; }
  const Model& model() const { return *model_; }
  Backend& backend() { return *backend_; }

  static std::unique_ptr<const Model> load(const ModelCase& model_case, Backend& backend, int chunk,
                                           DType state = DType::kF32) {
    return load(golden_dir() / model_case.directory, model_case.weights, backend, chunk, state,
                false, nullptr, model_case.written_every);
  }
  static std::unique_ptr<const Model> load(const std::filesystem::path& directory,
                                           const WeightFormats& weights, Backend& backend,
                                           int chunk, DType state = DType::kF32,
                                           bool mapped = false,
                                           std::shared_ptr<const AdapterTargets>* targets = {},
                                           int written_every = 1) {
    Checkpoint checkpoint = Checkpoint::open(directory);
    if (mapped) checkpoint.map_weights();
    if (targets != nullptr) *targets = checkpoint.shared_adapter_targets();
    return load_model(checkpoint, backend,
                      {.weights = weights,
                       .chunk = chunk,
                       .state = state,
                       .written_every = written_every,
                       .kv = DType::kF32});
  }

 private:
  // The values are there before the next work on the stream.
  Buffer to_device(const std::vector<int32_t>& values) {
    Buffer buffer = backend_->allocate(values.size() * sizeof(int32_t));
    backend_->upload(buffer.data(), values.data(), buffer.bytes(), *stream_);
    stream_->wait();
    return buffer;
  }

  const StepAdapters* adapters_of(const std::vector<Part>& parts) {
    if (!adapters_) return nullptr;
    adapters_->clear();
    for (const Part& part : parts) {
      adapters_->add(part.adapter.get(), static_cast<int>(part.tokens.size()));
    }
    return adapters_->step();
  }

  // Of an array of F32 that grows, from `in_page` on in each page: keys are (heads, channels,
  // kPageTokens) there, values (heads, kPageTokens, channels). first: the piece of an image that
  // page 0 is.
  static void add_rows(const StateArray& array, const std::vector<StatePiece>& image, size_t first,
                       size_t in_page, int64_t tokens, std::vector<float>& values) {
    const int64_t heads = array.shape[0], channels = array.shape[1];
    for (int64_t t = 0; t < tokens; ++t) {
      const StatePiece& page = image[first + static_cast<size_t>(t / kPageTokens)];
      const auto* rows = reinterpret_cast<const float*>(page.data.get() + in_page);
      for (int64_t head = 0; head < heads; ++head) {
        const float* of_head = rows + head * kPageTokens * channels;
        for (int64_t c = 0; c < channels; ++c) {
          values.push_back(array.name == "keys" ? of_head[c * kPageTokens + t % kPageTokens]
                                                : of_head[t % kPageTokens * channels + c]);
        }
      }
    }
  }

  // That a state of a model counts.
  int64_t tokens_in(const StateSlot& slot) {
    const auto& arrays = pool_.layout().arrays;
    const auto counts = std::ranges::find(arrays, StateValues::kPosition, &StateArray::values);
    CHECK(counts != arrays.end());
    int32_t tokens = 0;
    backend_->download(
        &tokens, pool_.array<int32_t>(static_cast<size_t>(counts - arrays.begin())) + slot.id(),
        sizeof(tokens), *stream_);
    stream_->wait();
    return tokens;
  }

  // Pages for so many tokens more.
  void grow(const StateSlot& slot, int64_t more) {
    if (!pool_.layout().grows()) return;
    const int64_t tokens = tokens_in(slot);
    CHECK(pool_.grow(slot, tokens, tokens + more));
  }

  static constexpr int kSlots = 6, kMaxRows = 256;
  static constexpr int32_t kPages = 64;
  static constexpr int64_t kMostTokens = 1024;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  std::shared_ptr<const AdapterTargets> targets_;
  std::unique_ptr<const Model> model_;
  StatePool pool_;
  Arena arena_;
  std::optional<AdapterRows> adapters_;
};

// A checkpoint on a device. What cannot be loaded fails each test that asks for it.
struct LoadedModel {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<const Model> model;
  std::shared_ptr<const AdapterTargets> targets = {};
};
// Loaded once a program, and never given back: a driver of a GPU ends before what is static does.
inline LoadedModel& loaded_model(const ModelCase& model_case, const std::string& device) {
  static auto& all = *new std::map<std::string, LoadedModel>;
  const std::string name =
      fmt::format("{} {} {} {}", model_case.directory, static_cast<int>(model_case.weights),
                  model_case.written_every, device);
  if (!all.contains(name)) {
    LoadedModel loaded{make_backend(device, 2), nullptr};
    loaded.model =
        ModelRunner::load(golden_dir() / model_case.directory, model_case.weights, *loaded.backend,
                          0, DType::kF32, false, &loaded.targets, model_case.written_every);
    all[name] = std::move(loaded);
  }
  return all[name];
}

// Why the model cannot run on the device, for GTEST_SKIP: it is not on this machine, or has no
// kernels for the family. Empty if it can.
inline std::string why_unusable(const ModelCase& model_case, const std::string& device) {
  if (std::string why = why_unusable(device); !why.empty()) return why;
  try {
    loaded_model(model_case, device);
  } catch (const MissingKernels& error) {
    return error.what();
  }
  return "";
}

}  // namespace recurve::testing
