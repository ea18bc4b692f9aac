#include "server/identity/token_issuer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace recurve {
namespace {

using nlohmann::json;

// A claim that is a NumericDate.
std::optional<double> time_of(const json& claims, const char* name) {
  const auto found = claims.find(name);
  if (found == claims.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

}  // namespace

TokenIssuer::TokenIssuer(KeyFile::Issuer settings, std::string_view jwks)
    : settings_(std::move(settings)), keys_(jwks) {}

TokenIssuer::Found TokenIssuer::find(const SignedToken& token, const json& claims,
                                     KeyTime now) const {
  if (!has_our_audience(claims)) return {};
  const auto leeway = static_cast<double>(kLeeway.count());
  const auto seconds = static_cast<double>(now.time_since_epoch().count());
  const std::optional<double> expires = time_of(claims, "exp");
  if (!expires || (claims.contains("nbf") && !time_of(claims, "nbf"))) return {};
  if (seconds + leeway < time_of(claims, "nbf").value_or(seconds)) return {};
  if (seconds >= *expires + leeway) return {.why = Finding::kExpired};
  const std::string tenant = tenant_of(claims);
  if (tenant.empty() || !keys_.have_signed(token)) return {};
  return {Finding::kValid, tenant, *expires + leeway};
}

std::string TokenIssuer::tenant_of(const json& claims) const {
  if (!settings_.tenant.empty()) return settings_.tenant;
  const auto tenant = claims.find(settings_.tenant_claim);
  if (tenant == claims.end() || !tenant->is_string()) return "";
  const auto& name = tenant->get_ref<const std::string&>();
  return is_tenant_name(name) ? name : "";
}

bool TokenIssuer::has_our_audience(const json& claims) const {
  const auto audience = claims.find("aud");
  if (audience == claims.end()) return false;
  if (!audience->is_array()) return *audience == settings_.audience;
  return std::ranges::find(*audience, json(settings_.audience)) != audience->end();
}

}  // namespace recurve
