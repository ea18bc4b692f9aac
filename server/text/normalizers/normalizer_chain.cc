#include "server/text/normalizers/normalizer_chain.h"

#include <utf8proc.h>

#include <algorithm>
#include <utility>

#include "server/text/characters.h"
#include "server/text/utf8.h"

namespace recurve {

class Normalization::Stage {
 public:
  virtual ~Stage() = default;
  // Appends the output that is certain now to `out`.
  virtual void push(std::string_view utf8, End end, std::string& out) = 0;
  virtual size_t held() const { return 0; }

 protected:
  using End = Normalization::End;
};

namespace {

using Map = NormalizerChain::Map;

void append_mapped(Map map, char32_t c, std::string_view utf8, std::string& out) {
  switch (map) {
    case Map::kLowercase:
      return append_lower_case(c, out);
    case Map::kStripMarks:
      if (!is_mark(c)) out.append(utf8);
      return;
    case Map::kStripNonspacingMarks:
      if (!is_nonspacing_mark(c)) out.append(utf8);
      return;
    case Map::kCleanText:
      if (c == '\t' || c == '\n' || c == '\r') {
        out.push_back(' ');
      } else if (c != 0xFFFD && !is_other(c)) {
        out.append(is_white_space(c) ? " " : utf8);
      }
      return;
    case Map::kSpaceChinese:
      if (is_chinese(c)) out.push_back(' ');
      out.append(utf8);
      if (is_chinese(c)) out.push_back(' ');
      return;
    case Map::kNmt:
      if (!is_nmt_control(c)) out.append(is_nmt_space(c) ? " " : utf8);
  }
}

// Finds the extended grapheme clusters of a text (UAX #29).
class GraphemeBoundaries {
 public:
  // Whether a cluster begins with `c`, which follows the character of the last call.
  bool is_before(char32_t c) {
    const auto here = static_cast<utf8proc_int32_t>(c);
    const utf8proc_int32_t before = std::exchange(before_, here);
    return before < 0 || utf8proc_grapheme_break_stateful(before, here, &state_);
  }

 private:
  utf8proc_int32_t before_ = -1;
  utf8proc_int32_t state_ = 0;
};

// Maps characters as `tokenizers` does: looks up a grapheme cluster of few bytes as a whole, and
// the single characters of a longer one, or of one that is not in the map.
class CharsMapStage final : public Normalization::Stage {
 public:
  explicit CharsMapStage(const CharsMap& map) : map_(map) {}
  void push(std::string_view utf8, End end, std::string& out) override {
    while (!utf8.empty()) {
      const Character c = first_code_point(utf8);
      if (boundaries_.is_before(c.code_point)) finish_cluster(out);
      cluster_.append(utf8, 0, c.bytes);
      utf8.remove_prefix(c.bytes);
      is_long_ = is_long_ || cluster_.size() > kFewBytes;
      if (is_long_) map_characters(out);
    }
    if (end == End::kOpen) return;
    finish_cluster(out);
    boundaries_ = {};
  }
  size_t held() const override { return cluster_.size(); }

 private:
  static constexpr size_t kFewBytes = 5;

  void finish_cluster(std::string& out) {
    const auto whole = map_.find(cluster_);
    if (whole) {
      out += *whole;
      cluster_.clear();
    } else {
      map_characters(out);
    }
    is_long_ = false;
  }
  void map_characters(std::string& out) {
    for (std::string_view rest = cluster_; !rest.empty();) {
      const std::string_view character = rest.substr(0, first_code_point(rest).bytes);
      out += map_.find(character).value_or(character);
      rest.remove_prefix(character.size());
    }
    cluster_.clear();
  }

  const CharsMap& map_;
  GraphemeBoundaries boundaries_;
  std::string cluster_;   // the last one, without what has been emitted
  bool is_long_ = false;  // cluster_
};

class FormStage final : public Normalization::Stage {
 public:
  explicit FormStage(NormalForm form) : form_(form) {}
  void push(std::string_view utf8, End end, std::string& out) override {
    text_.append(utf8);
    const size_t certain = end == End::kOpen ? last_normalization_boundary(text_) : text_.size();
    out += normalize(std::string_view(text_).substr(0, certain), form_);
    text_.erase(0, certain);
  }
  size_t held() const override { return text_.size(); }

 private:
  const NormalForm form_;
  std::string text_;
};

class MapStage final : public Normalization::Stage {
 public:
  explicit MapStage(Map map) : map_(map) {}
  void push(std::string_view utf8, End, std::string& out) override {
    while (!utf8.empty()) {
      const Character c = first_code_point(utf8);
      append_mapped(map_, c.code_point, utf8.substr(0, c.bytes), out);
      utf8.remove_prefix(c.bytes);
    }
  }

