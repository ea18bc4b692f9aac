// Replaces sources of xgrammar that no constraint needs, which are neither compiled nor shipped
// (xgrammar.cmake).
#include <stdexcept>

#include "lark_converter.h"

namespace xgrammar {

Grammar LarkToGrammar(const std::string&, const std::optional<TokenizerInfo>&,
                      const std::vector<NamedGrammar>&) {
  throw std::runtime_error("grammars in Lark's format are not supported");
}

}  // namespace xgrammar
