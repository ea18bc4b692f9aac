#include "server/text/sentencepiece_tokenizer.h"

#include <fmt/core.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

#include "server/text/added_tokens.h"
#include "server/text/sentencepiece_borders.h"
#include "server/text/sentencepiece_bpe.h"
#include "server/text/sentencepiece_model.h"
#include "server/text/sentencepiece_normalizer.h"
#include "server/text/sentencepiece_unigram.h"
#include "server/text/word_model.h"

namespace recurve {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, SentencePiece's space

std::string marks_to_spaces(std::string_view piece) {
  std::string out;
  while (!piece.empty()) {
    const bool mark = piece.starts_with(kSpaceMark);
    out.push_back(mark ? ' ' : piece[0]);
    piece.remove_prefix(mark ? kSpaceMark.size() : 1);
  }
  return out;
}

LeadingSpace leading_space_of(const SentencePieceModel& model) {
  if (model.remove_extra_whitespaces) return LeadingSpace::kStripAll;
  return model.add_dummy_prefix ? LeadingSpace::kStripOnce : LeadingSpace::kKeep;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string_view bytes, const SentencePieceModel& model)
      : processor_(load(std::string(bytes))),
        leading_space_(leading_space_of(model)),
        marks_start_(model.add_dummy_prefix),
        normalizer_(model),
        borders_(model, has_byte_pieces()),
        own_(segmentation(model)) {
    if (!own_) segmenter_ = load(without_normalization(bytes, model));
    for (const SentencePieceModel::Piece& piece : model.pieces) {
      control_.push_back(piece.control);
    }
    for (int32_t id = 0; id < size(); ++id) {
      const std::string& name = processor_->IdToPiece(id);
      bytes_.push_back(bytes_of(id, name));
      // <unk> is told by its id, and its surface is the library's.
      space_mark_.push_back(!processor_->IsUnknown(id) && !is_special(id) &&
                            !processor_->IsByte(id) && name.starts_with(kSpaceMark));
      if (!is_special(id) || name.size() > AddedTokenFinder::kMaxBytes) continue;
      AddedToken control;
      control.id = id;
      control.special = true;
      controls_.add(control, name);
    }
  }

  std::unique_ptr<TextEncoder> encoder(SpecialTokens special, TextPosition position,
                                       const WorkLimits& limits) const override {
    return std::make_unique<Encoder>(*this, special, position, limits);
  }
  bool marks_start() const override { return marks_start_; }

  int32_t size() const override { return processor_->GetPieceSize(); }
  std::string_view token_bytes(int32_t id) const override {
    return valid(id) ? std::string_view(bytes_[static_cast<size_t>(id)]) : std::string_view();
  }
  bool is_special(int32_t id) const override {
    return valid(id) && control_[static_cast<size_t>(id)];
  }
  std::optional<int32_t> id_of(std::string_view name) const override {
    const int32_t id = processor_->PieceToId(name);
    if (!valid(id) || processor_->IdToPiece(id) != name) return std::nullopt;
    return id;
  }
  std::optional<int32_t> bos_id() const override { return known(processor_->bos_id()); }
  std::optional<int32_t> eos_id() const override { return known(processor_->eos_id()); }
  LeadingSpace leading_space() const override { return leading_space_; }
  bool has_space_mark(int32_t id) const override {
    return valid(id) && space_mark_[static_cast<size_t>(id)];
  }
  std::string description() const override {
    return fmt::format("SentencePiece, {} pieces", size());
  }

 private:
  bool valid(int32_t id) const { return id >= 0 && id < size(); }
  std::optional<int32_t> known(int32_t id) const {
    return valid(id) ? std::optional(id) : std::nullopt;
  }

  using Processor = std::shared_ptr<const sentencepiece::SentencePieceProcessor>;

  // Normalised text is segmented in blocks of about this size, which is exact (borders_) and keeps
  // time linear.
  static constexpr size_t kBlockBytes = 16 << 10;
  static constexpr size_t kLookedAt = 4;  // bytes of the character that a border needs

  class Encoder final : public TextEncoder {
   public:
    Encoder(const SentencePieceTokenizer& tokenizer, SpecialTokens special, TextPosition position,
            const WorkLimits& limits)
        : tokenizer_(tokenizer), limits_(limits), normalization_(tokenizer.normalizer_, position) {
      if (tokenizer.own_) words_ = tokenizer.own_->encoder();
      set_special(special, nullptr);
    }

    void push(std::string_view utf8, bool last, std::vector<int32_t>* ids) override {
      limits_.check();
      if (!controls_) return add_text(utf8, last, ids);
      for (const AddedSpan& span : controls_->push(utf8, trusted_, last)) {
        if (span.id < 0) {
          add_text(span.text, false, ids);
        } else {
          add_text({}, true, ids);
          ids->push_back(span.id);
        }
      }
      if (last) add_text({}, true, ids);
    }
    // Nothing is looked for until something can be found.
    void set_special(SpecialTokens special, std::vector<int32_t>*) override {
      trusted_ = special == SpecialTokens::kParse;
      if (trusted_ && !controls_) controls_.emplace(tokenizer_.controls_);
    }
    size_t held() const override {
      return text_.size() + normalization_.held() + (controls_ ? controls_->held() : 0);
    }

