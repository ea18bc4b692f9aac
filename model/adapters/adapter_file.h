#pragma once
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "kernels/tensor.h"
#include "model/adapters/adapter_config.h"
#include "model/weights/adapter_targets.h"
#include "model/weights/safetensors.h"

namespace recurve {

inline constexpr const char* kAdapterTensors = "adapter_model.safetensors";

// The folder of an adapter, checked against the targets of a model before any value is read.
class AdapterFile {
 public:
  // What the adapter adds to one tensor of the model.
  struct Part {
    const AdapterTargets::Tensor* target;
    int64_t r;
    float scale;
    DType dtype;             // in memory: BF16 where both are stored so, else F32
    const TensorView* A;     // (r, K)
    const TensorView* B;     // (rows, r)
    size_t A_bytes() const;  // in memory, a multiple of 64
    size_t B_bytes() const;
  };

  // Throws std::runtime_error, one sentence that names the file. targets outlives it.
  AdapterFile(const AdapterTargets& targets, const std::filesystem::path& folder);

  const AdapterConfig& config() const { return config_; }
  const SafetensorsFile& tensors() const { return tensors_; }
  const std::vector<Part>& parts() const { return parts_; }  // by layer and row of its matrix
  size_t bytes() const;                                      // of A and B in memory

 private:
  struct Pair {
    std::string module;
    const TensorView *A = nullptr, *B = nullptr;
  };
  Part part_of(const AdapterTargets::Tensor& target, const Pair& pair) const;

  AdapterConfig config_;
  SafetensorsFile tensors_;
  std::vector<Part> parts_;
};

}  // namespace recurve
