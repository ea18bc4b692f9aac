#include <arpa/inet.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "server/http/request_head.h"

namespace recurve {
namespace {

// The host without its port; empty if it is no valid host.
std::string_view without_port(std::string_view host) {
  const size_t end =
      host.starts_with('[') ? host.find(']') + 1 : std::min(host.find(':'), host.size());
  const std::string_view port = host.substr(end);
  if (port.empty()) return host;
  const bool digits = port.find_first_not_of("0123456789", 1) == std::string_view::npos;
  return port.starts_with(':') && digits ? host.substr(0, end) : std::string_view();
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

std::string lower(std::string_view text) {
  std::string to(text);
  for (char& c : to) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return to;
}

std::string own_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return {};
  return lower(name.data());
}

// Names of networks and machines that cannot be registered in the public DNS.
bool is_private(std::string_view name) {
  constexpr std::string_view kNameBytes = "abcdefghijklmnopqrstuvwxyz0123456789-_.";
  constexpr std::array kEndings = {".localhost", ".internal", ".svc", ".svc.cluster.local"};
  if (name.empty() || name.find_first_not_of(kNameBytes) != std::string_view::npos) return false;
  if (name.find('.') == std::string_view::npos) return true;
  static const std::string own = own_name();
  return name == own || std::any_of(kEndings.begin(), kEndings.end(),
                                    [&](const char* end) { return name.ends_with(end); });
}

}  // namespace

std::string origin_problem(std::string_view host, std::string_view origin,
                           const std::vector<std::string>& allowed, std::string_view scheme) {
  if (std::find(allowed.begin(), allowed.end(), "*") != allowed.end()) return {};
  std::string name = lower(without_port(host));
  if (name.ends_with('.')) name.pop_back();  // of the root
  const bool known = host.empty() || is_address(name) || is_private(name) ||
                     std::any_of(allowed.begin(), allowed.end(), [&](const std::string& one) {
                       return !name.empty() && lower(without_port(host_of(one))) == name;
                     });
  if (!known) {
    return fmt::format(
        "Host \"{}\" is not an allowed name of this server: allow it with --http-origin {}",
        cut(host), cut(name));
  }
  const bool own =
      origin.empty() || (!host.empty() && origin == fmt::format("{}://{}", scheme, host));
  if (own || std::find(allowed.begin(), allowed.end(), origin) != allowed.end()) return {};
  return fmt::format("pages of \"{}\" may not use this server: allow them with --http-origin",
                     cut(origin));
}

}  // namespace recurve
