#include "server/startup/loaded_model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <vector>

#include "kernels/arithmetic.h"
#include "kernels/dry_run_backend.h"
#include "model/load_model.h"
#include "model/weights/fingerprint.h"
#include "server/observe/log.h"
#include "server/request/clock.h"
#include "server/session/state_transfer.h"
#include "server/startup/adapters.h"
#include "server/startup/engine_options.h"
#include "server/startup/initial_states.h"
#include "server/startup/model_list.h"
#include "server/startup/startup_table.h"
#include "server/startup/token_rules.h"
#include "server/startup/version.h"
#include "server/text/json/json_fields.h"

namespace recurve {
namespace {

// Shows the progress of loading: every two seconds, or in place on a terminal.
class LoadProgress {
 public:
  explicit LoadProgress(const StopSignal& stop) : stop_(stop) {}
  void operator()(uint64_t done, uint64_t total) {
    if (stop_.raised()) throw std::runtime_error("stopped while loading");
    const Clock::time_point now = Clock::now();
    if (done < total && now < next_) return;
    next_ = now + (terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(2000));
    const double percent =
        total == 0 ? 100 : 100.0 * static_cast<double>(done) / static_cast<double>(total);
    log_text(fmt::format("{}loading weights {:3.0f}% of {}{}", terminal_ ? "\r" : "", percent,
                         human_bytes(static_cast<double>(total)),
                         terminal_ && done < total ? "" : "\n"));
  }

