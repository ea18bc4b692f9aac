#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <deque>
#include <utility>

#include "server/text/jinja/value.h"
#include "server/text/work_limits.h"

namespace recurve::jinja {

// Limits of one rendering: templates come with checkpoints, messages from clients.
struct Limits {
  int64_t steps = 10'000'000;           // one per operation, and one per 64 bytes that it processes
  size_t text_bytes = size_t{1} << 24;  // of the output, and of any intermediate string
  size_t items = 250'000;               // of a list into which a string is split
  int depth = 256;                      // of nested expressions, tags and macros
  size_t likely_bytes = 0;              // of the output, for its first allocation
};

// The state of one rendering.
class Run {
 public:
  Run(const Limits& limits, std::tm now, const WorkLimits& work = {})
      : now(now), limits_(limits), work_(work) {}

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(fmt::format("line {}: {}", line, fmt::format(format, std::forward<Args>(args)...)));
  }
  // Counts one operation that processes so many bytes. Throws WorkUnwanted if the work is
  // cancelled.
  void spend(size_t size = 0) {
    steps_ += 1 + static_cast<int64_t>(size / 64);
    if (steps_ > limits_.steps) fail("rendering exceeds the limit of {} steps", limits_.steps);
    if (steps_ < next_check_) return;
    next_check_ = steps_ + kCheckEvery;
    work_.check();
  }
  // Fails for a string of more bytes than allowed.
  void check_size(size_t bytes) const {
    if (bytes > limits_.text_bytes) {
      fail("a string exceeds the limit of {} bytes", limits_.text_bytes);
    }
  }
  // Fails for a list of more items than allowed.
  void check_items(size_t items) const {
    if (items > limits_.items) fail("a list exceeds the limit of {} items", limits_.items);
  }
  size_t most_items() const { return limits_.items; }
  size_t likely_bytes() const { return std::min(limits_.likely_bytes, limits_.text_bytes); }
  Value text(Text text) {
    check_size(text.bytes.size());
    spend(text.bytes.size());
    if (text.bytes.size() >= kLongText)
      text.bytes.shrink_to_fit();  // its capacity may be twice its size
    return Value::text(std::move(text));
  }
  Value list(std::vector<Value> items, bool tuple = false) {
    return checked(Value::list(std::move(items), tuple));
  }
  Value generator(std::vector<Value> items) { return checked(Value::generator(std::move(items))); }
  // Checks a new value that contains others.
  Value checked(Value value) {
    if (nesting(value) > kMaxNesting)
      fail("values are nested more than {} levels deep", kMaxNesting);
    return value;
  }

  class Level {  // one level of recursion
   public:
    explicit Level(Run& run) : run_(run) {
      if (++run_.depth_ > run_.limits_.depth) {
        run_.fail("rendering is nested more than {} levels deep", run_.limits_.depth);
      }
    }
    ~Level() { --run_.depth_; }
    Level(const Level&) = delete;

   private:
    Run& run_;
  };

  static constexpr int kMaxNesting = 100;       // of values
  static constexpr size_t kLongText = 4096;     // bytes
  static constexpr int64_t kCheckEvery = 4096;  // steps: well under a millisecond

  const std::tm now;  // for strftime_now
  int line = 1;       // of the template, at the current statement or expression
  std::deque<Namespace> namespaces;

 private:
  const Limits limits_;
  const WorkLimits work_;
  int64_t steps_ = 0;
  int64_t next_check_ = 0;  // of work_, in steps
  int depth_ = 0;
};

}  // namespace recurve::jinja
