#include "server/rpc/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "server/rpc/chat_prompt.h"
#include "server/rpc/status.h"
#include "server/text/stop_matcher.h"

namespace recurve {
namespace {

using grpc::Status;

template <typename Field>
std::vector<int32_t> to_vector(const Field& field) {
  return {field.begin(), field.end()};
}

Status check_size(std::string_view field, size_t size, size_t most) {
  if (size <= most) return {};
  return invalid("{} must have at most {} entries, got {}", field, most, size);
}

Status check_logprobs(std::string_view field, int32_t value) {
  if (value >= 0 && value <= kMaxLogprobs) return {};
  return invalid("{} must be in [0, {}], got {}", field, kMaxLogprobs, value);
}

Status check_request_id(const std::string& id) {
  return id.empty() ? Status() : check_name("request_id", id);
}

Status check_priority(int32_t priority) {
  if (priority >= -kMaxPriority && priority <= kMaxPriority) return {};
  return invalid("priority must be in [{}, {}], got {}", -kMaxPriority, kMaxPriority, priority);
}

// What sampling/params.cc would say too, but with the protocol's names of the fields.
Status check_sampling_ids(const SamplingParams& p, const RequestRules& rules) {
  const auto usable = static_cast<size_t>(rules.vocab.usable);
  Status status = check_size("allowed_token_ids", p.allowed_ids.size(), usable);
  if (status.ok()) status = check_ids("allowed_token_ids", p.allowed_ids, rules);
  if (status.ok()) status = check_size("stop_token_ids", p.stop_ids.size(), kMaxStopIds);
  if (status.ok()) status = check_ids("stop_token_ids", p.stop_ids, rules);
  return status;
}

Status read_stop(const v1::StopConditions& stop, const RequestRules& rules, SamplingParams* p) {
  const int32_t most = rules.max_generated_tokens;
  p->max_tokens = stop.has_max_tokens() ? stop.max_tokens() : std::min(kDefaultMaxTokens, most);
  if (p->max_tokens < 0 || p->max_tokens > most) {
    return invalid("max_tokens must be in [0, {}], got {}", most, p->max_tokens);
  }
  p->min_tokens = stop.min_tokens();
  p->ignore_eos = stop.ignore_eos();
  p->stop_ids = to_vector(stop.stop_token_ids());
  return {};
}

void read_sampling(const v1::SamplingParams& sampling, SamplingParams* p) {
  if (sampling.has_temperature()) p->temperature = sampling.temperature();
  p->top_k = sampling.top_k();
  if (sampling.has_top_p()) p->top_p = sampling.top_p();
  p->min_p = sampling.min_p();
  if (sampling.has_typical_p()) p->typical_p = sampling.typical_p();
  if (sampling.has_repetition_penalty()) p->repetition_penalty = sampling.repetition_penalty();
  p->presence_penalty = sampling.presence_penalty();
  p->frequency_penalty = sampling.frequency_penalty();
  for (const auto& [id, bias] : sampling.logit_bias()) p->logit_bias.emplace_back(id, bias);
  std::sort(p->logit_bias.begin(), p->logit_bias.end());
  p->allowed_ids = to_vector(sampling.allowed_token_ids());
  p->seed = sampling.has_seed() ? sampling.seed() : random_number();
}

Status read_parameters(const v1::GenerateRequest& message, const RequestRules& rules,
                       SamplingParams* p) {
  read_sampling(message.sampling(), p);
  Status status = read_stop(message.stop(), rules, p);
  if (status.ok() && message.has_logprobs()) {
    p->logprobs = message.logprobs();
    status = check_logprobs("logprobs", p->logprobs);
  }
  if (status.ok() && message.has_prompt_logprobs()) {
    p->prompt_logprobs = message.prompt_logprobs();
    status = check_logprobs("prompt_logprobs", p->prompt_logprobs);
  }
  if (status.ok()) status = check_sampling_ids(*p, rules);
  if (!status.ok()) return status;
  if (const auto problem = check(*p, rules.vocab)) return invalid("{}", *problem);
  return {};
}

Status check_stop_strings(const v1::StopConditions& stop, const RequestRules& rules) {
  const auto count = static_cast<size_t>(stop.stop_strings_size());
  Status status = check_size("stop_strings", count, StopMatcher::kMaxStops);
  if (!status.ok()) return status;
  for (const std::string& text : stop.stop_strings()) {
    if (!text.empty() && text.size() <= StopMatcher::kMaxStopBytes) continue;
    return invalid("each of stop_strings must have 1 to {} bytes, got one of {}",
                   StopMatcher::kMaxStopBytes, text.size());
  }
  return stop.stop_strings().empty() ? Status()
                                     : check_text("stop_strings", stop.stop_strings(0), rules);
}

Status check_choices(const v1::GenerateRequest& message, int32_t choices, int32_t max_tokens,
                     const RequestRules& rules) {
  if (choices < 1 || choices > rules.max_choices) {
    return invalid("n must be in [1, {}], got {}", rules.max_choices, choices);
  }
  if (choices > 1 && !message.session().empty()) {
    return invalid("n must be 1 with a session, got {}: fork the session for more answers",
                   choices);
  }
  if (choices > 1 && max_tokens == 0) {
    return invalid("n must be 1 where max_tokens is 0, got {}", choices);
  }
  return {};
}

// Where a prompt comes from; one of the two.
struct PromptSource {
  const std::string* text = nullptr;
  std::vector<int32_t> ids = {};
  bool parse_special = false;
  bool may_continue = false;  // there is a session, which may have absorbed something
};

void read_text(const PromptSource& source, const RequestRules& rules, const WorkLimits& limits,
               Request* request) {
  const auto special = source.parse_special ? SpecialTokens::kParse : SpecialTokens::kAsText;
  request->prompt = rules.tokenizer->encode(*source.text, special, TextPosition::kStart, limits);
  if (!source.may_continue || !rules.tokenizer->marks_start()) return;
  request->continued_prompt =
      rules.tokenizer->encode(*source.text, special, TextPosition::kContinued, limits);
}

Status read_prompt(PromptSource source, const RequestRules& rules, const WorkLimits& limits,
                   Request* request) {
  Status status = check_prompt_size(static_cast<int64_t>(source.ids.size()), rules);
  if (status.ok()) status = check_ids("prompt ids", source.ids, rules);
  if (status.ok() && source.text != nullptr) status = check_text("text", *source.text, rules);
  if (!status.ok()) return status;
  if (source.text != nullptr) {
    try {
      read_text(source, rules, limits, request);
    } catch (const TooManyTokens&) {
      return too_many_tokens(rules);
    }
  } else {
    request->prompt = std::move(source.ids);
  }
  return {};
}

void make_streams(int choices, Request* request) {
  for (int c = 0; c < choices; ++c) request->streams.push_back(std::make_shared<TokenStream>());
}

// A text starts with the answer where nothing but control tokens stands before it.
TextPosition position_of(const Request& request, const RequestRules& rules) {
  const bool text = std::any_of(request.prompt.ids.begin(), request.prompt.ids.end(),
                                [&](int32_t id) { return !rules.tokenizer->is_special(id); });
  return text || !request.session.empty() ? TextPosition::kContinued : TextPosition::kStart;
}

// A session that goes on has BOS already.
void begin_with(std::optional<int32_t> bos, Request* request) {
  if (!bos) return;
  if (!request->session.empty() && !request->continued_prompt) {
    request->continued_prompt = request->prompt;
  }
  request->prompt.ids.insert(request->prompt.ids.begin(), *bos);
}

Status empty_prompt() {
  return invalid(
      "the prompt must have at least one token, got none: only a session with a pending token can "
      "go on without");
}

}  // namespace

Status check_text(std::string_view field, std::string_view text, const RequestRules& rules) {
  if (text.empty() || rules.tokenizer->reads_text()) return {};
  return invalid("{} must be empty, as this server has no tokenizer: send ids", field);
}

Status check_prompt_size(int64_t tokens, const RequestRules& rules) {
  if (tokens <= rules.max_prompt_tokens) return {};
  return invalid(
      "the prompt must have at most {} tokens, got {}: absorb it in parts, with a session",
      rules.max_prompt_tokens, tokens);
}

Status too_many_tokens(const RequestRules& rules) {
  return invalid(
      "the prompt must have at most {} tokens, got more: absorb it in parts, with a session",
      rules.max_prompt_tokens);
}

std::optional<int32_t> bos_for(const std::vector<int32_t>& ids, bool add_special, bool is_text,
                               const RequestRules& rules) {
  const bool wanted = add_special && (is_text || rules.tokens.force_bos);
  const bool there = !ids.empty() && ids.front() == rules.tokens.bos;
  return wanted && !there ? rules.tokens.bos : std::nullopt;
}

Status check_ids(std::string_view field, const std::vector<int32_t>& ids,
                 const RequestRules& rules) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < rules.vocab.usable) continue;
    return invalid("{} must be in [0, {}), got {} at index {}", field, rules.vocab.usable, ids[i],
                   i);
  }
  return {};
}

