#include "server/kserve/infer_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "server/kserve/tensors.h"
#include "server/serving/bind.h"
#include "server/serving/validate.h"

namespace recurve {
namespace {

using inference::InferParameter;
using inference::ModelInferRequest;

// A parameter's value as JSON.
ClientJson value_of(const InferParameter& parameter) {
  switch (parameter.parameter_choice_case()) {
    case InferParameter::kBoolParam:
      return parameter.bool_param();
    case InferParameter::kInt64Param:
      return parameter.int64_param();
    case InferParameter::kUint64Param:
      return parameter.uint64_param();
    case InferParameter::kDoubleParam:
      return parameter.double_param();
    case InferParameter::kStringParam:
      return parameter.string_param();
    case InferParameter::PARAMETER_CHOICE_NOT_SET:
      break;
  }
  return nullptr;
}

// A number that clients may send with or without a sign.
uint64_t unsigned_of(const std::string& name, const InferParameter& parameter) {
  const ClientJson value = value_of(parameter);
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (value.is_number_integer() && value.get<int64_t>() >= 0) return value.get<uint64_t>();
  throw invalid(name, "{} must be an integer of at least 0", name);
}

bool flag_of(const std::string& name, const InferParameter& parameter) {
  if (parameter.has_bool_param()) return parameter.bool_param();
  throw invalid(name, "{} must be true or false", name);
}

// An output other than the text, and the input that requests it.
struct Extra {
  std::string_view input, output;
  bool InferOutputs::* wanted;
};
constexpr Extra kExtras[] = {
    {"return_finish_reason", "finish_reason", &InferOutputs::finish_reason},
    {"return_cumulative_logprob", "cumulative_logprob", &InferOutputs::cumulative_logprob},
    {"return_logprobs", "logprobs", &InferOutputs::logprobs},
    {"return_num_input_tokens", "num_input_tokens", &InferOutputs::num_input_tokens},
    {"return_num_output_tokens", "num_output_tokens", &InferOutputs::num_output_tokens},
    {"return_output_ids", "output_ids", &InferOutputs::ids},
};

// In this protocol 1 is the highest priority, larger numbers are lower, and 0 is the default, which
// is the middle of the server's range.
int32_t priority_of(uint64_t theirs) {
  constexpr uint64_t kLevels = 2 * kMaxPriority + 1;
  if (theirs == 0) return 0;
  if (theirs > kLevels) {
    throw invalid("priority", "priority must be in [0, {}], got {}", kLevels, theirs);
  }
  return kMaxPriority + 1 - static_cast<int32_t>(theirs);
}

std::string session_of(const InferParameter& parameter) {
  if (!parameter.has_string_param()) {
    const uint64_t number = unsigned_of("sequence_id", parameter);
    return number == 0 ? "" : std::to_string(number);  // 0: no sequence
  }
  const std::string& name = parameter.string_param();
  if (const Refused refused = check_name("sequence_id", name); refused && !name.empty()) {
    throw Refusal(*refused);
  }
  return name;
}

class Reader {
 public:
  Reader(ModelInferRequest& message, InferRequest* to) : message_(message), to_(*to) {}

  void read() {
    read_parameters();
    read_inputs();
    read_outputs();
    finish();
  }

 private:
  // The sequence first: refused requests take their turn in it too.
  void read_parameters() {
    const auto sequence = message_.parameters().find("sequence_id");
    if (sequence != message_.parameters().end()) {
      to_.sequence.session = session_of(sequence->second);
    }
    for (const auto& [name, parameter] : message_.parameters()) {
      if (name == "sequence_id") {
        continue;
      } else if (name == "sequence_start") {
        to_.sequence.start = flag_of(name, parameter);
      } else if (name == "sequence_end") {
        to_.sequence.end = flag_of(name, parameter);
      } else if (name == "priority") {
        to_.asked.priority = priority_of(unsigned_of(name, parameter));
      } else if (name == "timeout") {
        read_timeout(unsigned_of(name, parameter));
      } else {
        parameters_[name] = value_of(parameter);
      }
    }
    if (to_.sequence.session.empty() && (to_.sequence.start || to_.sequence.end)) {
      throw invalid("sequence_id", "sequence_start and sequence_end need a sequence_id");
    }
    to_.asked.session = to_.sequence.session;
  }

  void read_timeout(uint64_t microseconds) {
    constexpr auto kMost = uint64_t{365} * 24 * 3600 * 1'000'000;
    if (microseconds == 0 || microseconds > kMost) return;
    to_.timeout = std::chrono::microseconds(microseconds);
  }

  void read_inputs() {
    const int raw = message_.raw_input_contents_size();
    if (raw != 0 && raw != message_.inputs_size()) {
      throw invalid("raw_input_contents",
                    "raw_input_contents must have one entry for each of the {} inputs, got {}",
                    message_.inputs_size(), raw);
    }
    to_.form.raw = raw != 0;
    for (int i = 0; i < message_.inputs_size(); ++i) {
      InputTensor tensor(*message_.mutable_inputs(i),
                         raw != 0 ? message_.mutable_raw_input_contents(i) : nullptr);
      if (std::ranges::find(seen_, tensor.name()) != seen_.end()) {
        throw invalid(tensor.name(), "input \"{}\" must occur once", cut(tensor.name()));
      }
      seen_.push_back(tensor.name());
      read(tensor);
    }
  }

