#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <semaphore>
#include <utility>
#include <vector>

#include "server/constraint/constraint.h"

namespace recurve::testing {

// A constraint without any text: at each place of the answer, these ids, and whether it may end
// there. Behind the last place nothing may come, and the answer may end.
class ScriptedConstraint final : public Constraint {
 public:
  struct Place {
    std::vector<int32_t> ids = {};
    bool may_end = false;
  };
  explicit ScriptedConstraint(std::vector<Place> places, std::string name = "script")
      : places_(std::move(places)), text_{ConstraintText::Form::kRegex, std::move(name)} {}

  // Called on a worker before each mask.
  std::function<void(size_t place)> before_mask = {};

  std::unique_ptr<Matcher> begin(uint64_t) const override {
    return std::make_unique<Follower>(*this);
  }
  size_t bytes() const override { return 1; }
  const ConstraintText& text() const override { return text_; }

 private:
  class Follower final : public Matcher {
   public:
    explicit Follower(const ScriptedConstraint& of) : of_(of) {}
    bool accept(int32_t) override { return ++at_ <= of_.places_.size(); }
    void fill(std::span<uint32_t> mask) override {
      if (of_.before_mask) of_.before_mask(at_);
      std::fill(mask.begin(), mask.end(), 0);
      if (at_ == of_.places_.size()) return;
      for (const int32_t id : of_.places_[at_].ids) {
        mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << (static_cast<size_t>(id) % 32);
      }
    }
    bool may_end() const override { return at_ == of_.places_.size() || of_.places_[at_].may_end; }
    std::unique_ptr<Matcher> fork() const override { return std::make_unique<Follower>(*this); }

   private:
    const ScriptedConstraint& of_;
    size_t at_ = 0;
  };

  const std::vector<Place> places_;
  const ConstraintText text_;
};

}  // namespace recurve::testing
