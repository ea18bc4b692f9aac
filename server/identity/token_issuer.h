#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "server/identity/key_file.h"
#include "server/identity/token_keys.h"

namespace recurve {

// An issuer of tokens that the keys file names.
class TokenIssuer {
 public:
  // jwks: the content of that file. Throws std::runtime_error with a sentence.
  TokenIssuer(KeyFile::Issuer settings, std::string_view jwks);

  enum class Finding { kValid, kWrong, kExpired };
  struct Found {
    Finding why = Finding::kWrong;
    std::string tenant = {};  // of a valid token
    double until = 0;         // seconds of the system clock
  };
  // claims: those of the token. It must be intended for the server ("aud"), have an expiry that has
  // not passed ("exp"), be valid already ("nbf"), name the tenant, and be signed by one of the
  // issuer's keys, which is checked last as it costs the most. Clocks may differ by kLeeway.
  // Thread-safe.
  Found find(const SignedToken& token, const nlohmann::json& claims, KeyTime now) const;

  static constexpr std::chrono::seconds kLeeway{30};
  const KeyFile::Issuer& settings() const { return settings_; }

 private:
  bool has_our_audience(const nlohmann::json& claims) const;
  // Empty: the token names no tenant.
  std::string tenant_of(const nlohmann::json& claims) const;

  const KeyFile::Issuer settings_;
  const TokenKeys keys_;
};

}  // namespace recurve
