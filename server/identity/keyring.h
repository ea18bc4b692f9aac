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

// The keys that a server knows: a file of them, and those of the issuers of tokens that it names,
// which are looked at again when somebody asks and a second has passed. What cannot be used then is
// left, and the keys from before hold. Thread-safe.
class Keyring {
 public:
  // problem: empty where the file has been read anew.
  using OnReload = std::function<void(const std::string& problem)>;
  // Throws std::runtime_error with a sentence where the file is of no use.
  explicit Keyring(std::string path, OnReload on_reload = {});
  ~Keyring();

  // Why somebody is a stranger.
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
  // Who shows a key or a token, or where that is empty a certificate of this subject, which has
  // been verified; empty: none. The time it takes does not tell how much of a key is right. Without
  // verify_tokens, a token is known only if it was before (kTooManyWrongTokens).
  Found find(std::string_view key, std::string_view subject, bool verify_tokens = true);

 private:
  struct Known;

  std::shared_ptr<const Known> current();

  const std::string path_;
  const OnReload on_reload_;
  std::mutex mutex_;
  std::shared_ptr<const Known> known_;
  std::vector<FileStamp> seen_;  // of known_'s files, when they were last looked at
  std::chrono::steady_clock::time_point looked_;
};

// For logs: "no_key", "expired_key", ...
std::string_view name_of(Keyring::Finding why);

}  // namespace recurve
