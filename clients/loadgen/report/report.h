#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "clients/loadgen/load_run.h"
#include "clients/loadgen/server_facts.h"

namespace recurve::loadgen {

// One run under one load.
struct Trial {
  std::string load;            // "closed loop, 8 streams"
  std::optional<double> rate;  // of an open loop: conversations a second
  std::optional<int> streams;  // of a closed loop
  RunResult result;
};

// What the report of one call of recurve-loadgen holds.
struct Report {
  ServerFacts server;
  std::string date;      // UTC, "2026-11-21 16:30:00"
  std::string command;   // as it was given
  std::string workload;  // "prompts of 128 tokens, answers of 64, seed 1"
  RunOptions options;
  std::vector<Trial> trials;
  // Of a sweep: the highest rate that held the service level, 0 where none did.
  std::optional<double> highest_rate;
  std::optional<size_t> overload_trial;  // the one at twice that rate
};

// A latency that is reported, and what it means.
struct Metric {
  const char* key;    // in JSON
  const char* title;  // in tables
  const char* meaning;
  Histogram Records::* histogram;
};
extern const std::array<Metric, 6> kMetrics;

// Derived figures, all of the measured window.
double request_rate(const Trial& trial);       // answers that ended, a second
double token_rate(const Trial& trial);         // generated tokens that came, a second
double prompt_token_rate(const Trial& trial);  // of prompts whose answers began, a second
double goodput(const Trial& trial);            // requests due a second that met the service level
double good_share(const Trial& trial);         // of those that were due
uint64_t error_count(const Trial& trial);
// Whether answers came in the whole window, but none of the requests was due in it: their rates are
// measured, no latency.
bool only_rates(const Trial& trial);

// Whether the 99th percentiles of TTFT and TPOT are within the level, and at most 1 % failed.
bool holds(const Trial& trial, const ServiceLevel& level);

// What makes the figures less than believable; one sentence each, with what to do about it.
std::vector<std::string> warnings(const Trial& trial);

// "312", "4.57", "0.052": milliseconds with three digits.
std::string ms(double seconds);

}  // namespace recurve::loadgen
