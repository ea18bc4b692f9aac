#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "server/identity/key_file.h"
#include "server/identity/token_keys.h"

namespace recurve {

// Who makes tokens that this server takes, as the file of keys names it.
class TokenIssuer {
 public:
  // jwks: what the file of its keys says. Throws std::runtime_error with a sentence.
  TokenIssuer(KeyFile::Issuer settings, std::string_view jwks);

  enum class Finding { kGood, kWrong, kExpired };
  struct Found {
    Finding why = Finding::kWrong;
    std::string tenant = {};  // whose token it is, where it is good
    double until = 0;         // seconds of the system's clock
  };
  // claims: what the token says. It must be meant for the server ("aud"), have a time from which it
  // is of no use any more ("exp"), be of use yet ("nbf"), say whose it is, and at last, as that
  // costs the most, be signed by one of the issuer's keys; clocks may differ by kLeeway.
  // Thread-safe.
  Found find(const SignedToken& token, const nlohmann::json& claims, KeyTime now) const;

  static constexpr std::chrono::seconds kLeeway{30};
  const KeyFile::Issuer& settings() const { return settings_; }

 private:
  bool is_meant_for_us(const nlohmann::json& claims) const;
  // Empty: nobody's.
  std::string tenant_of(const nlohmann::json& claims) const;

  const KeyFile::Issuer settings_;
  const TokenKeys keys_;
};

}  // namespace recurve
