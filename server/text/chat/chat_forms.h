#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace recurve {

// The text of a chat template that is common enough to have a name: "chatml", "llama-3", ...
// Nothing where there is none of that name.
std::optional<std::string_view> chat_form(std::string_view name);

// The names that there are, as "chatml, gemma, ...".
std::string chat_form_names();

}  // namespace recurve
