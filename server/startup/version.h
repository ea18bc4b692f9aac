#pragma once
#include <string>

namespace recurve {

// Set when CMake configures (server/startup/version.cmake).
//
// The nearest tag before the commit, "1.2.0", followed by the number of commits since then,
// "1.2.0+3". Without git or a tag, the version of CMakeLists.txt.
extern const char* const kVersion;
// The first twelve digits of the commit; empty without git.
extern const char* const kCommit;

// What `PROGRAM --version` prints, without a line break: "recurve-server 1.2.0 (0123456789ab)".
std::string version_line(const std::string& program);

}  // namespace recurve
