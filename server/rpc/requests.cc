#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "server/rpc/conversions.h"

namespace recurve {
namespace {

template <typename Value = int32_t, typename Field>
std::vector<Value> to_vector(const Field& field) {
  return {field.begin(), field.end()};
}

template <typename Message>
bool adds_special_tokens(const Message& message) {
  return !message.has_add_special_tokens() || message.add_special_tokens();
}

Conversation to_conversation(v1::Messages&& messages) {
  Conversation conversation{.messages = {},
                            .tools_json = std::move(*messages.mutable_tools_json()),
                            .variables_json = std::move(*messages.mutable_variables_json()),
                            .add_generation_prompt = messages.has_add_generation_prompt()
                                                         ? messages.add_generation_prompt()
                                                         : !messages.continue_final_message(),
                            .continue_final_message = messages.continue_final_message()};
  for (v1::Messages::Message& message : *messages.mutable_messages()) {
    ChatMessage& out = conversation.messages.emplace_back();
    out.role = std::move(*message.mutable_role());
    if (message.has_content()) out.content = std::move(*message.mutable_content());
    out.fields_json = std::move(*message.mutable_fields_json());
  }
  return conversation;
}

SamplingParams to_sampling(const v1::SamplingParams& sampling, const v1::StopConditions& stop) {
  SamplingParams p;
  if (sampling.has_temperature()) p.temperature = sampling.temperature();
  p.top_k = sampling.top_k();
  if (sampling.has_top_p()) p.top_p = sampling.top_p();
  p.min_p = sampling.min_p();
  if (sampling.has_typical_p()) p.typical_p = sampling.typical_p();
  if (sampling.has_repetition_penalty()) p.repetition_penalty = sampling.repetition_penalty();
  p.presence_penalty = sampling.presence_penalty();
  p.frequency_penalty = sampling.frequency_penalty();
  for (const auto& [id, bias] : sampling.logit_bias()) p.logit_bias.emplace_back(id, bias);
  p.allowed_ids = to_vector(sampling.allowed_token_ids());
  p.min_tokens = stop.min_tokens();
  p.ignore_eos = stop.ignore_eos();
  p.stop_ids = to_vector(stop.stop_token_ids());
  return p;
}

std::string json_of(const google::protobuf::RepeatedPtrField<std::string>& texts) {
  return nlohmann::json(std::vector<std::string>(texts.begin(), texts.end())).dump();
}

// Nothing for json = false. check_known() refuses a missing form.
std::optional<ConstraintText> to_constraint(v1::Constraint&& constraint) {
  using Form = ConstraintText::Form;
  const bool any_whitespace = constraint.any_whitespace();
  switch (constraint.form_case()) {
    case v1::Constraint::kJson:
      if (!constraint.json()) return std::nullopt;
      return ConstraintText{.form = Form::kJson, .any_whitespace = any_whitespace};
    case v1::Constraint::kJsonSchema:
      return ConstraintText{Form::kJsonSchema, std::move(*constraint.mutable_json_schema()),
                            any_whitespace};
    case v1::Constraint::kRegex:
      return ConstraintText{Form::kRegex, std::move(*constraint.mutable_regex())};
    case v1::Constraint::kGrammar:
      return ConstraintText{Form::kGrammar, std::move(*constraint.mutable_grammar())};
    case v1::Constraint::kChoice:
      return ConstraintText{Form::kChoice, json_of(constraint.choice().texts())};
    case v1::Constraint::kStructuralTag:
      return ConstraintText{Form::kStructuralTag, std::move(*constraint.mutable_structural_tag()),
                            any_whitespace};
    case v1::Constraint::FORM_NOT_SET:
      break;
  }
  return std::nullopt;
}

ToolUse to_tool_use(v1::ToolUse&& use) {
  if (!use.function().empty()) return ToolUse::of(std::move(*use.mutable_function()));
  return {.required = use.required(),
          .allowed = {use.allowed().begin(), use.allowed().end()},
          .parallel = !use.single()};
}

// Unknown values are the default.
PrefixMode to_prefix_mode(v1::PrefixMode mode) {
  if (mode == v1::PREFIX_MODE_OFF) return PrefixMode::kOff;
  return mode == v1::PREFIX_MODE_USE ? PrefixMode::kUse : PrefixMode::kUseAndStore;
}

ScoreOptions to_options(const v1::ScoreOptions& options) {
  ScoreOptions to{.id = options.request_id(),
                  .adapter = options.adapter(),
                  .add_special_tokens = adds_special_tokens(options),
                  .parse_special = options.parse_special(),
                  .priority = options.priority()};
  if (options.has_top()) to.top = options.top();
  return to;
}

}  // namespace

Refused check_known(const v1::GenerateRequest& message) {
  const bool has_form = message.constraint().form_case() != v1::Constraint::FORM_NOT_SET;
  if (!message.has_constraint() || has_form) return {};
  return invalid("constraint",
                 "constraint must have a kind that this server supports, or be left out");
}

TextRequest to_request(v1::GenerateRequest&& message) {
  const v1::StopConditions& stop = message.stop();
  TextRequest request{.id = message.request_id(),
                      .add_special_tokens = adds_special_tokens(message),
                      .parse_special = message.parse_special(),
                      .sampling = to_sampling(message.sampling(), stop),
                      .stop_strings = {stop.stop_strings().begin(), stop.stop_strings().end()},
                      .include_stop = stop.include_stop(),
                      .choices = message.has_n() ? message.n() : 1,
                      .session = message.session(),
                      .chosen = chosen_of(message),
                      .report_progress = message.report_progress(),
                      .priority = message.priority(),
                      .prefix = to_prefix_mode(message.prefix()),
                      .prefix_points = to_vector<int64_t>(message.prefix_points()),
                      .durability = durability_of(message)};
  if (message.has_text()) {
    request.prompt = std::move(*message.mutable_text());
  } else if (message.has_messages()) {
    request.prompt = to_conversation(std::move(*message.mutable_messages()));
  } else {
    request.prompt = to_vector(message.ids().ids());
  }
  if (message.has_constraint()) {
    request.constraint = to_constraint(std::move(*message.mutable_constraint()));
  }
  if (message.has_tool_use()) request.tools = to_tool_use(std::move(*message.mutable_tool_use()));
  if (message.has_expected_epoch()) request.expected_epoch = message.expected_epoch();
  if (message.sampling().has_seed()) request.seed = message.sampling().seed();
  if (stop.has_max_tokens()) request.max_tokens = stop.max_tokens();
  if (message.has_logprobs()) request.logprobs = message.logprobs();
  if (message.has_prompt_logprobs()) request.prompt_logprobs = message.prompt_logprobs();
  return request;
}

ScorePiece to_piece(v1::ScoreRequest&& message) {
  ScorePiece piece;
  if (message.has_options()) piece.options = to_options(message.options());
  if (message.has_text()) piece.content = std::move(*message.mutable_text());
  if (message.has_ids()) piece.content = to_vector(message.ids().ids());
  return piece;
}

Refused check_known(const v1::EmbedRequest& message) {
  if (v1::Pooling_IsValid(message.pooling())) return {};
  return invalid("pooling", "pooling must be POOLING_LAST or POOLING_MEAN, got {}",
                 static_cast<int>(message.pooling()));
}

EmbedRequest to_embed(v1::EmbedRequest&& message) {
  EmbedRequest request{
      .id = message.request_id(),
      .adapter = message.adapter(),
      .add_special_tokens = adds_special_tokens(message),
      .parse_special = message.parse_special(),
      .pooling = message.pooling() == v1::POOLING_MEAN ? Pooling::kMean : Pooling::kLast,
      .priority = message.priority()};
  if (message.has_dimensions()) request.dimensions = message.dimensions();
  request.inputs.reserve(static_cast<size_t>(message.inputs_size()));
  for (v1::EmbedInput& input : *message.mutable_inputs()) {
    auto& to = request.inputs.emplace_back();
    if (input.has_text()) {
      to = std::move(*input.mutable_text());
    } else {
      to = to_vector(input.ids().ids());
    }
  }
  return request;
}

TokenizeText to_text(v1::TokenizeRequest&& message) {
  TokenizeText text{.add_special_tokens = adds_special_tokens(message),
                    .parse_special = message.parse_special(),
                    .continued = message.continued()};
  if (message.has_messages()) {
    text.input = to_conversation(std::move(*message.mutable_messages()));
  } else {
    text.input = std::move(*message.mutable_text());
  }
  return text;
}

}  // namespace recurve
