#include "server/http/host_rule.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>

namespace recurve {
namespace {

std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

bool is_address(std::string_view name) {
  in6_addr address{};
  if (name.starts_with('[') && name.ends_with(']')) {
    const std::string inner(name.substr(1, name.size() - 2));
    return inet_pton(AF_INET6, inner.c_str(), &address) == 1;
  }
  return inet_pton(AF_INET, std::string(name).c_str(), &address) == 1;
}

std::string_view host_of(std::string_view origin) {
  const size_t scheme = origin.find("://");
  return scheme == std::string_view::npos ? origin : origin.substr(scheme + 3);
}

}  // namespace

std::string origin_problem(std::string_view host, std::string_view origin,
                           const std::vector<std::string>& allowed) {
  const std::string_view name = without_port(host);
  const bool known = is_address(name) || name == "localhost" ||
                     std::any_of(allowed.begin(), allowed.end(), [&](const std::string& one) {
                       return without_port(host_of(one)) == name;
                     });
  if (!known) {
    return fmt::format(
        "Host must be an address or localhost, got \"{}\": name it with --http-origin", name);
  }
  const bool own = origin.empty() || origin == fmt::format("http://{}", host);
  if (own || std::find(allowed.begin(), allowed.end(), origin) != allowed.end()) return {};
  return fmt::format("pages of \"{}\" may not use this server: name it with --http-origin", origin);
}

}  // namespace recurve
