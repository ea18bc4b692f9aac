// Any bytes as a GenerateRequest and as an EmbedRequest: refused with a sentence, or turned into a
// request that keeps its promises to the engine.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/check.h"
#include "server/rpc/conversions.h"
#include "server/rpc/messages.h"
#include "server/serving/embedding.h"
#include "server/serving/validate.h"
#include "tests/support/fake_tokenizer.h"

namespace recurve {
namespace {

BoundAdapterPtr adapter(const BoundId& id) {
  return std::make_shared<BoundAdapter>(BoundAdapter{.id = id});
}

InitialStatePtr initial_state(const BoundId& id, const BoundId& adapter) {
  auto state = std::make_shared<ReadyState>();
  state->adapter = adapter;
  return std::make_shared<InitialState>(InitialState{.id = id, .position = 1, .state = state});
}

const ModelText& rules() {
  static const ModelText made = {
      .tokenizer = std::make_shared<FakeTokenizer>(),
      .tokens = {.bos = FakeTokenizer::kBos, .eos = {FakeTokenizer::kEos}, .force_bos = true},
      .vocab = {.rows = FakeTokenizer::kSize + 2,
                .usable = FakeTokenizer::kSize,
                .eos_ids = {FakeTokenizer::kEos}},
      .max_prompt_tokens = 1000,
      .max_generated_tokens = 1000,
      .max_choices = 8,
      .initial_states = {initial_state({"story", "0"}, {"style", "1"})},
      .adapters = {adapter({"style", "1"}), adapter({"terse", "2"})},
      .width = 4};
  return made;
}

void check_promises(const ParsedRequest& parsed) {
  const Request& request = parsed.request;
  CHECK(!request.prompt.ids.empty() || !request.session.empty());
  CHECK(request.prompt.ids.size() <= 1 + 1000);
  for (const int32_t id : request.prompt.ids) CHECK(id >= 0 && id < FakeTokenizer::kSize);
  CHECK(request.streams.size() >= 1 && request.streams.size() <= 8);
  CHECK(request.session.empty() || request.streams.size() == 1);
  CHECK(!check(request.sampling, rules().vocab).has_value());
  CHECK(request.sampling.max_tokens <= 1000);
  CHECK(parsed.stop_strings.size() <= 16);
  const auto& [initial_state, adapter] = request.binding;
  CHECK(initial_state == nullptr || !request.session.empty() ||
        (adapter != nullptr && adapter->id == initial_state->state->adapter));
}

void check_refusal(const Refusal& refusal) {
  const bool is_name = refusal.field == "adapter" || refusal.field == "initial_state";
  CHECK(refusal.reason == EndReason::kInvalid ||
        (refusal.reason == EndReason::kNotFound && is_name));
  CHECK(!refusal.message.empty());
}

void read_embed(std::string_view bytes) {
  v1::EmbedRequest message;
  Refused refused = parse(bytes, &message);
  if (!refused) refused = check_known(message);
  int32_t dimensions = 0;
  if (!refused) {
    const EmbedRequest asked = to_embed(std::move(message));
    CHECK(asked.pooling == Pooling::kLast || asked.pooling == Pooling::kMean);
    refused = check_dimensions(asked, rules(), &dimensions);
  }
  if (refused) return check_refusal(*refused);
  CHECK(dimensions >= 1 && dimensions <= rules().width);
}

}  // namespace
}  // namespace recurve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  recurve::v1::GenerateRequest message;
  recurve::ParsedRequest parsed;
  recurve::Refused refused =
      recurve::parse(std::string_view(reinterpret_cast<const char*>(data), size), &message);
  if (!refused) {
    refused =
        recurve::validate(recurve::to_request(std::move(message)), recurve::rules(), {}, &parsed);
  }
  if (!refused) {
    recurve::check_promises(parsed);
  } else {
    recurve::check_refusal(*refused);
  }
  recurve::read_embed(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
