#pragma once
#include <cstdint>
#include <vector>

namespace recurve {

// Where states of a prompt should be cached, in addition to its end and to where it diverges from
// other prompts: numbers of tokens from its start, in any order.
struct PrefixPoints {
  std::vector<int64_t> likely = {};  // other prompts probably diverge there
  std::vector<int64_t> named = {};   // requested by the client
};

// How a request uses the prefix cache.
enum class PrefixMode {
  kOff,          // not at all
  kUse,          // starts from a cached state
  kUseAndStore,  // and caches states
};

// Why a prompt did not start from a cached state.
enum class PrefixMiss {
  kNone,       // it did
  kOff,        // turned off by the request or the server
  kContinues,  // it continues a session that is not empty
  kScored,     // all of its tokens are scored, or it is streamed
  kShort,      // at most a chunk long
  kNew,        // no earlier prompt has this prefix
  kNotStored,  // an earlier one has, but no state of it was cached, or it was evicted
  kOnDisk,     // the state is on disk, possibly from an earlier run, and could not be read
};

// Index in tables of metrics and answers.
inline constexpr int index_of(PrefixMiss miss) { return static_cast<int>(miss); }

// What a prompt gained from the prefix cache.
struct PrefixUse {
  int64_t tokens = 0;  // of the prompt, absorbed by the cached state
  // Further tokens in common with earlier prompts that were absorbed again: because no state was
  // cached there (replayed), or because it was evicted or stayed on disk (lost).
  int64_t replayed = 0, lost = 0;
  PrefixMiss miss = PrefixMiss::kOff;
};

}  // namespace recurve
