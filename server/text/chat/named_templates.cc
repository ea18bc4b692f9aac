#include <algorithm>

#include "server/text/chat/chat_template.h"

namespace recurve {
namespace {

// Each renders roles, ends of turns and line breaks as in the description of its format. Each is
// prefix-stable, so that a session can continue with only the new messages.
struct NamedTemplate {
  std::string_view name;
  std::string_view text;
};
constexpr NamedTemplate kTemplates[] = {
    // Instructions under headings.
    {"alpaca",
     "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n"
     "{% elif m.role == 'user' %}### Instruction:\n{{ m.content }}\n\n"
     "{% else %}### Response:\n{{ m.content }}\n\n{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}### Response:\n{% endif %}"},
    {"chatml",
     "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
     "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"},
    // The format has no system role: a system message is a turn of the user.
    {"gemma",
     "{{ bos_token }}{% for m in messages %}"
     "{% if m.role == 'system' %}<start_of_turn>user\n{{ m.content | trim }}<end_of_turn>\n"
     "{% elif m.role == 'assistant' %}<start_of_turn>model\n{{ m.content | trim }}<end_of_turn>\n"
     "{% else %}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endif %}"
     "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"},
    {"llama-3",
     "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
     "{{ m.content | trim }}<|eot_id|>{% endfor %}"
     "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"},
    {"mistral",
     "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}"
     "{{ eos_token }}{% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"},
    {"phi-3",
     "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
     "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"},
    // For models that were never trained on turns.
    {"plain",
     "{% for m in messages %}{{ m.role | capitalize }}: {{ m.content | trim }}\n\n{% endfor %}"
     "{% if add_generation_prompt %}Assistant:{% endif %}"},
    {"vicuna",
     "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }} "
     "{% elif m.role == 'user' %}USER: {{ m.content }} "
     "{% else %}ASSISTANT: {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}ASSISTANT:{% endif %}"},
    {"zephyr",
     "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
     "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"},
};

}  // namespace

std::optional<std::string_view> named_chat_template(std::string_view name) {
  const auto* found = std::ranges::find(kTemplates, name, &NamedTemplate::name);
  if (found == std::end(kTemplates)) return {};
  return found->text;
}

std::string chat_template_names() {
  std::string names;
  for (const NamedTemplate& one : kTemplates)
    names.append(names.empty() ? "" : ", ").append(one.name);
  return names;
}

}  // namespace recurve
