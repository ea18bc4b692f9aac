#include "model/layers/required_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "kernels/check.h"

namespace recurve {

void require_ops(const Backend& backend, std::string_view family,
                 const std::vector<std::string_view>& ops) {
  std::string missing;
  size_t known = 0;
  Kernels::for_each_op([&](const char* name, auto op) {
    if (std::ranges::find(ops, name) == ops.end()) return;
    ++known;
    if ((backend.kernels().*op).run != nullptr) return;
    missing += (missing.empty() ? "" : ", ") + std::string(name);
  });
  CHECK(known == ops.size());
  if (missing.empty()) return;
  throw MissingKernels(fmt::format(
      "backend '{}' cannot run models of the family {}: it has no kernels for: {}; the device cpu "
      "has them",
      backend.name(), family, missing));
}

DType require_state(const Backend& backend, std::string_view family, std::string_view op,
                    DType wanted) {
  if (wanted == DType::kF32) return wanted;
  Kernels::for_each_op([&](const char* name, auto member) {
    const auto& found = backend.kernels().*member;
    if (op != name || found.bf16_state) return;
    throw MissingKernels(fmt::format(
        "backend '{}' cannot store states of models of the family {} in bf16: its kernel of {}, "
        "'{}', is for fp32 alone",
        backend.name(), family, op, found.implementation));
  });
  return wanted;
}

void require_every(const Backend& backend, std::string_view family, std::string_view op,
                   int wanted) {
  if (wanted == 1) return;
  Kernels::for_each_op([&](const char* name, auto member) {
    const auto& found = backend.kernels().*member;
    if (op != name || found.holds_rows) return;
    throw MissingKernels(
        fmt::format("backend '{}' cannot write states of models of the family {} once in several "
                    "tokens: its kernel of {}, '{}', writes them in each",
                    backend.name(), family, op, found.implementation));
  });
}

void refuse_sizes(const Backend& backend, std::string_view family, std::string_view op,
                  std::string_view implementation, std::string_view what) {
  throw MissingKernels(
      fmt::format("backend '{}' cannot run this model of the family {}: its kernel of {}, '{}', "
                  "cannot take {}; "
                  "the device cpu can",
                  backend.name(), family, op, implementation, what));
}

}  // namespace recurve
