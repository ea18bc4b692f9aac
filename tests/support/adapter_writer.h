#pragma once
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "model/weights/adapter_targets.h"
#include "tests/support/safetensors_writer.h"

namespace recurve {

// The folder of a LoRA adapter, as PEFT writes it.
struct AdapterWriter {
  nlohmann::json config = {{"peft_type", "LORA"}, {"r", 4}, {"lora_alpha", 8}};
  SafetensorsWriter tensors = {};

  // Random A and B of a module (rows, K).
  AdapterWriter& add(const std::string& module, int64_t rows, int64_t K, int64_t r, bool bf16,
                     std::mt19937_64& random) {
    add_matrix(module + ".lora_A.weight", r, K, bf16, random);
    return add_matrix(module + ".lora_B.weight", rows, r, bf16, random);
  }

  void write(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder);
    write_file(folder / "adapter_config.json", config.dump());
    tensors.write(folder / "adapter_model.safetensors");
  }

  // Of all that adapters can change in a model.
  static AdapterWriter of_all(const AdapterTargets& targets, int64_t r, uint64_t seed, bool bf16) {
    AdapterWriter adapter;
    adapter.config["r"] = r;
    std::mt19937_64 random(seed);
    for (const auto& [module, tensor] : targets.tensors()) {
      adapter.add("model." + module, tensor.rows, tensor.K, r, bf16, random);
    }
    return adapter;
  }

 private:
  AdapterWriter& add_matrix(const std::string& name, int64_t rows, int64_t columns, bool bf16,
                            std::mt19937_64& random) {
    std::normal_distribution<float> normal(0, 0.5f / std::sqrt(static_cast<float>(columns)));
    std::vector<float> values(static_cast<size_t>(rows * columns));
    std::vector<uint16_t> bits(values.size());
    for (size_t i = 0; i < values.size(); ++i) bits[i] = f32_to_bf16(values[i] = normal(random));
    const std::string full = "base_model.model." + name;
    if (bf16) {
      tensors.add_bf16(full, {rows, columns}, bits);
    } else {
      tensors.add_f32(full, {rows, columns}, values);
    }
    return *this;
  }
};

}  // namespace recurve
