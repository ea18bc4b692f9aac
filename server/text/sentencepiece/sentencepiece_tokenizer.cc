#include "server/text/sentencepiece/sentencepiece_tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "server/text/models/word_model.h"
#include "server/text/sentencepiece/sentencepiece_model.h"
#include "server/text/sentencepiece/sentencepiece_normalizer.h"
#include "server/text/sentencepiece/sentencepiece_segmentation.h"
#include "server/text/tokenizers/added_tokens.h"
#include "server/text/tokenizers/token_decoder.h"

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
  explicit SentencePieceTokenizer(const SentencePieceModel& model)
      : leading_space_(leading_space_of(model)),
        marks_start_(model.add_dummy_prefix),
        normalizer_(model),
        boundaries_(model, model.byte_fallback),
        segmentation_(segmentation_of(model)) {
    for (const SentencePieceModel::Piece& piece : model.pieces) add(piece, model.unknown_text);
    bos_id_ = control_id(model, model.bos);
    eos_id_ = control_id(model, model.eos);
  }

  std::unique_ptr<TextEncoder> encoder(SpecialTokens special, TextPosition position,
                                       const WorkLimits& limits) const override {
    return std::make_unique<Encoder>(*this, special, position, limits);
  }
  bool marks_start() const override { return marks_start_; }

  int32_t size() const override { return static_cast<int32_t>(bytes_.size()); }
  std::string_view token_bytes(int32_t id) const override {
    return valid(id) ? std::string_view(bytes_[static_cast<size_t>(id)]) : std::string_view();
  }
  bool is_special(int32_t id) const override {
    return valid(id) && control_[static_cast<size_t>(id)];
  }
  std::optional<int32_t> id_of(std::string_view name) const override {
    const auto found = ids_.find(std::string(name));
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<int32_t> bos_id() const override { return bos_id_; }
  std::optional<int32_t> eos_id() const override { return eos_id_; }
  LeadingSpace leading_space() const override { return leading_space_; }
  bool has_space_mark(int32_t id) const override {
    return valid(id) && space_mark_[static_cast<size_t>(id)];
  }
  std::string description() const override {
    return fmt::format("SentencePiece, {} pieces", size());
  }

 private:
  bool valid(int32_t id) const { return id >= 0 && id < size(); }

  void add(const SentencePieceModel::Piece& piece, std::string_view unknown_text) {
    const int32_t id = size();
    ids_.emplace(piece.name, id);
    control_.push_back(piece.control);
    bytes_.push_back(bytes_of(piece, unknown_text));
    space_mark_.push_back(!piece.control && piece.type != PieceType::kUnknown &&
                          piece.type != PieceType::kByte && piece.name.starts_with(kSpaceMark));
    if (!piece.control || piece.name.size() > AddedTokenFinder::kMaxBytes) return;
    AddedToken control;
    control.id = id;
    control.special = true;
    controls_.add(control, std::string(piece.name));
  }
  std::optional<int32_t> control_id(const SentencePieceModel& model, std::string_view name) const {
    const std::optional<int32_t> id = id_of(name);
    const bool control = id && model.pieces[static_cast<size_t>(*id)].type == PieceType::kControl;
    return control ? id : std::nullopt;
  }

  // Normalized text is segmented in blocks of about this size, at boundaries, in linear time.
  static constexpr size_t kBlockBytes = 16 << 10;
  static constexpr size_t kMostBytes = 4;  // of a character

  class Encoder final : public ControlTokenEncoder {
   public:
    Encoder(const SentencePieceTokenizer& tokenizer, SpecialTokens special, TextPosition position,
            const WorkLimits& limits)
        : ControlTokenEncoder(tokenizer.controls_, special, limits),
          tokenizer_(tokenizer),
          words_(tokenizer.segmentation_->encoder()),
          normalization_(tokenizer.normalizer_, position) {}

    size_t held() const override {
      return text_.size() + normalization_.held() + ControlTokenEncoder::held();
    }

   private:
    void add_text(std::string_view part, bool last, std::vector<int32_t>* ids) override {
      normalization_.push(part, last, text_);
      size_t begin = 0;
      while (text_.size() - begin > kBlockBytes) {
        const std::string_view rest = std::string_view(text_).substr(begin);
        const size_t boundary = tokenizer_.boundaries_.find(rest, std::max(searched_, kBlockBytes));
        if (boundary == rest.npos) {
          searched_ = rest.size() - std::min(rest.size(), kMostBytes);
          break;
        }
        encode(rest.substr(0, boundary), ids);
        searched_ = 0;
        begin += boundary;
      }
      text_.erase(0, begin);
      if (!last) return;
      encode(text_, ids);
      text_.clear();
      searched_ = 0;
      // A new text begins after a control token.
      normalization_ = SentencePieceNormalizer::Text(tokenizer_.normalizer_, TextPosition::kStart);
    }

    void encode(std::string_view block, std::vector<int32_t>* ids) {
      limits_.check();
      if (block.empty()) return;
      words_->encode(block, limits_, *ids);
      limits_.check(ids->size());
    }

    const SentencePieceTokenizer& tokenizer_;
    std::unique_ptr<WordEncoder> words_;
    SentencePieceNormalizer::Text normalization_;
    std::string text_;     // normalized
    size_t searched_ = 0;  // there is no boundary before this byte
  };

  static std::unique_ptr<const WordModel> segmentation_of(const SentencePieceModel& model) {
    if (model.type == ModelType::kBpe) return sentencepiece_bpe(model);
    return sentencepiece_unigram(model);
  }

  static std::string bytes_of(const SentencePieceModel::Piece& piece,
                              std::string_view unknown_text) {
    if (piece.control) return {};
    if (piece.type == PieceType::kUnknown) return std::string(unknown_text);
    if (piece.type == PieceType::kByte) return {static_cast<char>(byte_of_name(piece.name))};
    return marks_to_spaces(piece.name);
  }

  LeadingSpace leading_space_;
  bool marks_start_;
  SentencePieceNormalizer normalizer_;
  SentencePieceBoundaries boundaries_;
  std::unique_ptr<const WordModel> segmentation_;  // of normalized text
  std::unordered_map<std::string, int32_t> ids_;   // by name
  std::optional<int32_t> bos_id_, eos_id_;
  std::vector<bool> control_;       // [id]
  std::vector<std::string> bytes_;  // [id]
  std::vector<bool> space_mark_;    // [id]
  AddedTokenFinder controls_;
};

}  // namespace

std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view bytes, const std::string& file,
                                               const TokenFiles& others) {
  try {
    SentencePieceModel model = read_sentencepiece_model(bytes);
    check(model);
    mark_named_tokens(model, others);
    return std::make_unique<SentencePieceTokenizer>(model);
  } catch (const std::exception& e) {
    throw std::runtime_error(fmt::format("{}: {}", file, e.what()));
  }
}

}  // namespace recurve
