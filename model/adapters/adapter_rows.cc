#include "model/adapters/adapter_rows.h"

#include <algorithm>

#include "kernels/check.h"
#include "model/adapters/loaded_adapter.h"

namespace recurve {
namespace {

constexpr LoraPart kAnyPart = {};

}  // namespace

AdapterRows::AdapterRows(const AdapterTargets& targets, Backend& backend, int rows)
    : kernels_(backend.kernels()),
      any_(static_cast<size_t>(targets.layers()), std::span(&kAnyPart, 1)),
      between_(
          backend.allocate(static_cast<size_t>(rows) * sizeof(float) *
                           static_cast<size_t>(StepAdapters::floats_of_row(
                               backend.kernels(), targets.widest(), targets.most_tensors())))) {
  rows_with_one_.reserve(static_cast<size_t>(rows));
  ordered_.reserve(static_cast<size_t>(rows));
  groups_.reserve(static_cast<size_t>(rows));
}

void AdapterRows::clear() {
  rows_with_one_.clear();
  ordered_.clear();
  groups_.clear();
  rows_ = 0;
  step_.reset();
}

void AdapterRows::add(const Adapter* adapter, int rows) {
  for (int r = rows_; adapter != nullptr && r < rows_ + rows; ++r) {
    rows_with_one_.emplace_back(adapter, r);
  }
  rows_ += rows;
}

const StepAdapters* AdapterRows::step() {
  if (rows_with_one_.empty()) return nullptr;
  CHECK(rows_with_one_.size() <= ordered_.capacity());
  std::ranges::sort(rows_with_one_);
  for (const auto& [adapter, row] : rows_with_one_) ordered_.push_back(row);
  for (size_t first = 0; first < ordered_.size();) {
    const Adapter* const adapter = rows_with_one_[first].first;
    size_t end = first;
    while (end < ordered_.size() && rows_with_one_[end].first == adapter) ++end;
    groups_.push_back({adapter->layers(), std::span(ordered_).subspan(first, end - first)});
    first = end;
  }
  return &step_.emplace(kernels_, rows_, groups_, between_.as<float>());
}

const StepAdapters* AdapterRows::largest(int rows) {
  clear();
  groups_.push_back({any_, {}});
  return &step_.emplace(kernels_, rows, groups_, between_.as<float>());
}

}  // namespace recurve
