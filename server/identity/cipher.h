#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace recurve {

using SecretKey = std::array<uint8_t, 32>;  // of AES-256

inline constexpr size_t kSaltBytes = 16, kTagBytes = 16;

// From the system's random number generator. Throws std::runtime_error if that fails.
std::string random_bytes(size_t count);
SecretKey random_key();

// HMAC-SHA-256 of the text with the key (SP 800-108, one block). With a random salt as the text, a
// key for one use.
SecretKey derived_key(const SecretKey& key, std::string_view text);

// AES-256-GCM with one key, which the destructor wipes from memory. The nonce of a text is its
// number: 8 bytes little-endian, 4 zeros. A number may be used once per key. One thread at a time.
class Cipher {
 public:
  explicit Cipher(const SecretKey& key);
  ~Cipher();
  Cipher(const Cipher&) = delete;
  Cipher& operator=(const Cipher&) = delete;

  // The encrypted text followed by its tag of kTagBytes. Throws std::runtime_error.
  std::string seal(uint64_t number, std::string_view text);
  // False: seal() did not return these bytes with this key for that number.
  bool open(uint64_t number, std::string_view sealed, std::string* text);

 private:
  struct Context;
  bool begin(uint64_t number, bool encrypts);

  SecretKey key_;
  const std::unique_ptr<Context> context_;
};

}  // namespace recurve
