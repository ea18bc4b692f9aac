#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <set>

#include "server/command_line/command_tree.h"
#include "server/command_line/program_page.h"

// The scripts find the command by the words before the cursor, without the values of flags, and
// then what may follow.
namespace recurve {
namespace {

using Words = std::vector<std::string>;

// In single quotes, for all three shells; fish also takes \ for an escape there.
std::string quoted(std::string text, bool fish = false) {
  for (size_t at = 0; (at = text.find_first_of("'\\", at)) != std::string::npos;) {
    const bool quote = text[at] == '\'';
    const std::string becomes = fish ? std::string("\\") + text[at] : quote ? "'\\''" : "\\";
    text.replace(at, 1, becomes);
    at += becomes.size();
  }
  return "'" + text + "'";
}

// The first sentence, for a list.
std::string brief(const std::string& text) {
  const std::string sentence = text.substr(0, std::min(text.find(". "), text.find('\n')));
  return sentence.substr(0, std::min(sentence.find("; "), sentence.find(" [default")));
}

std::string function_name(const CLI::App& app) {
  std::string name = "_" + app.get_name();
  std::ranges::replace(name, '-', '_');
  return name;
}

// Those of the command and of the program.
std::vector<CommandFlag> flags_of(const Command& command, const Command& root) {
  std::vector<CommandFlag> flags = command.flags;
  if (&command != &root) flags.insert(flags.end(), root.flags.begin(), root.flags.end());
  return flags;
}

Words names_of(const Command& command, const Command& root) {
  Words names;
  for (const CommandFlag& flag : flags_of(command, root)) {
    names.insert(names.end(), flag.names.begin(), flag.names.end());
  }
  std::ranges::sort(names);
  names.erase(std::ranges::unique(names).begin(), names.end());
  return names;
}

// All flags with a value.
Words value_flags(const std::vector<Command>& tree) {
  std::set<std::string> names;
  for (const Command& command : tree) {
    for (const CommandFlag& flag : command.flags) {
      if (!flag.value.empty()) names.insert(flag.names.begin(), flag.names.end());
    }
  }
  return {names.begin(), names.end()};
}

Words command_names(const Command& command) {
  Words names;
  for (const auto& [name, text] : command.commands) names.push_back(name);
  return names;
}

bool takes_file(const Command& command) {
  return std::ranges::any_of(command.positionals, &CommandFlag::takes_file);
}

// The branches of `case $command:$word` that find the command. form: of one, with its patterns,
// which `separator` stands between, and what stands before the word in the new command.
std::string command_cases(const std::vector<Command>& tree, const char* form,
                          const char* separator = "|") {
  std::string out;
  for (const Command& command : tree) {
    Words patterns;
    for (const auto& [name, text] : command.commands) {
      patterns.push_back(quoted(command.path + ":" + name));
    }
    if (patterns.empty()) continue;
    const std::string joined = fmt::format("{}", fmt::join(patterns, separator));
    out += fmt::format(fmt::runtime(form), joined, command.path.empty() ? "" : "$command ");
  }
  return out;
}

// The branches of `case $command:$previous`, for values of flags.
std::string value_cases(const std::vector<Command>& tree,
                        const std::function<std::string(const Words&)>& assignment) {
  std::map<std::string, Words> patterns;  // by what the branch does
  for (const Command& command : tree) {
    for (const CommandFlag& flag : command.flags) {
      if (flag.value.empty()) continue;
      const std::string what = !flag.choices.empty() ? assignment(flag.choices)
                               : flag.takes_file()   ? "kind=files"
                                                     : "kind=none";
      for (const std::string& name : flag.names) {
        // Those of the program are flags of every command.
        const std::string prefix = command.path.empty() ? "*:" : quoted(command.path) + ":";
        patterns[what].push_back(prefix + name);
      }
    }
  }
  std::string out;
  for (const auto& [what, names] : patterns) {
    out += fmt::format("    {}) {} ;;\n", fmt::join(names, "|"), what);
  }
  return out;
}

}  // namespace

std::string bash_completion(const CLI::App& app) {
  const std::vector<Command> tree = command_tree(app);
  std::string words;
  for (const Command& command : tree) {
    words += fmt::format("    {}) flags='{}' commands='{}' files={} ;;\n", quoted(command.path),
                         fmt::join(names_of(command, tree.front()), " "),
                         fmt::join(command_names(command), " "), takes_file(command) ? "1" : "");
  }
  const auto choices = [](const Words& values) {
    return fmt::format("kind=values values='{}'", fmt::join(values, " "));
  };
  return fmt::format(
      R"(# Completes {program} in bash.
{function}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}}
  local command= flags= commands= files= kind= values= i
  COMPREPLY=()
  if [[ $word == = ]]; then
    word=
  elif [[ $previous == = ]]; then
    previous=${{COMP_WORDS[COMP_CWORD - 2]}}
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${{COMP_WORDS[i]}} in
      {value_flags})
        [[ ${{COMP_WORDS[i + 1]}} != = ]] || ((++i))
        ((++i))
        continue
        ;;
    esac
    case $command:${{COMP_WORDS[i]}} in
{command_cases}    esac
  done
  case $command in
{words}  esac
  case $command:$previous in
{value_cases}  esac
  case $kind in
    none) return ;;
    values) ;;
    files) ;;
    *)
      case $word in
        -*) values=$flags ;;
        *) values=$commands kind=${{files:+files}} ;;
      esac
      ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
  if [[ $kind == files ]]; then
    compopt -o filenames
    mapfile -t -O "${{#COMPREPLY[@]}}" COMPREPLY < <(compgen -f -- "$word")
  fi
}}
complete -F {function} {program}
)",
      fmt::arg("program", app.get_name()), fmt::arg("function", function_name(app)),
      fmt::arg("value_flags", fmt::join(value_flags(tree), "|")),
      fmt::arg("command_cases",
               command_cases(tree, "      {}) command=\"{}${{COMP_WORDS[i]}}\" ;;\n")),
      fmt::arg("words", words), fmt::arg("value_cases", value_cases(tree, choices)));
}

