#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <deque>
#include <utility>

#include "server/text/jinja/error.h"
#include "server/text/jinja/value.h"
#include "server/text/work_limits.h"

namespace recurve::jinja {

// What one rendering may take: templates come with checkpoints, messages from strangers.
struct Limits {
  int64_t steps = 10'000'000;           // one an operation, one for each 64 bytes it goes through
  size_t text_bytes = size_t{1} << 24;  // of the output, and of any string on the way
  size_t items = 250'000;               // of a list that a text is cut into
  int depth = 256;                      // of expressions, tags and macros in each other
  size_t likely_bytes = 0;              // of the output: it grows from there
};

// What the functions of a template share while it is rendered.
class Run {
 public:
  Run(const Limits& limits, std::tm now, const WorkLimits& work = {})
      : now(now), limits_(limits), work_(work) {}

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(fmt::format("line {}: {}", line, fmt::format(format, std::forward<Args>(args)...)));
  }
  // Accounts for one operation that goes through so many bytes. Throws WorkUnwanted where nobody
  // wants the text any more.
  void spend(size_t size = 0) {
    steps_ += 1 + static_cast<int64_t>(size / 64);
    if (steps_ > limits_.steps) fail("rendering takes more than {} steps", limits_.steps);
    if (steps_ < next_look_) return;
    next_look_ = steps_ + kLookEvery;
    work_.check();
  }
  // The string is as long as it may be at most.
  void check_size(size_t bytes) const {
    if (bytes > limits_.text_bytes) {
      fail("a text becomes longer than {} bytes", limits_.text_bytes);
    }
  }
  // A text is cut into as many items as it may be at most.
  void check_items(size_t items) const {
    if (items > limits_.items) fail("a list becomes longer than {} items", limits_.items);
  }
  size_t most_items() const { return limits_.items; }
  size_t likely_bytes() const { return std::min(limits_.likely_bytes, limits_.text_bytes); }
  Value text(Text text) {
    check_size(text.bytes.size());
    spend(text.bytes.size());
    if (text.bytes.size() >= kLongText)
      text.bytes.shrink_to_fit();  // it may have grown by doubling
    return Value::text(std::move(text));
  }
  Value list(std::vector<Value> items, bool tuple = false) {
    return checked(Value::list(std::move(items), tuple));
  }
  Value generator(std::vector<Value> items) { return checked(Value::generator(std::move(items))); }
  // Any new value that holds others.
  Value checked(Value value) {
    if (nesting(value) > kMaxNesting) fail("lists are nested more than {} deep", kMaxNesting);
    return value;
  }

  class Level {  // of recursion; one deeper while it lives
   public:
    explicit Level(Run& run) : run_(run) {
      if (++run_.depth_ > run_.limits_.depth) {
        run_.fail("rendering is nested more than {} deep", run_.limits_.depth);
      }
    }
    ~Level() { --run_.depth_; }
    Level(const Level&) = delete;

   private:
    Run& run_;
  };

  static constexpr int kMaxNesting = 100;      // of values
  static constexpr size_t kLongText = 4096;    // bytes
  static constexpr int64_t kLookEvery = 4096;  // steps: well under a millisecond

  const std::tm now;  // for strftime_now
  int line = 1;       // of the template, where rendering is
  std::deque<Namespace> namespaces;

 private:
  const Limits limits_;
  const WorkLimits work_;
  int64_t steps_ = 0;
  int64_t next_look_ = 0;  // at work_, in steps
  int depth_ = 0;
};

}  // namespace recurve::jinja
