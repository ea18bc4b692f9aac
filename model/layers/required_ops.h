#pragma once
#include <stdexcept>
#include <string_view>
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

}  // namespace recurve
