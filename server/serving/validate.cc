#include "server/serving/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/constraint/text_walk.h"
#include "server/observe/trace.h"
#include "server/request/session_command.h"
#include "server/serving/bind.h"
#include "server/serving/chat_prompt.h"
#include "server/serving/gathered_answer.h"
#include "server/text/stop_matcher.h"

namespace recurve {
namespace {

Refused check_size(std::string_view field, size_t size, size_t most) {
  if (size <= most) return {};
  return invalid(std::string(field), "{} must have at most {} entries, got {}", field, most, size);
}

Refused check_logprobs(std::string_view field, const std::optional<int32_t>& value) {
  if (!value || (*value >= 0 && *value <= kMaxLogprobs)) return {};
  return invalid(std::string(field), "{} must be in [0, {}], got {}", field, kMaxLogprobs, *value);
}

Refused check_request_id(const std::string& id) {
  return id.empty() ? Refused() : check_name("request_id", id);
}

Refused check_priority(int32_t priority) {
  if (priority >= -kMaxPriority && priority <= kMaxPriority) return {};
  return invalid("priority", "priority must be in [{}, {}], got {}", -kMaxPriority, kMaxPriority,
                 priority);
}

// sampling/params.cc checks these too, but not with the field names of the protocols.
Refused check_sampling_ids(const SamplingParams& p, const ModelText& model) {
  const auto usable = static_cast<size_t>(model.vocab.usable);
  Refused refused = check_size("allowed_token_ids", p.allowed_ids.size(), usable);
  if (!refused) refused = check_ids("allowed_token_ids", p.allowed_ids, model);
  if (!refused) refused = check_size("stop_token_ids", p.stop_ids.size(), kMaxStopIds);
  if (!refused) refused = check_ids("stop_token_ids", p.stop_ids, model);
  return refused;
}

Refused read_max_tokens(const TextRequest& asked, const ModelText& model, SamplingParams* p) {
  const char* const field = asked.names.max_tokens;
  const int32_t most = model.max_generated_tokens;
  p->max_tokens = asked.max_tokens ? *asked.max_tokens : default_max_tokens(asked, model);
  if (p->max_tokens >= 0 && p->max_tokens <= most) return {};
  return invalid(field, "{} must be in [0, {}], got {}", field, most, p->max_tokens);
}

Refused read_parameters(TextRequest& asked, const ModelText& model, SamplingParams* p) {
  *p = std::move(asked.sampling);
  std::sort(p->logit_bias.begin(), p->logit_bias.end());
  p->seed = asked.seed ? *asked.seed : random_number();
  p->logprobs = asked.logprobs.value_or(-1);
  p->prompt_logprobs = asked.prompt_logprobs.value_or(-1);
  Refused refused = read_max_tokens(asked, model, p);
  if (!refused) refused = check_logprobs(asked.names.logprobs, asked.logprobs);
  if (!refused) refused = check_logprobs(asked.names.prompt_logprobs, asked.prompt_logprobs);
  if (!refused) refused = check_sampling_ids(*p, model);
  if (refused) return refused;
  const auto problem = check(*p, model.vocab);
  if (!problem) return {};
  return invalid(problem->substr(0, problem->find(' ')), "{}", *problem);
}

Refused check_stop_strings(const char* field, const std::vector<std::string>& stops,
                           const ModelText& model) {
  Refused refused = check_size(field, stops.size(), StopMatcher::kMaxStops);
  if (refused) return refused;
  for (const std::string& text : stops) {
    if (!text.empty() && text.size() <= StopMatcher::kMaxStopBytes) continue;
    return invalid(field, "each of {} must have 1 to {} bytes, got one of {}", field,
                   StopMatcher::kMaxStopBytes, text.size());
  }
  return stops.empty() ? Refused() : check_text(field, stops.front(), model);
}

// FNV-1a of the stop strings, each with a terminator, and of include_stop.
uint64_t digest_of_stops(const TextRequest& asked) {
  uint64_t digest = 0xcbf29ce484222325;
  const auto add = [&](unsigned char byte) { digest = (digest ^ byte) * 0x100000001b3; };
  for (const std::string& stop : asked.stop_strings) {
    for (const char c : stop) add(static_cast<unsigned char>(c));
    add(0xff);  // not in UTF-8
  }
  add(asked.include_stop ? 1 : 0);
  return digest;
}

Refused check_constraint_bytes(const TextRequest& asked) {
  if (!asked.constraint || asked.constraint->text.size() <= kMostConstraintBytes) return {};
  return invalid(asked.constraint_field, "{} must have at most {} bytes, got {}",
                 asked.constraint_field, kMostConstraintBytes, asked.constraint->text.size());
}

// The compiler may still refuse the constraint.
Refused check_constraint(const TextRequest& asked, const SamplingParams& p,
                         const ModelText& model) {
  if (!asked.constraint) return {};
  if (!model.tokenizer->reads_text()) {
    return invalid(asked.constraint_field,
                   "{} must be left out, as this server has no tokenizer: ids have no text",
                   asked.constraint_field);
  }
  if (Refused refused = check_constraint_bytes(asked)) return refused;
  const bool ends = !p.stop_ids.empty() || (!p.ignore_eos && !model.vocab.eos_ids.empty());
  if (!ends) {
    return invalid(asked.constraint_field,
                   "{} needs an id that ends the answer: the model's end-of-sequence id, "
                   "without ignore_eos, or one of stop_token_ids",
                   asked.constraint_field);
  }
  if (asked.include_stop && !p.stop_ids.empty()) {
    return invalid(asked.names.include_stop,
                   "{} must be false with {} and stop_token_ids: the text of the id that ends the "
                   "answer would not match the constraint",
                   asked.names.include_stop, asked.constraint_field);
  }
  return {};
}

size_t bytes_of(const std::vector<int32_t>& ids) { return ids.size() * sizeof(int32_t); }
size_t bytes_of(const std::string& text) { return text.size(); }
// Sets the constraint of the tools in `asked`, as if the client had sent it.
Refused read_tool_use(const ModelText& model, TextRequest* asked, ParsedRequest* parsed) {
  if (!asked->tools) return {};
  const auto* messages = std::get_if<Conversation>(&asked->prompt);
  if (messages == nullptr || messages->tools_json.empty()) {
    return invalid("tools", "tools must be given, with messages, if tool_choice asks for calls");
  }
  using Form = ConstraintText::Form;
  const auto& content = asked->constraint;
  if (content && content->form != Form::kJson && content->form != Form::kJsonSchema) {
    return invalid(asked->constraint_field,
                   "{} cannot be combined with tools, unless it is JSON or a JSON schema: send "
                   "tool_choice none",
                   asked->constraint_field);
  }
  if (Refused refused = check_constraint_bytes(*asked)) return refused;
  const std::string field = std::exchange(asked->constraint_field, "tools");
  return read_tools(messages->tools_json, *asked->tools, model.tools, field,
                    &parsed->tools.emplace(), &asked->constraint);
}

// If the answer is the first text of its context, some tokenizers drop the space before its first
// word. Whether a session has text is not known yet: its constrained answer keeps the space.
Refused check_start(const ModelText& model, ParsedRequest* to) {
  ParsedRequest& parsed = *to;
  if (!parsed.constraint || parsed.answer_position != TextPosition::kStart) return {};
  using Form = ConstraintText::Form;
  const Form form = parsed.constraint->form;
  if (form == Form::kJson || form == Form::kJsonSchema ||  // begin with no space
      model.tokenizer->leading_space() == LeadingSpace::kKeep) {
    return {};
  }
  if (parsed.request.may_continue()) {
    parsed.answer_position = TextPosition::kContinued;
    return {};
  }
  return invalid(parsed.names.prompt,
                 "the prompt must have some text with a constraint other than JSON, because "
                 "this model's tokenizer drops a space before the first word");
}

Refused check_choices(const TextRequest& asked, int32_t max_tokens, const ModelText& model) {
  const int32_t choices = asked.choices;
  if (choices < 1 || choices > model.max_choices) {
    return invalid("n", "n must be in [1, {}], got {}", model.max_choices, choices);
  }
  if (choices > 1 && !asked.session.empty()) {
    return invalid("n", "n must be 1 with a session, got {}: fork the session for more answers",
                   choices);
  }
  if (choices > 1 && max_tokens == 0) {
    return invalid("n", "n must be 1 where {} is 0, got {}", asked.names.max_tokens, choices);
  }
  return {};
}

Refused check_prompt_size(int64_t tokens, const ModelText& model) {
  if (tokens <= model.max_prompt_tokens) return {};
  return invalid("prompt",
                 "the prompt must have at most {} tokens, got {}: send it in parts, with a session",
                 model.max_prompt_tokens, tokens);
}

Refused read_ids(std::vector<int32_t> ids, const ModelText& model, Request* request) {
  Refused refused = check_prompt_size(static_cast<int64_t>(ids.size()), model);
  if (!refused) refused = check_ids("prompt ids", ids, model);
  if (refused) refused->field = "prompt";
  request->prompt.ids = std::move(ids);
  return refused;
}

// With a session or an initial state, which may have text or not, the text is tokenized both as a
// start and as a continuation.
Refused read_text(const std::string& text, bool parse_special, const ModelText& model,
                  const WorkLimits& limits, Request* request) {
  if (Refused refused = check_text("text", text, model)) return refused;
  const auto special = parse_special ? SpecialTokens::kParse : SpecialTokens::kAsText;
  const auto read = [&](TextPosition position) {
    return model.tokenizer->encode(text, special, position, limits);
  };
  try {
    request->prompt.ids = read(TextPosition::kStart);
    if (request->may_continue() && model.tokenizer->marks_start()) {
      request->continued_prompt = read(TextPosition::kContinued);
    }
  } catch (const TooManyTokens&) {
    return too_many_tokens(model);
  }
  return {};
}

// Converts the prefixes that the client wants cached to numbers of ids: a prefix that is tokenized
// alone begins with the same ids.
template <typename Read>
Refused read_points(const std::vector<int64_t>& points, size_t size, const Read& read,
                    Request* request) {
  if (points.size() > kMaxPrefixPoints) {
    return invalid("prefix_points", "prefix_points must be at most {}, got {}", kMaxPrefixPoints,
                   points.size());
  }
  for (const int64_t point : points) {
    if (point < 1 || point > static_cast<int64_t>(size)) {
      return invalid("prefix_points", "prefix_points must be in [1, {}], got {}", size, point);
    }
    int64_t ids = 0;
    if (Refused refused = read(static_cast<size_t>(point), &ids)) return refused;
    request->prompt.prefix_points.named.push_back(ids);
  }
  return {};
}

// For a text, points are bytes.
Refused read_text_points(const TextRequest& asked, std::string_view text, const ModelText& model,
                         const WorkLimits& limits, Request* request) {
  const auto special = asked.parse_special ? SpecialTokens::kParse : SpecialTokens::kAsText;
  const auto read = [&](size_t bytes, int64_t* ids_before) -> Refused {
    if (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) {
      return invalid("prefix_points", "prefix_points must not lie within a character, got {}",
                     bytes);
    }
    try {
      const auto head =
          model.tokenizer->encode(text.substr(0, bytes), special, TextPosition::kStart, limits);
      *ids_before = common_ids(request->prompt.ids, head);
      return {};
    } catch (const TooManyTokens&) {
      return too_many_tokens(model);
    }
  };
  return read_points(asked.prefix_points, text.size(), read, request);
}

Refused read_prompt(TextRequest& asked, const ModelText& model, const WorkLimits& limits,
                    ParsedRequest* parsed) {
  Request* request = &parsed->request;
  if (auto* messages = std::get_if<Conversation>(&asked.prompt)) {
    if (asked.parse_special) {
      return invalid("parse_special",
                     "parse_special is for text: messages name control tokens by their roles only");
    }
    const std::vector<int32_t>& ids = request->prompt.ids;
    return read_messages(std::move(*messages), model, limits, parsed, [&](const ChatInput& input) {
      const auto read = [&](size_t count, int64_t* ids_before) -> Refused {
        *ids_before = tokens_of_messages(input, count, ids, model);
        return {};
      };
      if (request->prefix != PrefixMode::kOff) {
        request->prompt.prefix_points.likely = likely_prefixes(input, ids, model);
      }
      return read_points(asked.prefix_points, input.sent.size(), read, request);
    });
  }
  if (const auto* text = std::get_if<std::string>(&asked.prompt)) {
    Refused refused = read_text(*text, asked.parse_special, model, limits, request);
    if (!refused) refused = read_text_points(asked, *text, model, limits, request);
    return refused;
  }
  auto& ids = std::get<std::vector<int32_t>>(asked.prompt);
  const size_t size = ids.size();
  Refused refused = read_ids(std::move(ids), model, request);
  if (refused) return refused;
  const auto read = [](size_t count, int64_t* ids_before) -> Refused {
    *ids_before = static_cast<int64_t>(count);
    return {};
  };
  return read_points(asked.prefix_points, size, read, request);
}

void add_streams(int choices, Request* request) {
  for (int c = 0; c < choices; ++c) request->streams.push_back(std::make_shared<TokenStream>());
}

// The answer starts the text if only control tokens precede it.
TextPosition position_of(const Request& request, const ModelText& model) {
  const bool text = std::any_of(request.prompt.ids.begin(), request.prompt.ids.end(),
                                [&](int32_t id) { return !model.tokenizer->is_special(id); });
  return text ? TextPosition::kContinued : TextPosition::kStart;
}

// A session that continues has BOS already.
void begin_with(std::optional<int32_t> bos, Request* request) {
  if (!bos) return;
  request->begins_with_bos = true;
  if (request->may_continue() && !request->continued_prompt) {
    request->continued_prompt = request->prompt;
  }
  request->prompt.ids.insert(request->prompt.ids.begin(), *bos);
  for (auto* prefixes :
       {&request->prompt.prefix_points.likely, &request->prompt.prefix_points.named}) {
    for (int64_t& prefix : *prefixes) ++prefix;
  }
}

Refusal empty_prompt() {
  return invalid(
      "prompt",
      "the prompt must have at least one token, got none: only a session with a pending token "
      "continues without one");
}

}  // namespace

Refused check_text(std::string_view field, std::string_view text, const ModelText& model) {
  if (text.empty() || model.tokenizer->reads_text()) return {};
  return invalid(std::string(field), "{} must be empty, as this server has no tokenizer: send ids",
                 field);
}

Refusal too_many_tokens(const ModelText& model) {
  return invalid(
      "prompt",
      "the prompt must have at most {} tokens, got more: send it in parts, with a session",
      model.max_prompt_tokens);
}

std::optional<int32_t> bos_for(const std::vector<int32_t>& ids, bool add_special, bool is_text,
                               const ModelText& model) {
  const bool wanted = add_special && (is_text || model.tokens.force_bos);
  const bool there = !ids.empty() && ids.front() == model.tokens.bos;
  return wanted && !there ? model.tokens.bos : std::nullopt;
}

Refused check_ids(std::string_view field, const std::vector<int32_t>& ids, const ModelText& model) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < model.vocab.usable) continue;
    return invalid(std::string(field), "{} must be in [0, {}), got {} at index {}", field,
                   model.vocab.usable, ids[i], i);
  }
  return {};
}

