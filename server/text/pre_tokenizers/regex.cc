#define PCRE2_CODE_UNIT_WIDTH 8
#include "server/text/pre_tokenizers/regex.h"

#include <fmt/core.h>
#include <pcre2.h>

#include <algorithm>

#include "server/text/json/json_fields.h"
#include "server/text/pre_tokenizers/oniguruma.h"
#include "server/text/unsupported.h"
#include "server/text/utf8.h"
#include "server/text/work_limits.h"

namespace recurve {
namespace {

constexpr size_t kMaxPatternBytes = 16 * 1024;
constexpr uint32_t kMatchLimit =
    20'000'000;  // steps of backtracking in one match: 16 MB of white space take one a byte
constexpr uint32_t kHeapLimitKiB = 64 * 1024;
constexpr size_t kSearchWindow = 1 << 20;  // bytes that are searched at once, to begin with
constexpr size_t kJitStack = 1 << 20;      // bytes at most; a match of 16 MB takes some 50 KB

template <auto free>
struct Deleter {
  template <class T>
  void operator()(T* p) const {
    free(p);
  }
};
using CompileContext = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>>;

pcre2_code* compile(std::string_view pattern, std::string_view original) {
  // Ruby's ^ and $ are always those of a line; a newline is "\n" alone.
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_max_pattern_length(context.get(), kMaxPatternBytes);
  int error = 0;
  size_t offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   kOptions, &error, &offset, context.get());
  if (code == nullptr) {
    unsigned char reason[256] = {};
    pcre2_get_error_message(error, reason, sizeof reason);
    throw UnsupportedTokenizer(fmt::format("the regular expression {} does not compile: {}",
                                           quote(original), reinterpret_cast<const char*>(reason)));
  }
  // If this fails, the interpreter does the same, slower.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  return code;
}

// What matching works in. One a thread, so that Regex stays constant, and a search of a short text
// does not begin with allocations.
struct Scratch {
  MatchContext context{pcre2_match_context_create(nullptr)};
  MatchData data{pcre2_match_data_create(1, nullptr)};
  JitStack stack{pcre2_jit_stack_create(32 << 10, kJitStack, nullptr)};
};

const Scratch& this_thread_scratch() {
  static thread_local const Scratch scratch = [] {
    Scratch made;
    if (!made.context || !made.data || !made.stack) throw std::bad_alloc();
    pcre2_jit_stack_assign(made.context.get(), nullptr, made.stack.get());
    pcre2_set_match_limit(made.context.get(), kMatchLimit);
    pcre2_set_heap_limit(made.context.get(), kHeapLimitKiB);
    return made;
  }();
  return scratch;
}

[[noreturn]] void give_up(std::string_view pattern, int result) {
  unsigned char reason[256] = {};
  pcre2_get_error_message(result, reason, sizeof reason);
  throw TextRefused(fmt::format("the tokenizer's pattern {} cannot cut the text: {}",
                                quote(pattern), reinterpret_cast<const char*>(reason)));
}

// From within a match: a result below 0 ends it.
int end_if_unwanted(pcre2_callout_block*, void* limits) {
  const auto* unwanted = static_cast<const WorkLimits*>(limits)->unwanted;
  const bool ends = unwanted != nullptr && unwanted->load(std::memory_order_relaxed);
  return ends ? PCRE2_ERROR_CALLOUT : 0;
}

// Matches in the part of a text that is looked at.
class Matcher {
 public:
  // `more`: text may follow. A search then ends in PCRE2_ERROR_PARTIAL wherever it would have to
  // know it (pcre2partial(3), PCRE2_PARTIAL_HARD). `limits`: of code that calls out, else null.
  Matcher(const pcre2_code* code, std::string_view text, bool more, const WorkLimits* limits)
      : code_(code),
        text_(text),
        options_(PCRE2_NO_UTF_CHECK | (more ? PCRE2_PARTIAL_HARD : 0)),
        scratch_(this_thread_scratch()),
        match_(pcre2_get_ovector_pointer(scratch_.data.get())) {
    size_t machine_code = 0;
    pcre2_pattern_info(code, PCRE2_INFO_JITSIZE, &machine_code);
    run_ = machine_code > 0 ? pcre2_jit_match : pcre2_match;
    if (limits == nullptr) return;
    pcre2_set_callout(scratch_.context.get(), end_if_unwanted, const_cast<WorkLimits*>(limits));
  }

