#include "server/http/openai/logprobs.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "server/text/utf8.h"

namespace recurve {
namespace {

using nlohmann::json;

std::string name_by_id(int32_t id) { return fmt::format("token_id:{}", id); }

json one(int32_t id, float logprob, const TokenNames& names) {
  const std::string_view text = names.tokenizer.token_bytes(id);
  json::array_t bytes;
  bytes.reserve(text.size());
  for (const char byte : text) bytes.emplace_back(static_cast<unsigned char>(byte));
  return {{"token", names.of(id)}, {"logprob", finite(logprob)}, {"bytes", std::move(bytes)}};
}

}  // namespace

double finite(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

std::string TokenNames::of(int32_t id) const {
  if (as_ids) return name_by_id(id);
  const std::string_view bytes = tokenizer.token_bytes(id);
  if (is_valid_utf8(bytes)) return std::string(bytes);
  std::string name = "bytes:";
  for (const char byte : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return name;
}

json logprobs_by_name(const SampledToken& token, const TokenNames& names) {
  json all = {{names.of(token.id), finite(token.logprob)}};
  for (const TokenLogprob& top : token.top) {
    if (top.id == token.id) continue;
    const bool is_new = all.emplace(names.of(top.id), finite(top.logprob)).second;
    if (!is_new) all[name_by_id(top.id)] = finite(top.logprob);
  }
  return all;
}

json chat_logprob(const SampledToken& token, const TokenNames& names) {
  json of = one(token.id, token.logprob, names);
  of["top_logprobs"] = json::array();
  for (const TokenLogprob& top : token.top) {
    of["top_logprobs"].push_back(one(top.id, top.logprob, names));
  }
  return of;
}

}  // namespace recurve
