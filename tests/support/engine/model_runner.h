#pragma once
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "model/load_model.h"
#include "tests/support/engine/state_bytes.h"
#include "tests/support/golden.h"
#include "tests/support/kernels/devices.h"

namespace recurve::testing {

// A small checkpoint of a family, with the results of an independent implementation beside it.
struct ModelCase {
  std::string directory;  // under tests/golden
  DType weights;          // as stored, so that nothing is rounded
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

// A model on a backend with everything it needs to run, and no engine.
class ModelRunner {
 public:
  ModelRunner(const ModelCase& model_case, const std::string& device, int chunk = 0,
              int threads = 2, DType state = DType::kF32)
      : ModelRunner(golden_dir() / model_case.directory, model_case.weights, device, chunk, threads,
                    state) {}
  ModelRunner(const std::filesystem::path& directory, const WeightFormats& weights,
              const std::string& device, int chunk = 0, int threads = 2, DType state = DType::kF32)
      : backend_(make_backend(device, threads)),
        stream_(backend_->make_stream()),
        model_(load(directory, weights, *backend_, chunk, state)),
        pool_(*backend_, model_->state_layout(), kSlots, *stream_),
        arena_(*backend_, model_->arena_bytes({.rows = kMaxRows, .logits = kMaxRows})) {}

  struct Part {
    const StateSlot* slot;
    std::vector<int32_t> tokens;
  };

  // One step; the logits of every row, in the order of the parts: (rows, vocab).
  std::vector<float> forward(const std::vector<Part>& parts) {
    std::vector<int32_t> tokens, begin{0}, slots, rows;
    int max_len = 0;
    for (const Part& part : parts) {
      tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
      begin.push_back(static_cast<int32_t>(tokens.size()));
      slots.push_back(part.slot->id());
      max_len = std::max(max_len, static_cast<int>(part.tokens.size()));
    }
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

  // A slot's array, e.g. "C", over all layers: (layers, shape).
  std::vector<float> state(const StateSlot& slot, const std::string& name) {
    const StateBytes image = state_in(pool_, slot);
    std::vector<float> values;
    size_t at = 0;
    for (const StateArray& array : pool_.layout().arrays) {
      const float* data = reinterpret_cast<const float*>(image.data() + at);
      if (array.name == name) values.insert(values.end(), data, data + array.elements());
      at += array.bytes();
    }
    return values;
  }

  StatePool& pool() { return pool_; }
  const Model& model() const { return *model_; }
  Backend& backend() { return *backend_; }

  static std::unique_ptr<const Model> load(const ModelCase& model_case, Backend& backend, int chunk,
                                           DType state = DType::kF32) {
    return load(golden_dir() / model_case.directory, model_case.weights, backend, chunk, state);
  }
  static std::unique_ptr<const Model> load(const std::filesystem::path& directory,
                                           const WeightFormats& weights, Backend& backend,
                                           int chunk, DType state = DType::kF32) {
    Checkpoint checkpoint = Checkpoint::open(directory);
    return load_model(checkpoint, backend, {.weights = weights, .chunk = chunk, .state = state});
  }

 private:
  // The values are there before the next work on the stream.
  Buffer to_device(const std::vector<int32_t>& values) {
    Buffer buffer = backend_->allocate(values.size() * sizeof(int32_t));
    backend_->upload(buffer.data(), values.data(), buffer.bytes(), *stream_);
    stream_->wait();
    return buffer;
  }

  static constexpr int kSlots = 6, kMaxRows = 256;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<const Model> model_;
  StatePool pool_;
  Arena arena_;
};

}  // namespace recurve::testing