Status check_name(std::string_view field, std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  if (name.empty() || name.size() > kMaxNameLength) {
    return invalid("{} must have 1 to {} characters, got {}", field, kMaxNameLength, name.size());
  }
  const auto bad = std::find_if_not(name.begin(), name.end(), allowed);
  if (bad == name.end()) return {};
  return invalid("{} must consist of [A-Za-z0-9._-], got byte 0x{:02x} at index {}", field,
                 static_cast<unsigned char>(*bad), bad - name.begin());
}

Status validate(const v1::GenerateRequest& message, const RequestRules& rules,
                const WorkLimits& limits, ParsedRequest* parsed) {
  Request& request = parsed->request;
  Status status = check_request_id(message.request_id());
  if (status.ok() && !message.session().empty()) status = check_name("session", message.session());
  if (status.ok()) status = check_priority(message.priority());
  if (status.ok()) status = read_parameters(message, rules, &request.sampling);
  if (status.ok()) status = check_stop_strings(message.stop(), rules);
  const int32_t choices = message.has_n() ? message.n() : 1;
  if (status.ok()) status = check_choices(message, choices, request.sampling.max_tokens, rules);
  if (status.ok() && message.has_messages()) {
    status = read_messages(message, rules, limits, &request);
  } else if (status.ok()) {
    status = read_prompt({.text = message.has_text() ? &message.text() : nullptr,
                          .ids = to_vector(message.ids().ids()),
                          .parse_special = message.parse_special(),
                          .may_continue = !message.session().empty()},
                         rules, limits, &request);
  }
  if (!status.ok()) return status;
  if (request.prompt.ids.empty() && message.session().empty()) return empty_prompt();

  request.id = message.request_id();
  request.session = message.session();
  request.priority = message.priority();
  parsed->stop_strings = {message.stop().stop_strings().begin(),
                          message.stop().stop_strings().end()};
  parsed->include_stop = message.stop().include_stop();
  parsed->answer_position = position_of(request, rules);
  const bool add_special = !message.has_add_special_tokens() || message.add_special_tokens();
  begin_with(bos_for(request.prompt.ids, add_special, message.has_text(), rules), &request);
  request.wait_for_acknowledgement = !request.session.empty() && !parsed->stop_strings.empty();
  make_streams(choices, &request);
  return {};
}