std::string zsh_completion(const CLI::App& app) {
  const std::vector<Command> tree = command_tree(app);
  const auto described = [](const std::string& name, const std::string& text) {
    return quoted(name + ":" + brief(text)) + " ";
  };
  std::string words;
  for (const Command& command : tree) {
    std::string flags, commands;
    for (const CommandFlag& flag : flags_of(command, tree.front())) {
      for (const std::string& name : flag.names) flags += described(name, flag.text);
    }
    for (const auto& [name, text] : command.commands) commands += described(name, text);
    words += fmt::format("    ({}) flags=({}) commands=({}) files={} ;;\n", quoted(command.path),
                         flags, commands, takes_file(command) ? "1" : "");
  }
  const auto choices = [](const Words& values) {
    return fmt::format("kind=values values=({})", fmt::join(values, " "));
  };
  return fmt::format(
      R"(#compdef {program}
{function}() {{
  local command= files= kind= previous=${{words[CURRENT - 1]}} i
  local -a flags commands values
  compset -P '--*=' && previous=${{IPREFIX%=}}
  for ((i = 2; i < CURRENT; ++i)); do
    case ${{words[i]}} in
      {value_flags}) ((++i)); continue ;;
    esac
    case $command:${{words[i]}} in
{command_cases}    esac
  done
  case $command in
{words}  esac
  case $command:$previous in
{value_cases}  esac
  case $kind in
    none) _message value ;;
    values) compadd -- $values ;;
    files) _files ;;
    *)
      if [[ $PREFIX == -* ]]; then
        _describe -o flag flags
      else
        (( $#commands )) && _describe command commands
        [[ -z $files ]] || _files
      fi
      ;;
  esac
}}
if [[ $funcstack[1] == {autoloaded} ]]; then
  {function} "$@"
else
  compdef {function} {program}
fi
)",
      fmt::arg("program", app.get_name()), fmt::arg("function", function_name(app) + "_words"),
      fmt::arg("autoloaded", "_" + app.get_name()),
      fmt::arg("value_flags", fmt::join(value_flags(tree), "|")),
      fmt::arg("command_cases", command_cases(tree, "      {}) command=\"{}${{words[i]}}\" ;;\n")),
      fmt::arg("words", words), fmt::arg("value_cases", value_cases(tree, choices)));
}

std::string fish_completion(const CLI::App& app) {
  const std::vector<Command> tree = command_tree(app);
  const std::string program = app.get_name(), at = "_" + function_name(app) + "_at";
  std::string lines;
  for (const Command& command : tree) {
    // The program's flags are those of every command.
    const std::string where =
        fmt::format("complete -c {} -n \"{} '{}'\"", program, at, command.path);
    for (const auto& [name, text] : command.commands) {
      lines += fmt::format("{} -f -a {} -d {}\n", where, name, quoted(brief(text), true));
    }
    if (takes_file(command)) lines += where + " -F\n";
    for (const CommandFlag& flag : command.flags) {
      lines += command.path.empty() ? "complete -c " + program : where;
      for (const std::string& name : flag.names) {
        lines += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (!flag.choices.empty()) {
        lines += fmt::format(" -x -a '{}'", fmt::join(flag.choices, " "));
      } else if (!flag.value.empty()) {
        lines += flag.takes_file() ? " -r -F" : " -x";
      }
      lines += fmt::format(" -d {}\n", quoted(brief(flag.text), true));
    }
  }
  return fmt::format(
      R"(# Completes {program} in fish.
function {at}
    set -l command
    set -l value 0
    for word in (commandline -opc)[2..]
        if test $value = 1
            set value 0
            continue
        end
        switch $word
            case {value_flags}
                set value 1
                continue
        end
        switch "$command:$word"
{command_cases}        end
    end
    test "$command" = "$argv"
end
complete -c {program} -f
{lines})",
      fmt::arg("program", program), fmt::arg("at", at),
      fmt::arg("value_flags", fmt::join(value_flags(tree), " ")),
      fmt::arg("command_cases",
               command_cases(tree, "            case {}\n                set command \"{}$word\"\n",
                             " ")),
      fmt::arg("lines", lines));
}

void add_page_flag(CLI::App& app) {
  using Page = std::string (*)(const CLI::App&);
  static const std::map<std::string, Page> kPages = {{"man", man_page},
                                                     {"bash", bash_completion},
                                                     {"zsh", zsh_completion},
                                                     {"fish", fish_completion}};
  app.add_option_function<std::string>("--print-page",
                                       [&app](const std::string& name) {
                                         std::fputs(kPages.at(name)(app).c_str(), stdout);
                                         throw CLI::Success();
                                       })
      ->check(CLI::IsMember({"man", "bash", "zsh", "fish"}))
      ->group("");
}

}  // namespace recurve
