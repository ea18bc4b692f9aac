#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "server/identity/tenants.h"
#include "tests/support/engine/engine_harness.h"

namespace recurve::testing {

inline Identity caller_of(const std::string& name) {
  const Tenant tenant = tenant_named(name);
  Identity caller = kAnyone;
  caller.tenant = tenant.id;
  caller.tenant_name = tenant.name;
  return caller;
}

// An engine that is stepped by hand, with an archive.
class OnDisk {
 public:
  using Make = std::function<std::unique_ptr<EngineHarness>(const HarnessOptions&)>;
  OnDisk(std::unique_ptr<FileSystem> files, HarnessOptions options, const Make& make,
         const StateStore::Options& of_store = {})
      : store_(std::move(files), of_store), archive_(store_) {
    options.archive = &archive_;
    harness_ = make(options);
  }

  // The answer, once all that is to be written has been.
  AnswerPtr ask(Request asked) {
    AnswerPtr answer = harness_->submit(std::move(asked));
    settle();
    answer->take();
    return answer;
  }
  void settle() {
    harness_->run_until_idle();
    while (archive_.working()) {
      archive_.wait();
      harness_->run_until_idle();
    }
  }
  EngineHarness* operator->() { return harness_.get(); }
  StateStore& store() { return store_; }

 private:
  StateStore store_;
  Archive archive_;
  std::unique_ptr<EngineHarness> harness_;
};

}  // namespace recurve::testing
