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
# Its strings of counted length take control characters, which no string in JSON has, and no escapes: they
# are made by xgrammar_strings.cc. Its escapes may be half a character.
source=$folder/cpp/json_schema_converter.cc
hexadecimal='[0-9A-Fa-f]'
escape='["\\\\/bfnrt]|u([0-9A-CEFa-cef]'$hexadecimal'{3}|[Dd][0-7]'$hexadecimal'{2}|'
escape+='[Dd][89ABab]'$hexadecimal'{2}\\\\u[Dd][C-Fc-f]'$hexadecimal'{2})'
sed -i -e '/^ *int32_t character =$/,/^ *return Sequence(/c\
      const int32_t behind = Sequence({WhitespaceExpression(), builder_.AddCharacterClass({{\x27,\x27, \x27,\x27}, {\x27}\x27, \x27}\x27}, {\x27]\x27, \x27]\x27}, {\x27:\x27, \x27:\x27}})});\
      return Sequence({ByteString("\\""), RuleRef(counted_strings_.rule_of(&builder_, spec.min_length, spec.max_length, {builder_.GetRuleId(kBasicStringSub), behind}))});' \
  -e 's#kBasicEscape, Choice({escaped_character, unicode_escape})#kBasicEscape, RegexExpression(R"('"$escape"')")#' "$source"
sed -i -e 's/^  GrammarBuilder builder_;/&\n  recurve::CountedStrings counted_strings_;/' \
  -e 's/^#include "grammar_builder.h"/&\n#include "server\/constraint\/xgrammar\/xgrammar_strings.h"/' "${source%.cc}.h"
# A rule that says what follows it is repeated as it is.
sed -i '/^  int32_t VisitRepeat(const GrammarExpr& grammar_expr) final {$/,/^    return HandleRepetitionRange(/s/^    return HandleRepetitionRange(/    if (base_grammar_->GetRule(ref_rule_id).lookahead_assertion_id != -1) {\n      return builder_->AddRepeat(ref_rule_id, lower, upper);\n    }\n&/' \
  "$folder/cpp/grammar_functor.cc"
[ "$(cat "$source" "${source%.cc}.h" "$folder/cpp/grammar_functor.cc" |
  grep -cE 'counted_strings_.rule_of|kBasicEscape, RegexExpression|CountedStrings counted_strings_|xgrammar_strings.h|AddRepeat\(ref_rule_id, lower, upper\)')" = 5 ]
# Its compiler and its parser ask at each state and each token whether they are to go on: xgrammar_library.cc.
look() { # FILE COUNT SED...: in front of so many lines
  local source=$folder/cpp/$1 count=$2
  shift 2
  sed -i -e '0,/^namespace xgrammar {/s//namespace xgrammar {\nvoid LookAtWork();/' "$@" "$source"
  [ "$(grep -c 'LookAtWork();' "$source")" = $((count + 1)) ]
}
look grammar_compiler.cc 3 -e 's/^\( *\)prev_token = &token;/\1LookAtWork();\n&/' \
  -e 's/^\( *\)cur_stack_element.element_id = i;/\1LookAtWork();\n&/'
look earley_parser.cc 3 -e 's/^\( *\)tmp_process_state_queue_.pop();/\1LookAtWork();\n&/'
# It has the rules that it has compiled before from xgrammar_rules.cc.
source=$folder/cpp/grammar_compiler.cc
sed -i -e 's/^ *rule_fsm->GetFsm().GetReachableStates(&reachable_states);/&\n    const recurve::RuleWork rule_work(compiled_grammar_impl.get(), rule_id);\n    if (rule_work.is_done()) continue;/' \
  -e 's/^#include "xgrammar\/tokenizer_info.h"/&\n#include "server\/constraint\/xgrammar\/xgrammar_rules.h"/' "$source"
[ "$(grep -cE 'rule_work|xgrammar_rules.h' "$source")" = 3 ]
# What a matcher knows of its place is told to xgrammar_place.cc.
printf '%s\n' 'namespace xgrammar {' \
  'const EarleyParser& ParserOf(const GrammarMatcher& matcher) { return *matcher.ImplPtr(); }' \
  '}  // namespace xgrammar' >>"$folder/cpp/grammar_matcher.cc"
printf '%s' "$made_of" >"$folder/made_of" # last: only whole folders are taken
