#pragma once
#include "kernels/backend.h"

namespace recurve {

// Counts the memory that is asked of it (allocated()) and gives none: so whatever is built on a
// backend can be built in a dry run first, to know what it will take. Nothing may be computed here,
// and copies do nothing. Shows the kernels of the backend it stands for.
class DryRunBackend final : public Backend {
 public:
  explicit DryRunBackend(const Backend& real)
      : Backend(real.name(), real.kernels()), on_host_(real.computes_on_host()) {}

  bool computes_on_host() const override { return on_host_; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<NoStream>(); }
  void upload(void*, const void*, size_t, Stream&) override {}
  void download(void*, const void*, size_t, Stream&) override {}
  void copy(void*, const void*, size_t, Stream&) override {}
  void zero(void*, size_t, Stream&) override {}

 private:
  class NoStream final : public Stream {
    void wait() override {}
  };
  std::byte* take_memory(size_t bytes) override {
    return bytes == 0 ? nullptr : reinterpret_cast<std::byte*>(kNowhere);
  }
  void give_memory(std::byte*, size_t) override {}

  const bool on_host_;
  static constexpr uintptr_t kNowhere = 4096;  // aligned, not null, never followed
};

}  // namespace recurve
