#include "server/text/normalizers/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <span>
#include <stdexcept>
#include <unordered_set>
#include <vector>

#include "server/text/characters.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

constexpr utf8proc_ssize_t kMaxExpansion = 32;  // the longest in Unicode is 18

// No normal form changes ASCII; NFC changes nothing below U+0300 (UAX #15, "quick check"), which in
// UTF-8 are the lead bytes below CC.
bool is_normal_already(std::string_view utf8, NormalForm form) {
  const unsigned char limit = form == NormalForm::kNfc ? 0xCC : 0x80;
  return std::all_of(utf8.begin(), utf8.end(),
                     [limit](char c) { return static_cast<unsigned char>(c) < limit; });
}

std::vector<utf8proc_int32_t> decompose(std::string_view utf8, utf8proc_option_t options) {
  std::vector<utf8proc_int32_t> out;
  out.reserve(utf8.size() + kMaxExpansion);
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(utf8.data());
  auto remaining = static_cast<utf8proc_ssize_t>(utf8.size());
  while (remaining > 0) {
    utf8proc_int32_t code_point = 0;
    const utf8proc_ssize_t used = utf8proc_iterate(bytes, remaining, &code_point);
    if (used <= 0) throw std::invalid_argument("text to normalize is not valid UTF-8");
    bytes += used;
    remaining -= used;
    utf8proc_int32_t parts[kMaxExpansion];
    int boundary = 0;
    const utf8proc_ssize_t n =
        utf8proc_decompose_char(code_point, parts, kMaxExpansion, options, &boundary);
    if (n < 0 || n > kMaxExpansion) throw std::runtime_error(utf8proc_errmsg(n));
    out.insert(out.end(), parts, parts + n);
  }
  return out;
}

auto combining_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// Canonical ordering: sorts each run of combining marks by class, stably. utf8proc's own takes
// quadratic time for a long run.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  auto is_starter = [](utf8proc_int32_t c) { return combining_class(c) == 0; };
  for (auto begin = text.begin(); begin != text.end();) {
    begin = std::find_if_not(begin, text.end(), is_starter);
    const auto end = std::find_if(begin, text.end(), is_starter);
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    begin = end;
  }
}

// The characters that may compose with one before them: the last of each full decomposition.
std::unordered_set<utf8proc_int32_t> find_composing() {
  std::unordered_set<utf8proc_int32_t> composing;
  for (utf8proc_int32_t c = 0xC0; c < 0x110000; ++c) {
    utf8proc_int32_t parts[kMaxExpansion];
    int boundary = 0;
    const utf8proc_ssize_t n =
        utf8proc_decompose_char(c, parts, kMaxExpansion, UTF8PROC_DECOMPOSE, &boundary);
    if (n > 1) composing.insert(parts[n - 1]);
  }
  return composing;
}

// Whether both decompositions of the character begin with a starter that never composes with a
// character before it.
bool begins_normal_text(utf8proc_int32_t code_point) {
  if (code_point < 0x300) return true;  // the first combining mark
  if (combining_class(code_point) != 0) return false;
  static const std::unordered_set<utf8proc_int32_t> composing = find_composing();
  for (const int options : {0 + UTF8PROC_DECOMPOSE, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT}) {
    utf8proc_int32_t parts[kMaxExpansion];
    int boundary = 0;
    const utf8proc_ssize_t n = utf8proc_decompose_char(
        code_point, parts, kMaxExpansion, static_cast<utf8proc_option_t>(options), &boundary);
    if (n < 1 || combining_class(parts[0]) != 0 || composing.contains(parts[0])) return false;
  }
  return true;
}

}  // namespace

size_t last_normalization_boundary(std::string_view utf8) {
  for (size_t at = utf8.size(); at-- > 0;) {
    if (is_continuation(utf8[at])) continue;
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(utf8.data()) + at;
    utf8proc_int32_t code_point = 0;
    utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(utf8.size() - at), &code_point);
    if (begins_normal_text(code_point)) return at;
  }
  return 0;
}

std::string normalize(std::string_view utf8, NormalForm form) {
  if (is_normal_already(utf8, form)) return std::string(utf8);
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
  if (compatible) options |= UTF8PROC_COMPAT;
  std::vector<utf8proc_int32_t> text = decompose(utf8, static_cast<utf8proc_option_t>(options));
  order_marks(text);
  auto size = static_cast<utf8proc_ssize_t>(text.size());
  if (compose) {
    constexpr int kCompose = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    size = utf8proc_normalize_utf32(text.data(), size, static_cast<utf8proc_option_t>(kCompose));
    if (size < 0) throw std::runtime_error(utf8proc_errmsg(size));
  }
  std::string out;
  for (const auto c : std::span(text).first(static_cast<size_t>(size))) {
    append_utf8(static_cast<char32_t>(c), out);
  }
  return out;
}

}  // namespace recurve
