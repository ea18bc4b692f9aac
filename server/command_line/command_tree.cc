#include "server/command_line/command_tree.h"

#include <CLI/CLI.hpp>

namespace recurve {
namespace {

constexpr const char* kAddress = "HOST:PORT";

// Of "TEXT:{off,on}": off and on.
std::vector<std::string> choices_of(const std::string& type) {
  const size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

CommandFlag flag_of(const CLI::Option& option) {
  CommandFlag flag{.text = option.get_description(),
                   .default_value = option.get_default_str(),
                   .variable = option.get_envname(),
                   .group = option.get_group()};
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  if (option.get_positional()) flag.names = {option.get_name(/*positional=*/true)};
  if (option.get_items_expected_max() > 0) {
    const std::string type = option.get_type_name();  // and what the checks of the value print
    flag.value = type.starts_with(kAddress) ? kAddress : type.substr(0, type.find_first_of(":{"));
    flag.choices = choices_of(type);
    if (flag.value.empty()) flag.value = "TEXT";
  }
  return flag;
}

void add(const CLI::App& app, const std::string& path, std::vector<Command>* tree) {
  Command command{.path = path, .text = app.get_description()};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    (option->get_positional() ? command.positionals : command.flags).push_back(flag_of(*option));
  }
  const std::vector<const CLI::App*> below =
      app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* one : below) {
    command.commands.emplace_back(one->get_name(), one->get_description());
  }
  tree->push_back(std::move(command));
  for (const CLI::App* one : below) {
    add(*one, path.empty() ? one->get_name() : path + " " + one->get_name(), tree);
  }
}

}  // namespace

std::vector<Command> command_tree(const CLI::App& app) {
  std::vector<Command> tree;
  add(app, "", &tree);
  return tree;
}

}  // namespace recurve