Refused check_name(std::string_view field, std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  if (name.empty() || name.size() > kMaxNameLength) {
    return invalid(std::string(field), "{} must have 1 to {} characters, got {}", field,
                   kMaxNameLength, name.size());
  }
  if (name == "." || name == "..") {
    return invalid(std::string(field), "{} must not be \"{}\", which a URL cannot contain", field,
                   name);
  }
  const auto bad = std::find_if_not(name.begin(), name.end(), allowed);
  if (bad == name.end()) return {};
  return invalid(std::string(field),
                 "{} must consist of [A-Za-z0-9._-], got byte 0x{:02x} at index {}", field,
                 static_cast<unsigned char>(*bad), bad - name.begin());
}

size_t bytes_to_read(const TextRequest& asked) {
  return std::visit([](const auto& prompt) { return bytes_of(prompt); }, asked.prompt);
}

Refused validate(TextRequest asked, const ModelText& model, const WorkLimits& limits,
                 ParsedRequest* parsed) {
  Request& request = parsed->request;
  parsed->model = asked.model.model;
  Refused refused = check_request_id(asked.id);
  if (!refused && !asked.session.empty()) refused = check_name("session", asked.session);
  if (!refused) refused = choose_adapter(asked.model, &asked.chosen);
  if (!refused) {
    const auto find = asked.session.empty() ? bind_new : bind_named;
    refused = find(model, asked.caller, asked.chosen, &request.binding);
  }
  if (!refused) refused = check_priority(asked.priority);
  if (!refused) refused = read_parameters(asked, model, &request.sampling);
  if (!refused) refused = check_stop_strings(asked.names.stop_strings, asked.stop_strings, model);
  if (!refused) refused = read_tool_use(model, &asked, parsed);
  if (!refused) refused = check_constraint(asked, request.sampling, model);
  if (!refused) refused = check_choices(asked, request.sampling.max_tokens, model);
  if (refused) return refused;

  request.seed_is_drawn = !asked.seed;
  request.max_tokens_is_default = !asked.max_tokens && asked.is_chat;
  request.stop_digest = digest_of_stops(asked);
  request.expected_epoch = asked.expected_epoch;
  request.id = std::move(asked.id);
  request.caller = asked.caller;
  request.session = asked.session_is_kept ? reserved_name(asked.session) : std::move(asked.session);
  request.report_progress = asked.report_progress;
  request.priority = asked.priority;
  request.prefix = asked.prefix;
  request.durability = asked.durability;
  const bool is_durable = asked.durability.value_or(Durability::kNone) != Durability::kNone;
  if (is_durable && request.session.empty()) {
    return invalid("durability", "durability {} needs a session",
                   asked.durability == Durability::kLocal ? "local" : "remote");
  }
  try {
    refused = read_prompt(asked, model, limits, parsed);
  } catch (const TextRefused& error) {
    refused = invalid("prompt", "{}", error.what());
  }
  if (!refused && request.prompt.ids.empty() && !request.may_continue()) refused = empty_prompt();
  if (refused && refused->field == "prompt") refused->field = asked.names.prompt;
  if (refused) return refused;
  parsed->answer_position = position_of(request, model);
  parsed->constraint = std::move(asked.constraint);
  parsed->constraint_field = std::move(asked.constraint_field);
  parsed->names = asked.names;
  if (refused = check_start(model, parsed); refused) return refused;
  const bool is_text = std::holds_alternative<std::string>(asked.prompt);
  // A chat template may write BOS itself.
  request.begins_with_bos = std::holds_alternative<Conversation>(asked.prompt) &&
                            !request.prompt.ids.empty() &&
                            request.prompt.ids.front() == model.tokens.bos;
  begin_with(bos_for(request.prompt.ids, asked.add_special_tokens, is_text, model), &request);
  if (request.may_continue()) request.control_ids = model.control_ids;

  parsed->stop_strings = std::move(asked.stop_strings);
  parsed->include_stop = asked.include_stop;
  request.wait_for_acknowledgement = !request.session.empty() && !parsed->stop_strings.empty();
  add_streams(asked.choices, &request);
  return {};
}

