#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "clients/loadgen/report/distribution.h"
#include "clients/loadgen/trace.h"

namespace recurve::loadgen {

// What is asked. The same options give the same conversations, whatever the timing.
struct WorkloadOptions {
  Distribution prompt_tokens{128};
  Distribution output_tokens{64};
  std::vector<TraceRow> trace;       // where it has rows, lengths come from it, in turn
  std::vector<std::string> prompts;  // where it has texts, prompts are these, in turn
  int turns = 1;                     // requests of a conversation; above 1 they share a session
  Distribution think_seconds{0};     // the pause before each turn but the first
  int forks = 1;                     // answers to each prompt
  uint64_t seed = 1;
};

// What the server allows.
struct WorkloadLimits {
  int32_t token_count = 0;        // prompts of ids draw from [0, token_count)
  std::vector<int32_t> reserved;  // ids that they leave out: begin and end of text
  int64_t max_prompt_tokens = 0;
  int64_t max_output_tokens = 0;
};

struct Turn {
  int64_t prompt_tokens;  // of random ids; 0 where the prompt is a text
  int64_t output_tokens;
  double think_seconds;  // between the end of the turn before and this one
};

struct Conversation {
  uint64_t index;
  std::vector<Turn> turns;
};

// Conversations by number. Constant: any thread may ask.
class Workload {
 public:
  // Throws std::invalid_argument for limits that leave nothing to ask.
  Workload(WorkloadOptions options, WorkloadLimits limits);

  const WorkloadOptions& options() const { return options_; }
  Conversation conversation(uint64_t index) const;

  bool asks_in_text() const { return !options_.prompts.empty(); }
  const std::string& prompt_text(uint64_t index, size_t turn) const;
  std::vector<int32_t> prompt_ids(const Conversation& conversation, size_t turn) const;
  // Seed of the sampling of a turn's answers.
  uint64_t sampling_seed(uint64_t index, size_t turn) const;

 private:
  Turn turn(uint64_t index, int number, Rng& rng) const;

  WorkloadOptions options_;
  WorkloadLimits limits_;
  std::vector<int32_t> ids_;  // that prompts draw from
};

}  // namespace recurve::loadgen
