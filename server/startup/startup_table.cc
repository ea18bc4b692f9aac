#include "server/startup/startup_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "server/constraint/constraint_library.h"
#include "server/observe/process_memory.h"
#include "server/prefix/prefix_cache.h"
#include "server/session/session_store.h"
#include "server/startup/engine_options.h"
#include "server/startup/token_rules.h"

namespace recurve {
namespace {

// Each implementation, with its ops.
std::string ops_line(const Kernels& kernels) {
  std::map<std::string, std::string> ops_of;
  kernels.for_each([&](const char* op, const char* implementation) {
    std::string& ops = ops_of[implementation];
    ops += (ops.empty() ? "" : " ") + std::string(op);
  });
  std::string line;
  for (const auto& [implementation, ops] : ops_of) {
    line += fmt::format("{}{}: {}", line.empty() ? "" : "; ", implementation, ops);
  }
  return line;
}

// The memory of the host; without a GPU, also the bound when all slots are used.
std::string memory_line(const Options& options, double weights_and_states) {
  std::string line = human_bytes(static_cast<double>(process_memory().resident)) + " resident now";
  if (options.on_gpu()) return line + ", on the host";
  const double bound = 1.15 * weights_and_states + 64 * 1024 * 1024;
  return line + "; at most 1.15 x (weights + slots) + 64 MiB = " + human_bytes(bound);
}

std::string state_line(const Options& options, const MemoryPlan& plan) {
  const auto type = [](DType of) { return of == DType::kBF16 ? "bf16" : "f32"; };
  const std::string fixed = human_bytes(static_cast<double>(plan.state));
  if (plan.page == 0) {
    return fmt::format("{} a session, of any length; matrices in {}", fixed, type(options.state));
  }
  return fmt::format(
      "{} a session and {} a token, up to {} tokens; matrices in {}, keys and values in {}", fixed,
      human_bytes(static_cast<double>(plan.page) / kPageTokens), plan.session_tokens(),
      type(options.state), type(options.kv));
}

// Of states that grow.
std::string pages_line(const MemoryPlan& plan) {
  const int64_t pages = plan.page_limits().pages;
  return fmt::format("{} of {} each, {}: {} tokens of all sessions in slots", pages,
                     human_bytes(static_cast<double>(plan.page)),
                     human_bytes(static_cast<double>(plan.pages)), pages * kPageTokens);
}

// A session takes more than its state: entries in maps, heap, and the tokens that it has seen.
std::string sessions_line(const Model& model, const ServingInfo& info, const MemoryPlan& plan) {
  const int64_t each = SessionStore::bytes_each(model.state_layout(), info.vocab_rows);
  return fmt::format("at most {} of {} free host memory for sessions and marks: {} of {} each",
                     human_bytes(static_cast<double>(info.max_host_bytes)),
                     human_bytes(static_cast<double>(plan.host_free)), info.max_host_bytes / each,
                     human_bytes(static_cast<double>(each)));
}

std::string prefixes_line(const Options& options, const Model& model, const MemoryPlan& plan) {
  if (plan.prefixes == 0) return "no cache (--prefix-memory)";
  constexpr int64_t kTypicalTokens = 2048;
  const int64_t each =
      PrefixCache::bytes_each(model.state_layout(), model.info().chunk, kTypicalTokens);
  return fmt::format(
      "at most {} for cached states of prompts: about {}{}; of {} for both, what sessions have not "
      "reserved",
      human_bytes(static_cast<double>(plan.prefixes)), static_cast<int64_t>(plan.prefixes) / each,
      options.prefix_shared ? ", shared between tenants" : "",
      human_bytes(static_cast<double>(plan.budget())));
}

// With what an earlier server has stored there.
std::string folder_line(const Options& options, const EngineStats& stats) {
  const int others = stats.sessions_other_model;
  return fmt::format(
      "{}, at most {}; found {} sessions{}, {} cached prefixes, {}", options.state_dir,
      human_bytes(static_cast<double>(state_store_options(options).most_bytes)), stats.sessions,
      others > 0 ? fmt::format(" ({} of other models)", others) : "", stats.prefix_states_disk,
      human_bytes(static_cast<double>(stats.prefix_bytes_disk)));
}

std::string constraints_line(const MemoryPlan& plan) {
  if (!has_constraint_library()) return "none: built without structured output";
  return fmt::format("cache of {} for compiled schemas and grammars, and their masks",
                     human_bytes(static_cast<double>(plan.constraints)));
}

std::string weights_line(const ModelInfo& model, const std::string& formats,
                         const MemoryPlan& plan) {
  std::string line =
      fmt::format("{:.1f} M parameters, {} in {}", static_cast<double>(model.parameters) / 1e6,
                  human_bytes(static_cast<double>(model.weight_bytes)), formats);
  if (plan.mapped > 0) {
    line += fmt::format("; {} mapped from the files, {} resident",
                        human_bytes(static_cast<double>(plan.mapped)),
                        human_bytes(static_cast<double>(plan.weights)));
  }
  if (!model.prefers_int8 || formats.find("int4") == std::string::npos) return line;
  return line +
         fmt::format(
             "; with {}, int4 increases the bits per byte by up to 3 %: prefer --weights int8",
             model.family);
}

std::string initial_states_line(const ServingInfo& info, const MemoryPlan& plan) {
  std::vector<std::string> all;
  for (const InitialStatePtr& state : info.initial_states) {
    all.push_back(fmt::format("{} ({} tokens)", state->id.name, state->position));
  }
  return fmt::format("{}, {} in host memory", fmt::join(all, ", "),
                     human_bytes(static_cast<double>(plan.initial_states)));
}

std::string adapters_line(const ServingInfo& info, const MemoryPlan& plan) {
  std::vector<std::string> all;
  for (const BoundAdapterPtr& adapter : info.adapters) {
    const AdapterInfo& of = info_of(*adapter->weights);
    all.push_back(fmt::format("{} (rank {}, {} matrices)", of.name, of.rank, of.matrices));
  }
  return fmt::format("{}, {} in memory", fmt::join(all, ", "),
                     human_bytes(static_cast<double>(plan.adapters)));
}

// With the port that was chosen for 0; of HTTP, what a browser opens.
std::string listening_line(const Listening& at, bool tls) {
  std::string address = at.address;
  if (address.ends_with(":0")) address.replace(address.size() - 1, 1, std::to_string(at.port));
  if (at.frontend != "http" || at.port == 0) return address;
  return fmt::format("{}://{}/", tls ? "https" : "http", address);
}

std::string table_row(std::string_view name, std::string_view value) {
  return fmt::format("  {:<10} {}\n", name, value);
}

}  // namespace

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, units[unit]);
}

