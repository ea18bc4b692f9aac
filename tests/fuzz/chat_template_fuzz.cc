// Any bytes as a chat template, and behind a zero byte as the content of messages: refused with a
// sentence, or a text whose ranges lie in it, within the limits.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "server/text/jinja/json.h"
#include "server/text/jinja/template.h"
#include "server/text/utf8.h"

namespace recurve::jinja {
namespace {

void require(bool holds) {
  if (!holds) __builtin_trap();
}

Value messages(std::string_view content) {
  std::vector<Value> all;
  for (const std::string_view role : {"system", "user", "assistant", "user"}) {
    Dict message;
    message.set(Text("role", Origin::kTemplate), Value::text(role));
    message.set(Text("content", Origin::kTemplate), Value::text(Text(content, Origin::kMessage)));
    all.push_back(Value::dict(std::move(message)));
  }
  return Value::list(std::move(all));
}

Value tools(std::string_view json) {
  try {
    JsonBudget budget{.most = 1000};
    return parse_json(json, Origin::kMessage, budget);
  } catch (const Error& error) {
    require(!std::string_view(error.what()).empty());
    return Value(None{});
  }
}

void run(std::string_view source, std::string_view content) {
  if (!is_valid_utf8(source) || !is_valid_utf8(content)) return;
  const Limits limits{.steps = 20'000, .text_bytes = 20'000};
  const Template::Variables variables = {{"messages", messages(content)},
                                         {"tools", tools(content)},
                                         {"add_generation_prompt", Value(true)},
                                         {"bos_token", Value::text("<s>")},
                                         {"eos_token", Value::text("</s>")}};
  const Text text = Template(source).render({&variables}, std::tm{}, limits);
  require(text.bytes.size() <= limits.text_bytes);
  require(text.bytes.size() == text.origins.size());
  require(is_valid_utf8(text.bytes));
}

}  // namespace
}  // namespace recurve::jinja

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  try {
    recurve::jinja::run(input.substr(0, zero),
                        zero == input.npos ? "hello" : input.substr(zero + 1));
  } catch (const recurve::jinja::Error& error) {
    if (!std::string_view(error.what()).starts_with("line ")) __builtin_trap();
  }
  return 0;
}