   private:
    void add_text(std::string_view part, bool last, std::vector<int32_t>* ids) {
      normalization_.push(part, last, text_);
      size_t begin = 0;
      while (text_.size() - begin > kBlockBytes) {
        const std::string_view rest = std::string_view(text_).substr(begin);
        const size_t border = tokenizer_.borders_.find(rest, std::max(searched_, kBlockBytes));
        if (border == rest.npos) {
          if (!words_) check_stretch(rest.size());
          searched_ = rest.size() - std::min(rest.size(), kLookedAt);
          break;
        }
        encode(rest.substr(0, border), ids);
        searched_ = 0;
        begin += border;
      }
      text_.erase(0, begin);
      if (!last) return;
      encode(text_, ids);
      text_.clear();
      searched_ = 0;
      // What stands behind a control token begins a text.
      normalization_ = SentencePieceNormalizer::Text(tokenizer_.normalizer_, TextPosition::kStart);
    }

    // The library takes some hundred bytes of memory for a byte of what it is given.
    static void check_stretch(size_t bytes) {
      constexpr size_t kMost = 256 << 10;
      if (bytes <= kMost) return;
      throw TextRefused(
          fmt::format("this model's tokenizer needs a place to cut the text every {} bytes, e.g. a "
                      "space before "
                      "a word, and found none in {}",
                      kMost, bytes));
    }

    void encode(std::string_view block, std::vector<int32_t>* ids) {
      limits_.check();
      if (block.empty()) return;
      if (words_) {
        words_->encode(block, limits_, *ids);
      } else {
        for (const int id : run(*tokenizer_.segmenter_, block)) ids->push_back(id);
      }
      limits_.check(ids->size());
    }

    const SentencePieceTokenizer& tokenizer_;
    const WorkLimits limits_;
    std::unique_ptr<WordEncoder> words_;  // null: the library's work
    std::optional<AddedTokenScanner> controls_;
    bool trusted_ = false;
    SentencePieceNormalizer::Text normalization_;
    std::string text_;     // normalised
    size_t searched_ = 0;  // there is no border before
  };

  // Null: the library's work.
  static std::unique_ptr<const WordModel> segmentation(const SentencePieceModel& model) {
    if (segments_alone(model)) return sentencepiece_unigram(model);
    if (merges_alone(model)) return sentencepiece_bpe(model);
    return nullptr;
  }

  static std::vector<int> run(const sentencepiece::SentencePieceProcessor& processor,
                              std::string_view text) {
    std::vector<int> ids;
    const auto status = processor.Encode(text, &ids);
    if (!status.ok()) throw std::runtime_error("SentencePiece cannot encode: " + status.ToString());
    return ids;
  }

  static Processor load(const std::string& bytes) {
    auto processor = std::make_shared<sentencepiece::SentencePieceProcessor>();
    const auto status = processor->LoadFromSerializedProto(bytes);
    if (!status.ok()) {
      throw std::runtime_error("SentencePiece refuses the model: " + status.ToString());
    }
    return processor;
  }

  bool has_byte_pieces() const {
    for (int32_t id = 0; id < size(); ++id) {
      if (processor_->IsByte(id)) return true;
    }
    return false;
  }

  std::string bytes_of(int32_t id, std::string_view name) const {
    if (is_special(id)) return {};
    if (processor_->IsUnknown(id)) return processor_->DecodeIds(std::vector<int>{id});
    if (processor_->IsByte(id)) {  // "<0xNN>", which the library has checked
      return {static_cast<char>(std::stoi(std::string(name.substr(3, 2)), nullptr, 16))};
    }
    return marks_to_spaces(name);
  }

  Processor processor_;  // the file's
  Processor segmenter_;  // of normalised text; null where that is done here
  LeadingSpace leading_space_;
  bool marks_start_;
  SentencePieceNormalizer normalizer_;
  SentencePieceBorders borders_;
  std::unique_ptr<const WordModel> own_;  // segments normalised text; null: the library does
  std::vector<bool> control_;             // [id]
  std::vector<std::string> bytes_;        // [id]
  std::vector<bool> space_mark_;          // [id]
  AddedTokenFinder controls_;
};

// The library takes a file cut between two of its parts for a model with default settings.
void check_model(const SentencePieceModel& model) {
  if (!model.has_trainer_spec || !model.has_normalizer_spec || model.pieces.empty()) {
    throw std::runtime_error("the file is truncated or not a SentencePiece model");
  }
  if (model.pieces.size() > std::numeric_limits<int32_t>::max() / 2) {
    throw std::runtime_error(fmt::format("{} pieces are too many", model.pieces.size()));
  }
  if (model.space_as_suffix) {
    throw std::runtime_error("treat_whitespace_as_suffix is not supported");
  }
}

}  // namespace

std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view bytes, const std::string& file,
                                               const TokenFiles& others) {
  try {
    SentencePieceModel model = read_sentencepiece_model(bytes);
    check_model(model);
    take_stated(model, others);
    return std::make_unique<SentencePieceTokenizer>(bytes, model);
  } catch (const std::exception& e) {
    throw std::runtime_error(fmt::format("{}: {}", file, e.what()));
  }
}

}  // namespace recurve
