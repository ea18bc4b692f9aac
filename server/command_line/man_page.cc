#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <string_view>

#include "server/command_line/command_tree.h"
#include "server/command_line/program_page.h"

namespace recurve {
namespace {

// Text in which no character has a meaning for the formatter.
std::string escaped(std::string_view text) {
  std::string out;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) out += "\\&";
    line_begins = c == '\n';
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out;
}

// Each line break of the help is one of the page.
std::string paragraph(std::string_view text) {
  std::string out = escaped(text);
  for (size_t at = 0; (at = out.find('\n', at)) != std::string::npos; at += 5) {
    out.replace(at, 1, "\n.br\n");
  }
  return out + "\n";
}

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::string value_of(const CommandFlag& flag) {
  return flag.choices.empty() ? flag.value : fmt::format("{}", fmt::join(flag.choices, "|"));
}

std::string entry(const CommandFlag& flag) {
  std::string head;
  for (const std::string& name : flag.names) {
    head += fmt::format("{}\\fB{}\\fR", head.empty() ? "" : ", ", escaped(name));
  }
  const bool positional = !flag.names.front().starts_with('-');
  if (!flag.value.empty() && !positional)
    head += fmt::format(" \\fI{}\\fR", escaped(value_of(flag)));
  std::string text = flag.text;
  if (!flag.default_value.empty()) text += "\nDefault: " + flag.default_value;
  if (!flag.variable.empty()) text += "\nEnvironment: " + flag.variable;
  return fmt::format(".TP\n{}\n{}", head, paragraph(text));
}

std::string synopsis(const std::string& program, const Command& command) {
  std::string line = fmt::format("\\fB{}{}{}\\fR [\\fIOPTIONS\\fR]", escaped(program),
                                 command.path.empty() ? "" : " ", escaped(command.path));
  for (const CommandFlag& one : command.positionals) {
    line += fmt::format(" \\fI{}\\fR", escaped(upper(one.names.front())));
  }
  if (!command.commands.empty()) line += " \\fICOMMAND\\fR";
  return line + "\n";
}

// Flags under the heading of their group.
std::string grouped(const std::vector<CommandFlag>& flags) {
  std::vector<std::string> groups;
  for (const CommandFlag& flag : flags) {
    if (std::ranges::find(groups, flag.group) == groups.end()) groups.push_back(flag.group);
  }
  std::string out;
  for (const std::string& group : groups) {
    if (groups.size() > 1) out += fmt::format(".SS {}\n", escaped(group));
    for (const CommandFlag& flag : flags) {
      if (flag.group == group) out += entry(flag);
    }
  }
  return out;
}

std::string section(const std::string& program, const Command& command) {
  std::string out = fmt::format(".SS {} {}\n{}", escaped(program), escaped(command.path),
                                paragraph(command.text));
  out += ".PP\n" + synopsis(program, command);
  for (const CommandFlag& one : command.positionals) out += entry(one);
  for (const CommandFlag& flag : command.flags) {
    if (flag.names.back() != "--help") out += entry(flag);
  }
  return out;
}

}  // namespace

std::string man_page(const CLI::App& app) {
  const std::string& program = app.get_name();
  const std::vector<Command> tree = command_tree(app);
  const Command& root = tree.front();
  const std::string title = root.text.substr(0, root.text.find_first_of(".\n"));
  std::string page =
      fmt::format(".TH {} 1 \"\" \"{}\"\n", escaped(upper(program)), escaped(app.version()));
  page += fmt::format(".SH NAME\n{} \\- {}\n", escaped(program), escaped(title));
  page += ".SH SYNOPSIS\n" + synopsis(program, root);
  page += ".SH DESCRIPTION\n" + paragraph(root.text);
  page += ".SH OPTIONS\n";
  for (const CommandFlag& one : root.positionals) page += entry(one);
  page += grouped(root.flags);
  if (tree.size() > 1) page += ".SH COMMANDS\n";
  for (const Command& command : tree) {
    if (!command.path.empty()) page += section(program, command);
  }
  if (!app.get_footer().empty()) page += ".SH NOTES\n.nf\n" + escaped(app.get_footer()) + "\n.fi\n";
  return page;
}

}  // namespace recurve
