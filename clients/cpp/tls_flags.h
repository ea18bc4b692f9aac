#pragma once
#include <CLI/App.hpp>

#include "clients/cpp/connection.h"

namespace recurve {

// How a program that is a client is told of TLS: by flags, or by the environment.
inline void add_tls_flags(CLI::App& app, ClientTls* tls) {
  app.add_option("--tls-ca", tls->ca,
                 "Speak TLS, with a server whose certificate is signed by one of these: a file of "
                 "PEM, or \"system\"")
      ->type_name("FILE")
      ->envname("RECURVE_TLS_CA");
  app.add_option("--tls-cert", tls->cert, "The client's own certificate, and TLS is spoken")
      ->type_name("FILE")
      ->envname("RECURVE_TLS_CERT");
  app.add_option("--tls-key", tls->key, "And its key")
      ->type_name("FILE")
      ->envname("RECURVE_TLS_KEY");
}

}  // namespace recurve
