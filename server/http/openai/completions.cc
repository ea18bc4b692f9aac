#include "server/http/openai/completions.h"

#include <algorithm>
#include <utility>

#include "server/http/body_fields.h"
#include "server/http/openai/logprobs.h"
#include "server/text/stream_decoder.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

using nlohmann::json;

// The dialect's default for max_tokens.
constexpr int32_t kDefaultCompletionTokens = 16;

void append(std::string name, json logprob, json top, size_t offset, json* to) {
  if (to->is_null()) {
    *to = {{"tokens", json::array()},
           {"token_logprobs", json::array()},
           {"top_logprobs", json::array()},
           {"text_offset", json::array()}};
  }
  (*to)["tokens"].push_back(std::move(name));
  (*to)["token_logprobs"].push_back(std::move(logprob));
  (*to)["top_logprobs"].push_back(std::move(top));
  (*to)["text_offset"].push_back(offset);
}

using Prompt = decltype(TextRequest::prompt);

Prompt take_prompt(ClientJson& prompt) {
  if (prompt.is_string()) return std::move(prompt.get_ref<std::string&>());
  return take_ids_of(prompt, "prompt");
}

// About the bytes that each prompt copies of the common fields, and those of its choices.
size_t bytes_per_prompt(const TextRequest& common, int32_t most_choices) {
  constexpr size_t kPrompt = 4096, kChoice = 1024;
  const SamplingParams& sampling = common.sampling;
  // More choices are refused later, by the name of their field.
  const int32_t choices = std::clamp(common.choices, 1, std::max(most_choices, 1));
  size_t bytes = kPrompt + kChoice * static_cast<size_t>(choices);
  for (const std::string& stop : common.stop_strings) bytes += 3 * (sizeof stop + stop.size());
  bytes += 2 * sizeof(int32_t) * (sampling.allowed_ids.size() + sampling.stop_ids.size());
  bytes += 2 * sizeof(sampling.logit_bias[0]) * sampling.logit_bias.size();
  bytes += sizeof(int64_t) * common.prefix_points.size();
  return bytes + (common.constraint ? common.constraint->text.size() : 0);
}

// Before there are so many requests: a client chooses both numbers, and their product takes memory.
void check_prompts(size_t prompts, const TextRequest& common, size_t body_bytes, size_t most,
                   int32_t max_choices) {
  if (prompts > most) {
    throw BadField("prompt",
                   fmt::format("prompt must be at most {} prompts, got {}", most, prompts));
  }
  constexpr size_t kMostBytes = 8 << 20;
  const size_t each = bytes_per_prompt(common, max_choices),
               fits = (body_bytes + kMostBytes) / each;
  if (prompts <= std::max(fits, size_t{1})) return;
  throw BadField(
      "prompt",
      fmt::format("prompt must be at most {} prompts where n, stop and other lists take {} "
                  "bytes for each, got {}",
                  fits, each, prompts));
}

bool is_list_of_prompts(const ClientJson& prompt) {
  return prompt.is_array() && !prompt.empty() &&
         (prompt.front().is_string() || prompt.front().is_array() || prompt.front().is_binary());
}

std::vector<Prompt> take_prompts(ClientJson& prompt) {
  std::vector<Prompt> prompts;
  if (!is_list_of_prompts(prompt)) {
    prompts.push_back(take_prompt(prompt));
    return prompts;
  }
  prompts.reserve(prompt.size());
  for (ClientJson& one : prompt) prompts.push_back(take_prompt(one));
  return prompts;
}

// Each choice begins with the prompt's text.
void check_echo(const std::vector<Prompt>& prompts, int32_t choices, const ModelText& model) {
  constexpr size_t kMostBytes = 1 << 20;
  size_t bytes = 0;
  for (const Prompt& prompt : prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      bytes += text->size();
      continue;
    }
    for (const int32_t id : std::get<std::vector<int32_t>>(prompt)) {
      bytes += model.tokenizer->token_bytes(id).size();
    }
  }
  const auto times = static_cast<size_t>(std::clamp(choices, 1, std::max(model.max_choices, 1)));
  if (bytes <= kMostBytes / times) return;
  throw BadField("echo", fmt::format("echo must be false if n times the prompts have more than {} "
                                     "bytes of text, got {} times {}",
                                     kMostBytes, times, bytes));
}

}  // namespace

