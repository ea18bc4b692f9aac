#include "server/text/tokenizers/id_tokenizer.h"

namespace recurve {
namespace {

// Makes no ids, as there is no text.
class NoText final : public TextEncoder {
 public:
  void push(std::string_view, bool, std::vector<int32_t>*) override {}
  void set_special(SpecialTokens, std::vector<int32_t>*) override {}
  size_t held() const override { return 0; }
};

}  // namespace

std::unique_ptr<TextEncoder> IdTokenizer::encoder(SpecialTokens, TextPosition,
                                                  const WorkLimits&) const {
  return std::make_unique<NoText>();
}

}  // namespace recurve
