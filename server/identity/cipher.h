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

// From the system's source of random numbers. Throws std::runtime_error where it has none.
std::string random_bytes(size_t count);
SecretKey random_key();

// HMAC-SHA-256 of the text with the key: of a salt, a key that nothing else is encrypted with (SP
// 800-108, one block).
SecretKey derived_key(const SecretKey& key, std::string_view text);

// AES-256-GCM with one key, which is wiped from memory with it. The nonce of a text is its number,
// 8 bytes little-endian and 4 of zeros: no two texts of a key may have the same. One thread at a
// time.
class Cipher {
 public:
  explicit Cipher(const SecretKey& key);
  ~Cipher();
  Cipher(const Cipher&) = delete;
  Cipher& operator=(const Cipher&) = delete;

  // The encrypted text, and its tag of kTagBytes behind it. Throws std::runtime_error.
  std::string seal(uint64_t number, std::string_view text);
  // False: these are not the bytes that seal() gave with this key for that number.
  bool open(uint64_t number, std::string_view sealed, std::string* text);

 private:
  struct Context;
  bool begin(uint64_t number, bool encrypts);

  SecretKey key_;
  const std::unique_ptr<Context> context_;
};

}  // namespace recurve
