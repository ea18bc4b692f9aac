#include "clients/loadgen/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string_view>

namespace recurve::loadgen {
namespace {

// Calls `read` with every line that is not blank, without its end, and the line's number.
void for_each_line(const std::string& file,
                   const std::function<void(const std::string&, int)>& read) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error(fmt::format("{} cannot be read", file));
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty()) read(line, number);
  }
  if (in.bad()) throw std::runtime_error(fmt::format("{} cannot be read to its end", file));
}

template <class T>
bool parse_number(std::string_view text, T* value) {
  const size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
  if (begin == std::string_view::npos) return false;
  text = text.substr(begin, end + 1 - begin);
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && stop == text.data() + text.size();
}

std::optional<TraceRow> row_of_csv(std::string_view line) {
  const size_t first = line.find(','), second = line.find(',', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return std::nullopt;
  TraceRow row;
  const bool read = parse_number(line.substr(0, first), &row.arrival) &&
                    parse_number(line.substr(first + 1, second - first - 1), &row.prompt_tokens) &&
                    parse_number(line.substr(second + 1), &row.output_tokens);
  return read ? std::optional(row) : std::nullopt;
}

std::optional<TraceRow> row_of_json(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  const auto number = [&](const char* name) {
    const auto found = json.find(name);
    return found != json.end() && found->is_number() ? found->get<double>() : std::nan("");
  };
  const double prompt = number("prompt_tokens"), output = number("output_tokens");
  if (!(std::abs(prompt) < 1e9) || !(std::abs(output) < 1e9)) return std::nullopt;
  return TraceRow{number("arrival"), std::llround(prompt), std::llround(output)};
}

bool is_sound(const TraceRow& row) {
  return std::isfinite(row.arrival) && row.prompt_tokens >= 1 && row.output_tokens >= 1;
}

}  // namespace

std::vector<TraceRow> read_trace(const std::string& file) {
  std::vector<TraceRow> rows;
  for_each_line(file, [&](const std::string& line, int number) {
    if (line[0] == '#' || (number == 1 && std::isalpha(static_cast<unsigned char>(line[0])))) {
      return;
    }
    const auto row = line[0] == '{' ? row_of_json(line) : row_of_csv(line);
    if (!row || !is_sound(*row)) {
      throw std::runtime_error(fmt::format(
          "{}:{}: a line of a trace is ARRIVAL_SECONDS,PROMPT_TOKENS,OUTPUT_TOKENS or "
          "{{\"arrival\": S, \"prompt_tokens\": N, \"output_tokens\": N}}, tokens at least 1, "
          "not '{}'",
          file, number, line.substr(0, 200)));
    }
    rows.push_back(*row);
  });
  if (rows.empty()) throw std::runtime_error(fmt::format("{} holds no requests", file));
  std::stable_sort(rows.begin(), rows.end(),
                   [](const TraceRow& a, const TraceRow& b) { return a.arrival < b.arrival; });
  const double first = rows.front().arrival;
  for (TraceRow& row : rows) row.arrival -= first;
  return rows;
}

std::vector<std::string> read_prompts(const std::string& file) {
  std::vector<std::string> prompts;
  for_each_line(file, [&](const std::string& line, int) { prompts.push_back(line); });
  if (prompts.empty()) throw std::runtime_error(fmt::format("{} holds no prompts", file));
  return prompts;
}

}  // namespace recurve::loadgen
