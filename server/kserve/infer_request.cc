#include "server/kserve/infer_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "server/kserve/sampling_parameters.h"
#include "server/kserve/tensors.h"
#include "server/request/validate.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

static_assert(std::endian::native == std::endian::little, "raw contents are little-endian");

using inference::InferParameter;
using inference::ModelInferRequest;
using Input = ModelInferRequest::InferInputTensor;
using nlohmann::json;

template <size_t N>
const TensorSpec* find(const TensorSpec (&specs)[N], std::string_view name) {
  const auto* found = std::ranges::find(specs, name, &TensorSpec::name);
  return found == std::end(specs) ? nullptr : found;
}

// The names of tensors, for a sentence.
template <size_t N>
std::string names(const TensorSpec (&specs)[N]) {
  std::string all;
  for (const TensorSpec& spec : specs) all += (all.empty() ? "" : ", ") + std::string(spec.name);
  return all;
}

// The number of elements that a shape has; nothing where it is no shape, or of more than fit a
// message.
std::optional<int64_t> elements_of(const Input& input) {
  constexpr int64_t kMost = int64_t{1} << 31;
  int64_t elements = 1;
  for (const int64_t size : input.shape()) {
    if (size < 0 || size > kMost) return {};
    elements *= size;
    if (elements > kMost) return {};
  }
  return elements;
}

// One input with its values, wherever they are. Throws Refusal.
class Tensor {
 public:
  Tensor(Input& input, std::string* raw) : input_(input), raw_(raw) {
    const TensorSpec* spec = find(kInputs, input.name());
    if (spec == nullptr) {
      throw invalid(input.name(), "there is no input \"{}\": there are {}", input.name(),
                    names(kInputs));
    }
    if (input.datatype() != spec->datatype) {
      refuse("must be {}, got {}", spec->datatype, input.datatype());
    }
    if (input.parameters().contains("shared_memory_region")) {
      refuse("must be in the message: this server maps no memory of clients");
    }
    const auto elements = elements_of(input);
    if (!elements) refuse("has a shape that cannot be");
    elements_ = *elements;
    if (spec->dimension == 1 && elements_ != 1) {
      refuse("must have one element, got {}", elements_);
    }
  }

  const std::string& name() const { return input_.name(); }

  bool flag() const {
    if (raw_ == nullptr) {
      check_count(input_.contents().bool_contents_size());
      return input_.contents().bool_contents(0);
    }
    check_bytes(1);
    return raw_->front() != 0;
  }

  std::string text() {
    std::string text;
    if (raw_ == nullptr) {
      check_count(input_.contents().bytes_contents_size());
      text = std::move(*input_.mutable_contents()->mutable_bytes_contents(0));
    } else {
      uint32_t size = 0;
      if (raw_->size() >= sizeof size) std::memcpy(&size, raw_->data(), sizeof size);
      check_bytes(sizeof size + size);
      text = std::move(*raw_);
      text.erase(0, sizeof size);
    }
    if (!is_valid_utf8(text)) refuse("must be valid UTF-8, and is not");
    return text;
  }

  std::vector<int32_t> ids() const {
    if (raw_ == nullptr) {
      const auto& values = input_.contents().int_contents();
      check_count(values.size());
      return {values.begin(), values.end()};
    }
    check_bytes(static_cast<size_t>(elements_) * sizeof(int32_t));  // before they are made room for
    std::vector<int32_t> ids(static_cast<size_t>(elements_));
    std::memcpy(ids.data(), raw_->data(), raw_->size());
    return ids;
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw invalid(name(), "{} {}", name(), fmt::format(format, std::forward<Args>(args)...));
  }
  void check_count(int got) const {
    if (got != elements_) refuse("must have the {} values of its shape, got {}", elements_, got);
  }
  void check_bytes(size_t wanted) const {
    if (raw_->size() == wanted) return;
    refuse("must have {} bytes in raw_input_contents, got {}", wanted, raw_->size());
  }

  Input& input_;
  std::string* const raw_;  // null: in the input
  int64_t elements_ = 0;
};

// A parameter's value as JSON.
json value_of(const InferParameter& parameter) {
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
  const json value = value_of(parameter);
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (value.is_number_integer() && value.get<int64_t>() >= 0) return value.get<uint64_t>();
  throw invalid(name, "{} must be an integer of at least 0", name);
}

