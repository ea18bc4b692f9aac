#pragma once
#include <xgrammar/xgrammar.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace recurve {

// A cache of the masks that the library computes for the rules of grammars, which is most of the
// work of compiling, for all grammars with the same rule, in fair shares of their clients. The
// library has such a cache, but identifies rules by 32 bits of a hash that can be forged; here
// rules are compared in full. Any thread.
class RuleMasks {
 public:
  // Most bytes of memory; 0: stores nothing.
  explicit RuleMasks(size_t most_bytes);
  ~RuleMasks();

  size_t bytes() const;

  // While it exists, compilations on the calling thread use the cache, and add rules for this
  // client.
  class Use {
   public:
    Use(RuleMasks* masks, uint64_t client);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
  };

 private:
  friend class RuleWork;
  struct Cache;
  const std::unique_ptr<Cache> cache_;
};

// The compilation of one rule: deploy/xgrammar.sh patches the library's compiler to create one for
// each.
class RuleWork {
 public:
  RuleWork(xgrammar::CompiledGrammar::Impl* compiled, int32_t rule);
  // Stores the masks of the rule, unless an exception is thrown.
  ~RuleWork();
  RuleWork(const RuleWork&) = delete;
  RuleWork& operator=(const RuleWork&) = delete;

  // Whether the masks were cached, and have been set.
  bool is_done() const { return is_done_; }

 private:
  void store() const;

  xgrammar::CompiledGrammar::Impl* const compiled_;
  const int32_t rule_;
  std::string text_;             // of the rule; empty: it is not cached
  std::vector<int32_t> states_;  // of the rule, in the order of the text
  int exceptions_;
  bool is_done_ = false;
};

}  // namespace recurve
