// Any bytes as a keys file and as a key: an accepted file is written as it was read.
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "server/identity/key_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  recurve::key_id_of(text);
  try {
    const recurve::KeyFile file = recurve::parse_key_file(text);
    const std::string written = recurve::to_text(file);
    if (recurve::to_text(recurve::parse_key_file(written)) != written) std::abort();
  } catch (const std::runtime_error&) {
  }
  return 0;
}