Refused validate(const ScoreOptions& options, const ModelText& model, ParsedRequest* parsed) {
  Request& request = parsed->request;
  BindingNames chosen{.adapter = options.adapter};
  Refused refused = check_request_id(options.id);
  if (!refused) refused = choose_adapter(options.model, &chosen);
  if (!refused) refused = bind_new(model, options.caller, chosen, &request.binding);
  if (!refused) refused = check_logprobs("top", options.top);
  if (!refused) refused = check_priority(options.priority);
  if (refused) return refused;
  request.id = options.id;
  request.caller = options.caller;
  request.priority = options.priority;
  request.sampling.max_tokens = 0;
  request.sampling.prompt_logprobs = options.top.value_or(0);
  add_streams(1, &request);
  return {};
}

Refused tokenise(TokenizeText asked, const ModelText& model, const WorkLimits& limits,
                 std::vector<int32_t>* ids) {
  auto* messages = std::get_if<Conversation>(&asked.input);
  if (messages != nullptr) {
    if (Refused refused =
            read_messages(std::move(*messages), asked.continued, model, limits, ids)) {
      return refused;
    }
  } else {
    const std::string& text = std::get<std::string>(asked.input);
    if (Refused refused = check_text("text", text, model)) return refused;
    const auto special = asked.parse_special ? SpecialTokens::kParse : SpecialTokens::kAsText;
    try {
      *ids = model.tokenizer->encode(text, special, TextPosition::kStart, limits);
    } catch (const TooManyTokens&) {
      return too_many_tokens(model);
    }
  }
  const bool starts = messages == nullptr || !asked.continued;
  const auto bos = bos_for(*ids, asked.add_special_tokens && starts, messages == nullptr, model);
  if (bos) ids->insert(ids->begin(), *bos);
  return {};
}

std::string make_name(std::string_view prefix) {
  return fmt::format("{}{:016x}", prefix, random_number());
}

}  // namespace recurve