std::string startup_table(const Options& options, const LoadedModel& loaded, const Backend& backend,
                          const EngineStats& stats) {
  const auto& [plan, loaded_model, adapter_targets, text, info] = loaded;
  const Model& model = *loaded_model;
  const auto weights = static_cast<double>(model.info().weight_bytes);
  const double states = static_cast<double>(info.slots) * static_cast<double>(info.state_bytes);
  const double pages = static_cast<double>(plan.pages + (plan.on_host ? plan.preempted : 0));
  std::vector<std::pair<const char*, std::string>> rows = {
      {"model", fmt::format("{}, {}: {}", info.model_name, info.family, model.info().description)},
      {"weights", weights_line(model.info(), info.weight_type, plan)},
      {"head", model.info().head},
      {"tokenizer", text.tokenizer->description()},
      {"end tokens", ends_line(info.tokens, *text.tokenizer)},
      {"chat", text.chat.format != nullptr ? "messages are rendered by the chat template"
                                           : text.chat.problem},
      {"state", state_line(options, plan)},
      {"slots", fmt::format("{}, with {} of states", info.slots, human_bytes(states))},
      {"sessions", sessions_line(model, info, plan)},
      {"prefixes", prefixes_line(options, model, plan)},
      {"grammars", constraints_line(plan)},
      {"queue", fmt::format("{} requests", options.max_queue)},
      {"step", fmt::format("at most {} rows; prompts in chunks of {} tokens", choose_rows(options),
                           info.chunk_tokens)},
      {"memory", memory_line(options, weights + states + pages)},
      {"planned", plan.arithmetic(info.slots)},
      {"backend", backend.name()},
      {"ops", ops_line(backend.kernels())},
  };
  if (plan.page > 0) {
    const auto slots = std::ranges::find(rows, std::string_view("slots"),
                                         [](const auto& row) { return row.first; });
    rows.insert(slots + 1, {"pages", pages_line(plan)});
  }
  if (!info.initial_states.empty()) {
    rows.emplace_back("initial", initial_states_line(info, plan));
  }
  if (!info.adapters.empty()) rows.emplace_back("adapters", adapters_line(info, plan));
  if (!options.state_dir.empty()) {
    rows.emplace_back("state dir", folder_line(options, stats));
  }
  if (plan.prefix_transfers > 0) {
    rows.emplace_back(
        "prefix store",
        fmt::format("{}, at most {}, with {} for states on their way", options.state_store,
                    human_bytes(static_cast<double>(options.prefix_store)),
                    human_bytes(static_cast<double>(plan.prefix_transfers))));
  }
  if (plan.transfers > 0) {
    rows.emplace_back("state store",
                      fmt::format("{}, with {} for states on their way", options.state_store,
                                  human_bytes(static_cast<double>(plan.transfers))));
  }
  std::string table;
  for (const auto& [name, value] : rows) table += table_row(name, value);
  return table;
}

std::string listening_table(const Options& options, const std::vector<Listening>& listening) {
  std::string table;
  for (const Listening& at : listening) {
    table += table_row(at.frontend, listening_line(at, !options.tls_cert.empty()));
  }
  return table;
}

}  // namespace recurve
