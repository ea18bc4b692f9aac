#pragma once
#include <map>
#include <string>

#include "kernels/backend.h"

namespace recurve {

// Counts the memory that is asked of it (allocated()) and gives none: so whatever is built on a
// backend can be built in a dry run first, to know what it will take. Copies do nothing, and ops
// compute nothing: they count their scratch. Shows the kernels of the backend it stands for.
class DryRunBackend final : public Backend {
 public:
  explicit DryRunBackend(const Backend& real);

  // The most scratch that all threads have after the calls of ops since the last take_scratch().
  // Ops may share some, so it is a bound.
  size_t take_scratch();

  bool computes_on_host() const override { return on_host_; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<DryStream>(*this); }
  void upload(void*, const void*, size_t, Stream&) override {}
  void download(void*, const void*, size_t, Stream&) override {}
  void copy(void*, const void*, size_t, Stream&) override {}
  void zero(void*, size_t, Stream&) override {}

 private:
  class DryStream final : public Stream {
   public:
    explicit DryStream(DryRunBackend& backend) : backend_(backend) {}
    void wait() override {}
    template <typename Args>
    void count(const Args& args) {
      backend_.count(args);
    }

   private:
    DryRunBackend& backend_;
  };
  static Kernels counting(const Kernels& real);
  template <typename Args>
  void count(const Args& args);

  std::byte* take_memory(size_t bytes) override {
    return bytes == 0 ? nullptr : reinterpret_cast<std::byte*>(kNowhere);
  }
  void give_memory(std::byte*, size_t) override {}

  const bool on_host_;
  const int threads_;
  const Kernels real_;
  std::map<std::string, ScratchBytes> scratch_;  // by op and weight format
  static constexpr uintptr_t kNowhere = 4096;    // aligned, not null, never followed
};

}  // namespace recurve
