#include "server/guard.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "server/net/bind.h"
#include "server/observe/log.h"

namespace recurve {

std::shared_ptr<Keyring> make_keys(const Options& o) {
  if (o.keys.empty()) return nullptr;
  return std::make_shared<Keyring>(o.keys, [file = o.keys](const std::string& problem) {
    if (problem.empty()) return log_event(LogLevel::kInfo, "keys_reloaded", {{"file", file}});
    log_event(LogLevel::kError, "keys_not_reloaded", {{"what", problem}});
  });
}

void check_network(const Options& o) {
  if (o.insecure_network) return;
  const bool known = !o.keys.empty() || !o.tls_client_ca.empty();
  if (known && !o.tls_cert.empty()) return;
  const std::pair<const char*, const std::string&> doors[] = {
      {"--listen", o.listen}, {"--http", o.http}, {"--metrics", o.metrics}, {"--admin", o.admin}};
  for (const auto& [flag, address] : doors) {
    if (address.empty() || is_of_this_machine(address)) continue;
    throw std::runtime_error(fmt::format(
        "{} {} can be reached by other machines, and there is no {}: give {}, listen on 127.0.0.1, "
        "or allow it with --insecure-network",
        flag, address, o.tls_cert.empty() ? "TLS" : "key that clients need",
        o.tls_cert.empty()
            ? (known ? "--tls-cert and --tls-key" : "--tls-cert, --tls-key and --keys")
            : "--keys"));
  }
}

void give_up_privileges(const Options& o) {
  // CUDA may have to start nvidia-modprobe, which makes the devices' files with root's rights.
  if (!o.on_gpu()) prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (o.keys.empty()) return;
  const rlimit none{.rlim_cur = 0, .rlim_max = 0};
  setrlimit(RLIMIT_CORE, &none);
}

}  // namespace recurve
