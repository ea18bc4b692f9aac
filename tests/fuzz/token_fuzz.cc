// Any bytes as a token for a server with an issuer, and as an issuer's JWKS. An invented token is
// never valid.
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "server/identity/token_keys.h"

namespace {

constexpr std::string_view kKeys = R"({"keys": [
  {"kty": "EC", "crv": "P-256", "kid": "one",
   "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
   "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]})";  // of RFC 7515, appendix A.3

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const recurve::TokenKeys keys(kKeys);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto token = recurve::SignedToken::read(text);
  if (token) {
    static_cast<void>(token->claims());
    keys.have_signed(*token);
  }
  try {
    recurve::TokenKeys of_the_file(text);
    if (token) of_the_file.have_signed(*token);
  } catch (const std::runtime_error&) {
  }
  return 0;
}
