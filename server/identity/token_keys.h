#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

// Whether a text has the form of a JSON Web Token that is signed (RFC 7519, RFC 7515 section 3.1):
// three parts of letters of URL-safe base64, between dots. No key has.
bool is_token(std::string_view text);

// What a token says, whoever has signed it, as JSON; nothing where it is none.
std::optional<std::string> unverified_claims(std::string_view token);

// The public keys of who signs tokens: a JWKS (RFC 7517). A key is for the algorithms of its own
// kind alone: RS256 to RS512 and PS256 to PS512 of RSA, ES256, ES384 or ES512 of its curve, and
// where it has an "alg" for that one. So no token chooses how it is looked at, and "none" and
// passwords (HS256) sign nothing. Keys of other kinds and those for encryption are left.
class TokenKeys {
 public:
  // Throws std::runtime_error with a sentence.
  explicit TokenKeys(std::string_view jwks);
  ~TokenKeys();
  TokenKeys(TokenKeys&&) noexcept;

  // Whether one of them has signed it. Thread-safe.
  bool have_signed(std::string_view token) const;

 private:
  struct Key;
  std::vector<Key> keys_;
};

}  // namespace recurve
