#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "model/model.h"
#include "server/request/serving_info.h"
#include "server/startup/memory_plan.h"
#include "server/startup/options.h"
#include "server/startup/stop_signal.h"
#include "server/state/state_form.h"
#include "server/text/chat/chat_template.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// Conversion between text and ids.
struct LoadedText {
  std::shared_ptr<const Tokenizer> tokenizer;
  Chat chat;
  TokenRules rules;
};

// A model in memory, and its text part.
struct LoadedModel {
  MemoryPlan plan;
  std::unique_ptr<const Model> model;
  std::shared_ptr<const AdapterTargets> adapter_targets;  // null: it has no adapters
  LoadedText text;
  ServingInfo info;
};

// Loads the model of the options, whose memory is planned. Prints the progress. Throws
// std::runtime_error with a sentence, also when `stop` is raised.
LoadedModel load_served_model(const Options& options, const PlannedModel& planned,
                              const std::shared_ptr<Backend>& backend, const StopSignal& stop);

// Identifies a model, in 32 hexadecimal digits: by its config and stored weights, for which
// `checkpoint` stands (Checkpoint::fingerprint()), and by tokenizer.json and tokenizer.model.
// tokenizer_dir: none if prompts are ids only.
std::string model_fingerprint(const std::string& checkpoint,
                              const std::optional<std::filesystem::path>& tokenizer_dir);

// What a serialized state must match.
StateHeader identity_of(const Model& model, const ServingInfo& info);

// What a cached state of a prompt must match as well, so that a request that starts from it
// computes the same bits: another version or device may sum in another order.
std::string made_by(const Backend& backend);

// Names both, as answers of OpenAI's dialect do: answers with another one may differ in their bits.
std::string system_fingerprint(const StateHeader& identity, const std::string& made_by);

}  // namespace recurve
