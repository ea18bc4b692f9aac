#pragma once
#include <CLI/App.hpp>
#include <string>
#include <utility>
#include <vector>

namespace recurve {

// What a command line may have, read from the parser.
struct CommandFlag {
  std::vector<std::string> names;    // "-n", "--max-tokens"
  std::string text;                  // of the help
  std::string value;                 // the name of its value's type, "INT"; empty: it has no value
  std::vector<std::string> choices;  // of the value; empty: any
  std::string default_value;         // empty: none, or the text has it
  std::string variable;              // of the environment; empty: none
  std::string group;
  bool takes_file() const { return value == "FILE" || value == "PATH" || value == "DIR"; }
};

struct Command {
  std::string path;  // "session open"; empty: the program
  std::string text;
  std::vector<CommandFlag> positionals;
  std::vector<CommandFlag> flags;  // without those of the program, which every command takes
  std::vector<std::pair<std::string, std::string>> commands;  // name and text of those below it
};

// The program and all its commands, each before those below it; without what the help hides.
std::vector<Command> command_tree(const CLI::App& app);

}  // namespace recurve
