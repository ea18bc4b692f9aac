#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "server/prefix/stored_prefixes.h"

namespace recurve {

// What became of a prompt for which a state in the store might have been of use.
enum class SharedPrefixUse {
  kHit,      // it began in that state
  kAbsent,   // the store has none that is longer than what is here
  kSlower,   // to read it would take longer than to compute what it spares
  kRefused,  // what is in the store cannot be used, or cannot be read
  kLate,     // it did not come within the time that computing takes, and was computed
};

// States of prompts that several servers share: in a store that may be slow or dead, for which
// nothing waits. All functions are the engine's, and none blocks but wait().
class SharedPrefixes {
 public:
  using Key = StoredPrefixes::Key;
  virtual ~SharedPrefixes() = default;

  struct Found {
    size_t chunks = 0;   // of the prompt, that the state has absorbed; 0: there is none
    double seconds = 0;  // that reading it would take now, as far as is known
  };
  // The longest of these beginnings of a prompt that the store has, chunk by chunk.
  virtual Found longest(std::string_view tenant, std::span<const PrefixHash> hashes) = 0;
  virtual bool has(const Key& key) const = 0;
  // It answers, as far as is known; the wake of when_done() is called once it does so again.
  virtual bool is_usable() const = 0;

  struct Read {
    StateHeader header = {};
    std::string error = {};  // a sentence; empty: the image has the state
    bool absent = false;     // it is not there any more, which is no error
  };
  using OnRead = std::function<void(const Read& read)>;
  // Reads a state that fits `wanted` and has absorbed as many tokens into the image. prepare: see
  // Archive::load(). False: too much is being read.
  virtual bool read(const Key& key, const StateHeader& wanted, NewImage image,
                    std::function<void()> prepare, OnRead done) = 0;
  // Writes a state, whose image has come to be; done(): whether it was. One at a time. False: it is
  // too large.
  virtual bool write(const Key& key, StateHeader header, StateImage image,
                     std::function<void(bool written)> done) = 0;

  // Called when there is something to take, on another thread: may only post. Before the first
  // operation.
  virtual void when_done(std::function<void()> wake) = 0;
  // Calls done() of all operations that are done. False: none is.
  virtual bool take_done() = 0;
  // Returns once there is something to take, if an operation is in progress.
  virtual void wait() = 0;
};

}  // namespace recurve