Refused Completions::read(std::string text, const WorkLimits& limits,
                          std::vector<TextRequest>* asked) {
  const size_t bytes = text.size();
  TextRequest common{.session = session_};
  std::vector<Prompt> prompts;
  bool echo = false;
  const auto read = [&](ClientJson& body) {
    read_common(body, &common, &form_);
    state_.read(body);
    common.max_tokens = int32_of(body, "max_tokens").value_or(kDefaultCompletionTokens);
    read_constraint(body, &common);
    common.logprobs = int32_of(body, "logprobs");
    common.names.prompt_logprobs = common.names.logprobs;  // of an echo
    echo = bool_of(body, "echo").value_or(false);
    ClientJson* prompt = find(body, "prompt");
    if (prompt == nullptr) throw BadField("prompt", "prompt must be given");
    const size_t count = is_list_of_prompts(*prompt) ? prompt->size() : 1;
    check_prompts(count, common, bytes,
                  static_cast<size_t>(core_.max_requests_of(caller_, *model_)),
                  model_->text.max_choices);
    prompts = take_prompts(*prompt);
    if (prompts.size() > 1 && !common.session.empty()) {
      throw BadField("prompt", "prompt must be one prompt with a session, got several");
    }
    if (echo && (!common.session.empty() || state_.is_used())) {
      throw BadField("echo",
                     "echo must be false with a session or a state: its earlier prompts are not "
                     "stored");
    }
    if (echo) check_echo(prompts, common.choices, model_->text);
  };
  if (Refused refused =
          read_openai_body(std::move(text), limits, OpenAiResource::kCompletions, query(), read)) {
    return refused;
  }
  logprobs_ = common.logprobs.has_value();
  asked->reserve(prompts.size());
  for (Prompt& one : prompts) {
    const bool last = &one == &prompts.back();
    asked->push_back(last ? std::move(common) : common);
    asked->back().prompt = std::move(one);
    if (!echo) continue;
    if (Refused refused = read_echo(limits, &asked->back())) return refused;
  }
  allot(asked->size());
  return apply_state(asked);
}

// The scores of a prompt are gathered in a stream too: they are sent with the first event.
std::optional<GatheredForm> Completions::gathers() const {
  if (streams() && echoes_.empty()) return std::nullopt;
  GatheredForm form = kGatheredChoices;
  form.answer = !streams();
  for (const Echo& echo : echoes_) {
    form.repeated += static_cast<int64_t>(echo.text.size()) * form_.choices;
  }
  return form;
}

// The ids of a text are needed here, so the request has ids instead of the text.
Refused Completions::read_echo(const WorkLimits& limits, TextRequest* asked) {
  Echo& echo = echoes_.emplace_back();
  const ModelText& model = model_->text;
  if (const auto* text = std::get_if<std::string>(&asked->prompt)) {
    echo.text = *text;
    if (!logprobs_) return {};
    std::vector<int32_t> ids;
    TokenizeText read{.input = echo.text, .add_special_tokens = false};
    if (const Refused refused = tokenise(std::move(read), model, limits, &ids)) {
      return invalid("prompt", "{}", refused->message);
    }
    echo.ids = ids;
    const auto bos = bos_for(ids, asked->add_special_tokens, /*is_text=*/true, model);
    if (bos) ids.insert(ids.begin(), *bos);
    asked->prompt = std::move(ids);
  } else {
    echo.ids = std::get<std::vector<int32_t>>(asked->prompt);
    if (const Refused refused = check_ids("prompt ids", echo.ids, model)) {
      return invalid("prompt", "{}", refused->message);
    }
    echo.text = decode(*model.tokenizer, echo.ids, TextPosition::kStart);
  }
  asked->prompt_logprobs = asked->logprobs;
  return {};
}

json Completions::part(const Part& of, json logprobs) const {
  json part = {{"index", of.choice},
               {"text", of.text},
               {"logprobs", std::move(logprobs)},
               {"finish_reason", nullptr}};
  if (of.finish_reason != nullptr) part["finish_reason"] = of.finish_reason;
  return part;
}

void Completions::add_logprobs(const SampledToken& token, size_t offset, json* to) const {
  append(names().of(token.id), finite(token.logprob), logprobs_by_name(token, names()), offset, to);
}

void Completions::add_scored(size_t index, const std::vector<SampledToken>& tokens) {
  if (echoes_.empty()) return;
  std::vector<SampledToken>& scored = echoes_[index].scored;
  scored.insert(scored.end(), tokens.begin(), tokens.end());
}

// The client's first id has no log-probability, whether BOS was absorbed before it or not.
void Completions::write_echo(const Echo& echo, Choice* choice, json* logprobs) const {
  const size_t count = echo.ids.size(), end = count_characters(echo.text);
  StreamDecoder decoder(tokenizer(), TextPosition::kStart);
  for (size_t i = 0; i < count && logprobs_; ++i) {
    const size_t from_end = count - i;
    const std::string name = names().of(echo.ids[i]);
    decoder.push(echo.ids[i]);
    const size_t offset = std::min(decoder.offset(), end);
    if (i == 0 || from_end > echo.scored.size()) {
      append(name, nullptr, nullptr, offset, logprobs);
    } else {
      const SampledToken& token = echo.scored[echo.scored.size() - from_end];
      append(name, finite(token.logprob), logprobs_by_name(token, names()), offset, logprobs);
    }
  }
  choice->answer_offset = end;
}

std::string Completions::begin_answers(size_t index) {
  if (echoes_.empty()) return {};
  std::string events;
  const size_t first = first_choice(index);
  for (size_t c = first; c < first + static_cast<size_t>(form_.choices); ++c) {
    json fresh = nullptr;
    write_echo(echoes_[index], &choices_[c], form_.stream ? &fresh : &choices_[c].logprobs);
    if (!form_.stream) {
      choices_[c].text = echoes_[index].text;
    } else {
      const Part echo{.choice = c, .text = echoes_[index].text, .reasoning = {}, .calls = {}};
      events += event(json::array({part(echo, std::move(fresh))}));
    }
  }
  echoes_[index] = {};
  return events;
}

}  // namespace recurve
