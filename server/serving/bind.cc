#include "server/serving/bind.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <ranges>

#include "server/serving/access.h"
#include "server/serving/validate.h"
#include "server/text/cut.h"

namespace recurve {
namespace {

// Initial states or adapters.
template <typename Bound>
using All = std::vector<std::shared_ptr<const Bound>>;

bool sees(const ModelText& model, const Identity& caller, const InitialState& state) {
  return model.access == nullptr ||
         model.access->sees(caller, &BoundNames::initial_states, state.id.name);
}

bool sees(const ModelText& model, const Identity& caller, const BoundAdapter& adapter) {
  return model.access == nullptr ||
         model.access->sees(caller, &BoundNames::adapters, adapter.id.name);
}

// A view, which the arguments outlive.
template <typename Bound>
auto visible(const ModelText& model, const Identity& caller, const All<Bound>& all) {
  return std::views::filter(all, [&](const auto& one) { return sees(model, caller, *one); });
}

template <typename Bound>
All<Bound> list_visible(const ModelText& model, const Identity& caller, const All<Bound>& all) {
  auto seen = visible(model, caller, all);
  return {seen.begin(), seen.end()};
}

template <typename Bound>
Refused find(const ModelText& model, const Identity& caller, const char* field,
             std::string_view name, const All<Bound>& all, std::shared_ptr<const Bound>* found) {
  found->reset();
  if (name.empty()) return {};
  std::string names;
  for (const auto& one : visible(model, caller, all)) {
    if (one->id.name == name) {
      *found = one;
      return {};
    }
    add_quoted(one->id.name, &names);
  }
  return Refusal{.reason = EndReason::kNotFound,
                 .message = fmt::format("unknown {} \"{}\": this model has {}", field, cut(name),
                                        names.empty() ? "none" : names),
                 .field = field};
}

// The adapter of a state that is imported: the one that the command names, or the one with the
// state's files, under whatever name this server has it.
Refused bind_imported(const ModelText& model, const SessionCommand& command, Binding* found) {
  if (Refused refused = bind_named(model, command.caller, command.chosen, found)) return refused;
  const BoundId& wanted = command.state->adapter;
  if (found->adapter != nullptr) {
    if (found->adapter->id.digest == wanted.digest) return {};
    return invalid(
        "adapter", "adapter is \"{}\", but the state was computed {}: leave it out",
        found->adapter->id.name,
        wanted.name.empty() ? "without one" : fmt::format("with \"{}\"", cut(wanted.name)));
  }
  if (wanted.name.empty()) return {};
  for (const auto& one : visible(model, command.caller, model.adapters)) {
    if (one->id.digest != wanted.digest) continue;
    found->adapter = one;
    return {};
  }
  return refuse(EndReason::kOtherModel,
                fmt::format("the state was computed with the adapter \"{}\", which this server "
                            "does not have: start it with --adapter {}=DIR",
                            cut(wanted.name), cut(wanted.name)));
}

}  // namespace

std::vector<InitialStatePtr> visible_initial_states(const ModelText& model,
                                                    const Identity& caller) {
  return list_visible(model, caller, model.initial_states);
}

std::vector<BoundAdapterPtr> visible_adapters(const ModelText& model, const Identity& caller) {
  return list_visible(model, caller, model.adapters);
}

bool sees_adapter(const ModelText& model, const Identity& caller, std::string_view name) {
  return std::ranges::any_of(model.adapters, [&](const auto& one) {
    return one->id.name == name && sees(model, caller, *one);
  });
}

Refused choose_adapter(const FoundModel& found, BindingNames* chosen) {
  if (found.adapter.empty() || chosen->adapter == found.adapter) return {};
  if (!chosen->adapter.empty()) {
    return invalid("adapter",
                   "adapter is \"{}\", but the model is the adapter \"{}\": leave it out",
                   cut(chosen->adapter), found.adapter);
  }
  chosen->adapter = found.adapter;
  return {};
}

Refused bind_named(const ModelText& model, const Identity& caller, const BindingNames& chosen,
                   Binding* found) {
  Refused refused = find(model, caller, "initial_state", chosen.initial_state, model.initial_states,
                         &found->initial_state);
  if (refused) return refused;
  return find(model, caller, "adapter", chosen.adapter, model.adapters, &found->adapter);
}

Refused bind_new(const ModelText& model, const Identity& caller, const BindingNames& chosen,
                 Binding* found) {
  if (Refused refused = bind_named(model, caller, chosen, found)) return refused;
  if (found->initial_state == nullptr) return {};
  const BoundId& wanted = found->initial_state->state->adapter;
  const bool same = found->adapter != nullptr && found->adapter->id.digest == wanted.digest;
  if (wanted.name.empty() || same) return {};
  return invalid("adapter",
                 "adapter must be that with which the initial_state \"{}\" was computed, \"{}\"",
                 chosen.initial_state, wanted.name);
}

Refused bind(const ModelText& model, SessionCommand* command) {
  if (command->kind == SessionCommand::Kind::kImport) {
    return bind_imported(model, *command, &command->binding);
  }
  return bind_new(model, command->caller, command->chosen, &command->binding);
}

}  // namespace recurve