 private:
  const StopSignal& stop_;
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  Clock::time_point next_ = Clock::now() + std::chrono::milliseconds(500);
};

void print_times(const Checkpoint::Times& times) {
  const double bytes = static_cast<double>(times.bytes);
  log_text(fmt::format(
      "loaded {} in {:.2f} s, {:.2f} GB/s; reading {:.2f} GB/s{}\n", human_bytes(bytes),
      times.seconds, bytes / times.seconds / 1e9, bytes / times.reading / 1e9,
      times.copying_rate == 0 ? ""
                              : fmt::format(", copying {:.2f} GB/s", times.copying_rate / 1e9)));
}

// The folder of the tokenizer's files; none if prompts are ids only.
std::optional<std::filesystem::path> tokenizer_dir(const Options& o) {
  if (o.tokenizer == "none" || (o.tokenizer.empty() && o.random_weights)) return std::nullopt;
  return o.tokenizer.empty() ? o.model : o.tokenizer;
}

// What the checkpoint states of itself, without its weights.
ModelInfo described_model(const Options& o, const Backend& backend) {
  DryRunBackend dry(backend);
  Checkpoint checkpoint = open_checkpoint(o);
  checkpoint.leave_out_copies();
  return load_model(checkpoint, dry, load_options(o))->info();
}

LoadedText load_text(const Options& o, const ModelInfo& model) {
  const auto dir = tokenizer_dir(o);
  LoadedText text;
  TokenFiles files;
  if (!dir.has_value()) {
    text.tokenizer = std::make_shared<IdTokenizer>(static_cast<int32_t>(model.vocab));
  } else {
    files = token_files(model, *dir);
    text = {.tokenizer = load_tokenizer(*dir, files), .chat = load_chat(*dir, o.chat_template)};
    if (!o.reasoning) text.chat.reasoning_form = nullptr;
    check_fits(*text.tokenizer, model.vocab, *dir);
  }
  // With random weights, no id ends a text.
  if (!o.random_weights) text.rules = resolve_token_rules(model, files, *text.tokenizer);
  return text;
}

ServingInfo serving_info(const Options& o, const Model& model, const Backend& backend,
                         const TokenRules& rules, const std::string& fingerprint,
                         const std::string& weight_type, int slots, const MemoryPlan& plan) {
  ServingInfo info{.model_name = model_name(o),
                   .family = model.info().family,
                   .parameters = model.info().parameters,
                   .weight_bytes = model.info().weight_bytes,
                   .weight_type = weight_type,
                   .vocab_rows = static_cast<int32_t>(model.info().vocab),
                   .hidden_width = static_cast<int32_t>(model.info().width),
                   .state_bytes = static_cast<int64_t>(plan.state),
                   .state_bytes_per_token = static_cast<int64_t>(plan.page) / kPageTokens,
                   .page_bytes = static_cast<int64_t>(plan.page),
                   .max_session_tokens = plan.session_tokens(),
                   .chunk_tokens = model.info().chunk,
                   .fingerprint = fingerprint,
                   .backend = backend.name(),
                   .ops = {},
                   .tokens = rules,
                   .slots = slots,
                   .max_host_bytes = static_cast<int64_t>(plan.sessions),
                   .default_ttl_seconds = o.session_ttl};
  backend.kernels().for_each([&](const char* name, const char* implementation) {
    info.ops.push_back({name, implementation});
  });
  return info;
}

// An initial state is continued with the adapter with which it was computed.
void check_adapters_of_states(const ServingInfo& info) {
  for (const InitialStatePtr& state : info.initial_states) {
    const BoundId& wanted = state->state->adapter;
    const bool there = std::ranges::any_of(
        info.adapters, [&](const BoundAdapterPtr& one) { return one->id.digest == wanted.digest; });
    if (wanted.name.empty() || there) continue;
    throw std::runtime_error(fmt::format(
        "--initial-state {}: it was computed with the adapter \"{}\", which is none of --adapter",
        state->id.name, wanted.name));
  }
}

}  // namespace

LoadedModel load_served_model(const Options& o, const PlannedModel& planned,
                              const std::shared_ptr<Backend>& shared_backend,
                              const StopSignal& stop) {
  Backend& backend = *shared_backend;
  LoadedModel loaded{
      .plan = planned.plan, .model = {}, .adapter_targets = {}, .text = {}, .info = {}};
  const int slots = planned.slots;
  // Before the weights, which take long: an error of the tokenizer is reported at once.
  loaded.text = load_text(o, described_model(o, backend));
  Checkpoint checkpoint = open_checkpoint(o);
  if (loaded.plan.mapped > 0) checkpoint.map_weights();
  loaded.model = load_model(checkpoint, backend, load_options(o), LoadProgress(stop));
  print_times(checkpoint.times());
  const Model& model = *loaded.model;
  loaded.info = serving_info(o, model, backend, loaded.text.rules,
                             model_fingerprint(checkpoint.fingerprint(), tokenizer_dir(o)),
                             checkpoint.weight_formats(), slots, loaded.plan);
  const StateHeader identity = identity_of(model, loaded.info);
  loaded.info.system_fingerprint = system_fingerprint(identity, made_by(backend));
  loaded.info.read_state = state_reader(identity);
  loaded.info.read_paged_state = paged_state_reader(identity);
  loaded.info.join_state = state_joiner(identity);
  loaded.info.check_front = front_checker(identity);
  loaded.info.initial_states = load_initial_states(o.initial_states, identity);
  if (!o.adapters.empty()) {
    loaded.adapter_targets = checkpoint.shared_adapter_targets();
    loaded.info.adapters = load_adapters(o.adapters, *loaded.adapter_targets, shared_backend);
  }
  check_adapters_of_states(loaded.info);
  loaded.info.most_written_bytes =
      static_cast<int64_t>(most_written_bytes(model.state_layout(), loaded.info.vocab_rows, 4096,
                                              loaded.plan.session_tokens()) +
                           most_token_bytes(loaded.info.vocab_rows, kMostRewindTokens));
  return loaded;
}

std::string model_fingerprint(const std::string& checkpoint,
                              const std::optional<std::filesystem::path>& tokenizer_dir) {
  std::vector<std::string> texts = {checkpoint};
  if (tokenizer_dir.has_value()) {
    for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
      const auto file = *tokenizer_dir / name;
      texts.push_back(exists(file) ? read_text_file(file) : "");
    }
  }
  return fingerprint_of(texts);
}

StateHeader identity_of(const Model& model, const ServingInfo& info) {
  return {.model = info.fingerprint,
          .weights = info.weight_type,
          .chunk = static_cast<int32_t>(model.info().chunk),
          .layout = model.state_layout(),
          .vocab = info.vocab_rows};
}

std::string made_by(const Backend& backend) {
  std::string made_by = fmt::format("{} {} {}", kVersion, kCommit, arithmetic_of(backend.name()));
  backend.kernels().for_each([&](const char* op, const char* implementation) {
    made_by += fmt::format(" {}:{}", op, implementation);
  });
  return made_by;
}

std::string system_fingerprint(const StateHeader& identity, const std::string& made_by) {
  const std::string texts[] = {identity_text(identity), made_by};
  return "fp_" + fingerprint_of(texts).substr(0, 16);
}

}  // namespace recurve
