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

// A token as it came, read once; what it says is not verified.
class SignedToken {
 public:
  // Nothing where it is none.
  static std::optional<SignedToken> read(std::string_view token);
  ~SignedToken();
  SignedToken(SignedToken&&) noexcept;

  // What it says, whoever has signed it: JSON, as it should be.
  std::string claims() const;

 private:
  friend class TokenKeys;
  struct Parts;
  explicit SignedToken(std::unique_ptr<Parts> parts);

  std::unique_ptr<Parts> parts_;
};

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

  // A token that does not say which key it is of ("kid") is tried with so many of those of its
  // algorithm, so that a stranger's costs no more.
  static constexpr int kMostTried = 4;
  // Whether one of them has signed it; to be asked once of a token. Only keys that it may be of, by
  // its algorithm and its "kid", are tried. Thread-safe.
  bool have_signed(const SignedToken& token) const;

 private:
  struct Key;
  std::vector<Key> keys_;
};

}  // namespace recurve
