#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/backend.h"

namespace recurve::cuda {

// Chooses from the tables that a device can run, of which the best is the last.
using ChooseKernels = Kernels (*)(const std::vector<Kernels>&);

// device: "cuda:N". Throws std::runtime_error, one sentence, where there is no such device, no
// driver, or none for which this build has code.
std::unique_ptr<Backend> make_backend(std::string_view device, ChooseKernels choose);

}  // namespace recurve::cuda
