#include "server/identity/token_keys.h"

#include <cjose/cjose.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

namespace recurve {
namespace {

using nlohmann::json;

constexpr size_t kMostTokenBytes = 8192;
constexpr size_t kMostKeys = 64;
constexpr size_t kLeastBits = 2048;  // of RSA

// RFC 7515, section 2: at least a byte, and no padding. The library ends the process at an invalid
// length.
bool is_base64_url(std::string_view text) {
  return !text.empty() && text.size() % 4 != 1 && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
}

// For a text of the form of a token. Null: it is malformed.
std::shared_ptr<cjose_jws_t> import(std::string_view token) {
  cjose_err ignored{};
  return {cjose_jws_import(token.data(), token.size(), &ignored), [](cjose_jws_t* made) {
            if (made != nullptr) cjose_jws_release(made);
          }};
}

// A header field; empty: it is missing or not a string.
std::string header_of(cjose_jws_t* token, const char* name) {
  cjose_err ignored{};
  const char* value = cjose_header_get(cjose_jws_get_protected(token), name, &ignored);
  return value != nullptr ? value : "";
}

// "crit" names extensions that must be understood (RFC 7515, section 4.1.11); none is.
bool is_critical(cjose_jws_t* token) {
  cjose_err ignored{};
  char* value = cjose_header_get_raw(cjose_jws_get_protected(token), "crit", &ignored);
  if (value != nullptr) cjose_get_dealloc()(value);
  return value != nullptr;
}

std::string string_of(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Whether all numbers that the library reads from a key are valid.
bool has_numbers(const json& key) {
  constexpr std::array kNames = {"n", "e", "x", "y", "p", "q", "dp", "dq", "qi"};
  return std::ranges::all_of(kNames, [&](const char* name) {
    return !key.contains(name) || is_base64_url(string_of(key, name));
  });
}

// The algorithms that a key may be used for; empty: no supported one.
std::set<std::string> algorithms_of(const json& key) {
  std::set<std::string> all;
  const std::string kind = string_of(key, "kty"), curve = string_of(key, "crv");
  if (kind == "RSA") all = {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"};
  if (kind == "EC" && curve == "P-256") all = {"ES256"};
  if (kind == "EC" && curve == "P-384") all = {"ES384"};
  if (kind == "EC" && curve == "P-521") all = {"ES512"};
  if (key.contains("use") && string_of(key, "use") != "sig") return {};
  if (!key.contains("alg")) return all;
  const std::string only = string_of(key, "alg");
  return all.contains(only) ? std::set<std::string>{only} : std::set<std::string>{};
}

}  // namespace

bool is_token(std::string_view text) {
  if (text.size() > kMostTokenBytes) return false;
  int parts = 0;
  for (size_t begin = 0; begin <= text.size(); ++parts) {
    const size_t end = std::min(text.find('.', begin), text.size());
    if (!is_base64_url(text.substr(begin, end - begin))) return false;
    begin = end + 1;
  }
  return parts == 3;
}

struct SignedToken::Parts {
  std::string text;
  std::shared_ptr<cjose_jws_t> read;
};

SignedToken::SignedToken(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
SignedToken::~SignedToken() = default;
SignedToken::SignedToken(SignedToken&&) noexcept = default;

std::optional<SignedToken> SignedToken::read(std::string_view token) {
  if (!is_token(token)) return std::nullopt;
  std::shared_ptr<cjose_jws_t> read = import(token);
  if (read == nullptr) return std::nullopt;
  return SignedToken(std::make_unique<Parts>(Parts{std::string(token), std::move(read)}));
}

std::string SignedToken::claims() const {
  uint8_t* text = nullptr;
  size_t size = 0;
  cjose_err ignored{};
  if (!cjose_jws_get_plaintext(parts_->read.get(), &text, &size, &ignored)) return "";
  return {reinterpret_cast<const char*>(text), size};  // the token owns the memory
}

struct TokenKeys::Key {
  std::string id;  // empty: none
  std::set<std::string> algorithms;
  std::shared_ptr<cjose_jwk_t> key;
};

TokenKeys::TokenKeys(std::string_view jwks) {
  const json all = json::parse(jwks, nullptr, false);
  if (!all.is_object() || !all.contains("keys") || !all["keys"].is_array()) {
    throw std::runtime_error("it must be a JWKS (RFC 7517): JSON with a list \"keys\"");
  }
  for (const json& one : all["keys"]) {
    if (!one.is_object()) throw std::runtime_error("each of its keys must be an object");
    const std::string id = string_of(one, "kid");
    if (one.contains("d")) {
      throw std::runtime_error(
          fmt::format("key \"{}\" is private: the file must have public keys only", id));
    }
    std::set<std::string> algorithms = algorithms_of(one);
    if (algorithms.empty()) continue;
    const std::string text = one.dump();
    cjose_err error{};
    cjose_jwk_t* read =
        has_numbers(one) ? cjose_jwk_import(text.data(), text.size(), &error) : nullptr;
    const Key& key = keys_.emplace_back(id, std::move(algorithms),
                                        std::shared_ptr<cjose_jwk_t>(read, [](cjose_jwk_t* made) {
                                          if (made != nullptr) cjose_jwk_release(made);
                                        }));
    if (key.key == nullptr) {
      throw std::runtime_error(fmt::format("key \"{}\" cannot be read", id));
    }
    const bool rsa = cjose_jwk_get_kty(key.key.get(), &error) == CJOSE_JWK_KTY_RSA;
    const size_t bits = cjose_jwk_get_keysize(key.key.get(), &error);
    if (rsa && bits < kLeastBits) {
      throw std::runtime_error(
          fmt::format("key \"{}\" has {} bits, expected at least {}", id, bits, kLeastBits));
    }
  }
  if (keys_.empty() || keys_.size() > kMostKeys) {
    throw std::runtime_error(fmt::format(
        "it has {} signing keys of RSA and the curves P-256, P-384 and P-521, expected 1 to {}",
        keys_.size(), kMostKeys));
  }
}

TokenKeys::~TokenKeys() = default;
TokenKeys::TokenKeys(TokenKeys&&) noexcept = default;

// The library verifies a parsed token once, so each further key gets a copy.
bool TokenKeys::have_signed(const SignedToken& token) const {
  cjose_jws_t* const read = token.parts_->read.get();
  if (is_critical(read)) return false;
  const std::string algorithm = header_of(read, "alg"), id = header_of(read, "kid");
  int tried = 0;
  for (const Key& key : keys_) {
    if (!key.algorithms.contains(algorithm)) continue;
    if (!id.empty() && !key.id.empty() && id != key.id) continue;
    if (tried++ == kMostTried) return false;
    const auto copy = tried > 1 ? import(token.parts_->text) : nullptr;
    cjose_err ignored{};
    if (cjose_jws_verify(copy != nullptr ? copy.get() : read, key.key.get(), &ignored)) return true;
  }
  return false;
}

}  // namespace recurve
