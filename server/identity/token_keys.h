#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

// Whether a text has the form of a signed JSON Web Token (RFC 7519, RFC 7515 section 3.1): three
// parts of URL-safe base64 separated by dots. Keys do not have this form.
bool is_token(std::string_view text);

// A parsed token whose signature is not verified.
class SignedToken {
 public:
  // Nothing for a malformed token.
  static std::optional<SignedToken> read(std::string_view token);
  ~SignedToken();
  SignedToken(SignedToken&&) noexcept;

  // The claims, not verified; JSON in a well-formed token.
  std::string claims() const;

 private:
  friend class TokenKeys;
  struct Parts;
  explicit SignedToken(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

// The public keys of an issuer: a JWKS (RFC 7517). A key is used only for the algorithms of its
// type: RS256 to RS512 and PS256 to PS512 for RSA; ES256, ES384 or ES512 for its curve; and only
// for its "alg", if it has one. So a token cannot choose how it is verified, and "none" and shared
// secrets (HS256) are never valid. Keys of other types and keys for encryption are ignored.
class TokenKeys {
 public:
  // Throws std::runtime_error with a sentence.
  explicit TokenKeys(std::string_view jwks);
  ~TokenKeys();
  TokenKeys(TokenKeys&&) noexcept;

  // A token without a "kid" is tried with at most so many keys of its algorithm, to bound the cost
  // of invalid tokens.
  static constexpr int kMostTried = 4;
  // Whether one of the keys with its algorithm and "kid" has signed the token. Call once per token.
  // Thread-safe.
  bool have_signed(const SignedToken& token) const;

 private:
  struct Key;
  std::vector<Key> keys_;
};

}  // namespace recurve
