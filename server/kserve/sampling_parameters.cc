#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "server/kserve/infer_request.h"

namespace recurve {
namespace {

constexpr size_t kMostLevels = 64;  // for a schema

std::string written(const ClientJson& value) {
  return value.dump(-1, ' ', false, ClientJson::error_handler_t::replace);
}

// One parameter as it was sent.
struct Parameter {
  std::string_view name;
  const ClientJson& value;

  [[noreturn]] void refuse(std::string_view wanted) const {
    const std::string got = value.is_structured() ? "" : ", got " + cut(written(value));
    throw invalid(std::string(name), "{} must be {}{}", name, wanted, got);
  }

  std::string name_of(std::string_view what) const {
    if (!value.is_string()) refuse(fmt::format("the name of {}", what));
    return value.get<std::string>();
  }
  bool flag() const {
    if (value.is_boolean()) return value.get<bool>();
    const std::string text = value.is_string() ? value.get<std::string>() : "";
    if (text == "true" || text == "True") return true;
    if (text == "false" || text == "False") return false;
    refuse("true or false");
  }
  template <typename T>
  T number() const {
    if (value.is_string()) return parsed<T>(value.get_ref<const std::string&>());
    if (!value.is_number()) refuse("a number");
    const auto number = static_cast<T>(value.get<double>());
    if (!std::isfinite(number)) refuse("a number of 32 bits");
    return number;
  }
  int64_t integer() const {
    constexpr auto kMost = uint64_t{std::numeric_limits<int64_t>::max()};
    if (value.is_string()) return parsed<int64_t>(value.get_ref<const std::string&>());
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() || value.get<uint64_t>() <= kMost);
    if (!fits) refuse("an integer of 64 bits");
    return value.get<int64_t>();
  }
  int32_t small() const {
    const int64_t wide = integer();
    const auto narrow = static_cast<int32_t>(wide);
    if (narrow != wide) refuse("an integer of 32 bits");
    return narrow;
  }
  std::vector<int32_t> ids() const {
    if (!value.is_array()) refuse("a list of token ids");
    std::vector<int32_t> ids;
    for (const ClientJson& id : value) ids.push_back(Parameter{name, id}.small());
    return ids;
  }
  std::vector<std::string> texts() const {
    if (value.is_string()) return {value.get<std::string>()};
    if (!value.is_array()) refuse("a text or a list of texts");
    std::vector<std::string> texts;
    for (const ClientJson& text : value) {
      if (!text.is_string()) refuse("a text or a list of texts");
      texts.push_back(text.get<std::string>());
    }
    return texts;
  }
  std::vector<std::pair<int32_t, float>> biases() const {
    if (!value.is_object()) refuse("an object that maps token ids to numbers");
    std::vector<std::pair<int32_t, float>> biases;
    for (const auto& [id, bias] : value.items()) {
      const ClientJson key = id;
      biases.emplace_back(Parameter{name, key}.small(), Parameter{name, bias}.number<float>());
    }
    return biases;
  }

 private:
  template <typename T>
  T parsed(const std::string& text) const {
    T number{};
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || stopped != end) refuse("a number");
    return number;
  }
};

// A constraint is a text, or JSON for the forms that are JSON.
template <ConstraintText::Form form>
void read_constraint(const Parameter& p, TextRequest* to) {
  if (to->constraint) {
    throw invalid(std::string(p.name), "{} must not be combined with {}", p.name,
                  to->constraint_field);
  }
  constexpr bool kOfJson =
      form == ConstraintText::Form::kJsonSchema || form == ConstraintText::Form::kChoice;
  if (!p.value.is_string() && !kOfJson) p.refuse("a text");
  to->constraint = {form, p.value.is_string() ? p.value.get<std::string>() : written(p.value)};
  to->constraint_field = p.name;
}

void read_adapter(const Parameter& p, TextRequest* to) {
  to->chosen.adapter = p.name_of("an adapter");
}