  // PCRE2's result for the first match at or after `offset`: above 0 if begin() and end() are set;
  // PCRE2_ERROR_PARTIAL if begin() is, where a match may begin.
  int search(size_t offset) {
    const int result = run(run_, offset, options_);
    if (result != PCRE2_ERROR_JIT_STACKLIMIT) return result;
    return run(pcre2_match, offset, options_ | PCRE2_NO_JIT);  // its stack is the heap
  }
  size_t begin() const { return match_[0]; }
  size_t end() const { return match_[1]; }

 private:
  int run(decltype(&pcre2_match) function, size_t offset, uint32_t options) {
    const int result = function(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(),
                                offset, options, scratch_.data.get(), scratch_.context.get());
    return result == 0 ? 1 : result;  // 0: more groups than the one pair asked for
  }

  const pcre2_code* code_;
  std::string_view text_;
  const uint32_t options_;
  const Scratch& scratch_;
  const size_t* const match_;   // its two ends
  decltype(&pcre2_match) run_;  // pcre2_jit_match() checks less before it begins
};

// Of `text`, what a window from byte `from` on sees.
std::string_view head(std::string_view text, size_t from, size_t window) {
  if (text.size() - from <= window) return text;
  return text.substr(0, from + whole_characters(text.substr(from), window));
}

size_t next_character(std::string_view text, size_t at) {
  do {
    ++at;
  } while (at < text.size() && is_continuation(text[at]));
  return at;
}

}  // namespace

Regex::Regex(std::string_view oniguruma_pattern)
    : pattern_(oniguruma_pattern),
      code_(compile(oniguruma_to_pcre2(oniguruma_pattern), oniguruma_pattern),
            Deleter<pcre2_code_free>()),
      interruptible_(
          compile(oniguruma_to_interruptible_pcre2(oniguruma_pattern), oniguruma_pattern),
          Deleter<pcre2_code_free>()) {}

// In windows, so that a text is never looked at for long at once: a match that reaches past one is
// looked for again in a wider one.
void Regex::find_on(std::string_view text, bool last, bool invert, const WorkLimits& limits,
                    Search* search, const Take& take) const {
  auto& [done, from, matched, reach] = *search;
  while (last ? from <= text.size() : from < text.size()) {
    const size_t window = std::max(kSearchWindow, 2 * reach);
    const std::string_view seen = head(text, from, window);
    const bool whole = seen.size() == text.size();
    const bool wide = window > kSearchWindow;
    Matcher matcher((wide ? interruptible_ : code_).get(), seen, !last || !whole,
                    wide ? &limits : nullptr);
    int result = 0;
    while ((result = matcher.search(from)) > 0) {
      const size_t begin = matcher.begin();
      const size_t end = matcher.end();
      reach = 0;
      if (begin == end && matched && end == done) {  // an empty match right after a match is none
        from = next_character(text, from);
      } else {
        if (done != begin) take({done, begin, invert});
        take({begin, end, !invert});
        done = from = end;
        matched = true;
      }
      if (from > seen.size()) break;
    }
    limits.check();
    if (result == PCRE2_ERROR_PARTIAL) {
      from = matcher.begin();
      reach = seen.size() - from;
      if (whole) return;
    } else if (result == PCRE2_ERROR_NOMATCH) {
      if (whole) break;
      from = seen.size();
      reach = 0;
    } else if (result < 0) {
      give_up(pattern_, result);
    }
  }
  if (!last) {
    from = text.size();
    return;
  }
  if (done != text.size()) take({done, text.size(), invert});
}

size_t Regex::lookbehind() const {
  uint32_t characters = 0;
  pcre2_pattern_info(code_.get(), PCRE2_INFO_MAXLOOKBEHIND, &characters);
  return std::max<size_t>(characters, 1);
}

bool Regex::matches_all(std::string_view text) const {
  Matcher matcher(code_.get(), text, /*more=*/false, nullptr);
  return matcher.search(0) > 0 && matcher.begin() == 0 && matcher.end() == text.size();
}

}  // namespace recurve
