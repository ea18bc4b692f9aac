#include "server/text/sentencepiece_tokenizer.h"

#include <fmt/core.h>
#include <sentencepiece_processor.h>

#include <limits>
#include <stdexcept>
#include <vector>

#include "server/text/added_tokens.h"
#include "server/text/sentencepiece_model.h"
#include "server/text/utf8.h"

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
  SentencePieceTokenizer(std::unique_ptr<sentencepiece::SentencePieceProcessor> processor,
                         LeadingSpace leading_space)
      : processor_(std::move(processor)), leading_space_(leading_space) {
    for (int32_t id = 0; id < size(); ++id) {
      const std::string& name = processor_->IdToPiece(id);
      bytes_.push_back(bytes_of(id, name));
      // <unk> is told by its id, and its surface is the library's.
      space_mark_.push_back(!processor_->IsUnknown(id) && !processor_->IsControl(id) &&
                            !processor_->IsByte(id) && name.starts_with(kSpaceMark));
      if (!is_special(id) || name.size() > AddedTokenFinder::kMaxBytes) continue;
      AddedToken control;
      control.id = id;
      controls_.add(control, name);
    }
  }

  std::vector<int32_t> encode(std::string_view utf8, SpecialTokens special) const override {
    std::string repaired;
    if (!is_valid_utf8(utf8)) utf8 = repaired = to_valid_utf8(utf8);
    std::vector<int32_t> ids;
    if (special == SpecialTokens::kAsText) {
      encode_text(utf8, ids);
      return ids;
    }
    for (const AddedSpan& span : controls_.find(utf8, /*skip_special=*/false)) {
      if (span.id >= 0) {
        ids.push_back(span.id);
      } else {
        encode_text(utf8.substr(span.begin, span.end - span.begin), ids);
      }
    }
    return ids;
  }

  int32_t size() const override { return processor_->GetPieceSize(); }
  std::string_view token_bytes(int32_t id) const override {
    return valid(id) ? std::string_view(bytes_[static_cast<size_t>(id)]) : std::string_view();
  }
  bool is_special(int32_t id) const override { return valid(id) && processor_->IsControl(id); }
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

  void encode_text(std::string_view text, std::vector<int32_t>& out) const {
    std::vector<int> ids;
    const auto status = processor_->Encode(text, &ids);
    if (!status.ok()) throw std::runtime_error("SentencePiece cannot encode: " + status.ToString());
    out.insert(out.end(), ids.begin(), ids.end());
  }

  std::string bytes_of(int32_t id, std::string_view name) const {
    if (processor_->IsControl(id)) return {};
    if (processor_->IsUnknown(id)) return processor_->DecodeIds(std::vector<int>{id});
    if (processor_->IsByte(id)) {  // "<0xNN>", which the library has checked
      return {static_cast<char>(std::stoi(std::string(name.substr(3, 2)), nullptr, 16))};
    }
    return marks_to_spaces(name);
  }

  std::unique_ptr<const sentencepiece::SentencePieceProcessor> processor_;
  LeadingSpace leading_space_;
  std::vector<std::string> bytes_;  // [id]
  std::vector<bool> space_mark_;    // [id]
  AddedTokenFinder controls_;
};

// The library takes a file cut between two of its parts for a model with default settings.
void check_model(const SentencePieceModel& model) {
  if (!model.has_trainer_spec || !model.has_normalizer_spec || model.pieces == 0) {
    throw std::runtime_error("the file is truncated or not a SentencePiece model");
  }
  if (model.pieces > std::numeric_limits<int32_t>::max() / 2) {
    throw std::runtime_error(fmt::format("{} pieces are too many", model.pieces));
  }
  if (model.space_as_suffix) {
    throw std::runtime_error("treat_whitespace_as_suffix is not supported");
  }
}

}  // namespace

std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view bytes, const std::string& file) {
  try {
    const SentencePieceModel model = read_sentencepiece_model(bytes);
    check_model(model);
    auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
    const auto status = processor->LoadFromSerializedProto(bytes);
    if (!status.ok()) {
      throw std::runtime_error("SentencePiece refuses the model: " + status.ToString());
    }
    return std::make_unique<SentencePieceTokenizer>(std::move(processor), leading_space_of(model));
  } catch (const std::exception& e) {
    throw std::runtime_error(fmt::format("{}: {}", file, e.what()));
  }
}

}  // namespace recurve
