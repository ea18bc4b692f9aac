#include "server/net/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>

#include <stdexcept>
#include <string_view>
#include <utility>

#include "server/net/tls_socket.h"
#include "server/observe/log.h"

namespace recurve {
namespace {

// Of TLS 1.2; those of 1.3 are all allowed.
constexpr const char* kCiphers =
    "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:"
    "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305";

// For the key exchange, with at least 128 bits.
constexpr const char* kGroups = "X25519:P-256:P-384:X448:P-521";

// In the form of the handshake: each after its length.
constexpr std::string_view kOffers[] = {"\x08http/1.1", "\x02h2"};

// A client that offers protocols must offer the listener's; one that offers none may connect.
int choose_protocol(SSL* ssl, const unsigned char** chosen, unsigned char* chosen_size,
                    const unsigned char* offered, unsigned offered_size, void*) {
  const auto* wanted = static_cast<const std::string_view*>(SSL_get_app_data(ssl));
  unsigned char* found = nullptr;
  const int agreed = SSL_select_next_proto(
      &found, chosen_size, reinterpret_cast<const unsigned char*>(wanted->data()),
      static_cast<unsigned>(wanted->size()), offered, offered_size);
  *chosen = found;
  return agreed == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

[[noreturn]] void fail(const std::string& file, std::string_view what, std::string_view flag) {
  throw std::runtime_error(fmt::format("\"{}\" cannot be used as {}: {}; give another with {}",
                                       file, what, tls_error(), flag));
}

void ask_clients(const std::string& file, SSL_CTX* context) {
  STACK_OF(X509_NAME)* names = SSL_load_client_CA_file(file.c_str());
  if (names == nullptr || SSL_CTX_load_verify_file(context, file.c_str()) != 1) {
    sk_X509_NAME_pop_free(names, X509_NAME_free);
    fail(file, "the certificates that sign those of clients", "--tls-client-ca");
  }
  SSL_CTX_set_client_CA_list(context, names);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
}

}  // namespace

std::string tls_error() {
  const unsigned long code = ERR_peek_last_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  std::string text = reason != nullptr ? reason : "unknown reason";
  if (code != 0 && ERR_SYSTEM_ERROR(code)) text = std::strerror(ERR_GET_REASON(code));
  ERR_clear_error();
  return text;
}

TlsSettings::TlsSettings(TlsFiles files)
    : files_(std::move(files)), loaded_(stamps()), context_(load()) {}

TlsSettings::Context TlsSettings::load() const {
  ERR_clear_error();
  Context context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) throw std::runtime_error("TLS cannot be set up: " + tls_error());
  SSL_CTX* raw = context.get();
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  SSL_CTX_set_options(raw, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                               SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF);
  // Idle connections have no buffers; a retried write may come from another buffer.
  SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                            SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  constexpr std::string_view kName = "recurve";
  SSL_CTX_set_session_id_context(raw, reinterpret_cast<const unsigned char*>(kName.data()),
                                 kName.size());
  SSL_CTX_set_alpn_select_cb(raw, choose_protocol, nullptr);
  if (SSL_CTX_set_cipher_list(raw, kCiphers) != 1 || SSL_CTX_set1_groups_list(raw, kGroups) != 1) {
    throw std::runtime_error("TLS cannot be set up: " + tls_error());
  }
  if (SSL_CTX_use_certificate_chain_file(raw, files_.certificate.c_str()) != 1) {
    fail(files_.certificate, "the server's certificate", "--tls-cert");
  }
  if (SSL_CTX_use_PrivateKey_file(raw, files_.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    fail(files_.key, "the key of the server's certificate", "--tls-key");
  }
  if (!files_.client_ca.empty()) ask_clients(files_.client_ca, raw);
  return context;
}

TlsSettings::Stamps TlsSettings::stamps() const {
  return {stamp_of(files_.certificate), stamp_of(files_.key), stamp_of(files_.client_ca)};
}

void TlsSettings::reload_if_changed() {
  const Stamps now = stamps();
  if (now == loaded_) return;
  loaded_ = now;
  try {
    context_ = load();
    log_event(LogLevel::kInfo, "tls_reloaded", {{"certificate", files_.certificate}});
  } catch (const std::runtime_error& error) {
    log_event(LogLevel::kError, "tls_not_reloaded", {{"what", error.what()}});
  }
}

std::unique_ptr<SSL, decltype(&SSL_free)> TlsSettings::connect(int descriptor,
                                                               TlsProtocol protocol) const {
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context_.get()), SSL_free);
  BIO* socket = ssl == nullptr ? nullptr : new_socket_bio(descriptor);
  if (socket == nullptr) return {nullptr, SSL_free};
  SSL_set_bio(ssl.get(), socket, socket);
  const auto* offer = &kOffers[static_cast<size_t>(protocol)];
  SSL_set_app_data(ssl.get(), const_cast<std::string_view*>(offer));
  SSL_set_accept_state(ssl.get());
  return ssl;
}

}  // namespace recurve
