#include "model/adapters/adapter_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "kernels/ceil_div.h"

namespace recurve {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRoot = "base_model.model.";
constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";
constexpr size_t kMostListed = 24;  // modules in a message
constexpr size_t kAlignment = 64;

[[noreturn]] void refuse(const TensorView& tensor, const std::string& problem) {
  throw std::runtime_error(
      fmt::format("{}: tensor {}: {}", tensor.path(), in_quotes(tensor.name), problem));
}

fs::path tensors_of(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw std::runtime_error(fmt::format(
        "{}: wanted the folder of a LoRA adapter, as PEFT writes it, found none", folder.string()));
  }
  fs::path file = folder / kAdapterTensors;
  if (fs::exists(file, error)) return file;
  std::string hint;
  for (const char* name : {"adapter_model.bin", "adapter_model.pt"}) {
    if (!fs::exists(folder / name, error)) continue;
    hint = fmt::format(
        "; {} is a pickle, which can run code and is not read: save the adapter with "
        "safe_serialization=True",
        name);
  }
  throw std::runtime_error(
      fmt::format("{}: wanted {}, found none{}", folder.string(), kAdapterTensors, hint));
}

std::string modules_in_words(const AdapterTargets& targets) {
  std::vector<std::string> modules = targets.patterns();
  if (modules.empty()) return "none of this model can";
  const size_t count = modules.size();
  modules.resize(std::min(count, kMostListed));
  return "those of this model that can: " + joined(modules, ", ") +
         (count > kMostListed ? fmt::format(" and {} more", count - kMostListed) : "");
}

// The module that a tensor is of, and whether it is B.
std::pair<std::string, bool> module_of(const TensorView& tensor) {
  const std::string_view name = tensor.name;
  if (name.find("lora_magnitude_vector") != name.npos) {
    refuse(tensor, "adapters with DoRA are not supported");
  }
  if (name.find("lora_embedding_") != name.npos) {
    refuse(tensor, "adapters of embeddings are not supported: leave them out of target_modules");
  }
  const bool B = name.ends_with(kB);
  if (!name.starts_with(kRoot) || (!B && !name.ends_with(kA))) {
    refuse(tensor, fmt::format("wanted names {}MODULE{} and {}MODULE{}", kRoot, kA, kRoot, kB));
  }
  const size_t end = name.size() - (B ? kB : kA).size();
  if (end < kRoot.size()) refuse(tensor, "wanted the name of a module in it, found none");
  return {std::string(name.substr(kRoot.size(), end - kRoot.size())), B};
}

void check(const TensorView& tensor, const Shape& wanted) {
  if (tensor.shape == wanted && is_weight_type(tensor.type)) return;
  refuse(tensor, fmt::format("wanted F32, BF16 or F16 {} for this model, found {}",
                             shape_text(wanted), type_and_shape(tensor)));
}

size_t aligned(int64_t count, DType type) {
  const size_t bytes = static_cast<size_t>(count) * size_of(type);
  return ceil_div(bytes, kAlignment) * kAlignment;
}

}  // namespace

size_t AdapterFile::Part::A_bytes() const { return aligned(r * target->K, dtype); }
size_t AdapterFile::Part::B_bytes() const { return aligned(r * target->rows, dtype); }

AdapterFile::AdapterFile(const AdapterTargets& targets, const fs::path& folder)
    : tensors_(tensors_of(folder)) {
  const fs::path config = folder / kAdapterConfig;
  config_ = read_adapter_config(config);
  std::map<const AdapterTargets::Tensor*, Pair> pairs;
  for (const TensorView& tensor : tensors_.tensors()) {
    const auto [module, is_B] = module_of(tensor);
    const AdapterTargets::Tensor* const target = targets.find(module);
    if (target == nullptr) {
      refuse(tensor,
             fmt::format("adapters cannot change this module; {}", modules_in_words(targets)));
    }
    Pair& pair = pairs[target];
    const TensorView*& one = is_B ? pair.B : pair.A;
    if (one != nullptr) {
      refuse(tensor, fmt::format("wanted one of its module, found {} too", in_quotes(one->name)));
    }
    one = &tensor;
    pair.module = module;
  }
  if (pairs.empty()) {
    throw std::runtime_error(
        fmt::format("{}: wanted tensors of an adapter, found none", tensors_.path()));
  }
  for (const auto& [target, pair] : pairs) parts_.push_back(part_of(*target, pair));
  std::ranges::sort(parts_, {}, [](const Part& part) {
    return std::pair(part.target->layer, part.target->first);
  });
}

AdapterFile::Part AdapterFile::part_of(const AdapterTargets::Tensor& target,
                                       const Pair& pair) const {
  for (const auto& [one, other] : {std::pair(pair.A, pair.B), std::pair(pair.B, pair.A)}) {
    if (one == nullptr) refuse(*other, "wanted A and B of its module, found it alone");
  }
  const TensorView &A = *pair.A, &B = *pair.B;
  int64_t r = 0;
  float scale = 0;
  try {
    r = config_.rank_of(pair.module);
    scale = config_.scale_of(pair.module, r);
  } catch (const std::runtime_error& error) {
    refuse(A, error.what());
  }
  if (A.shape.size() == 2 && A.shape[1] == target.K && A.shape[0] != r) {
    refuse(A,
           fmt::format("wanted the rank {} that {} says, found {}", r, kAdapterConfig, A.shape[0]));
  }
  check(A, {r, target.K});
  check(B, {target.rows, r});
  const bool bf16 = A.type == StoredType::kBF16 && B.type == StoredType::kBF16;
  return {&target, r, scale, bf16 ? DType::kBF16 : DType::kF32, &A, &B};
}

size_t AdapterFile::bytes() const {
  size_t bytes = 0;
  for (const Part& part : parts_) bytes += part.A_bytes() + part.B_bytes();
  return bytes;
}

}  // namespace recurve
