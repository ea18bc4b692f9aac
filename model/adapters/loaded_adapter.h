#pragma once
#include <span>
#include <vector>

#include "kernels/ops/lora.h"
#include "model/adapters/adapter.h"
#include "model/adapters/adapter_file.h"

namespace recurve {

class Adapter {
 public:
  // Reads the values, each of which must be finite.
  Adapter(const AdapterFile& file, int32_t layers, Backend& backend, const std::string& name);
  Adapter(const Adapter&) = delete;  // the layers point to the parts
  Adapter& operator=(const Adapter&) = delete;

  const AdapterInfo& info() const { return info_; }
  // By Matrix::layer.
  std::span<const std::span<const LoraPart>> layers() const { return layers_; }

  // What an adapter of these parts takes of the host in addition to A and B.
  static size_t table_bytes(size_t parts, int32_t layers) {
    return parts * sizeof(LoraPart) +
           static_cast<size_t>(layers) * sizeof(std::span<const LoraPart>);
  }

 private:
  AdapterInfo info_;
  Buffer values_;                // A and B of each part, in their order
  std::vector<LoraPart> parts_;  // by layer and output
  std::vector<std::span<const LoraPart>> layers_;
};

}  // namespace recurve
