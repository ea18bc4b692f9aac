#include "server/text/pre_tokenizers/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/core.h>
#include <pcre2.h>

#include <algorithm>

#include "server/text/json/json_fields.h"
#include "server/text/utf8.h"
#include "server/text/work_limits.h"

namespace recurve {
namespace {

constexpr size_t kMaxPatternBytes = 16 * 1024;
constexpr uint32_t kMatchLimit =
    20'000'000;  // backtracking steps of one match: 16 MB of white space take one per byte
constexpr uint32_t kHeapLimitKiB = 64 * 1024;
constexpr size_t kSearchWindow = 1 << 20;  // bytes of the first window
constexpr size_t kJitStack = 1 << 20;      // most bytes; a match of 16 MB takes about 50 KB

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
  // In Ruby, ^ and $ always match at lines, and only "\n" is a newline.
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
  // If this fails, the interpreter is used, which is slower.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  return code;
}

// Scratch memory of matching. One per thread, so that Regex is constant and the search of a short
// text allocates nothing.
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

[[noreturn]] void refuse_text(std::string_view pattern, int result) {
  unsigned char reason[256] = {};
  pcre2_get_error_message(result, reason, sizeof reason);
  throw TextRefused(fmt::format("the tokenizer's pattern {} cannot split the text: {}",
                                quote(pattern), reinterpret_cast<const char*>(reason)));
}

// A callout, which ends the match by a result below 0.
int end_if_unwanted(pcre2_callout_block*, void* limits) {
  const auto* unwanted = static_cast<const WorkLimits*>(limits)->unwanted;
  const bool ends = unwanted != nullptr && unwanted->load(std::memory_order_relaxed);
  return ends ? PCRE2_ERROR_CALLOUT : 0;
}

// Searches in one window of a text.
class Matcher {
 public:
  // `more`: text may follow. A search then ends in PCRE2_ERROR_PARTIAL if its result depends on it
  // (pcre2partial(3), PCRE2_PARTIAL_HARD). `limits`: for code that calls out, else null.
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
  // PCRE2_ERROR_PARTIAL if only begin() is set, where a match may begin.
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
  const size_t* const match_;   // begin and end
  decltype(&pcre2_match) run_;  // pcre2_jit_match() skips some checks
};

// The text up to the end of a window that begins at byte `from`.
std::string_view head(std::string_view text, size_t from, size_t window) {
  if (text.size() - from <= window) return text;
  return text.substr(0, from + whole_characters(text.substr(from), window));
}

}  // namespace

Regex::Regex(std::string_view oniguruma_pattern)
    : pattern_(oniguruma_pattern),
      code_(compile(oniguruma_to_pcre2(oniguruma_pattern), oniguruma_pattern),
            Deleter<pcre2_code_free>()),
      interruptible_(
          compile(oniguruma_to_interruptible_pcre2(oniguruma_pattern), oniguruma_pattern),
          Deleter<pcre2_code_free>()) {}

// Searches in windows, so that one call of PCRE2 is short. A match that does not end in a window is
// searched again in a larger one.
void Regex::find_on(std::string_view text, bool last, bool invert, const WorkLimits& limits,
                    Search* search, const Sink& sink) const {
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
      if (begin == end && matched &&
          end == done) {  // an empty match directly after a match does not count
        from = next_character(text, from);
      } else {
        if (done != begin) sink({done, begin, invert});
        sink({begin, end, !invert});
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
      refuse_text(pattern_, result);
    }
  }
  if (!last) {
    from = text.size();
    return;
  }
  if (done != text.size()) sink({done, text.size(), invert});
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

std::string literal_pattern(const std::string& text) {
  std::string pattern;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       static_cast<unsigned char>(c) >= 0x80 || c == '\n' || c == '\r' ||
                       c == '\t' || c == '\0';
    if (!plain) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return pattern;
}

Regex read_pattern(Fields& fields) {
  Fields pattern(fields.require("pattern"), fields.where() + ".pattern");
  const bool literal = pattern.find("String") != nullptr;
  const std::string text = pattern.get_string(literal ? "String" : "Regex");
  pattern.finish();
  return Regex(literal ? literal_pattern(text) : text);
}

}  // namespace recurve