 private:
  const Map map_;
};

class ReplaceStage final : public Normalization::Stage {
 public:
  ReplaceStage(const NormalizerChain::Replace& step, const WorkLimits& limits)
      : step_(step), limits_(limits) {}
  void push(std::string_view utf8, End end, std::string& out) override {
    text_.append(utf8);
    const bool whole = end != End::kOpen;
    const auto write = [&](const Span& span) {
      out += span.is_match ? std::string_view(step_.content)
                           : std::string_view(text_).substr(span.begin, span.end - span.begin);
    };
    step_.pattern.find_on(text_, whole, /*invert=*/false, limits_, &search_, write);
    if (whole) {
      text_.clear();
      search_ = {};
    } else {
      emit_certain(out);
    }
  }
  size_t held() const override { return text_.size(); }

 private:
  // Emits the text in which no match can begin any more, and drops it except for what the pattern's
  // lookbehind needs.
  void emit_certain(std::string& out) {
    if (search_.from > search_.done) {
      out.append(text_, search_.done, search_.from - search_.done);
      search_.done = search_.from;
      search_.matched = false;
    }
    const size_t drop = characters_before(text_, search_.done, step_.pattern.lookbehind());
    text_.erase(0, drop);
    search_.done -= drop;
    search_.from -= drop;
  }

  const NormalizerChain::Replace& step_;
  const WorkLimits limits_;
  std::string text_;
  Regex::Search search_;
};

class PrependStage final : public Normalization::Stage {
 public:
  PrependStage(const NormalizerChain::Prepend& step, TextPosition position)
      : step_(step), pending_(position == TextPosition::kStart) {}
  void push(std::string_view utf8, End, std::string& out) override {
    if (utf8.empty()) return;
    if (std::exchange(pending_, false)) out += step_.content;
    out.append(utf8);
  }

 private:
  const NormalizerChain::Prepend& step_;
  bool pending_;
};

class StripStage final : public Normalization::Stage {
 public:
  explicit StripStage(const NormalizerChain::Strip& step) : step_(step), at_start_(step.left) {}
  void push(std::string_view utf8, End end, std::string& out) override {
    while (!utf8.empty()) {
      const Character c = first_code_point(utf8);
      const bool space = is_white_space(c.code_point);
      if (space && step_.right && !at_start_) {
        spaces_.append(utf8, 0, c.bytes);
      } else if (!space || !at_start_) {
        at_start_ = false;
        out += std::exchange(spaces_, {});
        out.append(utf8, 0, c.bytes);
      }
      utf8.remove_prefix(c.bytes);
    }
    if (end == End::kText) spaces_.clear();
  }
  size_t held() const override { return spaces_.size(); }

 private:
  const NormalizerChain::Strip step_;
  bool at_start_;
  std::string spaces_;  // white space that may be at the end
};

struct StageBuilder {
  TextPosition position;
  const WorkLimits& limits;
  std::unique_ptr<Normalization::Stage> operator()(NormalForm form) const {
    return std::make_unique<FormStage>(form);
  }
  std::unique_ptr<Normalization::Stage> operator()(Map map) const {
    return std::make_unique<MapStage>(map);
  }
  std::unique_ptr<Normalization::Stage> operator()(const CharsMap& map) const {
    return std::make_unique<CharsMapStage>(map);
  }
  std::unique_ptr<Normalization::Stage> operator()(const NormalizerChain::Replace& step) const {
    return std::make_unique<ReplaceStage>(step, limits);
  }
  std::unique_ptr<Normalization::Stage> operator()(const NormalizerChain::Prepend& step) const {
    return std::make_unique<PrependStage>(step, position);
  }
  std::unique_ptr<Normalization::Stage> operator()(const NormalizerChain::Strip& step) const {
    return std::make_unique<StripStage>(step);
  }
};

}  // namespace

bool NormalizerChain::marks_start() const {
  return std::any_of(steps_.begin(), steps_.end(),
                     [](const Step& step) { return std::holds_alternative<Prepend>(step); });
}

std::string NormalizerChain::normalize(std::string_view utf8) const {
  return Normalization(*this, TextPosition::kStart, {}).push(utf8, /*last=*/true);
}

Normalization::Normalization(const NormalizerChain& chain, TextPosition position,
                             const WorkLimits& limits) {
  const StageBuilder make{position, limits};
  for (const auto& step : chain.steps()) stages_.push_back(std::visit(make, step));
}

Normalization::~Normalization() = default;
Normalization::Normalization(Normalization&&) noexcept = default;
Normalization& Normalization::operator=(Normalization&&) noexcept = default;

std::string Normalization::push(std::string_view utf8, bool last) {
  return run(utf8, last ? End::kText : End::kOpen);
}

std::string Normalization::cut() { return run({}, End::kCut); }

size_t Normalization::held() const {
  size_t bytes = 0;
  for (const auto& stage : stages_) bytes += stage->held();
  return bytes;
}

std::string Normalization::run(std::string_view utf8, End end) {
  std::string text(utf8);
  for (const auto& stage : stages_) {
    std::string out;
    stage->push(text, end, out);
    text = std::move(out);
  }
  return text;
}

}  // namespace recurve
