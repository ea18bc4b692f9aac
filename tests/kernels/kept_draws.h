#pragma once
// Tests of several devices draw the same values one after the other, which takes longer than their
// kernels: what the first draws is kept for the rest.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/kernels/recurrence_case.h"

namespace recurve::testing::recurrence_test {

using Ops = std::vector<RecurrenceOp>;

// What was drawn, in order, and how it left the generator.
template <typename Value>
class KeptDraws {
 public:
  // The next draw. A test starts over from the same seed, so it is the one that was kept.
  template <typename Draw>
  Value next(std::mt19937_64& random, const Draw& draw) {
    if (at_ == kept_.size()) {
      Value value = draw(random);
      kept_.emplace_back(std::move(value), random);
    }
    random = kept_[at_].second;
    return kept_[at_++].first;
  }
  void start_over() { at_ = 0; }
  void forget() {
    kept_.clear();
    at_ = 0;
  }

 private:
  std::vector<std::pair<Value, std::mt19937_64>> kept_;
  size_t at_ = 0;
};

// The draws of a test of one family, on one device after the other.
class FamilyDraws {
 public:
  // A test begins; `name` is the same on each device.
  static FamilyDraws& of(const std::string& name) {
    static FamilyDraws draws;
    if (draws.name_ != name) {
      draws.ops_.forget();
      draws.values_.forget();
      draws.name_ = name;
    }
    draws.ops_.start_over();
    draws.values_.start_over();
    return draws;
  }

  // Ops whose inputs and states are kept too.
  template <typename Draw>
  Ops ops(std::mt19937_64& random, const Draw& draw) {
    Ops ops = ops_.next(random, draw);
    for (RecurrenceOp& op : ops) {
      op.inputs = [this, inputs = op.inputs](int L, std::mt19937_64& r) {
        return values_.next(r, [&](std::mt19937_64& from) { return inputs(L, from); });
      };
      op.some_state = [this, plain = op](std::mt19937_64& r) {
        return values_.next(r, [&](std::mt19937_64& from) { return plain.start(from); });
      };
    }
    return ops;
  }

 private:
  std::string name_;
  KeptDraws<Ops> ops_;
  KeptDraws<std::vector<float>> values_;
};

}  // namespace recurve::testing::recurrence_test