  void read(InputTensor& tensor) {
    const std::string& name = tensor.name();
    if (name == "text_input") return void(text_ = tensor.text());
    if (name == "input_ids") return void(ids_ = tensor.ids());
    if (name == "sampling_parameters") return void(sampling_ = tensor.text());
    const bool flag = tensor.flag();
    if (name == "stream") to_.form.stream = flag;
    if (name == "exclude_input_in_output") exclude_ = flag;
    for (const Extra& extra : kExtras) {
      if (name == extra.input) to_.form.outputs.*extra.wanted = flag;
    }
  }

  // Named outputs replace the default.
  void read_outputs() {
    if (message_.outputs_size() == 0) return;
    InferOutputs& outputs = to_.form.outputs;
    outputs = {.text = false};
    for (const auto& output : message_.outputs()) {
      const std::string& name = output.name();
      if (find(kOutputs, name) == nullptr) {
        throw invalid(name, "unknown output \"{}\", expected one of {}", cut(name),
                      names(kOutputs));
      }
      for (const char* refused : {"shared_memory_region", "classification"}) {
        if (!output.parameters().contains(refused)) continue;
        throw invalid(name, "{} is not supported by this server: leave it out", refused);
      }
      if (name == "text_output") outputs.text = true;
      for (const Extra& extra : kExtras) {
        if (name == extra.output) outputs.*extra.wanted = true;
      }
    }
  }

  void finish() {
    // The tensor replaces the parameters of the request.
    if (sampling_) {
      read_sampling(std::string_view(*sampling_), &to_.asked);
    } else {
      read_sampling(parameters_, &to_.asked);
    }
    to_.form.choices = static_cast<size_t>(std::max(to_.asked.choices, 1));
    if (to_.form.outputs.ids && to_.asked.choices != 1) {
      throw invalid("n", "n must be 1 with output_ids, got {}", to_.asked.choices);
    }
    if (to_.form.outputs.cumulative_logprob && !to_.asked.logprobs) to_.asked.logprobs = 0;
    read_prompt();
  }

  void read_prompt() {
    if (text_.has_value() == ids_.has_value()) {
      throw invalid("text_input", "there must be either text_input or input_ids");
    }
    const bool prepend = !exclude_.value_or(to_.form.stream || ids_.has_value());
    if (prepend && to_.form.stream) {
      throw invalid("exclude_input_in_output",
                    "exclude_input_in_output must be true, or left out, with stream");
    }
    if (prepend && ids_) {
      throw invalid("exclude_input_in_output",
                    "exclude_input_in_output must be true, or left out, with input_ids");
    }
    to_.asked.names.prompt = ids_ ? "input_ids" : "text_input";
    to_.asked.names.stop_strings = "stop";
    to_.asked.names.include_stop = "include_stop_str_in_output";
    if (ids_) {
      to_.asked.prompt = std::move(*ids_);
      return;
    }
    if (prepend) to_.form.prefix = *text_;
    to_.asked.prompt = std::move(*text_);
  }

  ModelInferRequest& message_;
  InferRequest& to_;
  ClientJson parameters_ = ClientJson::object();
  std::vector<std::string> seen_;
  std::optional<std::string> text_, sampling_;
  std::optional<std::vector<int32_t>> ids_;
  std::optional<bool> exclude_;
};

}  // namespace

Refused read_infer_request(ModelInferRequest&& message, const ServerCore& core, InferRequest* to) {
  to->form.id = message.id();
  const std::string name = message.model_name();
  TextRequest& asked = to->asked;
  try {
    Refused refused = find_model(core, name, message.model_version(), asked.caller, &asked.model);
    if (refused) return refused;
    Reader(message, to).read();
    const InferSequence& sequence = to->sequence;
    if (!sequence.session.empty() && !sequence.start) {
      refused = core.find({name, asked.caller, sequence.session}, &asked.model);
    }
    return refused ? refused : choose_adapter(asked.model, &asked.chosen);
  } catch (const Refusal& refusal) {
    return refusal;
  }
}

Refused find_model(const ServerCore& core, const std::string& name, const std::string& version,
                   const Identity& caller, FoundModel* found, bool of_failed) {
  constexpr const char* kField = "model_name";
  if (name.empty()) {
    return Refusal{.reason = EndReason::kNotFound,
                   .message = "model_name must be the name of a model, got none",
                   .field = kField};
  }
  Refused refused =
      core.find({.name = name, .caller = caller, .field = kField, .of_failed = of_failed}, found);
  if (refused || version.empty() || version == kModelVersion) return refused;
  return Refusal{
      .reason = EndReason::kNotFound,
      .message = fmt::format("unknown version \"{}\" of the model \"{}\": it has version {}",
                             cut(version), name, kModelVersion),
      .field = "model_version"};
}

}  // namespace recurve
