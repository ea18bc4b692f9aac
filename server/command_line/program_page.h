#pragma once
#include <CLI/App.hpp>
#include <string>

namespace recurve {

// Adds the hidden flag --print-page PAGE: it prints a page that is made from the flags and commands
// of the program, and ends the parsing with CLI::Success. man: a manual page; bash, zsh, fish: a
// script that completes the program's command line. `app` must be complete when it is parsed.
void add_page_flag(CLI::App& app);

std::string man_page(const CLI::App& app);
std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);
std::string fish_completion(const CLI::App& app);

}  // namespace recurve
