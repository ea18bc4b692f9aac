#!/usr/bin/env bash
# Gets the sources of the grammar library, of the version and checksum that xgrammar.txt names, from
# the registry that pip is set up for; or takes those that are there.
#   deploy/xgrammar.sh FOLDER
# CMake calls it. Needs Python's venv (python3-venv) where pip is not installed.
set -euo pipefail
wanted=$(dirname "$0")/xgrammar.txt
folder=$1

mkdir -p "$folder"
exec 9>"$folder.lock"
flock 9 # of several builds that want it, one gets it
made_of=$(cat "$wanted" "$0")
[ "$made_of" != "$(cat "$folder/made_of" 2>/dev/null)" ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=/usr/bin/python3
if ! "$python" -m pip --version >/dev/null 2>&1; then
  "$python" -m venv "$work/venv"
  python=$work/venv/bin/python
fi
"$python" -m pip download --quiet --disable-pip-version-check --require-hashes --no-deps \
  --no-binary xgrammar --dest "$work" --requirement "$wanted"
rm -rf "$folder" && mkdir "$folder"
tar --extract --file "$work"/xgrammar-*.tar.gz --directory "$folder" --strip-components 1 \
  --wildcards --no-wildcards-match-slash '*/LICENSE' '*/NOTICE' '*/cpp' '*/include' '*/3rdparty/picojson' \
  '*/3rdparty/dlpack/include'
# Its strings of counted length take control characters, which no string in JSON has, and no escapes, and
# a pattern has no length: both are made by xgrammar_strings.cc. A pattern has the escapes of JSON already
# (json_pattern() in regex_walk.cc). Its escapes may be half a character.
source=$folder/cpp/json_schema_converter.cc
hexadecimal='[0-9A-Fa-f]'
escape='["\\\\/bfnrt]|u([0-9A-CEFa-cef]'$hexadecimal'{3}|[Dd][0-7]'$hexadecimal'{2}|'
escape+='[Dd][89ABab]'$hexadecimal'{2}\\\\u[Dd][C-Fc-f]'$hexadecimal'{2})'
sed -i -e '/^  \/\/ Check for pattern$/,/^  \/\/ Default string$/c\
  const bool is_counted = spec.min_length != 0 || spec.max_length != -1;\
  const std::string* pattern = spec.pattern.has_value() ? \&*spec.pattern : nullptr;\
  if (is_counted \&\& (pattern != nullptr || excludes_.empty())) {\
    const int32_t behind = Sequence({any_whitespace_ ? WhitespaceExpression() : Empty(), builder_.AddCharacterClass({{\x27,\x27, \x27,\x27}, {\x27}\x27, \x27}\x27}, {\x27]\x27, \x27]\x27}, {\x27:\x27, \x27:\x27}})});\
    return Sequence({ByteString("\\""), RuleRef(counted_strings_.rule_of(\&builder_, pattern, spec.min_length, spec.max_length, {builder_.GetRuleId(kBasicStringSub), behind}))});\
  }\
  if (pattern != nullptr) return Sequence({ByteString("\\""), RegexExpression(*pattern), ByteString("\\"")});\
  if (is_counted) WarnDroppedLengthConstraints(spec, rule_name);' \
  -e 's/^      generative = "pattern";$/      generative = nullptr;/' \
  -e 's#kBasicEscape, Choice({escaped_character, unicode_escape})#kBasicEscape, RegexExpression(R"('"$escape"')")#' "$source"
sed -i -e 's/^  GrammarBuilder builder_;/&\n  recurve::CountedStrings counted_strings_;/' \
  -e 's/^#include "grammar_builder.h"/&\n#include "server\/constraint\/xgrammar\/xgrammar_strings.h"/' "${source%.cc}.h"
# In a tag JSON has white space only where its most is given.
sed -i 's#/\*any_whitespace=\*/true,#format.max_whitespace_cnt.has_value(),#' "$folder/cpp/structural_tag.cc"
[ "$(grep -c 'format.max_whitespace_cnt.has_value(),' "$folder/cpp/structural_tag.cc")" = 1 ]
# A rule that says what follows it is repeated as it is.
sed -i '/^  int32_t VisitRepeat(const GrammarExpr& grammar_expr) final {$/,/^    return HandleRepetitionRange(/s/^    return HandleRepetitionRange(/    if (base_grammar_->GetRule(ref_rule_id).lookahead_assertion_id != -1) {\n      return builder_->AddRepeat(ref_rule_id, lower, upper);\n    }\n&/' \
  "$folder/cpp/grammar_functor.cc"
[ "$(cat "$source" "${source%.cc}.h" "$folder/cpp/grammar_functor.cc" |
  grep -cE 'counted_strings_.rule_of|RegexExpression\(\*pattern\)|^      generative = nullptr;|kBasicEscape, RegexExpression|CountedStrings counted_strings_|xgrammar_strings.h|AddRepeat\(ref_rule_id, lower, upper\)')" = 7 ]
# On its way it asks whether it is to go on, and before it allocates much: xgrammar_watch.h.
look() { # FILE COUNT SED...: in front of so many lines
  local source=$folder/$1 count=$2
  shift 2
  sed -i -e '0,/^namespace [a-z]* {/s//#include "server\/constraint\/xgrammar\/xgrammar_watch.h"\n&/' "$@" "$source"
  [ "$(grep -cE 'LookAt(Work|Growth)\(' "$source")" = "$count" ]
}
look cpp/grammar_compiler.cc 5 -e 's/^\( *\)prev_token = &token;/\1LookAtWork();\n&/' \
  -e 's/^\( *\)cur_stack_element.element_id = i;/\1LookAtWork();\n&/' \
  -e 's/^\( *\)std::unordered_set<int> reachable_states;/\1LookAtWork(size_t{48} * rule_fsm->GetNodeNum());\n&/' \
  -e 's/^\( *\)auto cur_adaptive_token_mask_cache = grammar_matcher.*/&\n\1LookAtWork();/'
look cpp/earley_parser.cc 3 -e 's/^\( *\)tmp_process_state_queue_.pop();/\1LookAtWork();\n&/'
look cpp/grammar_builder.cc 2 -e 's/^  grammar_->grammar_expr_indptr_.push_back(.*/  LookAtGrowth(grammar_->grammar_expr_data_, 2 + size_t(grammar_expr.data_len));\n&/' \
  -e 's/^  grammar_->rules_.push_back(rule);/  LookAtGrowth(grammar_->rules_);\n&/'
look cpp/grammar_functor.cc 1 -e 's/^  FSMWithStartEnd result(result_fsm, start_state, .*/&\n  LookAtWork(size_t{72} * result.NumStates());/'
look cpp/fsm.cc 4 -e '0,/^    edges_.emplace_back();/s//    LookAtGrowth(edges_);\n&/' \
  -e 's/^    edges_\[from\].push_back({min, max, to});/    LookAtWork(edges_[from].size() < 64 ? 0 : 24 * edges_[from].size());\n&/' \
  -e 's/^  edges_.resize(edges_.size() + fsm.NumStates());/  LookAtGrowth(edges_, fsm.NumStates());\n&/' \
  -e 's/^  Compact2DArray<FSMEdge> edges;/  LookAtWork(size_t{32} * NumStates());\n&/'
look cpp/grammar_parser.cc 4 -e 's/^\( *\)tokens.push_back(\*token_value);/\1LookAtGrowth(tokens);\n&/' \
  -e 's/^\( *\)tokens.insert(tokens.end(), vec->begin(), vec->end());/\1LookAtGrowth(tokens, 2 * vec->size());\n&/' \
  -e 's/^\( *\)tokens.push_back($/\1LookAtGrowth(tokens);\n&/'
look cpp/json_schema_converter.cc 2 -e 's/^\( *\)std::string result = "{";/\1LookAtWork();\n&/' \
  -e 's/^  std::string cache_key = ComputeCacheKey(schema);/  LookAtWork();\n&/'
look 3rdparty/picojson/picojson.h 1 -e 's/^inline bool _parse(Context& ctx, input<Iter>& in) {/&\n  xgrammar::LookAtWork();/'
# It has the rules that it has compiled before from xgrammar_rules.cc.
source=$folder/cpp/grammar_compiler.cc
sed -i -e 's/^ *rule_fsm->GetFsm().GetReachableStates(&reachable_states);/&\n    const recurve::RuleWork rule_work(compiled_grammar_impl.get(), rule_id);\n    if (rule_work.is_done()) continue;/' \
  -e 's/^#include "xgrammar\/tokenizer_info.h"/&\n#include "server\/constraint\/xgrammar\/xgrammar_rules.h"/' "$source"
[ "$(grep -cE 'rule_work|xgrammar_rules.h' "$source")" = 3 ]
# Its masks are in the table of xgrammar_masks.cc. It is not written as JSON.
sed -i -e '/^  std::unordered_map<ParserState, AdaptiveTokenMask/,/adaptive_token_mask_cache;/c\
  recurve::MaskTable adaptive_token_mask_cache;' \
  -e '/"adaptive_token_mask_cache"/d' -e '/&CompiledGrammar::Impl::adaptive_token_mask_cache/d' \
  -e 's/\(&CompiledGrammar::Impl::tokenizer_info\),/\1/' \
  -e 's/^#include "xgrammar\/compiler.h"/&\n#include "server\/constraint\/xgrammar\/xgrammar_masks.h"/' "$folder/cpp/compiled_grammar_impl.h"
sed -i -e '/result\["adaptive_token_mask_cache"\]/d' \
  -e '/object.find("adaptive_token_mask_cache")/,/^  return std::nullopt;/c\
  return std::nullopt;' "$folder/cpp/compiled_grammar.cc"
sed -i 's/adaptive_token_mask_cache\[state\] = cur_adaptive_token_mask_cache;/adaptive_token_mask_cache.put(state.element_id, cur_adaptive_token_mask_cache);/' "$source"
sed -i -e 's/adaptive_token_mask_cache.find(state);/adaptive_token_mask_cache.find(state.element_id);/' \
  -e 's/adaptive_token_mask_it->second/*adaptive_token_mask_it/' "$folder/cpp/grammar_matcher.cc"
[ "$(cat "$folder"/cpp/{compiled_grammar_impl.h,grammar_compiler.cc,grammar_matcher.cc} |
  grep -cE 'recurve::MaskTable|xgrammar_masks.h|cache\.put\(|cache\.find\(state.element_id|\*adaptive_token_mask_it;')" = 7 ]
# A state's edges are in the list of xgrammar_edges.h.
sed -i 's/std::vector<FSMEdge>/EdgeList/g' "$folder"/cpp/{fsm,fsm_builder}.cc "$folder/cpp/fsm.h"
sed -i -e '0,/^class CompactFSM;/s//using EdgeList = recurve::EdgeList<FSMEdge>;\n&/' \
  -e 's/^#include "support\/compact_2d_array.h"/#include "server\/constraint\/xgrammar\/xgrammar_edges.h"\n&/' "$folder/cpp/fsm.h"
sed -i 's/^    edges.PushBack(edges_\[i\]);/    edges.PushBack(edges_[i].data(), static_cast<int32_t>(edges_[i].size()));/' "$folder/cpp/fsm.cc"
[ "$(cat "$folder"/cpp/fsm.{cc,h} | grep -cE 'using EdgeList|xgrammar_edges.h|PushBack\(edges_\[i\].data')" = 3 ]
# It copies no more than it needs: grammars and automata are one client's, and what one step has made is
# not needed once the next has read it.
sed -i -e 's/^  FSMWithStartEnd result(result_fsm, start_state, .*/&\n  result_fsm = FSM();/' \
  -e 's/^    Grammar result(std::make_shared<Grammar::Impl>(\*grammar.operator->()));/    Grammar result = grammar;/' \
  -e 's/^    result = RepetitionRangeExpander::Apply(result);/&\n    *const_cast<Grammar\&>(grammar).operator->() = Grammar::Impl();/' "$folder/cpp/grammar_functor.cc"
sed -i 's/^  FSMWithStartEnd result = Copy();\(.*\)/  FSMWithStartEnd result = *this;\1/' "$folder/cpp/fsm.cc"
sed -i 's/^  tokens_ = tokens;/  tokens_ = std::move(const_cast<std::vector<EBNFLexer::Token>\&>(tokens));/' "$folder/cpp/grammar_parser.cc"
[ "$(cat "$folder"/cpp/{fsm,grammar_functor,grammar_parser}.cc |
  grep -cE '^  result_fsm = FSM|Grammar result = grammar;|= Grammar::Impl\(\)|FSMWithStartEnd result = \*this;|std::move\(const_cast<std::vector<EBNFLexer')" = 5 ]
# What a matcher knows of its place is told to xgrammar_place.cc.
printf '%s\n' 'namespace xgrammar {' \
  'const EarleyParser& ParserOf(const GrammarMatcher& matcher) { return *matcher.ImplPtr(); }' \
  '}  // namespace xgrammar' >>"$folder/cpp/grammar_matcher.cc"
printf '%s' "$made_of" >"$folder/made_of" # last: only whole folders are taken
