// What stands in place of those sources of xgrammar that no constraint needs, so that they are
// neither compiled nor shipped (xgrammar.cmake).
#include <stdexcept>

#include "lark_converter.h"

namespace xgrammar {

Grammar LarkToGrammar(const std::string&, const std::optional<TokenizerInfo>&,
                      const std::vector<NamedGrammar>&) {
  throw std::runtime_error("grammars in Lark's form are left out");
}

}  // namespace xgrammar
