#include "server/constraint/xgrammar/xgrammar_rules.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "compiled_grammar_impl.h"
#include "grammar_impl.h"
#include "server/constraint/fair_cache.h"
#include "server/constraint/xgrammar/xgrammar_masks.h"
#include "server/constraint/xgrammar/xgrammar_strings.h"

namespace recurve {
namespace {

using Grammar = xgrammar::Grammar::Impl;
using ExprType = Grammar::GrammarExprType;

// Everything on which the masks of a rule's states depend: the rule and all rules that it uses,
// with their automata, its lookahead, and whether it is the root. Rules and states are numbered in
// the order in which they are found.
class RuleText {
 public:
  RuleText(const Grammar& grammar, int32_t rule) : grammar_(grammar) {
    const Grammar::Rule& first = grammar.GetRule(rule);
    number_of(rule);
    put(rule == grammar.GetRootRuleId());
    put(first.is_exact_lookahead);
    put_lookahead(first.lookahead_assertion_id);
    for (size_t next = 0; next < rules_.size() && is_cacheable_; ++next) put_rule(rules_[next]);
  }

  // Empty if it is too long, or uses features that are not handled here.
  std::string bytes() const {
    if (!is_cacheable_) return "";
    return std::string(reinterpret_cast<const char*>(words_.data()),
                       words_.size() * sizeof(int32_t));
  }
  // The states of the rule itself.
  std::vector<int32_t> states() && { return std::move(states_); }

 private:
  static constexpr size_t kMostWords = 16384;

  void put(int32_t word) {
    words_.push_back(word);
    is_cacheable_ = is_cacheable_ && words_.size() <= kMostWords;
  }
  int32_t number_of(int32_t rule) {
    const auto [found, is_new] = numbers_.try_emplace(rule, static_cast<int32_t>(rules_.size()));
    if (is_new) rules_.push_back(rule);
    return found->second;
  }

  void put_rule(int32_t id) {
    const Grammar::Rule& rule = grammar_.GetRule(id);
    const ExprType body = grammar_.GetGrammarExpr(rule.body_expr_id).type;
    if (rule.max_tokens >= 0 || rule.max_chars >= 0 || rule.is_lazy || rule.temperature ||
        !rule.capture_name.empty() || grammar_.GetSuffixStopInfo(id) != nullptr ||
        body == ExprType::kTagDispatch || body == ExprType::kTokenTagDispatch ||
        !grammar_.per_rule_fsms[id].has_value()) {
      is_cacheable_ = false;
      return;
    }
    const auto& empty = grammar_.allow_empty_rule_ids;
    put(std::binary_search(empty.begin(), empty.end(), id));
    std::vector<int32_t> states = put_automaton(grammar_.per_rule_fsms[id]->GetFsm());
    if (states_.empty()) states_ = std::move(states);
  }

  std::vector<int32_t> put_automaton(const xgrammar::CompactFSMWithStartEnd& automaton) {
    std::vector<int32_t> states;
    std::unordered_map<int32_t, int32_t> numbers;
    const auto number_of_state = [&](int32_t state) {
      const auto [found, is_new] = numbers.try_emplace(state, static_cast<int32_t>(states.size()));
      if (is_new) states.push_back(state);
      return found->second;
    };
    number_of_state(automaton.GetStart());
    for (size_t next = 0; next < states.size() && is_cacheable_; ++next) {
      const int32_t state = states[next];
      const auto edges = automaton.GetFsm().GetEdges(state);
      put(automaton.IsEndState(state));
      put(static_cast<int32_t>(edges.size()));
      for (const auto& edge : edges) {
        put(edge.min);
        put_label(edge);
        put(number_of_state(edge.target));
      }
    }
    return states;
  }

  void put_label(const xgrammar::FSMEdge& edge) {
    if (edge.IsRuleRef()) {
      put(number_of(edge.GetRefRuleId()));
    } else if (edge.IsRepeatRef()) {
      const auto repeat = grammar_.complete_fsm.GetRepeatEdgeInfo(edge.GetAuxIndex());
      put(number_of(repeat.RuleId()));
      put(repeat.Lower());
      put(repeat.Upper());
    } else if (edge.IsToken() || edge.IsExcludeToken()) {
      is_cacheable_ = false;
    } else {
      put(edge.max);
    }
  }

