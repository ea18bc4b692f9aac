#pragma once
#include <string>

namespace recurve {

// What was built, found when CMake configures (server/startup/version.cmake).
//
// The version: that of the nearest tag before the commit, "1.2.0", with the number of commits since
// that tag behind it, "1.2.0+3"; where the sources have no git or no tag, that of CMakeLists.txt.
extern const char* const kVersion;
// The first twelve digits of the commit; empty where the sources have no git.
extern const char* const kCommit;

// What `PROGRAM --version` prints, without a line break: "recurve-server 1.2.0 (0123456789ab)".
std::string version_line(const std::string& program);

}  // namespace recurve
