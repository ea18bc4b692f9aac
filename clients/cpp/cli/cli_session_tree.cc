#include "clients/cpp/cli/cli_session_tree.h"

#include <fmt/format.h>

#include <map>
#include <set>

namespace recurve {

std::string session_tree(const std::vector<v1::Session>& sessions, const std::string& name) {
  std::map<std::string, const v1::Session*> by_name;
  std::multimap<std::string, const v1::Session*> forks;
  for (const v1::Session& session : sessions) {
    by_name[session.name()] = &session;
    if (!session.parent().empty()) forks.emplace(session.parent(), &session);
  }
  const auto first = by_name.find(name);
  if (first == by_name.end()) return {};
  // A name may have been used again, so parents may form a circle.
  std::set<std::string> above = {name};
  const v1::Session* root = first->second;
  for (auto parent = by_name.find(root->parent());
       parent != by_name.end() && above.insert(parent->first).second;
       parent = by_name.find(root->parent())) {
    root = parent->second;
  }
  std::string text;
  std::set<std::string> seen;
  std::vector<std::pair<const v1::Session*, size_t>> rest = {{root, 0}};
  while (!rest.empty()) {
    const auto [session, depth] = rest.back();
    rest.pop_back();
    if (!seen.insert(session->name()).second) continue;
    text += fmt::format("{:{}}{} at {} tokens{}\n", "", 2 * depth, session->name(),
                        session->position(), session->name() == name ? " (this chat)" : "");
    for (const auto& mark : session->marks()) {
      text += fmt::format("{:{}}mark {} at {} tokens\n", "", 2 * depth + 2, mark.name(),
                          mark.position());
    }
    const auto [begin, end] = forks.equal_range(session->name());
    for (auto fork = std::make_reverse_iterator(end); fork != std::make_reverse_iterator(begin);
         ++fork) {
      rest.emplace_back(fork->second, depth + 1);
    }
  }
  return text;
}

}  // namespace recurve
