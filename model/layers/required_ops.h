#pragma once
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/backend.h"

namespace recurve {

// A backend lacks ops that a family needs.
class MissingKernels : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws MissingKernels with one sentence if the backend has no kernel for one of the ops, by
// their names in Kernels. Called by families before they load anything: not every backend offers
// every op.
void require_ops(const Backend& backend, std::string_view family,
                 const std::vector<std::string_view>& ops);

// The same for the type of the state of one of them: gives `wanted`, or throws MissingKernels if
// the backend's kernel cannot keep it so.
DType require_state(const Backend& backend, std::string_view family, std::string_view op,
                    DType wanted);

// The same for how often it is written, see kernels/ops/held_rows.h: throws MissingKernels if the
// backend's kernel cannot do that.
void require_every(const Backend& backend, std::string_view family, std::string_view op,
                   int wanted);

// Throws MissingKernels with one sentence: what the kernel of an op cannot take.
[[noreturn]] void refuse_sizes(const Backend& backend, std::string_view family, std::string_view op,
                               std::string_view implementation, std::string_view what);

// The same for the sizes that ops would be called with: throws MissingKernels if the backend's
// kernel of one of them cannot take these. sizes: arguments of the ops, see Op::cannot.
template <typename... Args>
void require_sizes(const Backend& backend, std::string_view family, const Args&... sizes) {
  const auto ask = [&]<typename One>(const One& args) {
    Kernels::for_each_op([&](const char* name, auto member) {
      const auto& op = backend.kernels().*member;
      if constexpr (std::is_base_of_v<Op<One>, std::remove_cvref_t<decltype(op)>>) {
        const std::string what = op.cannot ? op.cannot(args) : "";
        if (!what.empty()) refuse_sizes(backend, family, name, op.implementation, what);
      }
    });
  };
  (ask(sizes), ...);
}

}  // namespace recurve
