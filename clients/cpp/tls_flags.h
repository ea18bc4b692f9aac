#pragma once
#include <CLI/App.hpp>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

#include "clients/cpp/connection.h"

namespace recurve {

// How a program that is a client is told of TLS: by flags, or by the environment.
inline void add_tls_flags(CLI::App& app, ClientTls* tls) {
  app.add_option("--tls-ca", tls->ca,
                 "Use TLS, and require a server certificate signed by one in this PEM file, or "
                 "\"system\" for the system's")
      ->type_name("FILE")
      ->envname("RECURVE_TLS_CA");
  app.add_option("--tls-cert", tls->cert, "Use TLS with this client certificate (PEM)")
      ->type_name("FILE")
      ->envname("RECURVE_TLS_CERT");
  app.add_option("--tls-key", tls->key, "Key of --tls-cert (PEM)")
      ->type_name("FILE")
      ->envname("RECURVE_TLS_KEY");
}

// How it is told of its key: by a file, since others see a command's flags, or by the environment.
class KeyFlag {
 public:
  explicit KeyFlag(CLI::App& app) {
    app.add_option("--key-file", file_,
                   "File with the API key and nothing else [default: the environment variable "
                   "RECURVE_KEY]")
        ->type_name("FILE")
        ->envname("RECURVE_KEY_FILE");
  }
  // Empty: none. Throws std::invalid_argument.
  std::string key() const {
    if (file_.empty()) {
      const char* named = std::getenv("RECURVE_KEY");
      return named == nullptr ? "" : named;
    }
    std::ifstream in(file_);
    std::string key;
    if (in >> key) return key;
    throw std::invalid_argument("there is no key in \"" + file_ + "\" that can be read");
  }

 private:
  std::string file_;
};

}  // namespace recurve
