#pragma once
#include <gtest/gtest.h>

#include <memory>

#include "kernels/backend.h"

namespace recurve::testing {

// A backend with kernels that a test chooses, for models that it cannot run: an allocation fails
// the test.
class PoorBackend final : public Backend {
 public:
  explicit PoorBackend(const Kernels& kernels)
      : Backend("poor", kernels), other_(make_backend("reference")) {}

  std::unique_ptr<Stream> make_stream() override { return other_->make_stream(); }
  void upload(void*, const void*, size_t, Stream&) override {}
  void download(void*, const void*, size_t, Stream&) override {}
  void copy(void*, const void*, size_t, Stream&) override {}
  void zero(void*, size_t, Stream&) override {}

 private:
  std::byte* take_memory(size_t) override {
    ADD_FAILURE() << "nothing is allocated for a model that cannot run";
    return nullptr;
  }
  void give_memory(std::byte*, size_t) override {}

  const std::unique_ptr<Backend> other_;
};

}  // namespace recurve::testing