Status validate(const v1::ScoreOptions& options, ParsedRequest* parsed) {
  Request& request = parsed->request;
  Status status = check_request_id(options.request_id());
  if (status.ok() && options.has_top()) status = check_logprobs("top", options.top());
  if (status.ok()) status = check_priority(options.priority());
  if (!status.ok()) return status;
  request.id = options.request_id();
  request.priority = options.priority();
  request.sampling.max_tokens = 0;
  request.sampling.prompt_logprobs = options.has_top() ? options.top() : 0;
  make_streams(1, &request);
  return {};
}

std::optional<int32_t> bos_before(const std::vector<int32_t>& ids, const v1::ScoreOptions& options,
                                  bool is_text, const RequestRules& rules) {
  const bool add = !options.has_add_special_tokens() || options.add_special_tokens();
  return bos_for(ids, add, is_text, rules);
}

Status tokenise(const v1::TokenizeRequest& message, const RequestRules& rules,
                const WorkLimits& limits, std::vector<int32_t>* ids) {
  const bool add = !message.has_add_special_tokens() || message.add_special_tokens();
  if (message.has_messages()) {
    const Status status =
        read_messages(message.messages(), message.continued(), rules, limits, ids);
    if (!status.ok()) return status;
  } else {
    const Status status = check_text("text", message.text(), rules);
    if (!status.ok()) return status;
    const auto special = message.parse_special() ? SpecialTokens::kParse : SpecialTokens::kAsText;
    // Only what is generated from has a limit of tokens.
    *ids = rules.tokenizer->encode(message.text(), special, TextPosition::kStart,
                                   {.unwanted = limits.unwanted});
  }
  const bool starts = !message.has_messages() || !message.continued();
  const auto bos = bos_for(*ids, add && starts, !message.has_messages(), rules);
  if (bos) ids->insert(ids->begin(), *bos);
  return {};
}

std::string make_name(std::string_view prefix) {
  return fmt::format("{}{:016x}", prefix, random_number());
}

uint64_t random_number() {
  static thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return generator();
}

}  // namespace recurve
