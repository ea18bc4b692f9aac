#pragma once
#include <cstdint>

namespace recurve {

// How the rows of a mixed batch belong to sequences, and where each sequence keeps its state.
// Prompt chunks and single-token decodes share one form: sequence b owns the rows
// [begin[b], begin[b + 1]) in the order of time, at least one. No slot appears twice.
struct Ragged {
  int num_seqs = 0;
  int rows = 0;                    // all sequences together, = begin[num_seqs]
  int max_len = 0;                 // rows of the longest sequence
  const int32_t* begin = nullptr;  // (num_seqs + 1)
  const int32_t* slot = nullptr;   // (num_seqs); slot 0 is scratch, used to pad captured graphs
};

}  // namespace recurve
