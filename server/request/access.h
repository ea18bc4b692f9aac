#pragma once
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>

#include "server/identity/identity.h"
#include "server/identity/keyring.h"
#include "server/request/refusal.h"

namespace recurve {

// Who asks, for all doors. Thread-safe.
class Access {
 public:
  // keys: null: there are none, and everybody may do everything.
  explicit Access(std::shared_ptr<Keyring> keys) : keys_(std::move(keys)) {}

  bool has_keys() const { return keys_ != nullptr; }
  // authorization: what the header of that name says, "Bearer KEY"; empty: there is none.
  // subject: of the certificate that the connection has shown, verified; empty: none.
  // peer: for the log, which says that there was a stranger, and never what was shown but the id
  // that stands in front of a key's secret.
  Identity identify(std::string_view authorization, std::string_view subject,
                    std::string_view peer);

 private:
  void say_stranger(Keyring::Finding why, std::string_view key, std::string_view peer);

  // Of whom there may be many: a line now and then.
  struct Strangers {
    std::chrono::steady_clock::time_point said = {};
    int since = 0;  // that was said
  };

  const std::shared_ptr<Keyring> keys_;
  std::mutex mutex_;
  std::map<Keyring::Finding, Strangers> strangers_;
};

// Nothing where the caller may do what takes this role at least.
Refused check_role(const Identity& caller, Role least);

}  // namespace recurve
