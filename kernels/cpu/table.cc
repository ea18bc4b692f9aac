#include "kernels/cpu/table.h"

#include <fmt/format.h>

#include <cctype>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "kernels/cpu/formats/table.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/targets.h"
#include "kernels/formats/plain.h"

// After the choice of instruction sets.
#include <hwy/targets.h>

namespace recurve::cpu {
namespace {

// What the machine has and nothing has disabled. Asking chooses, and among all that the machine has
// (Highway 1.0.3); so kernels are told again.
int64_t supported_targets() {
  const int64_t targets = hwy::SupportedTargets();
  hwy::GetChosenTarget().Update(targets);
  return targets;
}

std::string isa_name(int64_t target) {
  std::string name = hwy::TargetName(target);
  for (char& letter : name) letter = static_cast<char>(std::tolower(letter));
  return name;
}

// "cpu/avx3". Lives as long as the process, as the tables point at it. A lower bit is a better
// instruction set.
const char* implementation() {
  static std::mutex mutex;
  static std::set<std::string> names;
  const int64_t targets = supported_targets() & HWY_TARGETS;
  const std::lock_guard lock(mutex);
  return names.insert("cpu/" + isa_name(targets & -targets)).first->c_str();
}

}  // namespace

const char* isa() { return implementation() + 4; }

void limit_isa(std::string_view name) {
  hwy::DisableTargets(0);
  std::string there;
  int64_t better = 0;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {  // the best first
    const std::string found = isa_name(target);
    if (name.empty() || found == name) {
      hwy::DisableTargets(better);
      supported_targets();
      return;
    }
    better |= target;
    there += (there.empty() ? "" : ", ") + found;
  }
  throw std::runtime_error(fmt::format(
      "RECURVE_KERNELS wants the instruction set '{}'; this machine has: {}", name, there));
}

void fill(Kernels& kernels) {
  kernels.put(implementation(),
              [](const auto& args, Stream& stream) -> decltype(cpu::run(args, stream)) {
                cpu::run(args, stream);
              });
  Kernels::for_each_op([&](const char*, auto member) {
    auto& op = kernels.*member;
    using Args = typename std::remove_reference_t<decltype(op)>::Args;
    if constexpr (requires(const Args& args) { cpu::scratch_of(args); }) {
      op.scratch = [](const Args& args) { return cpu::scratch_of(args); };
    }
  });
  kernels.ssd.holds_rows = false;  // see kernels/cpu/README.md: it gains nothing
  kernels.linear.transposed = {&kF32Weights, &kBf16Weights};
  put_formats(kernels, implementation());
}

}  // namespace recurve::cpu
