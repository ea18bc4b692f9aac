#pragma once
#include <CLI/CLI.hpp>
#include <map>
#include <string>

namespace recurve {

// Has a flag of a command line take names for its values. Its help and what it refuses have those
// alone: CLI11's own transformer takes and prints the values behind them, too, and those of an
// enumeration of bytes as characters.
template <typename T>
CLI::Option* takes_names(CLI::Option* flag,
                         const std::map<std::string, std::type_identity_t<T>>& values) {
  std::string names;
  for (const auto& [name, value] : values) names += (names.empty() ? "{" : ",") + name;
  names += "}";
  const auto value_of = [values, names](std::string& said) -> std::string {
    if (values.contains(said)) return CLI::Transformer(values)(said);
    return "wanted one of " + names + ", found " + said;
  };
  return flag->transform(CLI::Validator(value_of, names))->type_name("TEXT");
}

}  // namespace recurve
