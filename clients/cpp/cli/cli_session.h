#pragma once
#include <string>

#include "recurve/v1/sessions.pb.h"

namespace recurve {

// Everything about a session, a line each.
std::string session_table(const v1::Session& session);

}  // namespace recurve
