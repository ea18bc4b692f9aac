#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace recurve {

// Bytes [begin, end) of a text.
struct ByteRange {
  size_t begin;
  size_t end;
};

// A text and ranges of it, in ascending order, none empty, none touching the next.
struct RangedText {
  std::string text;
  std::vector<ByteRange> ranges;
};

}  // namespace recurve
