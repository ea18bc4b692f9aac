#include "kernels/cpu/table.h"

#include <cctype>
#include <string>

#include "kernels/cpu/formats/table.h"
#include "kernels/cpu/targets.h"

// After the choice of instruction sets.
#include <hwy/targets.h>

namespace recurve::cpu {
namespace {

// "cpu/avx3". Lives as long as the process, as the tables point at it. A lower bit is a better
// instruction set.
const std::string& implementation() {
  static const std::string name = [] {
    const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
    std::string text = std::string("cpu/") + hwy::TargetName(targets & -targets);
    for (char& letter : text) letter = static_cast<char>(std::tolower(letter));
    return text;
  }();
  return name;
}

}  // namespace

const char* isa() { return implementation().c_str() + 4; }

void fill(Kernels& kernels) {
  kernels.put(implementation().c_str(),
              [](const auto& args, Stream& stream) -> decltype(cpu::run(args, stream)) {
                cpu::run(args, stream);
              });
  put_formats(kernels.linear, implementation().c_str());
}

}  // namespace recurve::cpu
