#pragma once
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "tests/support/kernels/op_text.h"

namespace recurve::testing {

// A backend that computes nothing and logs what it is asked to compute: with it models of
// any size take their steps without a device and without memory. Each piece of memory that is
// allocated has its own range of addresses, the same in every run; no address may be dereferenced.
class ListingBackend final : public Backend {
 public:
  // capabilities: what the kernels of the table say of themselves; their functions are not called.
  // without: the name of an op that it lacks.
  explicit ListingBackend(const Kernels& capabilities, std::string_view without = "")
      : Backend("listing", listing(capabilities, without)) {}

  // A line for each call of an op that `work` makes: its name and its arguments.
  template <typename Work>
  static std::vector<std::string> calls_of(const Work& work) {
    calls_.clear();
    work();
    return std::exchange(calls_, {});
  }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<NoStream>(); }
  void upload(void*, const void*, size_t, Stream&) override {}
  void download(void*, const void*, size_t, Stream&) override {}
  void copy(void*, const void*, size_t, Stream&) override {}
  void zero(void*, size_t, Stream&) override {}

 private:
  class NoStream final : public Stream {
    void wait() override {}
  };
  template <typename Args>
  struct Listed {
    static inline std::string name;
    static void run(const Args& args, Stream&) {
      if constexpr (requires { text_of(args); }) {
        calls_.push_back(name + text_of(args));
      } else {  // an op that no model calls
        ADD_FAILURE() << name << " was called, and its arguments have no text";
      }
    }
  };
  template <typename Args>
  static void list(const char* name, Op<Args>& op) {
    Listed<Args>::name = name;
    op.run = Listed<Args>::run;
  }
  static Kernels listing(Kernels kernels, std::string_view without) {
    Kernels::for_each_op([&](const char* name, auto place) {
      if (name != without) list(name, kernels.*place);
    });
    return kernels;
  }

  std::byte* take_memory(size_t bytes) override {
    constexpr int kRange = 40;  // bits
    return bytes == 0 ? nullptr : reinterpret_cast<std::byte*>(++allocations_ << kRange);
  }
  void give_memory(std::byte*, size_t) override {}

  static inline std::vector<std::string> calls_;
  uintptr_t allocations_ = 0;
};

}  // namespace recurve::testing
