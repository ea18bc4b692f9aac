#include "model/weights/config_reader.h"

#include <fmt/format.h>

#include <cmath>
#include <stdexcept>

#include "model/weights/tensor_view.h"

namespace recurve {
namespace {

using nlohmann::json;

// Keys of Hugging Face configs that do not change what a loaded model computes: bookkeeping, types
// of storage, training, and defaults of generation (which the server takes from the request).
constexpr const char* kHarmless[] = {
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "architectures",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "force_bos_token_insert",  // read by special_ids.cc
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "initializer_range",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "model_type",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "use_bfloat16",
    "use_cache",
};

constexpr size_t kMaxFound = 100;  // characters of a value in a message

std::string text_of(const json& value) {
  if (value.is_number_float() && std::isinf(value.get<double>())) {
    return value.get<double>() < 0 ? "-Infinity" : "Infinity";  // which dump() calls null
  }
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kMaxFound) text = text.substr(0, kMaxFound) + "...";
  return text;
}

std::string alternatives(const std::vector<std::string>& names) { return joined(names, " or "); }

}  // namespace

ConfigReader::ConfigReader(const json& config, std::string file)
    : config_(config), file_(std::move(file)), known_(std::begin(kHarmless), std::end(kHarmless)) {
  if (!config_.is_object()) {
    throw std::runtime_error(
        fmt::format("{}: wanted a JSON object, found {}", file_, config_.type_name()));
  }
}

void ConfigReader::fail(const std::string& key, const std::string& wanted,
                        const std::string& found) const {
  throw std::runtime_error(fmt::format("{}: {}: wanted {}, found {}", file_, key, wanted, found));
}

ConfigReader::Found ConfigReader::look_up(const Keys& keys) {
  Found found;
  for (const std::string& key : keys.names) {
    known_.insert(key);
    const auto at = config_.find(key);
    if (at == config_.end() || at->is_null()) continue;
    if (found.value != nullptr && *found.value != *at) {
      fail(key, fmt::format("the same as {}, {}", found.key, text_of(*found.value)), text_of(*at));
    }
    if (found.value == nullptr) found = {key, &*at};
  }
  return found;
}

ConfigReader::Found ConfigReader::require(const Keys& keys, const std::string& wanted) {
  const Found found = look_up(keys);
  if (found.value == nullptr) fail(alternatives(keys.names), wanted, "no such key");
  return found;
}

int64_t ConfigReader::int_in(const Found& found, int64_t min, int64_t max) const {
  const json& value = *found.value;
  const bool whole = value.is_number_integer();
  // An unsigned value beyond int64 must not wrap to a negative one.
  const bool fits = whole && !(value.is_number_unsigned() &&
                               value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  if (!fits || value.get<int64_t>() < min || value.get<int64_t>() > max) {
    fail(found.key, fmt::format("a whole number from {} to {}", min, max), text_of(value));
  }
  return value.get<int64_t>();
}

double ConfigReader::number_in(const Found& found, double min, double max) const {
  const json& value = *found.value;
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (!(number >= min && number <= max)) {
    fail(found.key, fmt::format("a number from {} to {}", min, max), text_of(value));
  }
  return number;
}

int64_t ConfigReader::required_int(const Keys& keys, int64_t min, int64_t max) {
  return int_in(require(keys, fmt::format("a whole number from {} to {}", min, max)), min, max);
}

int64_t ConfigReader::optional_int(const Keys& keys, int64_t fallback, int64_t min, int64_t max) {
  const Found found = look_up(keys);
  return found.value == nullptr ? fallback : int_in(found, min, max);
}

double ConfigReader::required_number(const Keys& keys, double min, double max) {
  return number_in(require(keys, fmt::format("a number from {} to {}", min, max)), min, max);
}

double ConfigReader::optional_number(const Keys& keys, double fallback, double min, double max) {
  const Found found = look_up(keys);
  return found.value == nullptr ? fallback : number_in(found, min, max);
}

bool ConfigReader::boolean(const Keys& keys, bool fallback) {
  const Found found = look_up(keys);
  if (found.value == nullptr) return fallback;
  if (!found.value->is_boolean()) fail(found.key, "true or false", text_of(*found.value));
  return found.value->get<bool>();
}

std::string ConfigReader::string_one_of(const Keys& keys, const std::string& fallback,
                                        const std::vector<std::string>& allowed) {
  const Found found = look_up(keys);
  if (found.value == nullptr) return fallback;
  for (const std::string& text : allowed) {
    if (found.value->is_string() && found.value->get_ref<const std::string&>() == text) return text;
  }
  fail(found.key, alternatives(allowed), text_of(*found.value));
}

void ConfigReader::must_be(const Keys& keys, const json& value) {
  const Found found = look_up(keys);
  if (found.value == nullptr || *found.value == value) return;
  fail(found.key, text_of(value) + ", which is all that is implemented", text_of(*found.value));
}

void ConfigReader::ignore(std::initializer_list<const char*> keys) {
  known_.insert(keys.begin(), keys.end());
}

bool ConfigReader::has(std::string_view key) const {
  const auto at = config_.find(key);
  return at != config_.end() && !at->is_null();
}

bool ConfigReader::is_null(std::string_view key) const {
  const auto at = config_.find(key);
  return at != config_.end() && at->is_null();
}

void ConfigReader::finish() const {
  constexpr size_t kListed = 10;
  std::vector<std::string> unknown;
  size_t count = 0;
  for (const auto& [key, value] : config_.items()) {
    if (known_.contains(key) || value.is_null()) continue;
    if (++count <= kListed)
      unknown.push_back(fmt::format("{} = {}", in_quotes(key), text_of(value)));
  }
  if (count == 0) return;
  const std::string more = count > kListed ? fmt::format(" and {} more", count - kListed) : "";
  throw std::runtime_error(
      fmt::format("{}: wanted only keys whose meaning is implemented, found {}{}", file_,
                  joined(unknown, ", "), more));
}

}  // namespace recurve
