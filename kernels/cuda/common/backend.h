#pragma once
#include <memory>
#include <string_view>

#include "kernels/backend.h"

namespace recurve::cuda {

// device: "cuda:N". Throws std::runtime_error, one sentence, where there is no such device, no
// driver, or none for which this build has code.
std::unique_ptr<Backend> make_backend(std::string_view device, const Kernels& kernels);

}  // namespace recurve::cuda