bool flag_of(const std::string& name, const InferParameter& parameter) {
  if (parameter.has_bool_param()) return parameter.bool_param();
  throw invalid(name, "{} must be true or false", name);
}

// What there is beside the text: how an input asks for it, and what the output is called.
struct Extra {
  std::string_view input, output;
  bool InferOutputs::*wanted;
};
constexpr Extra kExtras[] = {
    {"return_finish_reason", "finish_reason", &InferOutputs::finish_reason},
    {"return_cumulative_logprob", "cumulative_logprob", &InferOutputs::cumulative_logprob},
    {"return_logprobs", "logprobs", &InferOutputs::logprobs},
    {"return_num_input_tokens", "num_input_tokens", &InferOutputs::num_input_tokens},
    {"return_num_output_tokens", "num_output_tokens", &InferOutputs::num_output_tokens},
    {"return_output_ids", "output_ids", &InferOutputs::ids},
};

// There, 1 is the most important and larger ones are less so; 0 is the model's default. Here that
// is in the middle of as many steps.
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
  // The sequence first: its requests keep their order, also where one is refused.
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
      Tensor tensor(*message_.mutable_inputs(i),
                    raw != 0 ? message_.mutable_raw_input_contents(i) : nullptr);
      if (std::ranges::find(seen_, tensor.name()) != seen_.end()) {
        throw invalid(tensor.name(), "there must be one input \"{}\", got more", tensor.name());
      }
      seen_.push_back(tensor.name());
      read(tensor);
    }
  }

  void read(Tensor& tensor) {
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

  // Outputs that are named are those there are.
  void read_outputs() {
    if (message_.outputs_size() == 0) return;
    InferOutputs& outputs = to_.form.outputs;
    outputs = {.text = false};
    for (const auto& output : message_.outputs()) {
      const std::string& name = output.name();
      if (find(kOutputs, name) == nullptr) {
        throw invalid(name, "there is no output \"{}\": there are {}", name, names(kOutputs));
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
    // Where there is a tensor of them, parameters of the request are not looked at.
    const Refused refused = sampling_ ? read_sampling(std::string_view(*sampling_), &to_.asked)
                                      : read_sampling(parameters_, &to_.asked);
    if (refused) throw Refusal(*refused);
    to_.form.choices = static_cast<size_t>(std::max(to_.asked.choices, 1));
    if (to_.form.outputs.ids && to_.asked.choices != 1) {
      throw invalid("n", "n must be 1 with output_ids, got {}", to_.asked.choices);
    }
    if (to_.form.outputs.cumulative_logprob && !to_.asked.logprobs) to_.asked.logprobs = 0;
    read_prompt();
  }

  void read_prompt() {
    if (text_.has_value() == ids_.has_value()) {
      throw invalid("text_input", "there must be a text_input, or input_ids instead of it");
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
    if (ids_) {
      to_.asked.prompt = std::move(*ids_);
      return;
    }
    if (prepend) to_.form.prefix = *text_;
    to_.asked.prompt = std::move(*text_);
  }

  ModelInferRequest& message_;
  InferRequest& to_;
  json parameters_ = json::object();
  std::vector<std::string> seen_;
  std::optional<std::string> text_, sampling_;
  std::optional<std::vector<int32_t>> ids_;
  std::optional<bool> exclude_;
};

}  // namespace

Refused read_infer_request(ModelInferRequest&& message, const std::string& model,
                           InferRequest* to) {
  to->form.id = message.id();
  try {
    if (auto refused = check_model(message.model_name(), message.model_version(), model)) {
      return refused;
    }
    Reader(message, to).read();
    return {};
  } catch (const Refusal& refusal) {
    return refusal;
  }
}

Refused check_model(const std::string& name, const std::string& version,
                    const std::string& served) {
  if (name == served && (version.empty() || version == kModelVersion)) return {};
  return Refusal{
      .code = Refusal::Code::kNotFound,
      .message = fmt::format("there is no model \"{}\"{}: this server has \"{}\", version {}", name,
                             version.empty() ? "" : ", version " + version, served, kModelVersion),
      .field = "model_name"};
}

}  // namespace recurve
