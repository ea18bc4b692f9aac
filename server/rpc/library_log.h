#pragma once

namespace recurve {

// gRPC and protobuf write to standard error themselves, and wait for whoever reads it: from now on
// what they say goes to the log, as events library_message. At any time, as often as wanted.
void log_what_libraries_say();

}  // namespace recurve
