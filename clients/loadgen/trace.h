#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace recurve::loadgen {

// A request of a trace file.
struct TraceRow {
  double arrival = 0;  // seconds after the first one's
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
};

// Reads a trace, one request a line, in either form:
//   CSV     arrival_seconds,prompt_tokens,output_tokens    e.g. 0.25,374,44
//           A first line that begins with a letter is a header and is skipped.
//   JSONL   {"arrival": 0.25, "prompt_tokens": 374, "output_tokens": 44}
// Empty lines and lines that begin with # are skipped. Rows are put in the order of their arrivals,
// which are shifted so that the first is at 0. Throws std::runtime_error naming file and line.
std::vector<TraceRow> read_trace(const std::string& file);

// The lines of a text file that hold something: a prompt each. Throws std::runtime_error.
std::vector<std::string> read_prompts(const std::string& file);

}  // namespace recurve::loadgen
