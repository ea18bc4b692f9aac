#pragma once
#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/ops/ragged.h"
#include "tests/support/kernels/kernel_device.h"

namespace recurve::testing {

// Sequences of these lengths, in slots from the last down.
struct Batch {
  Batch(KernelDevice& device, const std::vector<int>& lengths) {
    std::vector<int32_t> begins = {0}, slots;
    for (const int length : lengths) {
      begins.push_back(begins.back() + length);
      slots.push_back(static_cast<int32_t>(lengths.size() - slots.size()));
      max_len = std::max(max_len, length);
    }
    rows = begins.back();
    begin.emplace(device.array(begins));
    slot.emplace(device.array(slots));
    num_seqs = static_cast<int>(lengths.size());
  }
  Ragged seqs() const {
    return {.num_seqs = num_seqs,
            .rows = rows,
            .max_len = max_len,
            .begin = begin->data(),
            .slot = slot->data()};
  }
  size_t slots() const { return static_cast<size_t>(num_seqs) + 1; }

  int num_seqs, rows, max_len = 0;
  std::optional<DeviceArray<int32_t>> begin, slot;
};

}  // namespace recurve::testing
