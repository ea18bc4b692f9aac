#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "server/identity/identity.h"
#include "server/request/binding.h"
#include "server/request/refusal.h"
#include "server/request/session_command.h"

namespace recurve {

struct FoundModel;
struct ModelText;

// Initial states and adapters of a model, which requests and sessions choose by their names. Those
// that the caller may not see, by the keys file, are as unknown as those that do not exist.

std::vector<InitialStatePtr> visible_initial_states(const ModelText& model, const Identity& caller);
std::vector<BoundAdapterPtr> visible_adapters(const ModelText& model, const Identity& caller);
bool sees_adapter(const ModelText& model, const Identity& caller, std::string_view name);

// The adapter that a message names in place of a model is that of the request. Refuses another one
// in its field.
Refused choose_adapter(const FoundModel& found, BindingNames* chosen);

// What has these names; null where there is none. Refuses an unknown name with those there are.
Refused bind_named(const ModelText& model, const Identity& caller, const BindingNames& chosen,
                   Binding* found);
// The same of a request or session that begins with it: refuses an initial state that was computed
// with another adapter.
Refused bind_new(const ModelText& model, const Identity& caller, const BindingNames& chosen,
                 Binding* found);
// Of a session that is opened, or imported: its state says with which adapter it was computed.
Refused bind(const ModelText& model, SessionCommand* command);

}  // namespace recurve
