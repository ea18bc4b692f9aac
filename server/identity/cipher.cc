#include "server/identity/cipher.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <new>
#include <stdexcept>

namespace recurve {
namespace {

constexpr size_t kNonceBytes = 12;

uint8_t* raw(std::string& text) { return reinterpret_cast<uint8_t*>(text.data()); }
const uint8_t* raw(std::string_view text) { return reinterpret_cast<const uint8_t*>(text.data()); }

}  // namespace

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  if (RAND_bytes(raw(bytes), static_cast<int>(count)) != 1) {
    throw std::runtime_error("the system's random number generator has failed");
  }
  return bytes;
}

SecretKey random_key() {
  SecretKey key;
  std::string random = random_bytes(key.size());
  std::copy_n(raw(std::string_view(random)), key.size(), key.begin());
  OPENSSL_cleanse(random.data(), random.size());
  return key;
}

SecretKey derived_key(const SecretKey& key, std::string_view text) {
  SecretKey derived;
  unsigned size = 0;
  const uint8_t* done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), raw(text),
                             text.size(), derived.data(), &size);
  if (done == nullptr || size != derived.size()) {
    throw std::runtime_error("OpenSSL cannot derive a key");
  }
  return derived;
}

struct Cipher::Context {
  EVP_CIPHER_CTX* const of = EVP_CIPHER_CTX_new();
  ~Context() { EVP_CIPHER_CTX_free(of); }
};

Cipher::Cipher(const SecretKey& key) : key_(key), context_(std::make_unique<Context>()) {
  if (context_->of == nullptr) throw std::bad_alloc();
}

Cipher::~Cipher() { OPENSSL_cleanse(key_.data(), key_.size()); }

bool Cipher::begin(uint64_t number, bool encrypts) {
  std::array<uint8_t, kNonceBytes> nonce{};
  for (size_t i = 0; i < 8; ++i) nonce[i] = static_cast<uint8_t>(number >> 8 * i);
  return EVP_CipherInit_ex(context_->of, EVP_aes_256_gcm(), nullptr, key_.data(), nonce.data(),
                           encrypts ? 1 : 0) == 1;
}

std::string Cipher::seal(uint64_t number, std::string_view text) {
  std::string sealed(text.size() + kTagBytes, '\0');
  int size = 0;
  const bool done =
      begin(number, true) &&
      EVP_EncryptUpdate(context_->of, raw(sealed), &size, raw(text),
                        static_cast<int>(text.size())) == 1 &&
      EVP_EncryptFinal_ex(context_->of, raw(sealed) + size, &size) == 1 &&
      EVP_CIPHER_CTX_ctrl(context_->of, EVP_CTRL_GCM_GET_TAG, static_cast<int>(kTagBytes),
                          raw(sealed) + text.size()) == 1;
  if (!done) throw std::runtime_error("OpenSSL cannot encrypt");
  return sealed;
}

bool Cipher::open(uint64_t number, std::string_view sealed, std::string* text) {
  if (sealed.size() < kTagBytes) return false;
  text->resize(sealed.size() - kTagBytes);
  std::string tag(sealed.substr(text->size()));
  int size = 0;
  return begin(number, false) &&
         EVP_DecryptUpdate(context_->of, raw(*text), &size, raw(sealed),
                           static_cast<int>(text->size())) == 1 &&
         EVP_CIPHER_CTX_ctrl(context_->of, EVP_CTRL_GCM_SET_TAG, static_cast<int>(kTagBytes),
                             raw(tag)) == 1 &&
         EVP_DecryptFinal_ex(context_->of, raw(*text) + size, &size) == 1;
}

}  // namespace recurve
