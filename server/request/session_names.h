#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "server/identity/identity.h"

namespace recurve {

// Which model has the session of a name, in a process with several: their sessions share one space
// of names, so that a name alone finds a session. Thread-safe.
class SessionNames {
 public:
  // A name belongs to the model until this is destroyed. Null: another session has it. The names
  // outlive it.
  using Claim = std::shared_ptr<const void>;
  Claim claim(TenantId tenant, const std::string& name, const std::string& model);
  // Beyond the end of its claim, the name belongs to the model, which alone can claim it again: the
  // session is on the disk, and the model is unloaded.
  void retain(TenantId tenant, const std::string& name);
  // Empty: there is no such session.
  std::string model_of(TenantId tenant, const std::string& name) const;

 private:
  struct Owner {
    std::string model;
    bool retained = false;
  };
  using Names = std::map<std::pair<TenantId, std::string>, Owner>;

  mutable std::mutex mutex_;
  Names owners_;
};

}  // namespace recurve
