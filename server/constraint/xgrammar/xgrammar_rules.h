#pragma once
#include <xgrammar/xgrammar.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace recurve {

// What the library works out of a grammar's rules for a vocabulary, which is most of what compiling
// takes, kept for whatever grammar has the same rule: as much as fits, in fair shares of the
// clients whose grammars they were. The library has such a thing too, and knows rules by 32 bits of
// a hash that anyone can meet; these are known by all that they say. Any thread.
class RuleMasks {
 public:
  // Of memory in all; 0: keeps nothing.
  explicit RuleMasks(size_t most_bytes);
  ~RuleMasks();

  size_t bytes() const;

  // What the calling thread compiles while one lives has its rules from there, and leaves them
  // there for this client.
  class Use {
   public:
    Use(RuleMasks* masks, uint64_t client);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
  };

 private:
  friend class RuleWork;
  struct Kept;
  const std::unique_ptr<Kept> kept_;
};

// The work on one rule: deploy/xgrammar.sh has the library's compiler begin each with it.
class RuleWork {
 public:
  RuleWork(xgrammar::CompiledGrammar::Impl* compiled, int32_t rule);
  // What has been worked out by now is all of it, unless something is thrown.
  ~RuleWork();
  RuleWork(const RuleWork&) = delete;
  RuleWork& operator=(const RuleWork&) = delete;

  // It was known, and is in its place.
  bool is_done() const { return is_done_; }

 private:
  void keep() const;

  xgrammar::CompiledGrammar::Impl* const compiled_;
  const int32_t rule_;
  std::string text_;             // of the rule; empty: it is not to be kept
  std::vector<int32_t> states_;  // of the rule, as the text numbers them
  int exceptions_;
  bool is_done_ = false;
};

}  // namespace recurve