struct Known {
  std::string_view name;
  void (*read)(const Parameter& p, TextRequest* to);
};
constexpr Known kKnown[] = {
    {"temperature",
     [](auto& p, auto* to) { to->sampling.temperature = p.template number<float>(); }},
    {"top_k",
     [](auto& p, auto* to) {
       to->sampling.top_k = p.small();
       if (to->sampling.top_k == -1) to->sampling.top_k = 0;  // -1 means all, as in other servers
     }},
    {"top_p", [](auto& p, auto* to) { to->sampling.top_p = p.template number<float>(); }},
    {"min_p", [](auto& p, auto* to) { to->sampling.min_p = p.template number<float>(); }},
    {"typical_p", [](auto& p, auto* to) { to->sampling.typical_p = p.template number<float>(); }},
    {"repetition_penalty",
     [](auto& p, auto* to) { to->sampling.repetition_penalty = p.template number<float>(); }},
    {"presence_penalty",
     [](auto& p, auto* to) { to->sampling.presence_penalty = p.template number<float>(); }},
    {"frequency_penalty",
     [](auto& p, auto* to) { to->sampling.frequency_penalty = p.template number<float>(); }},
    {"logit_bias", [](auto& p, auto* to) { to->sampling.logit_bias = p.biases(); }},
    {"allowed_token_ids",
     [](auto& p, auto* to) {
       to->sampling.allowed_ids = p.ids();
       if (to->sampling.allowed_ids.empty()) p.refuse("a list with an id, or left out for all ids");
     }},
    {"seed", [](auto& p, auto* to) { to->seed = static_cast<uint64_t>(p.integer()); }},
    {"max_tokens", [](auto& p, auto* to) { to->max_tokens = p.small(); }},
    {"min_tokens", [](auto& p, auto* to) { to->sampling.min_tokens = p.small(); }},
    {"ignore_eos", [](auto& p, auto* to) { to->sampling.ignore_eos = p.flag(); }},
    {"stop", [](auto& p, auto* to) { to->stop_strings = p.texts(); }},
    {"stop_token_ids", [](auto& p, auto* to) { to->sampling.stop_ids = p.ids(); }},
    {"include_stop_str_in_output", [](auto& p, auto* to) { to->include_stop = p.flag(); }},
    {"n", [](auto& p, auto* to) { to->choices = p.small(); }},
    {"logprobs", [](auto& p, auto* to) { to->logprobs = p.small(); }},
    {"add_special_tokens", [](auto& p, auto* to) { to->add_special_tokens = p.flag(); }},
    {"initial_state",
     [](auto& p, auto* to) { to->chosen.initial_state = p.name_of("an initial state"); }},
    {"adapter", read_adapter},
    {"lora_name", read_adapter},  // as vLLM's backend calls it
    {"guided_json", read_constraint<ConstraintText::Form::kJsonSchema>},
    {"guided_regex", read_constraint<ConstraintText::Form::kRegex>},
    {"guided_choice", read_constraint<ConstraintText::Form::kChoice>},
    {"guided_grammar", read_constraint<ConstraintText::Form::kGrammar>},
    {"any_whitespace",  // after the constraints
     [](auto& p, auto* to) {
       if (!p.flag()) return;
       if (!to->constraint) {
         throw invalid("any_whitespace",
                       "any_whitespace must be left out without a constraint of the answer");
       }
       to->constraint->any_whitespace = true;
     }},
};

// Refused unless the value changes nothing.
struct Refusable {
  std::string_view name;
  std::array<std::string_view, 2> same = {};  // JSON that changes nothing, besides null
};
// Parameters of vLLM's SamplingParams and of other servers that would change the answer.
constexpr Refusable kRefused[] = {
    {"bad_words", {"[]"}},
    {"best_of", {"1"}},
    {"dry_multiplier", {"0", "0.0"}},
    {"ebnf"},
    {"early_stopping", {"false"}},
    {"extra_args", {"{}"}},
    {"guided_decoding"},
    {"json_schema"},
    {"length_penalty", {"1.0", "1"}},
    {"logits_processors", {"[]"}},
    {"logprob_token_ids"},
    {"max_new_tokens"},
    {"max_output_tokens"},
    {"min_new_tokens", {"0"}},
    {"mirostat", {"0"}},
    {"num_beams", {"1"}},
    {"prompt_logprobs"},
    {"regex"},
    {"repetition_detection"},
    {"response_format"},
    {"stop_regex", {"[]"}},
    {"stop_words"},
    {"structured_outputs"},
    {"thinking_token_budget", {"-1"}},
    {"truncate_prompt_tokens"},
    {"use_beam_search", {"false"}},
    {"watermarking", {"false"}},
    {"xtc_probability", {"0", "0.0"}},
};

void check_refused(const ClientJson& parameters) {
  for (const Refusable& refusable : kRefused) {
    const auto found = parameters.find(std::string(refusable.name));
    if (found == parameters.end() || found->is_null()) continue;
    const std::string value = written(*found);
    bool same = false;
    for (const std::string_view one : refusable.same) same = same || (!one.empty() && value == one);
    if (same) continue;
    throw invalid(std::string(refusable.name), "{} is not supported by this server: leave it out",
                  refusable.name);
  }
}

void read_known(const ClientJson& parameters, TextRequest* asked) {
  asked->max_tokens = kDefaultInferTokens;
  for (const Known& known : kKnown) {
    const auto found = parameters.find(std::string(known.name));
    if (found == parameters.end() || found->is_null()) continue;
    known.read(Parameter{known.name, *found}, asked);
  }
}

}  // namespace

void read_sampling(const ClientJson& parameters, TextRequest* asked) {
  check_refused(parameters);
  read_known(parameters, asked);
}

void read_sampling(std::string_view text, TextRequest* asked) {
  ClientJson parameters;
  ValueBudget budget{.most = most_values(text.size())};
  try {
    parameters = read_client_json(text, "sampling_parameters", kMostLevels, {}, budget);
  } catch (const JsonRefused& refused) {
    throw invalid("sampling_parameters", "{}", refused.what());
  }
  if (!parameters.is_object()) {
    throw invalid("sampling_parameters", "sampling_parameters must be an object of JSON");
  }
  read_sampling(parameters, asked);
}

}  // namespace recurve
