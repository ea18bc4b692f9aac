#include "model/adapters/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "kernels/ceil_div.h"
#include "kernels/weight_format.h"
#include "model/adapters/adapter_file.h"
#include "model/adapters/loaded_adapter.h"
#include "model/weights/convert.h"
#include "model/weights/fingerprint.h"

namespace recurve {
namespace {

using Part = AdapterFile::Part;

std::vector<float> finite_values(const TensorView& tensor) {
  std::vector<float> values = host_values(tensor);
  const auto at = std::ranges::find_if_not(values, [](float v) { return std::isfinite(v); });
  if (at == values.end()) return values;
  throw std::runtime_error(fmt::format("{}: tensor {}: wanted finite values, found {} at {}",
                                       tensor.path(), in_quotes(tensor.name), *at,
                                       at - values.begin()));
}

// B (rows, r) as the kernels read it: its rows in the order of the matrix, in panels.
std::vector<float> in_panels(const Part& part, const std::vector<float>& B) {
  const auto [order, rows, r] = std::tuple(part.target->order, part.target->rows, part.r);
  const LoraPart at{.r = r, .N = rows};
  std::vector<float> panels(B.size());
  int64_t n = 0;
  const auto add = [&](int64_t first, int64_t count) {
    for (int64_t row = first; row < first + count; ++row, ++n) {
      for (int64_t j = 0; j < r; ++j) {
        panels[static_cast<size_t>(at.at(j, n))] = B[static_cast<size_t>(row * r + j)];
      }
    }
  };
  for (const RowRange& range : order) add(range.first, range.count);
  if (order.empty()) add(0, rows);
  return panels;
}

// In the type of the part; exact, as only what is stored as bf16 becomes bf16.
std::vector<std::byte> narrowed(const std::vector<float>& values, DType type) {
  std::vector<std::byte> bytes(values.size() * size_of(type));
  format_of(type).pack(values.data(), static_cast<int64_t>(values.size()), bytes.data(), nullptr);
  return bytes;
}

std::string digest_of(const AdapterFile& file) {
  const std::span<const std::byte> bytes = file.tensors().mapping().bytes();
  file.tensors().mapping().check_still_whole();
  std::vector<Hash128> blocks(ceil_div(bytes.size(), TensorHashes::kBlock));
  hash_blocks(bytes, blocks);
  std::vector<std::string> texts = {file.config().text};
  for (const auto& [high, low] : blocks) texts.push_back(fmt::format("{:016x}{:016x}", high, low));
  return fingerprint_of(texts);
}

void check_backend(const Backend& backend, const std::filesystem::path& folder) {
  if (backend.kernels().lora.run != nullptr) return;
  throw std::runtime_error(
      fmt::format("{}: backend '{}' cannot compute adapters: serve them on the device cpu or "
                  "cuda:N, or merge the adapter into the model's weights",
                  folder.string(), backend.name()));
}

}  // namespace

Adapter::Adapter(const AdapterFile& file, int32_t layers, Backend& backend, const std::string& name)
    : info_{.name = name, .base = file.config().base},
      values_(backend.allocate(file.bytes())),
      layers_(static_cast<size_t>(layers)) {
  const std::unique_ptr<Stream> stream = backend.make_stream();
  std::byte* free = values_.data();
  const auto place = [&](const std::vector<float>& values, const Part& part, size_t bytes) {
    const std::vector<std::byte> from = narrowed(values, part.dtype);
    backend.upload(free, from.data(), from.size(), *stream);
    stream->wait();
    return std::exchange(free, free + bytes);
  };
  parts_.reserve(file.parts().size());
  for (const Part& part : file.parts()) {
    const AdapterTargets::Tensor& target = *part.target;
    const void* const A = place(finite_values(*part.A), part, part.A_bytes());
    const void* const B = place(in_panels(part, finite_values(*part.B)), part, part.B_bytes());
    parts_.push_back({part.r, target.first, target.rows, part.scale, part.dtype, A, B});
    auto& of_layer = layers_[static_cast<size_t>(target.layer)];
    of_layer = of_layer.empty() ? std::span(&parts_.back(), 1)
                                : std::span(of_layer.data(), of_layer.size() + 1);
    info_.rank = std::max(info_.rank, part.r);
    info_.parameters += part.r * (target.K + target.rows);
  }
  info_.matrices = static_cast<int64_t>(parts_.size());
  info_.bytes = values_.bytes() + table_bytes(parts_.size(), layers);
  info_.digest = digest_of(file);
}

const AdapterInfo& info_of(const Adapter& adapter) { return adapter.info(); }

size_t adapter_bytes(const AdapterTargets& targets, const Backend& backend,
                     const std::filesystem::path& folder) {
  check_backend(backend, folder);
  const AdapterFile file(targets, folder);
  return file.bytes() + Adapter::table_bytes(file.parts().size(), targets.layers());
}

AdapterPtr load_adapter(const AdapterTargets& targets, Backend& backend, const std::string& name,
                        const std::filesystem::path& folder) {
  check_backend(backend, folder);
  const AdapterFile file(targets, folder);
  return std::make_shared<const Adapter>(file, targets.layers(), backend, name);
}

}  // namespace recurve
