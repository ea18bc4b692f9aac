#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/identity/file_stamp.h"
#include "server/identity/identity.h"
#include "server/identity/key_file.h"

namespace recurve {

// The server's keys: a keys file, and the public keys of the token issuers that it names. A request
// makes it check the files for changes, at most once per second. If a changed file cannot be used,
// the previous keys remain valid. Thread-safe.
class Keyring {
 public:
  // problem: empty if the files were reloaded.
  using OnReload = std::function<void(const std::string& problem)>;
  // Throws std::runtime_error with a sentence if the file cannot be used.
  explicit Keyring(std::string path, OnReload on_reload = {});
  ~Keyring();

  // kKnown, or why the caller is a kStranger.
  enum class Finding {
    kKnown,
    kNoKey,
    kNotAKey,
    kUnknownKey,
    kWrongKey,
    kExpiredKey,
    kUnknownIssuer,
    kWrongToken,
    kExpiredToken,
    kTooManyWrongTokens,
    kUnknownCertificate
  };
  struct Found {
    Identity identity = kStranger;
    Finding why = Finding::kNoKey;
  };
  // Identifies a caller by a key or token, or if that is empty by the subject of a verified
  // certificate; empty: none. The time does not reveal how much of a key is correct. Without
  // verify_tokens only tokens verified before are known; others are kTooManyWrongTokens.
  Found find(std::string_view key, std::string_view subject, bool verify_tokens = true);
  // Whether the tenant lists the name, or no tenant does.
  bool sees(std::string_view tenant, BoundNames::Kind kind, std::string_view name);

 private:
  struct Keys;

  std::shared_ptr<const Keys> current();

  const std::string path_;
  const OnReload on_reload_;
  std::mutex mutex_;
  std::shared_ptr<const Keys> keys_;
  std::vector<FileStamp> stamps_;  // of the files, when last checked
  std::chrono::steady_clock::time_point checked_;
};

// For logs: "no_key", "expired_key", ...
std::string_view name_of(Keyring::Finding why);

}  // namespace recurve
