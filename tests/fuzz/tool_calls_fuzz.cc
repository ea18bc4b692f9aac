// The tools of a conversation, in each form that models write calls in: refused with a sentence, or
// turned into a constraint as any other.
#include <functional>
#include <optional>
#include <string_view>

#include "server/serving/tool_use.h"
#include "tests/fuzz/constraint_fuzz.h"

namespace recurve::fuzz {
namespace {

// Texts by which each form is known; the corpus has functions of the name f.
constexpr std::string_view kTemplates[] = {R"(<tool_call> "arguments")", "[TOOL_CALLS]",
                                           R"("parameters": <|start_header_id|>)",
                                           "<function= <parameter="};
constexpr int32_t kControl = 0;  // of byte_vocabulary()

int take_tools(const std::string& tools) {
  // The rest of the request is derived from the tools, so that an input is reproducible.
  size_t rest = std::hash<std::string>()(tools);
  const auto one_of = [&](size_t n) {
    const size_t chosen = rest % n;
    rest /= n;
    return chosen;
  };
  const ToolRules rules{.form = tool_form_of(kTemplates[one_of(std::size(kTemplates))]),
                        .mark = one_of(2) == 0 ? kControl : -1};
  ToolUse use{.required = one_of(2) == 0, .parallel = one_of(2) == 0};
  if (one_of(2) == 0) use.allowed.emplace_back("f");
  ToolReading reading;
  std::optional<ConstraintText> constraint;
  if (one_of(2) == 0) {
    constraint.emplace(ConstraintText{ConstraintText::Form::kJsonSchema, R"({"type":"integer"})"});
  }
  if (const Refused refused = read_tools(tools, use, rules, "json_schema", &reading, &constraint)) {
    if (refused->message.empty()) std::abort();
    return 0;
  }
  return constraint ? take(*constraint) : 0;
}

}  // namespace
}  // namespace recurve::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return recurve::fuzz::take_tools(std::string(reinterpret_cast<const char*>(data), size));
}
