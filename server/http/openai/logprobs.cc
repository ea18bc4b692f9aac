#include "server/http/openai/logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "server/text/utf8.h"

namespace recurve {
namespace {

using nlohmann::json;

json one(int32_t id, float logprob, const Tokenizer& tokenizer) {
  const std::string_view text = tokenizer.token_bytes(id);
  json::array_t bytes;
  bytes.reserve(text.size());
  for (const char byte : text) bytes.emplace_back(static_cast<unsigned char>(byte));
  return {
      {"token", name_of(id, tokenizer)}, {"logprob", finite(logprob)}, {"bytes", std::move(bytes)}};
}

}  // namespace

double finite(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

size_t characters(std::string_view utf8) {
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string name_of(int32_t id, const Tokenizer& tokenizer) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  if (is_valid_utf8(bytes)) return std::string(bytes);
  std::string name = "bytes:";
  for (const char byte : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return name;
}

json chat_logprob(const SampledToken& token, const Tokenizer& tokenizer) {
  json of = one(token.id, token.logprob, tokenizer);
  of["top_logprobs"] = json::array();
  for (const TokenLogprob& top : token.top) {
    of["top_logprobs"].push_back(one(top.id, top.logprob, tokenizer));
  }
  return of;
}

}  // namespace recurve
