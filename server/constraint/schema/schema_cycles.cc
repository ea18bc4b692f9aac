#include <vector>

#include "server/constraint/schema/schema_merge.h"
#include "server/constraint/schema/schema_scalars.h"

namespace recurve {
namespace {

using Json = nlohmann::ordered_json;

// The definitions to which a schema, or one of its alternatives, is a reference.
std::vector<std::string> aliases_of(const Json& schema) {
  constexpr size_t kPrefix = std::string_view("#/$defs/").size();
  std::vector<std::string> names;
  std::vector<const Json*> unread = {&schema};
  while (!unread.empty()) {
    const Json& one = *unread.back();
    unread.pop_back();
    if (!one.is_object()) continue;
    if (const auto found = one.find("$ref"); found != one.end()) {
      names.push_back(found->get_ref<const std::string&>().substr(kPrefix));
    }
    if (const auto found = one.find("anyOf"); found != one.end()) {
      for (const Json& branch : *found) unread.push_back(&branch);
    }
  }
  return names;
}

// A definition on the current path, and the number of its aliases that were followed.
struct OpenDefinition {
  std::string name;
  std::vector<std::string> aliases;
  size_t next = 0;
};

}  // namespace

void refuse_cycles(const Json& definitions, const std::map<std::string, std::string>& names) {
  enum class State { kNew, kOpen, kDone };
  std::map<std::string, State> states;
  for (const auto& [pointer, first] : names) {
    std::vector<OpenDefinition> path;
    const auto follow = [&](const std::string& name) {
      State& state = states[name];
      if (state == State::kOpen) refuse_schema(pointer, "$ref", "it refers to itself");
      if (state == State::kDone) return;
      state = State::kOpen;
      path.push_back({name, aliases_of(definitions.at(name))});
    };
    follow(first);
    while (!path.empty()) {
      OpenDefinition& last = path.back();
      if (last.next < last.aliases.size()) {
        follow(std::string(last.aliases[last.next++]));
      } else {
        states[last.name] = State::kDone;
        path.pop_back();
      }
    }
  }
}

}  // namespace recurve
