#pragma once

namespace recurve {

// What of a session is there after the server ends, however it ends: nothing, or all that was
// acknowledged. What several replicas keep will be a third.
enum class Durability { kNone, kLocal };

}  // namespace recurve