  // The lookahead of the rule; -1: none.
  void put_lookahead(int32_t id) {
    if (id == -1) return put(-1);
    const Grammar::GrammarExpr expr = grammar_.GetGrammarExpr(id);
    put(static_cast<int32_t>(expr.type));
    put(expr.size());
    switch (expr.type) {
      case ExprType::kByteString:
      case ExprType::kCharacterClass:
      case ExprType::kCharacterClassStar:
      case ExprType::kEmptyStr:
        for (const int32_t word : expr) put(word);
        return;
      case ExprType::kRuleRef:
        return put(number_of(expr[0]));
      case ExprType::kRepeat:
        put(number_of(expr[0]));
        put(expr[1]);
        return put(expr[2]);
      case ExprType::kSequence:
      case ExprType::kChoices:
        for (const int32_t part : expr) put_lookahead(part);
        return;
      default:
        is_cacheable_ = false;
    }
  }

  const Grammar& grammar_;
  std::unordered_map<int32_t, int32_t> numbers_;
  std::vector<int32_t> rules_, words_, states_;
  bool is_cacheable_ = true;
};

// The cache and the client of the calling thread.
thread_local RuleMasks* used = nullptr;
thread_local uint64_t used_for = 0;

}  // namespace

struct RuleMasks::Cache {
  explicit Cache(size_t most_bytes) : masks(most_bytes) {}
  mutable std::mutex mutex;
  // By the text of the rule; each table by the number of the state.
  FairCache<std::string, std::shared_ptr<const MaskTable>> masks;
};

RuleMasks::RuleMasks(size_t most_bytes) : cache_(std::make_unique<Cache>(most_bytes)) {}
RuleMasks::~RuleMasks() = default;

size_t RuleMasks::bytes() const {
  const std::lock_guard<std::mutex> lock(cache_->mutex);
  return cache_->masks.bytes();
}

RuleMasks::Use::Use(RuleMasks* masks, uint64_t client) {
  used = masks;
  used_for = client;
}
RuleMasks::Use::~Use() { used = nullptr; }

RuleWork::RuleWork(xgrammar::CompiledGrammar::Impl* compiled, int32_t rule)
    : compiled_(compiled), rule_(rule), exceptions_(std::uncaught_exceptions()) {
  if (used == nullptr || used->cache_->masks.most_bytes() == 0) return;
  const Grammar& grammar = *compiled->grammar.ImplPtr();
  // Their texts together would have the square of their number.
  if (grammar.GetRule(rule).name.rfind(kCountedPatternRule, 0) == 0) return;
  RuleText text(grammar, rule);
  text_ = text.bytes();
  states_ = std::move(text).states();
  if (text_.empty()) return;
  std::shared_ptr<const MaskTable> masks;
  {
    RuleMasks::Cache& cache = *used->cache_;
    const std::lock_guard<std::mutex> lock(cache.mutex);
    const auto* const found = cache.masks.find(text_, used_for);
    if (found == nullptr) return;
    masks = *found;
  }
  for (size_t number = 0; number < states_.size(); ++number) {
    compiled->adaptive_token_mask_cache.put(states_[number], *masks, static_cast<int32_t>(number));
  }
  is_done_ = true;
}

RuleWork::~RuleWork() {
  if (is_done_ || text_.empty() || std::uncaught_exceptions() > exceptions_) return;
  try {
    store();
  } catch (const std::bad_alloc&) {  // then it is not cached
  }
}

void RuleWork::store() const {
  constexpr size_t kOverhead = 512;  // other memory of an entry, about
  auto masks = std::make_shared<MaskTable>();
  for (size_t number = 0; number < states_.size(); ++number) {
    masks->put(static_cast<int32_t>(number), compiled_->adaptive_token_mask_cache, states_[number]);
  }
  const size_t bytes = text_.size() + masks->bytes() + kOverhead;
  RuleMasks::Cache& cache = *used->cache_;
  const std::lock_guard<std::mutex> lock(cache.mutex);
  cache.masks.put(text_, std::move(masks), bytes, used_for);
}

}  // namespace recurve
