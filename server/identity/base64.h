#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace recurve {

// Base64 of RFC 4648, with padding and without line breaks.
void append_base64(std::string_view bytes, std::string* to);
// Nothing if the text is not base64.
std::optional<std::string> decoded_base64(std::string_view text);

}  // namespace recurve
