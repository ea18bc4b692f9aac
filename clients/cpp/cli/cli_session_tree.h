#pragma once
#include <string>
#include <vector>

#include "recurve/v1/sessions.pb.h"

namespace recurve {

// The session of that name, the sessions that it was forked from, and all their forks, with their
// marks: a line each, indented below the session that it was forked from.
std::string session_tree(const std::vector<v1::Session>& sessions, const std::string& name);

}  // namespace recurve
