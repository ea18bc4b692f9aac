#pragma once

#include <stdexcept>

namespace recurve {

// A tokenizer file that is well formed but asks for something not implemented here. Never ignored:
// it would change the ids.
class UnsupportedTokenizer : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace recurve
