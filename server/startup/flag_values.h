#pragma once
#include <CLI/CLI.hpp>
#include <map>
#include <string>

namespace recurve {

// Makes a flag accept the names of its values. CLI11's transformer also accepts and prints the
// values themselves, and prints those of an enumeration of bytes as characters.
template <typename T>
CLI::Option* takes_names(CLI::Option* flag,
                         const std::map<std::string, std::type_identity_t<T>>& values) {
  std::string names;
  for (const auto& [name, value] : values) names += (names.empty() ? "{" : ",") + name;
  names += "}";
  const auto value_of = [values, names](std::string& name) -> std::string {
    if (values.contains(name)) return CLI::Transformer(values)(name);
    return "wanted one of " + names + ", found " + name;
  };
  return flag->transform(CLI::Validator(value_of, names))->type_name("TEXT");
}

}  // namespace recurve
