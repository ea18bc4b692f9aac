#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

// The least number of characters to insert, delete or replace that turns `a` into `b`.
inline size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

// The one of `names` that `word` abbreviates, or else resembles; empty: none.
inline std::string similar_name(std::string_view word, const std::vector<std::string>& names) {
  constexpr size_t kLongest = 64;
  if (word.size() > kLongest) return {};
  const auto full = std::ranges::find_if(
      names, [&](const std::string& name) { return word.size() > 2 && name.starts_with(word); });
  if (full != names.end()) return *full;
  std::string best;
  size_t least = std::max<size_t>(word.size() / 3, 1) + 1;
  for (const std::string& name : names) {
    const size_t distance = edit_distance(word, name);
    if (distance < least) best = name, least = distance;
  }
  return best;
}

inline std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::App* at = &app; at != nullptr; at = at->get_parent()) {
    for (const CLI::Option* option : at->get_options()) {
      for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    }
  }
  return flags;
}

inline std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

// What is wrong with the first word of the command line that is neither a flag nor a command of
// `app`. `operand`: the flag that such a word was likely meant for; empty: none.
inline std::string unknown_word_text(const CLI::App& app, const std::string& word,
                                     const std::string& operand) {
  const bool is_flag = word.starts_with("-");
  const std::vector<std::string> commands = commands_of(app);
  if (!is_flag && !operand.empty()) {
    return fmt::format("unexpected argument {}; did you mean {} {}?", word, operand, word);
  }
  if (!is_flag && commands.empty()) return fmt::format("unexpected argument {}", word);
  const std::string name = word.substr(0, word.find('='));
  const std::string similar = similar_name(name, is_flag ? flags_of(app) : commands);
  return fmt::format("unknown {} {}{}", is_flag ? "flag" : "command", name,
                     similar.empty() ? "" : fmt::format("; did you mean {}?", similar));
}

// What is wrong with a command line that `app`, the program, could not parse: one sentence.
inline std::string usage_text(const CLI::App& app, const CLI::Error& error,
                              const std::string& operand = {}) {
  const bool is_required = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (!is_required && dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr) return error.what();
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().back();
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  if (!unknown.empty()) return unknown_word_text(*command, unknown.front(), operand);
  const std::vector<std::string> commands = commands_of(*command);
  if (!is_required || commands.empty()) return error.what();
  return fmt::format("a command is missing, one of: {}", fmt::join(commands, ", "));
}

}  // namespace recurve
