#pragma once
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "model/weights/convert.h"
#include "model/weights/safetensors.h"

namespace recurve::testing {

// The committed results of an independent implementation.
class Golden {
 public:
  explicit Golden(const std::filesystem::path& file) : file_(file) {}

  std::vector<float> floats(const std::string& name) const {
    const TensorView view = tensor(name);
    std::vector<float> values(static_cast<size_t>(view.count()));
    convert(view, DType::kF32, reinterpret_cast<std::byte*>(values.data()));
    return values;
  }
  std::vector<int32_t> ids(const std::string& name) const {
    const TensorView view = tensor(name);
    std::vector<int32_t> values(static_cast<size_t>(view.count()));
    std::memcpy(values.data(), view.data, view.bytes);
    return values;
  }

 private:
  TensorView tensor(const std::string& name) const {
    if (const TensorView* view = file_.find(name)) return *view;
    throw std::runtime_error("no tensor " + name + " in the golden file");
  }
  SafetensorsFile file_;
};

inline std::filesystem::path golden_dir() {
  return std::filesystem::path(RECURVE_SOURCE_DIR) / "tests/golden";
}

}  // namespace recurve::testing
