#pragma once
#include <openssl/ssl.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "server/identity/file_stamp.h"

namespace recurve {

// Files in PEM.
struct TlsFiles {
  std::string certificate;  // the server's, then its chain up to a root
  std::string key;
  std::string client_ca = {};  // must have signed the clients' certificates; empty: none required
};

// The application protocol (ALPN). A client that offers only others is refused.
enum class TlsProtocol : uint8_t { kHttp1, kHttp2 };

// The TLS settings of new connections, from files that may be replaced while the server runs. TLS
// 1.3, and 1.2 with forward secrecy and authenticated encryption. One thread at a time.
class TlsSettings {
 public:
  // Throws std::runtime_error with a sentence if the files cannot be used.
  explicit TlsSettings(TlsFiles files);

  // Loads files that have changed. If they cannot be used, logs why and uses the previous ones.
  void reload_if_changed();

  // The server side of a connection. The caller owns the socket.
  std::unique_ptr<SSL, decltype(&SSL_free)> connect(int descriptor, TlsProtocol protocol) const;

 private:
  using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;
  using Stamps = std::array<FileStamp, 3>;

  Stamps stamps() const;
  Context load() const;

  const TlsFiles files_;
  Stamps loaded_;
  Context context_;
};

// OpenSSL's reason for the last failure on this thread. Clears its errors.
std::string tls_error();

}  // namespace recurve
