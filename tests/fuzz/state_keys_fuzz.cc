// Any bytes as an operator's keys file and as a wrapped key: an accepted file is written as it was
// read, and only bytes that were wrapped can be unwrapped.
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "server/identity/state_keys.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto keys = recurve::parse_state_keys(text);
    if (recurve::parse_state_keys(recurve::to_text(keys)) != keys) std::abort();
  } catch (const std::runtime_error&) {
  }
  // The keys of the corpus.
  static const std::vector<recurve::SecretKey> kKeys = {{1}, {2}};
  static const std::string kWrapped =
      recurve::wrap_tenant_key({.id = "0123456789abcdef", .tenant = "alice", .key = {3}}, kKeys[1]);
  recurve::unwrap_folder_key(text, kKeys);
  for (const std::string& wrapped : {std::string(text), kWrapped + std::string(text)}) {
    try {
      const auto opened = recurve::unwrap_tenant_key(wrapped, "0123456789abcdef", kKeys);
      if (opened.key.tenant != "alice" || wrapped.size() != kWrapped.size()) std::abort();
    } catch (const std::runtime_error&) {
    }
  }
  return 0;
}
