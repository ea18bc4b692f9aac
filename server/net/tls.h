#pragma once
#include <openssl/ssl.h>
#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

namespace recurve {

// Files of PEM by which a server shows who it is, and knows its clients.
struct TlsFiles {
  std::string certificate;  // its own first, then those between it and a root
  std::string key;
  std::string client_ca =
      {};  // who must have signed the certificates of clients; empty: none asked
};

// What a connection is to speak within TLS: the other end is refused where it only offers others.
enum class TlsProtocol : uint8_t { kHttp1, kHttp2 };

// The settings of TLS for connections to come, from files that may be replaced while the server
// runs. TLS 1.2 with forward secrecy and authenticated encryption, and 1.3. One thread at a time.
class TlsSettings {
 public:
  // Throws std::runtime_error with a sentence where the files are of no use.
  explicit TlsSettings(TlsFiles files);

  // Loads files that have changed since. What cannot be used is left, and the log says why.
  void reload_if_changed();

  // A connection of the server's, over a socket that stays the caller's.
  std::unique_ptr<SSL, decltype(&SSL_free)> connect(int descriptor, TlsProtocol protocol) const;

 private:
  using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
  // Of each file: what tells one version of it from another.
  struct Stamp {
    ino_t file = 0;
    off_t size = 0;
    int64_t changed_ns = 0;
    bool operator==(const Stamp&) const = default;
  };
  using Stamps = std::array<Stamp, 3>;

  Stamps stamps() const;
  Context load() const;

  const TlsFiles files_;
  Stamps loaded_;
  Context context_;
};

// What OpenSSL has to say of the last failure on this thread, which is forgotten.
std::string tls_error();

}  // namespace recurve
