#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "model/weights/adapter_targets.h"

namespace recurve {

// A LoRA adapter: of some linear layers y = W x it makes y = W x + scale * B A x, with A (r, K) and
// B (rows, r). Source: Hu et al. 2021, eq. 3, and PEFT's peft/tuners/lora/layer.py.
//
// The folder is as PEFT writes it: adapter_config.json and adapter_model.safetensors, with A and B
// in F32, BF16 or F16. A pickle (adapter_model.bin) is refused.
struct AdapterInfo {
  std::string name;         // that the server gives it
  std::string base;         // base_model_name_or_path; may be empty
  int64_t rank = 0;         // the largest of its matrices
  int64_t matrices = 0;     // of the model that it changes
  int64_t parameters = 0;   // of A and B
  size_t bytes = 0;         // of memory: see adapter_bytes()
  std::string digest = {};  // of config and tensors, 32 hexadecimal digits
};

// Constant, in the memory of a backend, which outlives it. Safe to share between threads.
class Adapter;
using AdapterPtr = std::shared_ptr<const Adapter>;

const AdapterInfo& info_of(const Adapter& adapter);

// targets: Checkpoint::adapter_targets() of the model, which may be one that is loaded on paper.
// backend: of the model. Both functions throw std::runtime_error, one sentence that names the file:
// if it is no such folder, if the adapter is of another model or of a kind that is not supported,
// if a value is not finite, or if the backend has no kernel for adapters.

// Bytes of the backend's memory that load_adapter() takes. Checks names, types and shapes, and
// takes no memory for values.
size_t adapter_bytes(const AdapterTargets& targets, const Backend& backend,
                     const std::filesystem::path& folder);

AdapterPtr load_adapter(const AdapterTargets& targets, Backend& backend, const std::string& name,
                        const std::filesystem::path& folder);

}  // namespace recurve
