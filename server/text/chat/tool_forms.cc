#include "server/text/chat/tool_forms.h"

#include <algorithm>

namespace recurve {
namespace {

// All that are known; of two that fit a template the first is taken.
constexpr ToolForm kToolForms[] = {
    // Hermes, Qwen and others that write ChatML.
    {.name = "hermes",
     .shape = ToolForm::Shape::kMarked,
     .signs = {"<tool_call>", "\"arguments\""},
     .mark = "<tool_call>\n",
     .close = "\n</tool_call>",
     .arguments = "arguments",
     .id_prefix = "call_",
     .id_characters = 16},
    {.name = "mistral",
     .shape = ToolForm::Shape::kList,
     .signs = {"[TOOL_CALLS]", ""},
     .mark = "[TOOL_CALLS] ",
     .close = "",
     .arguments = "arguments",
     .id_prefix = "",
     .id_characters = 9},
    {.name = "llama-3",
     .shape = ToolForm::Shape::kWhole,
     .signs = {"\"parameters\": ", "<|start_header_id|>"},
     .mark = "",
     .close = "",
     .arguments = "parameters",
     .id_prefix = "call_",
     .id_characters = 16},
};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \n";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

}  // namespace

const ToolForm* tool_form_of(std::string_view chat_template) {
  const auto* found = std::ranges::find_if(kToolForms, [&](const ToolForm& form) {
    return std::ranges::all_of(form.signs, [&](std::string_view sign) {
      return chat_template.find(sign) != std::string_view::npos;
    });
  });
  return found == std::end(kToolForms) ? nullptr : found;
}

std::string tool_form_names() {
  std::string names;
  for (const ToolForm& form : kToolForms)
    names += (names.empty() ? "" : ", ") + std::string(form.name);
  return names;
}

std::string_view mark_token(const ToolForm& form) { return trimmed(form.mark); }
std::string_view close_token(const ToolForm& form) { return trimmed(form.close); }

}  // namespace recurve
