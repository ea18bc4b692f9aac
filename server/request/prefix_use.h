#pragma once
#include <cstdint>
#include <vector>

namespace recurve {

// Where states of a prompt should be kept in addition to its end and to where it parts from others:
// so many tokens from its first one on, in any order.
struct PrefixPoints {
  std::vector<int64_t> likely = {};  // other prompts part there, as likely as not
  std::vector<int64_t> named = {};   // the client wants one there
};

// What a request wants of the states that other prompts have left.
enum class PrefixMode {
  kOff,          // neither
  kUse,          // to begin with one
  kUseAndStore,  // and to leave some
};

// Why a prompt began with no such state.
enum class PrefixMiss {
  kNone,       // it began with one
  kOff,        // the request did not want it, or the server keeps none
  kContinues,  // it goes on from a session that has absorbed something
  kScored,  // the log-probabilities of all its tokens are wanted, or it is sent while it is scored
  kShort,   // it is no longer than a chunk
  kNew,     // no prompt has begun as it does
  kNotStored,  // one has, and its state was not kept, or had to make room for others
  kOnDisk,  // its state is on the disk, perhaps of a server before, and could not be had from there
};

// What metrics and answers call it.
inline constexpr int index_of(PrefixMiss miss) { return static_cast<int>(miss); }

// What a prompt was spared.
struct PrefixUse {
  int64_t tokens = 0;  // of the prompt, that the state it began with had absorbed
  // Further ones that prompts had begun with before, and that were absorbed anew all the same: as
  // no state was kept of them, or as the one that was has made room since, or stayed on the disk.
  int64_t replayed = 0, lost = 0;
  PrefixMiss miss = PrefixMiss::kOff;
};

}  // namespace recurve
